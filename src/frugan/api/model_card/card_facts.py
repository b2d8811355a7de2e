"""What a model card is made from: plain values out of a run folder."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from frugan.api.progress import quiet
from frugan.engine.events import read_events
from frugan.engine.run_folder import RunFolder
from frugan.metrics.provenance import Provenance
from frugan.recipe.recipe import Recipe
from frugan.report.sheets import ROWS_KEYWORD


@dataclass(frozen=True)
class Scored:
    """Scores, and what they were measured with.

    Attributes:
        scores: name -> value.
        provenance: without paths: those are nobody's business.
    """

    scores: Mapping[str, float]
    provenance: Provenance


@dataclass(frozen=True)
class Grid:
    """A sample grid.

    Attributes:
        file: picture.
        step: of training.
        rows: names of its rows, from the top; empty: they have none.
    """

    file: Path
    step: int
    rows: tuple[str, ...]


@dataclass(frozen=True)
class CardFacts:
    """What is known of a run.

    Attributes:
        name: of its folder.
        recipe, recipe_digest: that it was trained by.
        step: of the weights.
        images: that the networks were shown until then; None: not known.
        class_names: what labels mean; empty: there are no classes, or nobody knows.
        parameters: network -> number, of those that the weights hold.
        scores: oldest first.
        plan: as the run folder has it; empty: none.
        memory_bytes: most that was taken; None: not known.
        device: that it was trained on.
        versions: of frugan and torch.
        data: source -> digest of what it was trained on.
        grid: newest sample grid; None: there is none.
        averaged: whether the weights are averages.
    """

    name: str
    recipe: Recipe
    recipe_digest: str
    step: int
    images: int | None
    class_names: tuple[str, ...]
    parameters: Mapping[str, int]
    scores: tuple[Scored, ...]
    plan: Mapping[str, Any]
    memory_bytes: int | None
    device: str
    versions: str
    data: Mapping[str, str]
    grid: Grid | None
    averaged: bool


@dataclass(frozen=True)
class Told:
    """What a run's events tell.

    Attributes:
        scores: that training took.
        memory_bytes: most that was taken; None: not told.
        start: the newest beginning.
    """

    scores: tuple[Scored, ...]
    memory_bytes: int | None
    start: Mapping[str, Any]


def told_by_events(run: RunFolder) -> Told:
    """Read a run's events; lines that cannot be read are passed over."""
    scores: list[Scored] = []
    memory: int | None = None
    start: Mapping[str, Any] = {}
    for event in read_events(run.events, quiet) if run.events.is_file() else ():
        match event.get("event"):
            case "metrics":
                scores += _scored(event)
            case "start":
                start = event
            case "step" if isinstance(taken := event.get("memory_bytes"), int):
                memory = max(memory or 0, taken)
    return Told(tuple(scores), memory, start)


def taken_later(run: RunFolder) -> tuple[Scored, ...]:
    """Scores that `frugan evaluate` has left in a run."""
    if not run.scores.is_file():
        return ()
    found: list[Scored] = []
    for line in run.scores.read_text("utf-8", errors="replace").splitlines():
        try:
            values = json.loads(line)
        except ValueError:
            continue
        found += _scored(values) if isinstance(values, Mapping) else ()
    return tuple(found)


def _scored(values: Mapping[str, Any]) -> Iterator[Scored]:
    """Scores with their provenance; none where one of the two is missing or of another version."""
    try:
        of = Provenance.from_json(values["provenance"] | {"weights": ""})
        scores = {str(name): float(value) for name, value in values["scores"].items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        return
    named = {"data": Path(of.data).name or of.data, "reference": Path(of.reference).name or of.reference}
    yield Scored(scores, Provenance.from_json(of.as_json() | named))


def newest_grid(folder: Path) -> Grid | None:
    """The newest sample grid of a run: plain samples, or what there is."""
    found: list[tuple[bool, int, Path]] = []
    for path in folder.glob("step-*-*.png") if folder.is_dir() else ():
        step, _, kind = path.stem.removeprefix("step-").partition("-")
        if step.isdigit():
            found.append((kind == "samples", int(step), path))
    for _, step_number, file in sorted(found, reverse=True):
        try:
            with Image.open(file) as picture:
                text = str(picture.info.get(ROWS_KEYWORD, ""))
        except (OSError, SyntaxError):  # damaged: the one before is shown
            continue
        return Grid(file, step_number, tuple(text.split("\n")) if text else ())
    return None
