"""What the processes of these tests do: a module of its own, for each of them to start with."""

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from contract.made_up import MadeUpFamily
from contract.rig import FP16, FP32, Rig, adabelief, adam, shows_given
from distributed.critic import by_ddp
from distributed.run_work import chosen_kernels, full_disk, go_back, train_by_shares, train_first
from frugan.accelerator.precision import Precision
from frugan.contract.family import Family
from frugan.contract.phase import MicroBatch, Networks, PhaseState, Terms
from frugan.engine.plan import Plan
from frugan.engine.ranks.group import RankGroup
from frugan.engine.ranks.joining import joined
from frugan.engine.ranks.place import Place
from frugan.engine.ranks.ranks import OneRank, Ranks
from frugan.engine.run.checkpoint import newest_whole, restore, save_checkpoint
from frugan.errors import TrainingFailed
from frugan.families import families
from limits import change

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
    return Rig.create(family, precision=precision, dtype=dtype, ranks=ranks, **made)


def trained(family: Family, ranks: Ranks, steps: int = STEPS, **settings: Any) -> dict[str, Tensor]:
    """Everything that training moves, and the terms of the last step."""
    rig = rig_of(family, ranks, **settings)
    results = rig.run(steps)[-1]
    tensors = rig.tensors()
    for result in results:
        weights = torch.tensor(result.weights)
        tensors |= {f"term.{result.phase}.{result.repeat}.{n}": (v * weights).sum() for n, v in result.terms.items()}
    return tensors


def every_one(ranks: RankGroup, folder: Path, *names: str) -> None:
    """Families for a few steps."""
    known = every_family()
    torch.save({name: trained(known[name], ranks) for name in names}, folder / f"rank-{ranks.rank}.pt")


SHARED: Mapping[str, Mapping[str, Any]] = {
    "one group": {"group": 12, "micro_batch": 12},
    "two groups": {"group": 6, "micro_batch": 6},
    "recompute": {"group": 12, "micro_batch": 12, "recompute": True},
    "keep products": {"group": 12, "micro_batch": 12, "recompute": True, "keep_products": True},
    "offload": {"group": 12, "micro_batch": 12, "recompute": True, "offload": True},
    "parts after all": {"group": 12, "micro_batch": 12, "parts_in_sequence": False},
}
"""Normalisation groups larger than what a rank holds, and how they are trained."""


def share_groups(ranks: RankGroup, folder: Path, name: str, *ways: str) -> None:
    """A family whose normalisation groups are shared by ranks, in ways of `SHARED`."""
    results: dict[str, Any] = {way: trained(every_family()[name], ranks, **SHARED[way]) for way in ways}
    results["other plans"] = _other_plans(ranks)
    torch.save(results, folder / f"rank-{ranks.rank}.pt")


def uneven(ranks: RankGroup, folder: Path, *names: str) -> None:
    """Families whose samples are dealt unevenly, and every rank with a micro-batch and savings of its own."""
    known = every_family()
    results: dict[str, Any] = {}
    for name in names:
        three = shows_given(known[name])
        ranks.set_shares(UNEVEN[ranks.size, three])
        own = 1 if three else 4 + 4 * (ranks.rank == ranks.size - 1)
        # of three ranks two share a group in the made-up penalty, which sees half of a batch: they must do it alike
        savings = {"recompute": ranks.rank == 0, "parts_in_sequence": ranks.rank != 0} if ranks.size == 2 else {}
        results[name] = trained(known[name], ranks, micro_batch=own, **savings)
    ranks.set_shares((5, 7) if ranks.size == 2 else (6, 4, 2))
    results["shared"] = trained(known[names[0]], ranks, **SHARED["one group"])
    torch.save(results, folder / f"rank-{ranks.rank}.pt")


UNEVEN = {(2, False): (1, 2), (2, True): (1, 2), (3, False): (1, 1, 1), (3, True): (1, 1, 1)}
"""(Ranks, whether the batch is three samples and not three groups) -> proportions."""


def shard(ranks: RankGroup, folder: Path, *names: str) -> None:
    """Optimizers' state shared out beside the same in whole, and a checkpoint of it that is gone on from.

    The made-up family, which must be among the names, by one step, in which every phase is due.
    """
    change("elements shared out", 1)
    change("bytes of a bucket", 1 << 12)
    known = every_family()
    results: dict[str, Any] = {}
    for name in names:
        whole, mine = _run(rig_of(known[name], ranks)), _run(rig_of(known[name], ranks, shard_optimizer=True))
        results[name] = {"whole": whole.tensors(), "shards": _collected(ranks, mine), "bytes": _bytes(whole, mine)}
        if name == "made-up":
            rig = mine
    results["fp16"] = _collected(ranks, _run(rig_of(MadeUpFamily(), ranks, precision=FP16, shard_optimizer=True)))
    results["fp16 whole"] = _run(rig_of(MadeUpFamily(), ranks, precision=FP16)).tensors()

    with ranks.collected(rig.state):
        if ranks.rank == 0:
            save_checkpoint(folder / "checkpoints", rig.state, {}, {})
    rig.run(1)
    again = _restored(ranks, folder / "checkpoints", shard_optimizer=True)
    again.run(1)
    whole = _restored(ranks, folder / "checkpoints")
    whole.run(1)
    results["resumed"] = {"on": _collected(ranks, rig), "again": _collected(ranks, again), "whole": whole.tensors()}
    results["apart"] = [ranks.agree(rig.state)]
    torch.save(results, folder / f"rank-{ranks.rank}.pt")


def _run(rig: Rig) -> Rig:
    rig.run(STEPS)
    return rig


