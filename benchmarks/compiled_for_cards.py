"""Phases compiled for cards that are not here: python benchmarks/compiled_for_cards.py [RECIPE ...] [--out RESULT.json]

Needs Triton (pip install "frugan[kernels]"), no card and no CUDA build. Each phase of a recipe is traced as a card runs
it; torch's compiler writes its program for a card that is only described, and Triton makes machine code of every
kernel. Beside what the programs do stands what a plan says of the same phases (`frugan.memory.compiled`); `--plans`
renews that part of the record alone. What a record has already is not compiled again, and it is written after each
phase: the largest take half an hour.
"""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch.utils._python_dispatch import _disable_current_modes

from card_programs import Assembler, KernelCode, Program, traced, written
from described_card import CARDS, DescribedCard, describe
from frugan.accelerator.precision import card_precision
from frugan.contract.phase import MicroBatch, Networks, Phase, PhaseState, Terms
from frugan.engine.compiled_phases import PhaseWork
from frugan.engine.plan import Plan
from frugan.engine.step.update import forward_and_backward
from frugan.engine.streams import Streams
from frugan.memory.compiled import kept_bytes, kernels_of, peak_bytes, record
from frugan.planning.prediction import BlankPictures, CardPlan
from frugan.recipe.loading import load_recipe
from frugan.setup.recipe_setup import training_of
from frugan.stepmemory.dataless import META, Dataless, WithoutData, fused_attention, resting_collector
from machine import describe_machine

CASES = (
    "biggan-digits-32",
    "saehd-demo-64",
    "stylegan2-digits-32",
    "saehd-df-ud-256",
    "biggan-imagenet-128",
    "stylegan2-ffhq-256",
)
"""Recipes, two of each family, the quickest first; each at its own micro-batch, in its last stage and in the precision
of the card."""


LARGEST = 8
"""Buffers kept for a backward that the record names."""
ALONE = "--for"
"""Comes before the target, and phases, where this process does one recipe for one card."""
PLANS = "--plans"


@dataclass(frozen=True)
class Work:
    """A phase's work on a micro-batch, as `forward_and_backward` is given it."""

    phase: Phase
    networks: Networks
    micro: MicroBatch
    own: PhaseState
    factor: float
    plan: Plan


def look_at_phases(recipe: str, card: DescribedCard, look: Callable[[Work], None]) -> Plan:
    """Run a step of a recipe's last stage without data, one micro-batch of each phase, as on a card."""
    training = training_of(load_recipe(recipe))
    training = training.with_batch(training.micro_batch)
    stage = training.distinct_stages[-1]
    plan = CardPlan.of(Plan(training.batch, card_precision("auto", card.name, card.capability)))
    dataless = Dataless()

    def backward(
        phase: Phase, networks: Networks, micro: MicroBatch, own: PhaseState, factor: float, plan: Plan
    ) -> Terms:
        with _disable_current_modes():
            look(Work(phase, networks, micro, own, factor, plan))
        return forward_and_backward(phase, networks, micro, own, factor, plan)

    with resting_collector(), WithoutData(dataless):
        networks = training.build("meta")
        state = training.state(plan, META, networks=networks, stage=stage)
        for scale in state.loss_scales.values():
            scale.found = True  # tensors without data cannot be asked
        for optimizer in state.optimizers.values():
            optimizer.works_as_on(card=True)
        training.step(BlankPictures(stage.sources), Streams(0), stage=stage, backward=backward).run(state, plan)
    return plan


def compiled(recipe: str, target: str, only: Sequence[str], say: Callable[[str], None]) -> dict[str, Any]:
    """Phases of a recipe for a card, which this process takes for its own from now on.

    Args:
        only: phases; empty: all.
    """
    card = CARDS[target]
    describe(card)
    assembler = Assembler(target)
    phases: dict[str, dict[str, Any]] = {}

    def look(work: Work) -> None:
        name = work.phase.name
        if name in phases or (only and name not in only):
            return
        began = time.perf_counter()
        graph, given = traced(work.phase, work.networks, work.micro, work.own, work.factor, work.plan)
        program = written(graph.module, given)
        had = time.perf_counter()
        code = assembler.kernels(program.source)
        seconds = {"written": round(had - began, 1), "machine_code": round(time.perf_counter() - had, 1)}
        phases[name] = {**_described(program), "machine_code": _summed_up(code), "seconds": seconds}
        say(f"{name}: {json.dumps(_short(phases[name]))}")

    plan = look_at_phases(recipe, card, look)
    return {"card": card.name, "precision": plan.precision.name, "micro_batch": plan.micro_batch, "phases": phases}


