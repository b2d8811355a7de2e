"""What sections of a recipe are made of: marks that fields may bear, and the section `data`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

# Marks that recipe fields may bear: whether a run may go on with another value, and what that starts anew.

CHANGEABLE: dict[str, Any] = {"changeable": True}
"""Goes into `json_schema_extra` of a recipe field that may differ when a run is resumed; all others are fixed."""


def restarts(*networks: str) -> dict[str, Any]:
    """As CHANGEABLE, for a field whose change gives these networks and their optimizer state a fresh start."""
    return {"changeable": True, "restarts": list(networks)}


ADDED: dict[str, Any] = {"added": True}
"""Goes into `json_schema_extra` of a recipe field that earlier versions did not have: while it has its default, what
was predicted before it still holds."""


# How pictures become training samples: the `data` section of a recipe.


class DataSettings(BaseModel):
    """How pictures become training samples."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    flip: bool = Field(False, json_schema_extra=CHANGEABLE, description="mirror half of the pictures")
    resample: Literal["bilinear", "lanczos"] = Field(
        "bilinear",
        description="how pictures are resized: bilinear, as the original programs do, or lanczos, which is sharper",
    )
    allow_upscale: bool = Field(
        False, description="enlarge pictures that are smaller than the resolution, instead of refusing them"
    )
    background: str = Field(
        "white",
        max_length=40,
        json_schema_extra=ADDED,
        description="colour to put behind transparent pictures: a name, or #rrggbb",
    )
    stored: Literal["pixels", "encoded"] = Field(
        "pixels",
        json_schema_extra=CHANGEABLE | ADDED,
        description="pixels: stored once as pixels, the fastest to read; encoded: left in their files and decoded as "
        "they are read, for sets too large to store as pixels",
    )
