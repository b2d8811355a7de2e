"""What a run was trained on, as its checkpoints keep it: digests of the pictures, and what its labels mean."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from frugan.data.faces.faceset import Faceset
from frugan.data.picture_set import PictureSet
from frugan.engine.checkpoint import list_checkpoints
from frugan.engine.run_folder import RunFolder
from frugan.phase import DataNeeds
from frugan.recipe import Recipe


@dataclass(frozen=True)
class RunData:
    """One data source of a run.

    Attributes:
        digest: of the pictures that it was last trained on.
        first_digest: of those that it was begun with.
        class_names: what its labels mean, in their order; empty: it has no classes, or was begun before they were kept.
        mapping: class of the pictures -> its name in the run, for those that are called otherwise; None: all have the
            run's names and order.
    """

    digest: str
    first_digest: str
    class_names: tuple[str, ...] = ()
    mapping: Mapping[str, str] | None = None

    @classmethod
    def read(cls, entry: Any) -> "RunData":
        """From a checkpoint's JSON; at first that was the digest alone."""
        if isinstance(entry, str):
            return cls(entry, entry)
        return cls(entry["digest"], entry["first_digest"], tuple(entry["class_names"]), entry["mapping"])

    def as_json(self) -> dict[str, Any]:
        """For a checkpoint."""
        return asdict(self)


def read_run_data(saved: Mapping[str, Any]) -> dict[str, RunData]:
    """Every source of a checkpoint, by name, from its JSON state."""
    return {name: RunData.read(entry) for name, entry in saved.get("data", {}).items()}


def last_run_data(run: RunFolder) -> dict[str, RunData]:
    """What a run was last trained on; empty before its first checkpoint.

    Nothing is verified, which would read whole checkpoints: names stay the same from one to the next.
    """
    for checkpoint in reversed(list_checkpoints(run.checkpoints)):
        try:
            return read_run_data(json.loads((checkpoint.path / "state.json").read_text("utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # damaged: passed over by name when the run goes on
    return {}


def run_data_of(
    recipe: Recipe,
    sources: Mapping[str, PictureSet | Faceset],
    known: Mapping[str, RunData],
    map_classes: Mapping[str, str] | None,
) -> dict[str, RunData]:
    """What the run is trained on from now on.

    Args:
        sources: with the run's labels.
        known: what it was trained on before; empty for a new run.
        map_classes: as for `train`.
    """
    needs = recipe.kind.sources(recipe.networks, recipe.objective)
    found = {}
    for name, source in sources.items():
        before, need = known.get(name), needs[name]
        read = isinstance(need, DataNeeds) and need.classes is not None
        names = source.class_names if read and isinstance(source, PictureSet) and source.labelled else ()
        mapping = None
        if before is not None and names:
            mapping = before.mapping if map_classes is None else map_classes
        found[name] = RunData(source.digest, before.first_digest if before else source.digest, names, mapping)
    return found


def class_names(data: Mapping[str, RunData]) -> tuple[str, ...]:
    """What the labels of a run's networks mean; empty: they have no classes."""
    return next((source.class_names for source in data.values() if source.class_names), ())


def other_pictures(name: str, known: RunData, digest: str) -> str | None:
    """What to tell of pictures that are not those of the beginning, or not those of the last time; None: nothing.

    Args:
        known: what the run was trained on before.
        digest: of the pictures that it goes on with.
    """
    if digest == known.first_digest:
        return (
            None if digest == known.digest else f"the pictures of {name!r} are again those that the run was begun with"
        )
    ones = "those of last time" if digest == known.digest else "the new ones"
    return f"the pictures of {name!r} are not those the run was begun with: it goes on with {ones}"
