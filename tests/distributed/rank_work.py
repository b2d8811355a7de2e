"""What the processes of these tests do: a module of its own, for each of them to start with."""

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from contract.made_up import MadeUpFamily
from contract.rig import FP16, FP32, Rig, adabelief, adam, shows_given
from frugan.api.train.options import TrainingOptions
from frugan.api.train.training import train
from frugan.contract.family import Family
from frugan.contract.phase import MicroBatch, Networks, PhaseState, Terms
from frugan.engine import step_log
from frugan.engine.backward import Backward, forward_and_backward
from frugan.engine.checkpoint import newest_whole, restore, save_checkpoint
from frugan.engine.compiled_phases import CompiledPhases
from frugan.engine.plan import Plan
from frugan.engine.precision import Precision
from frugan.engine.ranks.group import RankGroup
from frugan.engine.ranks.joining import joined
from frugan.engine.ranks.place import Place
from frugan.engine.ranks.ranks import OneRank, Ranks
from frugan.engine.state import TrainingState
from frugan.engine.step import Step
from frugan.errors import TrainingFailed
from frugan.families import families
from frugan.recipe_loading import load_recipe

CPU = torch.device("cpu")
STEPS = 2
"""From the third on a hair's breadth grows: StyleGAN2's path lengths, split otherwise, are 3e-4 apart by then."""


def every_family() -> dict[str, Family]:
    """By name, the made-up one first."""
    return {"made-up": MadeUpFamily(), **families()}


def rig_of(family: Family, ranks: Ranks, *, precision: Precision = FP32, **settings: Any) -> Rig:
    """Three normalisation groups of four, or three samples: shares of two ranks differ, and three have one each.

    In float64, where only losses round; fp16 has fp32 masters.
    """
    dtype = torch.float32 if precision is FP16 else torch.float64
    batch = 3 if shows_given(family) else 12
    optimizers = adabelief if shows_given(family) or family.name == "made-up" else adam
    made: dict[str, Any] = {"batch": batch, "micro_batch": 1 if batch == 3 else 4, "optimizers": optimizers}
    made |= {"group": None if batch == 3 else 4, **settings}
    rig = Rig.create(family, precision=precision, dtype=dtype, **made)
    rig.step = replace(rig.step, ranks=ranks)
    return rig


def trained(
    family: Family, ranks: Ranks, steps: int = STEPS, backward: Backward = forward_and_backward, **settings: Any
) -> dict[str, Tensor]:
    """Everything that training moves, and the terms of the last step."""
    rig = rig_of(family, ranks, **settings)
    rig.step = replace(rig.step, backward=backward)
    results = rig.run(steps)[-1]
    found = rig.tensors()
    for result in results:
        weights = torch.tensor(result.weights)
        found |= {f"term.{result.phase}.{result.repeat}.{n}": (v * weights).sum() for n, v in result.terms.items()}
    return found


def every_one(ranks: RankGroup, folder: Path, *names: str) -> None:
    """Families for a few steps."""
    known = every_family()
    torch.save({name: trained(known[name], ranks) for name in names}, folder / f"rank-{ranks.rank}.pt")


def compiled(ranks: RankGroup, folder: Path) -> None:
    """The made-up family by compiled phases."""
    said: list[str] = []
    backward = CompiledPhases(said.append, said.append, backend="aot_eager")
    state = trained(MadeUpFamily(), ranks, backward=backward)
    torch.save({"state": state, "said": said}, folder / f"rank-{ranks.rank}.pt")


def compare(ranks: RankGroup, folder: Path, *names: str) -> None:
    """Every family for a few steps; and what may go wrong, which must go wrong alike on all ranks."""
    known = every_family()
    found: dict[str, Any] = {name: trained(known[name], ranks) for name in names}
    found["fp16"] = trained(MadeUpFamily(), ranks, precision=FP16)
    found["skipped"] = _poisoned_on_the_last(ranks)
    found["after out of memory"] = _out_of_memory_on_the_last(ranks)
    found["healed"] = _apart(ranks)
    found["resumed"] = _resumed(ranks, folder)
    found["ddp"] = _by_ddp(ranks)
    torch.save(found, folder / f"rank-{ranks.rank}.pt")


def go_on(ranks: RankGroup, folder: Path, *names: str) -> None:
    """Families as before, and one step more from a checkpoint that others have written."""
    known = every_family()
    found: dict[str, Any] = {name: trained(known[name], ranks) for name in names}
    rig = _restored(ranks, folder / "checkpoints")
    rig.run(1)
    torch.save({**found, "state": rig.tensors()}, folder / f"rank-{ranks.rank}.pt")


