"""Training on several devices: how all ranks begin, and what those but the first do."""

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from frugan.api.data.feed import default_workers, feeding
from frugan.api.data.sources import Data, open_sources
from frugan.api.networks import build_networks
from frugan.api.progress import Say, quiet
from frugan.api.setup import setup_of
from frugan.api.train.compiling import backward_of
from frugan.api.train.open_run import OpenRun
from frugan.api.train.options import TrainingOptions
from frugan.api.train.plan_in_force import TrainingPlanner
from frugan.api.train.recovery import seed_after
from frugan.api.train.result import TrainingResult
from frugan.api.train.scores import PartOfScores
from frugan.api.train.share_choice import ShareChoice, own_plan
from frugan.contract.data import OpenedSource, RunData
from frugan.engine.arithmetic import pin_arithmetic
from frugan.engine.freed_memory import freed_memory_kept
from frugan.engine.interrupt import stop_on_signals
from frugan.engine.out_of_memory import release_memory
from frugan.engine.plan import Plan
from frugan.engine.precision import PrecisionName, resolve_precision
from frugan.engine.ranks.follower import follow
from frugan.engine.ranks.group import RankGroup
from frugan.engine.ranks.ranks import Order
from frugan.engine.requests import SIGNALS
from frugan.engine.state import TrainingState
from frugan.engine.step import Step
from frugan.engine.streams import Streams
from frugan.errors import BadInput
from frugan.recipe.loading import parse_recipe
from frugan.recipe.recipe import Recipe


@dataclass(frozen=True)
class Beginning:
    """What the first rank tells the others, so that they need nothing of the run folder.

    Attributes:
        recipe: JSON values.
        name: of the recipe, which finds the predictions that ship.
        run: its folder, for the result alone.
        data: what the run is trained on; `known` what it was trained on before.
        map_classes: as for `train`.
        precision, plan: as the first rank has them.
        budget_bytes: on a card; None: none was asked for.
        rollbacks: how often the run went back: order of data and draws go by it.
        shares: samples of each rank; None: all alike.
        own_plans: each rank has a plan of its own; False: all run the first one's.
        plans: those, of each rank; empty: each makes its own.
    """

    recipe: Mapping[str, Any]
    name: str
    run: Path
    data: Mapping[str, RunData]
    known: Mapping[str, RunData]
    map_classes: Mapping[str, str] | None
    precision: PrecisionName
    plan: Mapping[str, Any]
    budget_bytes: int | None
    rollbacks: int
    shares: tuple[int, ...] | None = None
    own_plans: bool = False
    plans: Sequence[Mapping[str, Any]] = ()


def beginning_of(run: OpenRun, plan: Plan, budget_bytes: int | None, rollbacks: int, shares: ShareChoice) -> Beginning:
    """What to tell the others of a run that is about to begin or to go on."""
    return Beginning(
        recipe=run.recipe.model_dump(mode="json"),
        name=run.name,
        run=run.folder.path,
        data=run.data,
        known=run.known,
        map_classes=run.map_classes,
        precision=plan.precision.name,
        plan=plan.as_json(),
        budget_bytes=budget_bytes,
        rollbacks=rollbacks,
        shares=shares.samples,
        own_plans=shares.samples is not None,
        plans=shares.plans,
    )


def train_along(ranks: RankGroup, data: Data, options: TrainingOptions, say: Say) -> TrainingResult:
    """Take part in a training that the first rank leads, and leave to it what there is to say; touches no run folder.

    Returns:
        What there is to say of it on this rank.

    Raises:
        BadInput: this rank has other pictures, or a card that cannot do what the first one does.
    """
    name = ranks.watch.names[ranks.rank]
    aloud: Callable[[str], None] = lambda line: say(f"{name}: {line}")  # noqa: E731
    sources: dict[str, OpenedSource] | None = None
    with stop_on_signals(quiet) as stop, _requests_ignored():
        ranks.pass_on(stop)
        while True:
            begin: Beginning = ranks.send()
            sources = _sources_of(begin, ranks, data, sources)
            ended, step = _along(begin, sources, ranks, options, aloud)
            if ended is not Order.AGAIN:
                over = ended is Order.OVER
                return TrainingResult(begin.run, step, over, 0.0, torch.get_num_threads(), ranks.rank)
            release_memory(ranks.device)  # what was trained is gone, before the next takes its room


def _sources_of(
    begin: Beginning, ranks: RankGroup, data: Data, opened: dict[str, OpenedSource] | None
) -> dict[str, OpenedSource]:
    """This rank's pictures; `opened`, if they are open since an earlier beginning. The first rank waits along.

    Raises:
        BadInput: they are others than the first rank's.
    """
    name, recipe = ranks.watch.names[ranks.rank], parse_recipe(begin.recipe, "the first rank's recipe")
    sources = opened
    for first_here in (True, False):  # what is prepared of the pictures, is prepared once on each machine
        if sources is None and (ranks.place.local_rank == 0) == first_here:
            sources = open_sources(recipe, data, quiet, None, begin.known, begin.map_classes)
        ranks.wait_for_all()
    assert sources is not None
    for source, known in begin.data.items():
        if sources[source].digest != known.digest:
            raise BadInput(f"{name}: --data holds other pictures for {source!r} there than on the first rank")
    return sources


def _along(
    begin: Beginning, sources: Mapping[str, OpenedSource], ranks: RankGroup, options: TrainingOptions, aloud: Say
) -> tuple[Order, int]:
    """Train with the others until the first rank ends it: how, and at which step."""
    device, recipe = ranks.device, parse_recipe(begin.recipe, "the first rank's recipe")
    pin_arithmetic()
    precision = resolve_precision(begin.precision, device)
    if precision.name != begin.precision:
        raise BadInput(
            f"{ranks.watch.names[ranks.rank]} cannot train in {begin.precision}, as the first rank does "
            f"({precision.warning}); give all of them training.precision={precision.name}"
        )
    planner = TrainingPlanner(recipe, begin.name, options, device, precision, aloud, ranks=ranks.size)
    if begin.budget_bytes is not None:
        planner.cap(begin.budget_bytes)
    ranks.deal_by(begin.shares)
    plan = Plan.from_json(begin.plan, precision)
    if begin.own_plans:
        plan = own_plan(planner, ranks, plan, begin.plans[ranks.rank] if begin.plans else None)
    state = _state(recipe, plan, ranks)
    ranks.give_state(state)
    ranks.gather(plan.as_json())
    seed = seed_after(recipe.training.seed, begin.rollbacks)

    @contextmanager
    def stage(step: int) -> Iterator[Step]:
        workers = default_workers(device, ranks.local_size) if options.workers is None else options.workers
        with feeding(
            sources, recipe.at_step(step), pinned=device.type == "cuda", workers=workers, seed=seed, say=aloud
        ) as feed:
            backward = backward_of(recipe, device, quiet, aloud)
            yield setup_of(recipe, step).step(feed, Streams(seed), ranks=ranks, backward=backward)

    draw = PartOfScores(recipe, ranks)
    with freed_memory_kept(device.type == "cpu"):
        return follow(ranks, state, plan, stage, planner.next, draw), state.step


def _state(recipe: Recipe, plan: Plan, ranks: RankGroup) -> TrainingState:
    """A state of the right shape; what is in it comes from the first rank."""
    setup = setup_of(recipe)
    networks = setup.used(build_networks(recipe))
    for network in networks.values():
        network.to(ranks.device)
    return setup.state(networks, plan, ranks.device, ranks)


@contextmanager
def _requests_ignored() -> Iterator[None]:
    """Signals that ask the first rank for something shall not end the others."""
    numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
