"""Base of a recipe's sections, marks of their fields, and the section `data`."""

from __future__ import annotations

from typing import Any, Literal, TypedDict, TypeVar, Unpack

from pydantic import BaseModel, ConfigDict, Field, field_validator

Value = TypeVar("Value")

# Marks of recipe fields: whether a run may go on with another value, and what then starts anew.

CHANGEABLE: dict[str, Any] = {"changeable": True}
"""Marks a recipe field that may differ when a run is resumed; all other fields are fixed."""


def restarts(*networks: str) -> dict[str, Any]:
    """Mark a changeable field whose change gives these networks and their optimizer state a fresh start."""
    return {"changeable": True, "restarts": list(networks)}


ADDED: dict[str, Any] = {"added": True}
"""Marks a recipe field that earlier versions did not have: at its default, predictions made before it still hold."""


class Limits(TypedDict, total=False):
    """Limits of a field's value, in pydantic's words."""

    ge: float
    gt: float
    le: float
    lt: float
    min_length: int
    max_length: int
    allow_inf_nan: bool


def setting(default: Value, description: str, marks: dict[str, Any] | None = None, **limits: Unpack[Limits]) -> Value:
    """Declare a recipe field with a default. (One without is a `Field`, whose marks go into `json_schema_extra`.)

    Args:
        default: value in recipes that do not give it.
        description: what it does, for the tables of all fields.
        marks: CHANGEABLE, ADDED, both (`|`), or `restarts(...)`.
        limits: values beyond these are refused.
    """
    field: Value = Field(default, description=description, json_schema_extra=marks, **limits)
    return field


class Settings(BaseModel):
    """A section of a recipe; unknown fields are refused, and objects are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


AllowUpscale = bool | Literal["leave-out"]
"""Whether pictures smaller than the resolution are enlarged (True), or left out: however many, or a few (False)."""


MOST_PATH = 4096
"""Characters of a path, at most."""


class DataSettings(Settings):
    """Section `data` of a recipe: how pictures become training samples."""

    flip: bool = setting(False, "mirror half of the pictures", CHANGEABLE)
    resample: Literal["bilinear", "lanczos"] = setting(
        "bilinear", "how pictures are resized: bilinear, as the original programs do, or lanczos, which is sharper"
    )
    allow_upscale: AllowUpscale = setting(
        False,
        "pictures that are smaller than the resolution: true: they are enlarged; leave-out: they are left out; false: "
        "they are left out if they are at most a tenth, and refused if they are more",
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
    range: float | None = setting(
        None,
        "value that is white in grey pictures of more than 8 bits, such as 4095 where 12 bits lie in files of 16; "
        "default: the largest that the file can hold",
        ADDED,
        gt=0,
        allow_inf_nan=False,
    )
    stored: Literal["pixels", "encoded"] = setting(
        "pixels",
        "pixels: stored once as pixels, the fastest to read; encoded: left in their files and decoded as "
        "they are read, for sets too large to store as pixels",
        CHANGEABLE | ADDED,
    )
    subset: int | None = setting(
        None,
        "train on so many of the pictures, as many of each class as of the others as far as it has them, drawn by the "
        "seed: a smaller subset lies within a larger one; none: on all",
        ADDED,
        ge=1,
    )
    holdout: int | float | str | None = setting(
        None,
        "test pictures that training never sees and that scores are measured against: a share of the pictures such as "
        "0.1 or a number of them such as 500, drawn by their pixels, so that equal ones stay together and every seed "
        "has the same; or a folder of others; none: scores are measured against what is trained on",
        ADDED,
    )
    pretrain: str | None = setting(
        None,
        "faces of many people that both sides are read from while objective.pretrain is on; none: from --data",
        CHANGEABLE | ADDED,
        max_length=MOST_PATH,
    )

    masks: str | None = setting(
        None,
        "an XSeg (run, checkpoint, weights file, or DeepFaceLab's folder) whose masks are trained with, in place of "
        "those that the faces have; their files stay as they are",
        CHANGEABLE | ADDED,
        max_length=MOST_PATH,
    )

    @field_validator("holdout", mode="before")
    @classmethod
    def _is_part_or_folder(cls, value: Any) -> Any:
        number = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        share = isinstance(value, float) and 0 < value < 1
        folder = isinstance(value, str) and 0 < len(value) <= MOST_PATH
        if not (value is None or number or share or folder):
            raise ValueError(
                "expected a share of the pictures between 0 and 1, such as 0.1, a number of them, such as 500, or a "
                "folder of others"
            )
        return value
