"""What sections of a recipe are made of: marks that fields may bear, and the section `data`."""

from __future__ import annotations

from typing import Any, Literal, TypedDict, TypeVar, Unpack

from pydantic import BaseModel, ConfigDict, Field

Value = TypeVar("Value")

# Marks that recipe fields may bear: whether a run may go on with another value, and what that starts anew.

CHANGEABLE: dict[str, Any] = {"changeable": True}
"""Marks a recipe field that may differ when a run is resumed; all others are fixed."""


def restarts(*networks: str) -> dict[str, Any]:
    """As CHANGEABLE, for a field whose change gives these networks and their optimizer state a fresh start."""
    return {"changeable": True, "restarts": list(networks)}


ADDED: dict[str, Any] = {"added": True}
"""Marks a recipe field that earlier versions did not have: while it has its default, what was predicted before it still
holds."""


class Limits(TypedDict, total=False):
    """What a field's value is held to, by pydantic's words."""

    ge: float
    gt: float
    le: float
    lt: float
    min_length: int
    max_length: int


def setting(default: Value, description: str, marks: dict[str, Any] | None = None, **limits: Unpack[Limits]) -> Value:
    """A recipe field that need not be given. (One without a default is a `Field`, whose marks go into
    `json_schema_extra`.)

    Args:
        default: its value in recipes that do not give it.
        description: what it does, for the tables of all fields.
        marks: CHANGEABLE, ADDED, both (`|`), or `restarts(...)`.
        limits: refused beyond these.
    """
    field: Value = Field(default, description=description, json_schema_extra=marks, **limits)
    return field


class Settings(BaseModel):
    """A section of a recipe: no other fields than it says, and none that change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


# How pictures become training samples: the `data` section of a recipe.


class DataSettings(Settings):
    """How pictures become training samples."""

    flip: bool = setting(False, "mirror half of the pictures", CHANGEABLE)
    resample: Literal["bilinear", "lanczos"] = setting(
        "bilinear", "how pictures are resized: bilinear, as the original programs do, or lanczos, which is sharper"
    )
    allow_upscale: bool = setting(
        False, "enlarge pictures that are smaller than the resolution, instead of refusing them"
    )
    fit: Literal["crop", "pad"] = setting(
        "crop",
        "what becomes of pictures that are not square: crop, to the square in the middle; or pad, whole, with the "
        "background beside them (and around those smaller than the resolution)",
        ADDED,
    )
    background: str = setting(
        "white",
        "colour to put behind transparent pictures, and beside padded ones: a name, or #rrggbb",
        ADDED,
        max_length=40,
    )
    stored: Literal["pixels", "encoded"] = setting(
        "pixels",
        "pixels: stored once as pixels, the fastest to read; encoded: left in their files and decoded as "
        "they are read, for sets too large to store as pixels",
        CHANGEABLE | ADDED,
    )
    pretrain: str | None = setting(
        None,
        "faces of many people that both sides are read from while objective.pretrain is on; none: from --data",
        CHANGEABLE | ADDED,
        max_length=4096,
    )