def compare_and_lose(ranks: RankGroup, folder: Path, *names: str) -> None:
    """As `compare`; then the last rank is killed between two steps."""
    compare(ranks, folder, *names)
    rig = rig_of(MadeUpFamily(), ranks)
    rig.run(1)
    if ranks.rank == ranks.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        rig.run(1)
    except TrainingFailed as error:
        (folder / "lost.txt").write_text(str(error))
        raise


def train_first(folder: Path) -> None:
    """A run by the Python interface, on the recipe and the pictures that lie in the folder."""
    os.environ["FRUGAN_BASE"] = str(folder / "base")
    os.environ["MASTER_PORT"], port = os.environ["OTHER_PORT"], os.environ["MASTER_PORT"]
    said: list[str] = []
    options = TrainingOptions(device="cpu")
    result = train(str(folder / "tiny.toml"), folder / "pictures", folder / "run", options=options, say=said.append)
    os.environ["MASTER_PORT"] = port
    told = {"said": said, "run": str(result.run), "step": result.step, "over": result.finished, "rank": result.rank}
    (folder / f"train-{result.rank}.json").write_text(json.dumps(told))


def go_back(folder: Path) -> None:
    """A run whose updates stay not finite in the recipe's own order of data, and are sound in any other."""
    whole: Any = Step._backward
    seed = load_recipe(str(folder / "tiny.toml")).training.seed

    def backward(step: Step, state: TrainingState, *rest: Any) -> Any:
        terms, shares = whole(step, state, *rest)
        if state.step >= 3 and step.draws.seed == seed:  # type: ignore[attr-defined]
            name = next(iter(terms))
            terms[name] = terms[name] * torch.nan
        return terms, shares

    setattr(Step, "_backward", backward)  # noqa: B010  (mypy knows the method by its types)
    setattr(step_log, "MOST_SKIPS", 2)  # noqa: B010
    recipe, cpu = str(folder / "tiny.toml"), TrainingOptions(device="cpu")
    result = train(recipe, folder / "pictures", folder / "run", overrides=["training.duration=6 steps"], options=cpu)
    told = {"step": result.step, "over": result.finished}
    (folder / f"back-{result.rank}.json").write_text(json.dumps(told))


def freeze_one(ranks: RankGroup, folder: Path) -> None:
    """The last rank stops without an end, as one does whose machine is cut off: nobody's message fails."""
    rig = rig_of(MadeUpFamily(), ranks)
    rig.run(1)
    if ranks.rank == ranks.size - 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    rig.run(1)


def _by_ddp(ranks: RankGroup) -> dict[str, dict[str, Tensor]]:
    """A penalty as a phase of its own, and with `static_graph`, by torch's wrapper: does every rank get the same?"""
    return {
        "penalty only": _wrapped(ranks, losses=("penalty",)),
        "with the main loss": _wrapped(ranks, losses=("main", "penalty")),
        "static graph": _wrapped(ranks, losses=("main", "penalty"), static_graph=True),
    }


