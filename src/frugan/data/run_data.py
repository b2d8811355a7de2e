"""What a run was trained on, as its checkpoints keep it: digests of the pictures, and what its labels mean."""

from collections.abc import Mapping
from typing import Any

from frugan.contract.data import RunData


def read_run_data(saved: Mapping[str, Any]) -> dict[str, RunData]:
    """Every source of a checkpoint, by name, from its JSON state."""
    return {name: RunData.read(entry) for name, entry in saved.get("data", {}).items()}


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
