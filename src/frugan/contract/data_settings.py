"""How pictures become training samples: the `data` section of a recipe."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from frugan.contract.field_marks import ADDED, CHANGEABLE


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