def critic() -> nn.Module:
    """A small one whose last bias no gradient penalty depends on."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 1)).double()


def critic_losses(network: nn.Module, pictures: Tensor) -> Mapping[str, Tensor]:
    """The main loss and R1, each a mean over the pictures [B, 4]."""
    seen = pictures.clone().requires_grad_()
    out = network(seen)
    (slope,) = torch.autograd.grad(out.sum(), seen, create_graph=True)
    return {"main": nn.functional.softplus(-out).mean(), "penalty": slope.square().sum(1).mean()}


def critic_pictures() -> Tensor:
    """[4, 4], of all ranks."""
    return torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def _wrapped(ranks: RankGroup, losses: tuple[str, ...], *, static_graph: bool = False) -> dict[str, Tensor]:
    network = critic()
    wrapped = DistributedDataParallel(network, static_graph=static_graph)
    found = critic_losses(wrapped, critic_pictures().chunk(ranks.size)[ranks.rank])
    torch.stack([found[name] for name in losses]).sum().backward()
    return {n: p.grad.clone() for n, p in network.named_parameters() if p.grad is not None}


def _poisoned_on_the_last(ranks: RankGroup) -> dict[str, Any]:
    """The critic's first term is NaN on one rank in the second step: nobody may commit it."""
    rig = rig_of(MadeUpFamily(), ranks)
    first = rig.phases[0].parts[0]

    def poison(networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        bad = rig.state.step == 1 and ranks.rank == ranks.size - 1
        return {name: term * torch.nan if bad else term for name, term in first(networks, micro, state).items()}

    phases = (replace(rig.phases[0], parts=(poison, *rig.phases[0].parts[1:])), *rig.phases[1:])
    rig.step = replace(rig.step, phases=phases)
    accepted = [[bool(result.accepted) for result in results] for results in rig.run(3)]
    return {"accepted": accepted, "state": rig.tensors()}


def _out_of_memory_on_the_last(ranks: RankGroup) -> dict[str, Tensor]:
    """One rank runs out of memory once, and goes on by a smaller plan; the others need not know."""
    rig = rig_of(MadeUpFamily(), ranks, micro_batch=8)
    first = rig.phases[0].parts[0]
    failures: list[int] = []

    def fails_once(networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        if ranks.rank == ranks.size - 1 and not failures:
            failures.append(micro.size)
            raise torch.OutOfMemoryError("made up")
        return first(networks, micro, state)

    def smaller(plan: Plan, phase: str, message: str) -> Plan:
        return replace(plan, micro_batch=4)

    phases = (replace(rig.phases[0], parts=(fails_once, *rig.phases[0].parts[1:])), *rig.phases[1:])
    rig.step = replace(rig.step, phases=phases)
    for _ in range(STEPS):
        rig.step.run(rig.state, rig.plan, next_plan=smaller)
    return rig.tensors()


def _apart(ranks: RankGroup) -> dict[str, Any]:
    """A bit that has flipped on one rank is noticed, and all go on from the first one's state."""
    rig = rig_of(MadeUpFamily(), ranks)
    rig.run(1)
    before = rig.tensors()
    asked = [_agree(ranks, rig)]
    if ranks.rank == ranks.size - 1:
        with torch.no_grad():
            next(rig.state.networks["critic"].parameters()).view(-1)[0] += 1e-9
            rig.state.step = 7
    asked.append(_agree(ranks, rig))
    return {"agreed": asked, "before": before, "state": rig.tensors(), "step": rig.state.step}


def _agree(ranks: RankGroup, rig: Rig) -> bool:
    """As the loops do it: the others are told first."""
    if ranks.rank != 0:
        ranks.hear()
    return ranks.agree(rig.state)


def _resumed(ranks: RankGroup, folder: Path) -> dict[str, Any]:
    """Four steps at once, and two and two with a checkpoint between them."""
    rig = rig_of(MadeUpFamily(), ranks)
    rig.run(2)
    if ranks.rank == 0:
        save_checkpoint(folder / "checkpoints", rig.state, {}, {})
    ranks.wait_for_all()
    rig.run(2)
    again = _restored(ranks, folder / "checkpoints")
    again.run(2)
    return {"whole": rig.tensors(), "again": again.tensors()}


def _restored(ranks: Ranks, checkpoints: Path) -> Rig:
    """The first rank reads; the others, which begin with other weights here, are given what it has read."""
    rig = rig_of(MadeUpFamily(), ranks)
    if ranks.rank == 0:
        found = newest_whole(checkpoints)
        assert found is not None
        restore(found[0], found[1], rig.state)
    else:
        with torch.no_grad():
            for network in rig.state.networks.values():
                for parameter in network.parameters():
                    parameter.zero_()
    if isinstance(ranks, RankGroup):
        ranks.give_state(rig.state)
    return rig


def go_on_alone(checkpoints: Path) -> Rig:
    """One step more, without others."""
    rig = _restored(OneRank(), checkpoints)
    rig.run(1)
    save_checkpoint(checkpoints, rig.state, {}, {})
    return rig


WORK: Mapping[str, Callable[..., None]] = {
    "families": every_one,
    "compare-and-lose": compare_and_lose,
    "compiled": compiled,
    "freeze": freeze_one,
    "go-on": go_on,
}


def main() -> None:
    """Come together, and do what the command line says."""
    work, folder, *words = sys.argv[1:]
    if work == "go-back":
        go_back(Path(folder))
        return
    if (Path(folder) / "tiny.toml").exists():
        train_first(Path(folder))
    with joined(Place.here(), CPU) as ranks:
        assert dist.get_world_size() == ranks.size
        WORK[work](ranks, Path(folder), *words)


if __name__ == "__main__":
    main()