def planned(recipe: str, target: str) -> dict[str, dict[str, int]]:
    """Phase -> what a plan says of the same work."""
    phases: dict[str, dict[str, int]] = {}

    def look(work: Work) -> None:
        own = PhaseWork(work.phase, work.networks, work.micro, work.own, work.factor, work.plan)
        with fused_attention():
            joint = record(own, own.examples(), Dataless(), lambda: work.phase.name)
        kernels = kernels_of(joint)
        phases[work.phase.name] = {
            "kernels": sum(kernel.bytes_moved > 0 for kernel in kernels),
            "bytes_moved": sum(kernel.bytes_moved for kernel in kernels),
            "peak_bytes": peak_bytes(joint, kernels),
            "kept_bytes": kept_bytes(joint, kernels),
        }

    look_at_phases(recipe, CARDS[target], look)
    return phases


def _described(program: Program) -> dict[str, Any]:
    """For the record: all but the program itself."""
    copies = Counter(program.copies)
    return {
        "operations": program.operations,
        "triton_launches": program.triton_launches,
        "library_calls": sum(program.library_calls.values()),
        "libraries": dict(program.library_calls),
        "bytes_moved": program.bytes_moved,
        "peak_bytes": program.peak_bytes,
        "kept_bytes": program.kept_bytes,
        "copied_bytes": sum(copy.size_bytes for copy in program.copies),
        "copies": [
            {"times": copies[copy], **asdict(copy)} for copy in sorted(copies, key=lambda each: -each.size_bytes)
        ],
        "kept": program.kept[:LARGEST],
    }


def _summed_up(kernels: dict[str, KernelCode]) -> dict[str, Any]:
    return {
        "kernels": len(kernels),
        "most_registers": max((code.registers for code in kernels.values()), default=0),
        "most_shared_bytes": max((code.shared_bytes for code in kernels.values()), default=0),
        "spilt_bytes": {name: code.spilt_bytes for name, code in kernels.items() if code.spilt_bytes},
        "errors": {name: code.error for name, code in kernels.items() if code.error is not None},
    }


def _short(found: dict[str, Any]) -> dict[str, Any]:
    code = {name: value if isinstance(value, int) else len(value) for name, value in found["machine_code"].items()}
    left_out = ("copies", "kept", "libraries", "machine_code")
    return {**{name: value for name, value in found.items() if name not in left_out}, **code}


def in_its_own_process(recipe: str, target: str, phase: str) -> dict[str, Any]:
    """As `compiled`, which changes torch for good."""
    words = [sys.executable, __file__, recipe, ALONE, target, phase]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def complete(recipe: str, targets: dict[str, Any], save: Callable[[], None], *, compiling: bool) -> None:
    """Put into a record what it lacks of a recipe, and what a plan says of each phase, anew.

    Args:
        targets: what the record has of the recipe.
        save: writes it.
        compiling: False: what a plan says alone.
    """
    for target in CARDS if compiling else list(targets):
        figures = planned(recipe, target)
        for phase in figures if compiling else ():
            found = targets.get(target, {"phases": {}})
            if phase not in found["phases"]:
                new = in_its_own_process(recipe, target, phase)
                targets[target] = {**new, "phases": {**found["phases"], **new["phases"]}}
                targets[target]["phases"][phase]["plan"] = figures[phase]
                save()
        for phase, described in targets[target]["phases"].items():
            described["plan"] = figures[phase]
    save()


def main() -> None:
    """Compile, and print JSON."""
    words = sys.argv[1:]
    if ALONE in words:
        recipe, _, target, *only = words
        found = compiled(recipe, target, only, lambda line: print(recipe, target, line, file=sys.stderr, flush=True))
        print(json.dumps(found))
        return
    out = None
    if "--out" in words:
        at = words.index("--out")
        out = Path(words[at + 1])
        del words[at : at + 2]
    compiling = PLANS not in words
    words = [word for word in words if word != PLANS]
    result: dict[str, Any] = json.loads(out.read_text("utf-8")) if out is not None and out.exists() else {}
    if not compiling and not result:
        sys.exit(f"{PLANS} needs --out RESULT.json, which it renews")

    def save() -> None:
        if out is not None:
            out.write_text(_text(result), "utf-8")

    for recipe in words or CASES:
        complete(recipe, result.setdefault(recipe, {}), save, compiling=compiling)
    print(_text(result))


def _text(result: dict[str, Any]) -> str:
    """The record, with the machine that it was made on last."""
    return json.dumps({**{k: v for k, v in result.items() if k != "machine"}, "machine": _machine()}, indent=1) + "\n"


def _machine() -> dict[str, Any]:
    import triton  # noqa: PLC0415  (an extra)

    return {**describe_machine(), "triton": triton.__version__}


if __name__ == "__main__":
    main()
