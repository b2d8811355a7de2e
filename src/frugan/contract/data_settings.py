"""How pictures become training samples: the `data` section of a recipe."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from frugan.contract.field_marks import ADDED, CHANGEABLE


class DataSettings(BaseModel):
    """How pictures become training samples."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    flip: bool = Field(False, json_schema_extra=CHANGEABLE, description="mirror half of the pictures")
    resample: Literal["bilinear", "lanczos"] = Field(
        "bilinear", description="how pictures are resized; bilinear is the originals', lanczos sharper"
    )
    allow_upscale: bool = Field(False, description="accept pictures smaller than the resolution")
    background: str = Field(
        "white",
        max_length=40,
        json_schema_extra=ADDED,
        description="colour that transparent pictures are laid on: a name, or #rrggbb",
    )
    stored: Literal["pixels", "encoded"] = Field(
        "pixels",
        json_schema_extra=CHANGEABLE | ADDED,
        description="pixels: prepared once, and mapped from the disk; encoded: pictures stay in their files and are "
        "decoded as they are read, for sets whose pixels fit on no disk",
    )
