"""`frugan card`: a folder with a run's weights and its model card, for other people."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frugan.api.model_card.card_facts import CardFacts, Told, newest_grid, taken_later, told_by_events
from frugan.api.model_card.card_text import CARD, PICTURE, WEIGHTS, card_text
from frugan.api.plan.network_costs import parameter_counts
from frugan.api.progress import Say, quiet
from frugan.api.weights import Weights, weights_metadata
from frugan.contract.data import RunData
from frugan.contract.formats import RECIPE_FILE
from frugan.engine.checkpoint import EMA_FILE, STATE_FILE, step_in_name
from frugan.engine.run_folder import RunFolder
from frugan.engine.tensor_files import write_tensors
from frugan.errors import BadInput
from frugan.recipe.toml import dump_recipe
from frugan.regular_files import json_object

FILES = (CARD, WEIGHTS, RECIPE_FILE, PICTURE)
"""All that is written."""


def write_card(run: str | Path, out: str | Path | None = None, *, licence: str = "", say: Say = quiet) -> Path:
    """Write a folder that can be given away: model card, weights, recipe, sample grid.

    Args:
        run: a run folder, or one of its checkpoints.
        out: folder; None: `card` in the run.
        licence: what others may do with the weights, such as "cc-by-4.0"; empty: nobody has said.
        say: is told of damaged checkpoints that were passed over.

    Returns:
        The folder.

    Raises:
        BadInput: no run, without a checkpoint, or the folder holds other files.
    """
    weights = Weights.open(run, say)
    folder = RunFolder(Path(run)) if RunFolder(Path(run)).exists else RunFolder.holding(weights.path)
    if folder is None:
        raise BadInput(f"{run}: belongs to no run folder, which a card is made from")
    target = Path(out) if out is not None else folder.path / "card"
    if others := sorted(each.name for each in (target.iterdir() if target.is_dir() else ()) if each.name not in FILES):
        raise BadInput(f"{target}: holds other files ({', '.join(others[:3])}); choose another --out")
    facts = _facts(folder, weights)
    target.mkdir(parents=True, exist_ok=True)
    metadata = weights_metadata(
        weights.recipe, weights.class_names, step=facts.step, licence=licence or weights.licence
    )
    write_tensors(target / WEIGHTS, weights.read(), metadata)
    (target / RECIPE_FILE).write_text(dump_recipe(weights.recipe), "utf-8")
    if facts.grid is not None:
        shutil.copyfile(facts.grid.file, target / PICTURE)
    else:
        (target / PICTURE).unlink(missing_ok=True)
    (target / CARD).write_text(card_text(facts, licence or weights.licence), "utf-8")
    return target


def _facts(run: RunFolder, weights: Weights) -> CardFacts:
    told, file = told_by_events(run), weights.path
    counts = parameter_counts(weights.recipe)
    saved = json_object(file.parent / STATE_FILE) if step_in_name(file.parent) is not None else {}
    return CardFacts(
        name=run.path.resolve().name,
        recipe=weights.recipe,
        recipe_digest=weights_metadata(weights.recipe)["recipe_digest"],
        step=weights.step,
        images=saved["images"] if isinstance(saved.get("images"), int) else None,
        class_names=weights.class_names,
        parameters={name: counts[name] for name in weights.networks},
        scores=(*told.scores, *taken_later(run)),
        plan=json_object(run.plan),
        memory_bytes=told.memory_bytes,
        device=_device(saved, told),
        versions=f"frugan {told.start.get('frugan', '-')}, torch {told.start.get('torch', '-')}",
        data=_data(saved),
        grid=newest_grid(run.samples),
        averaged=file.name == EMA_FILE,
    )


def _device(saved: Mapping[str, Any], told: Told) -> str:
    """A card by its name, or "cpu"."""
    card = saved.get("card")
    return str(card["name"] if isinstance(card, Mapping) and "name" in card else told.start.get("device", "-"))


def _data(saved: Mapping[str, Any]) -> dict[str, str]:
    """Source -> digest of what was trained on; empty where the checkpoint does not say."""
    found = saved.get("data", {})
    try:
        return {str(source): RunData.read(entry).digest for source, entry in found.items()}
    except (KeyError, TypeError, AttributeError):
        return {}
