"""What chooses the plan of a training that has no run folder."""

from collections.abc import Callable
from pathlib import Path

import torch

from frugan.accelerator.precision import Precision
from frugan.engine.ranks.ranks import OneRank
from frugan.engine.run.run_folder import RunFolder
from frugan.recipe.recipe import Recipe
from frugan.training.plan_in_force import TrainingPlanner
from frugan.training.run import TrainingOptions, TrainRun


def training_planner(
    recipe: Recipe,
    options: TrainingOptions,
    device: torch.device,
    precision: Precision,
    say: Callable[[str], None],
    *,
    name: str = "tiny",
    ranks: OneRank | None = None,
) -> TrainingPlanner:
    """As a training has it, on the only rank or as one of several."""
    run = TrainRun(
        recipe=recipe,
        name=name,
        sources={},
        data={},
        folder=RunFolder(Path("no-run")),
        options=options,
        say=say,
        ranks=ranks or OneRank(),
    )
    return TrainingPlanner(run, device, precision)
