"""The self-test: what this program promises, tried on one device, and the record that people attach to a report."""

import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from frugan.api.devices import use_device
from frugan.api.progress import Say, quiet
from frugan.contract.family import Family
from frugan.doctor.checks import (
    PREDICTED,
    RUNS_OUT,
    SAME_STEP,
    TIME,
    WAITS,
    CardTools,
    fp32_arithmetic,
    half_precision,
    memory_saving,
    out_of_memory_is_survived,
    real_size_on_a_card,
    same_as_the_processor,
    tools_of,
    waits_on_a_card,
)
from frugan.doctor.finding import Finding, judged, left_out
from frugan.doctor.machine import examine
from frugan.doctor.trial import FP32, recipe_subject, tiny_subject
from frugan.engine.accelerator.choice import accelerator_of
from frugan.engine.device import disable_reduced_precision, release_memory
from frugan.engine.precision import DTYPES, Precision, resolve_precision
from frugan.engine.threads import machine_name
from frugan.engine.training import Training
from frugan.families import families as every_family
from frugan.memory.calibration import choose_card
from frugan.memory.cards import Card
from frugan.memory.plan_space import SAVERS
from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe

MEASURED: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "biggan": ("biggan-cifar10-32", ("training.batch=100",)),
        "saehd": ("saehd-df-ud-256", ()),
        "stylegan2": ("stylegan2-cifar10", ()),
    }
)
"""Family -> built-in recipe, and fields by which its batch is more than one micro-batch."""


def measured_recipe(family: str) -> tuple[str, Recipe] | None:
    """The recipe of a family, and its name; None: the family has none here."""
    if family not in MEASURED:
        return None
    name, overrides = MEASURED[family]
    return name, load_recipe(name, overrides)


FORMAT = 1
KEPT = ("versions", "environment", "card", "precision", "card memory", "planner", "processor", "host memory", "ranks")
"""Findings whose figures belong to a record: nothing in them says who or where someone is."""


def record(device: str, findings: Iterable[Finding], outcomes: Sequence[Finding], seconds: float) -> dict[str, Any]:
    """What is written.

    Args:
        device: the card's or processor's name.
        seconds: that the self-test took.
    """
    machine = [{"finding": each.name, "values": dict(each.values)} for each in findings if each.name in KEPT]
    return {
        "format": FORMAT,
        "made": time.strftime("%Y-%m-%d", time.gmtime()),
        "device": device,
        "system": platform.system(),
        "machine": machine,
        "seconds": round(seconds, 1),
        "passed": all(each.state != "failed" for each in outcomes),
        "outcomes": [each.as_json() for each in outcomes],
    }


Tell = Callable[[Finding], None]
Check = Callable[[], Finding | list[Finding]]

BROKEN = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, OSError)
"""What a check may end with: it has failed then, and the others go on."""
HALVES = frozenset({"fp16", "bf16"})
A_CARD_ALONE = "only a card can show it"


@dataclass(frozen=True)
class SelfTest:
    """What a self-test came to."""

    device: str  # name of the card or the processor
    findings: list[Finding]  # about the machine
    outcomes: list[Finding]  # of every check
    record: dict[str, Any]  # for a file that is attached to a report

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return bool(self.record["passed"])


def run_self_test(device: str = "auto", runs: Path | None = None, *, say: Say = quiet, tell: Tell = quiet) -> SelfTest:
    """Try on this machine what this program promises.

    Args:
        device: auto, cpu, cuda or cuda:N.
        runs: folder that runs will be written to; None: the usual one.
        say: is told what takes long.
        tell: is given each outcome as it is found.

    Raises:
        BadInput: no such device.
    """
    findings = examine(device, runs, say=say)  # measures the card too, which the predictions of time go by
    chosen, _ = use_device(device)
    card = tools_of(chosen)
    began = time.perf_counter()
    outcomes = self_test(every_family(), chosen, card, choose_card(None, chosen) if card is not None else None, tell)
    name = accelerator_of(chosen).name if card is not None else machine_name()
    return SelfTest(name, findings, outcomes, record(name, findings, outcomes, time.perf_counter() - began))


