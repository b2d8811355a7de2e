"""Which steps are counted: of every recipe that ships, and of the configurations that goals were set for."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from frugan.api.setup import training_of
from frugan.engine.plan import Plan
from frugan.engine.precision import PrecisionName, resolve_precision
from frugan.memory.step_counts import StepCounts, count_step
from frugan.recipe.loading import load_recipe
from frugan.recipes import built_in

MICRO_BATCHES = 2
"""Of a counted step: what the first one costs once is there, and what each further one costs."""


@dataclass(frozen=True)
class Case:
    """A recipe whose step is counted.

    Attributes:
        recipe: built-in name.
        overrides: key=value words.
        micro_batch: samples; None: one normalisation group, or half the batch where there are none.
        precision: of the working weights.
    """

    recipe: str
    overrides: tuple[str, ...] = ()
    micro_batch: int | None = None
    precision: PrecisionName = "bf16"


def shipped_cases() -> Mapping[str, Case]:
    """Name -> case: every recipe that ships, and BigGAN-128 small, in two precisions."""
    small = ("networks.generator_channels=16", "networks.discriminator_channels=16", "training.normalisation_batch=8")
    return {
        **{name: Case(name) for name in built_in()},
        "biggan-imagenet-128, 16 channels": Case("biggan-imagenet-128", small),
        "biggan-imagenet-128, 16 channels, fp32": Case("biggan-imagenet-128", small, precision="fp32"),
    }


def count_case(case: Case) -> dict[str, StepCounts]:
    """Count the steps of a case: name -> what it asks of a card.

    There is one for every stage of training; where phases are not always due, one with all of them and a usual one.
    """
    training = training_of(load_recipe(case.recipe, list(case.overrides)))
    micro_batch = case.micro_batch or training.micro_batch
    training = training.with_batch(MICRO_BATCHES * micro_batch)
    plan = Plan(micro_batch, resolve_precision(case.precision, torch.device("cpu")))
    found: dict[str, StepCounts] = {}
    for stage in training.distinct_stages:
        lazy = any(phase.every > 1 for phase in stage.phases)
        found[f"{stage.name}, all due" if lazy else stage.name] = count_step(training, plan, stage)
        if lazy:
            found[stage.name] = count_step(training, plan, stage, step=1)
    return found
