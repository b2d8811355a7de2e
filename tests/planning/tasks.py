"""Families at their tiny size for the planner, and the same steps on real tensors."""

import warnings
from collections.abc import Mapping
from functools import cache

import torch
from torch import nn

from contract.made_up import MadeUpFamily
from contract.rig import BF16, plain_dense
from frugan.accelerator.precision import Precision
from frugan.contract.family import Family
from frugan.engine.durations import Duration
from frugan.engine.plan import Plan
from frugan.engine.ranks.ranks import Ranks
from frugan.engine.run.training import Training
from frugan.engine.state.ema import EmaSettings
from frugan.engine.state.optimizer_settings import AdamSettings, OptimizerSettings
from frugan.engine.state.state import TrainingState
from frugan.engine.step.step import Step
from frugan.engine.streams import Streams
from frugan.families import families
from frugan.planning.plan_space import OFFLOADED, PlanConstraints, PlanSpace
from frugan.planning.prediction import BlankPictures, Target, step_memory
from frugan.planning.predictions import Predictions
from frugan.planning.search import Search
from frugan.planning.step_memory import measure_step
from frugan.stepmemory.cards import Card, unnamed_card
from frugan.stepmemory.measurement import StepMemory

CPU = torch.device("cpu")
EMA = EmaSettings(decay=0.9, start=Duration.parse("0 steps"))


def task(
    family: Family, *, batch: int | None = None, group: int | None = None, settings: OptimizerSettings | None = None
) -> Training:
    """A tiny training; its batch is 8 in groups of 2, of faces 2: theirs are slow steps, and they have no groups."""
    networks, objective = family.tiny()
    if family.name == "stylegan2":  # of its thousands of operations a third are those of the last resolution
        networks = networks.model_copy(update={"resolution": 8})
    faces = any(need.given for need in family.sources(networks, objective).values())
    batch = batch or (2 if faces else 8)
    group = group or (1 if faces else 2)
    chosen = settings or AdamSettings(learning_rate=1e-4)
    return Training.of_family(
        family, networks, objective, settings=chosen, ema=EMA, batch=batch, normalisation_batch=group
    )


def plan_of(
    of: Training,
    micro_batch: int,
    precision: Precision = BF16,
    *,
    keeping: str = "all",
    slices: bool = False,
    parts_in_sequence: bool = True,
) -> Plan:
    """A plan; slices of every dense layer, however small."""
    built = of.build("meta")
    return Plan(
        micro_batch,
        precision,
        of.recomputable(built) if keeping != "all" else {},
        keep_products=keeping == "products",
        offload=keeping in OFFLOADED,
        bring_ahead=keeping == "one ahead",
        in_slices=plain_dense(built) if slices else {},
        parts_in_sequence=parts_in_sequence,
    )


def real_step(of: Training, plan: Plan, ranks: Ranks | None = None) -> tuple[TrainingState, Step]:
    """The same on real tensors."""
    built: Mapping[str, nn.Module] = of.build("cpu")
    with torch.no_grad():
        for network in built.values():
            for parameter in network.parameters():
                parameter.normal_(0, 0.02)
    state = of.state(plan, CPU, ranks, networks=dict(built))
    for scale in state.loss_scales.values():
        scale.found = True  # what is predicted is a step that is not repeated
    return state, of.step(BlankPictures(of.stages[0].sources), Streams(0))


def measured(of: Training, plan: Plan) -> StepMemory:
    """A whole step on real tensors."""
    state, step = real_step(of, plan)
    return measure_step(step, state, plan, of.recomputable(state.networks), count_zeros=True)


def _family(name: str) -> Family:
    return MadeUpFamily() if name == MadeUpFamily.name else families()[name]


@cache
def predicted_once(family: str, target: Target, *, rough: bool = False) -> StepMemory:
    """A family's usual step in the smallest micro-batches, without data; many tests use it. A warning is an error."""
    of, always = task(_family(family)), torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return step_memory(of, plan_of(of, of.group), target, of.stages[0], rough=rough)
    finally:
        torch.set_warn_always(always)


@cache
def measured_once(family: str) -> StepMemory:
    """The same step on real tensors."""
    of = task(_family(family))
    return measured(of, plan_of(of, of.group))


def search(
    of: Training,
    *,
    card: Card | None = None,
    target: Target = "card",
    precision: Precision = BF16,
    constraints: PlanConstraints | None = None,
    store: Predictions | None = None,
) -> Search:
    store = store or Predictions(of, target, {}, "test")
    space = PlanSpace(of, precision, constraints or PlanConstraints(), on_card=target == "card")
    return Search(space, card or unnamed_card(), store)