def self_test(
    families: Mapping[str, Family],
    device: torch.device,
    card: CardTools | None = None,
    figures: Card | None = None,
    tell: Tell = quiet,
) -> list[Finding]:
    """Try every family.

    Args:
        families: by name.
        device: where.
        card: its tools; None: it is no card.
        figures: what was measured on the card, or is guessed; goes with `card`.
        tell: is given each outcome as it is found.
    """
    disable_reduced_precision()
    outcomes: list[Finding] = []
    for name, family in families.items():
        subject = tiny_subject(family)
        for label, check in [*_anywhere(subject, device), *_on_a_card(subject, card)]:
            outcomes += _made(label, name, check, device, tell)
    for name in families:
        outcomes += _at_real_size(name, device, card, figures, tell)
    return outcomes


def _anywhere(subject: Training, device: torch.device) -> Iterable[tuple[str, Check]]:
    yield "fp32 against float64", partial(fp32_arithmetic, subject, device)
    for precision in half_precisions(device):
        yield f"{precision.name} against fp32", partial(half_precision, subject, device, precision)
    for name in HALVES - {precision.name for precision in half_precisions(device)}:
        yield "", partial(left_out, f"{name} against fp32", subject.family, "this device computes in it slowly, or not")
    for saver in SAVERS:
        yield f"memory saving {saver}", partial(memory_saving, subject, device, saver)
    yield "out of memory, on purpose", partial(out_of_memory_is_survived, subject, device)


def _on_a_card(subject: Training, card: CardTools | None) -> Iterable[tuple[str, Check]]:
    if card is None:
        yield "", partial(left_out, WAITS, subject.family, A_CARD_ALONE)
        yield "", partial(left_out, SAME_STEP, subject.family, "this is the processor")
        return
    yield SAME_STEP, partial(same_as_the_processor, subject, card.device)
    for precision in (FP32, *half_precisions(card.device)):
        yield f"waits for nothing in {precision.name}", partial(waits_on_a_card, subject, card, precision)


def _at_real_size(
    name: str, device: torch.device, card: CardTools | None, figures: Card | None, tell: Tell
) -> list[Finding]:
    """Memory, time and a cap, by a recipe of ordinary size."""
    checks = (PREDICTED, TIME, RUNS_OUT)
    if card is None or figures is None:
        return _told([left_out(check, name, A_CARD_ALONE) for check in checks], tell)
    if (recipe := measured_recipe(name)) is None:
        return _told([left_out(check, name, "no recipe is chosen for it") for check in checks], tell)
    precision = resolve_precision("auto", device)

    def measure() -> list[Finding]:
        return real_size_on_a_card(recipe_subject(recipe[1], recipe[0]), card, figures, precision)

    return _made("recipe of ordinary size", recipe[0], measure, device, tell)


def _made(label: str, subject: str, check: Check, device: torch.device, tell: Tell) -> list[Finding]:
    """Make a check; one that breaks has failed."""
    began = time.perf_counter()
    try:
        made = check()
        outcomes = made if isinstance(made, list) else [made]
    except BROKEN as error:
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        outcomes = [judged(label, subject, reason, passed=False, seconds=time.perf_counter() - began)]
    if accelerator_of(device).is_card:
        release_memory(device)  # outside the handler: its frames hold what has to go
    return _told(outcomes, tell)


def _told(outcomes: list[Finding], tell: Tell) -> list[Finding]:
    for outcome in outcomes:
        tell(outcome)
    return outcomes


def half_precisions(device: torch.device) -> tuple[Precision, ...]:
    """Those worth trying: a processor computes fp16 far slower than fp32, and older cards have no bf16."""
    names = ["bf16"]
    if accelerator_of(device).is_card:
        names = ["fp16", "bf16"] if accelerator_of(device).has_bf16_units else ["fp16"]
    return tuple(Precision(name, DTYPES[name], "tried") for name in names)  # type: ignore[arg-type]
