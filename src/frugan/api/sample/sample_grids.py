"""Writes the family's sheets of a run's networks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from frugan.api.progress import Say
from frugan.api.sample.given_pictures import with_pictures
from frugan.api.sample.row_labels import row_labels
from frugan.contract.family import Previews
from frugan.engine.plan import Plan
from frugan.engine.precision import resolve_precision
from frugan.engine.state import TrainingState
from frugan.engine.working_weights import working_weights
from frugan.recipe.recipe import Recipe
from frugan.report.loss_curves import loss_strip
from frugan.report.sheets import not_finite, sheet_width, write_sheet


def provenance(recipe: Recipe, step: int) -> dict[str, str]:
    """What a picture that we made says about itself."""
    return {
        "Software": "frugan",
        "Description": f"synthetic: made by a {recipe.family} network at step {step}",
        "Recipe": recipe.about.summary or recipe.family,
    }


def newest_sheet(folder: Path, kind: str) -> Path:
    """The last sheet of a kind in a run's folder of samples; a training that was stopped may not have drawn its end."""
    return max(folder.glob(f"step-*-{kind}.png"), key=lambda path: path.name)


def write_sheets(
    recipe: Recipe,
    state: TrainingState,
    plan: Plan,
    folder: Path,
    previews: Previews | None,
    losses: Mapping[str, Sequence[float]],
    class_names: Sequence[str],
    say: Say,
) -> list[Path]:
    """Write the family's sheets of the averaged networks, or of the networks where none is averaged.

    Args:
        losses: side -> loss of every step so far, drawn above each sheet; may be empty.
        class_names: by number, to stand before the rows; may be empty.
        say: is told of pictures that are not finite: no reason to end a training.

    Returns:
        Their paths.
    """
    folder.mkdir(parents=True, exist_ok=True)
    networks, layout = state.shown, plan.layout(state.device)
    if plan.ema_on_host and state.ema.networks and state.device.type != "cpu":
        # The card's precision may be one that this processor is slow in.
        host = torch.device("cpu")
        layout = replace(plan, precision=resolve_precision("auto", host)).layout(host)
    training = {name: network.training for name, network in networks.items()}
    paths = []
    for network in networks.values():
        network.eval()
    try:
        with torch.no_grad(), working_weights(networks, dict.fromkeys(networks, layout), (), None):
            for name, request in recipe.kind.snapshots(recipe.networks).items():
                asked = replace(with_pictures(recipe, request, previews), micro_batch=plan.micro_batch)
                paths.append(folder / f"step-{state.step:09d}-{name}.png")
                sheet = recipe.kind.sample(recipe.networks, networks, asked)
                if line := not_finite(sheet):
                    say(f"{paths[-1].name}: {line}")
                width = sheet_width(sheet.shape[1], sheet.shape[-1])
                above = loss_strip(losses, state.step, width) if losses else None
                labels = row_labels(asked, sheet.shape[0], class_names)
                write_sheet(sheet, paths[-1], provenance(recipe, state.step), above, asked.titles, labels)
    finally:
        for name, network in networks.items():
            network.train(training[name])
    return paths
