"""A training set-up to time: the state, the step and the plan of a recipe on a device, with blank pictures."""

from collections.abc import Callable

import torch

from frugan.accelerator.precision import PrecisionName, resolve_precision
from frugan.engine.plan import Plan, check_micro_batch
from frugan.engine.state.state import TrainingState
from frugan.engine.step.step import Step
from frugan.engine.streams import Streams
from frugan.planning.prediction import BlankPictures
from frugan.recipe.recipe import Recipe
from frugan.setup.recipe_setup import training_of

SetUp = tuple[TrainingState, Step, Plan]


def set_up(
    recipe: Recipe,
    device: torch.device,
    precision: PrecisionName,
    *,
    micro_batch: int | None = None,
    recompute: bool = False,
    changed: Callable[[Plan], Plan] | None = None,
) -> SetUp:
    """Make one; the same first weights each time.

    Args:
        micro_batch: samples in one forward; None: one normalisation group, or all.
        recompute: every block.
        changed: makes another plan of the one that this comes to.
    """
    torch.manual_seed(0)
    training = training_of(recipe)
    blocks = training.recomputable(training.build("meta")) if recompute else {}
    resolved = resolve_precision(precision, device)
    if micro_batch is None:
        micro_batch = training.group if training.group > 1 else training.batch
    check_micro_batch(micro_batch, training.batch, training.group)
    plan = Plan(micro_batch, resolved, blocks)
    plan = plan if changed is None else changed(plan)
    pictures = BlankPictures(training.stages[0].sources)
    return training.state(plan, device), training.step(pictures, Streams(0)), plan