def _collected(ranks: RankGroup, rig: Rig) -> dict[str, Tensor]:
    """Everything that training moves; on the first rank alone the whole state of optimizers."""
    with ranks.collected(rig.state):
        tensors = rig.tensors()
    return {key: value for key, value in tensors.items() if ranks.rank == 0 or not key.startswith("optimizer")}


def _bytes(*rigs: Rig) -> list[int]:
    """Of optimizers' state on this rank."""
    return [
        sum(v.nbytes for o in rig.state.optimizers.values() for kept in o.state.values() for v in kept.values())
        for rig in rigs
    ]


def _other_plans(ranks: RankGroup) -> str:
    """What is said where the last rank recomputes, and the others do not."""
    rig = rig_of(MadeUpFamily(), ranks, **SHARED["one group"])
    again = rig_of(MadeUpFamily(), ranks, **SHARED["recompute"])
    try:
        rig.step.run(rig.state, again.plan if ranks.rank == ranks.size - 1 else rig.plan)
    except TrainingFailed as error:
        return str(error)
    return ""


def compare(ranks: RankGroup, folder: Path, *names: str) -> None:
    """Every family for a few steps; and what may go wrong, which must go wrong alike on all ranks."""
    known = every_family()
    results: dict[str, Any] = {name: trained(known[name], ranks) for name in names}
    results["fp16"] = trained(MadeUpFamily(), ranks, precision=FP16)
    results["skipped"] = _poisoned_on_the_last(ranks)
    results["after out of memory"] = _out_of_memory_on_the_last(ranks)
    results["healed"] = _apart(ranks)
    results["resumed"] = _resumed(ranks, folder)
    results["ddp"] = by_ddp(ranks)
    torch.save(results, folder / f"rank-{ranks.rank}.pt")


def go_on(ranks: RankGroup, folder: Path, *names: str) -> None:
    """Families as before, and one step more from a checkpoint that others have written."""
    known = every_family()
    results: dict[str, Any] = {name: trained(known[name], ranks) for name in names}
    rig = _restored(ranks, folder / "checkpoints")
    rig.run(1)
    torch.save({**results, "state": rig.tensors()}, folder / f"rank-{ranks.rank}.pt")


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


def call_alone(ranks: RankGroup, folder: Path) -> None:
    """The last rank waits for all, and the others go on with the next step."""
    rig = rig_of(MadeUpFamily(), ranks)
    rig.run(1)
    if ranks.rank == ranks.size - 1:
        ranks.barrier()
    rig.run(1)


def freeze_one(ranks: RankGroup, folder: Path) -> None:
    """The last rank stops without an end, as one does whose machine is cut off: nobody's message fails."""
    rig = rig_of(MadeUpFamily(), ranks)
    rig.run(1)
    if ranks.rank == ranks.size - 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    rig.run(1)


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
    asked = [ranks.agree(rig.state)]
    if ranks.rank == ranks.size - 1:
        with torch.no_grad():
            next(rig.state.networks["critic"].parameters()).view(-1)[0] += 1e-9
            rig.state.step = 7
    asked.append(ranks.agree(rig.state))
    return {"agreed": asked, "before": before, "state": rig.tensors(), "step": rig.state.step}


def _resumed(ranks: RankGroup, folder: Path) -> dict[str, Any]:
    """Three steps at once, and two and one with a checkpoint between them; in the last every phase is due."""
    rig = rig_of(MadeUpFamily(), ranks)
    rig.run(2)
    if ranks.rank == 0:
        save_checkpoint(folder / "checkpoints", rig.state, {}, {})
    ranks.barrier()
    rig.run(1)
    again = _restored(ranks, folder / "checkpoints")
    again.run(1)
    return {"whole": rig.tensors(), "again": again.tensors()}


def _restored(ranks: Ranks, checkpoints: Path, **settings: Any) -> Rig:
    """The first rank reads; the others, which begin with other weights here, are given what it has read."""
    rig = rig_of(MadeUpFamily(), ranks, **settings)
    if ranks.rank == 0:
        newest = newest_whole(checkpoints)
        assert newest is not None
        restore(newest[0], newest[1], rig.state)
    else:
        with torch.no_grad():
            for network in rig.state.networks.values():
                for parameter in network.parameters():
                    parameter.zero_()
    if isinstance(ranks, RankGroup):
        ranks.broadcast_state(rig.state)
    return rig


def go_on_alone(checkpoints: Path) -> Rig:
    """One step more, without others."""
    rig = _restored(OneRank(), checkpoints)
    rig.run(1)
    save_checkpoint(checkpoints, rig.state, {}, {})
    return rig


WORK: Mapping[str, Callable[..., None]] = {
    "families": every_one,
    "call-alone": call_alone,
    "compare-and-lose": compare_and_lose,
    "freeze": freeze_one,
    "go-on": go_on,
    "share-groups": share_groups,
    "uneven": uneven,
    "shard": shard,
}


def main(words: Sequence[str]) -> None:
    """Come together, and do a piece of work: its name, a folder, and words of its own."""
    work, folder, *words = words
    alone = {"go-back": go_back, "full-disk": full_disk, "chosen-kernels": chosen_kernels}
    if work in alone:
        alone[work](Path(folder))
        return
    if work == "train-by-shares":
        train_by_shares(Path(folder), *words)
        return
    if (Path(folder) / "tiny.toml").exists():
        train_first(Path(folder))
    with joined(Place.here(), CPU) as ranks:
        assert dist.get_world_size() == ranks.size
        WORK[work](ranks, Path(folder), *words)
