"""What a SAEHD recipe may set: the networks and the objective. Names and defaults are the original's."""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from frugan.contract.settings import CHANGEABLE, restarts
from frugan.data.faces.needs import ColourTransfer, FaceTypeOption
from frugan.families.saehd.archi import Archi, nearest_patch, stack_for

LEAST_RESOLUTION, MOST_RESOLUTION = 64, 640
PATCHES = (3, 640)
"""Least and most of gan_patch_size, in pixels."""


class SAEHDNetworks(BaseModel):
    """Encoder, bottleneck, decoders and the two discriminators."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    archi: str = Field(
        "liae-ud",
        description="df or liae, then letters: u (codes of unit size), d (twice the resolution for the same memory), t "
        "(deeper), c (cosine activations)",
    )
    resolution: int = Field(128, description="side of the faces; 64 to 640, a multiple of 16, of 32 with letters d, t")
    face_type: FaceTypeOption = Field(
        "f", description="how much of the head a face shows: h (half), mf, f (full), wf (whole face) or head"
    )
    ae_dims: int = Field(256, ge=32, le=1024, description="width of the bottleneck")
    e_dims: int = Field(64, ge=16, le=256, description="channels of the encoder")
    d_dims: int = Field(64, ge=16, le=256, description="channels of the decoder")
    d_mask_dims: int = Field(ge=16, le=256, description="channels of the mask decoder; default: a third of d_dims")
    gan_patch_size: int = Field(
        ge=3,
        le=640,
        json_schema_extra=restarts("patch_discriminator"),
        description="patch size of the GAN's discriminator, in pixels; default: about an eighth of the resolution",
    )
    gan_dims: int = Field(
        16,
        ge=4,
        le=512,
        json_schema_extra=restarts("patch_discriminator"),
        description="channels of the patch discriminator",
    )

    @model_validator(mode="before")
    @classmethod
    def _derived_defaults(cls, values: Any) -> Any:
        """Two defaults follow from other fields, as in the original."""
        if not isinstance(values, dict):
            return values
        filled = dict(values)
        d_dims, resolution = filled.get("d_dims", 64), filled.get("resolution", 128)
        if "d_mask_dims" not in filled and isinstance(d_dims, int):
            third = d_dims // 3
            filled["d_mask_dims"] = max(16, third + third % 2)
        if "gan_patch_size" not in filled and isinstance(resolution, int):
            filled["gan_patch_size"] = nearest_patch(resolution // 8, resolution, *PATCHES)
        return filled

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        archi = self.letters
        nearest = archi.nearest_resolution(self.resolution, LEAST_RESOLUTION, MOST_RESOLUTION)
        if nearest != self.resolution:
            raise ValueError(
                f"resolution {self.resolution}: {self.archi} is defined for multiples of {archi.multiple} from "
                f"{LEAST_RESOLUTION} to {MOST_RESOLUTION}; the nearest is {nearest}"
            )
        for name in ("e_dims", "d_dims", "d_mask_dims"):
            if (value := getattr(self, name)) % 2:
                raise ValueError(f"{name} {value}: expected an even number; the nearest is {value + 1}")
        stack = stack_for(self.gan_patch_size)
        if self.resolution % stack.total_stride:
            raise ValueError(
                f"gan_patch_size {self.gan_patch_size}: its layers halve the picture down to 1/{stack.total_stride}, "
                f"which does not divide {self.resolution} pixels; the nearest that does is "
                f"{nearest_patch(self.gan_patch_size, self.resolution, *PATCHES)}"
            )
        return self

    @property
    def letters(self) -> Archi:
        """The architecture, parsed."""
        return Archi.parse(self.archi)


class SAEHDObjective(BaseModel):
    """Losses and sampling of SAEHD training; all may change in mid-run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    masked_training: bool = Field(
        True, json_schema_extra=CHANGEABLE, description="learn only what is inside the mask (wf and head)"
    )
    eyes_mouth_prio: bool = Field(
        False, json_schema_extra=CHANGEABLE, description="give eyes and mouth more weight, against a wandering gaze"
    )
    uniform_yaw: bool = Field(
        False,
        json_schema_extra=CHANGEABLE,
        description="show all head angles equally often (for sets with few profile faces)",
    )
    blur_out_mask: bool = Field(False, json_schema_extra=CHANGEABLE, description="blur just outside the mask")
    random_warp: bool = Field(
        True,
        json_schema_extra=CHANGEABLE,
        description="warp the input at random; switch off towards the end, for sharpness",
    )
    random_src_flip: bool = Field(False, json_schema_extra=CHANGEABLE, description="mirror source faces at random")
    random_dst_flip: bool = Field(True, json_schema_extra=CHANGEABLE, description="mirror destination faces at random")
    random_hsv_power: float = Field(
        0.0,
        ge=0,
        le=0.3,
        json_schema_extra=CHANGEABLE,
        description="how much to vary the source's hue, saturation and value at random",
    )
    ct_mode: ColourTransfer = Field(
        "none", json_schema_extra=CHANGEABLE, description="give source faces the colours of destination faces"
    )
    true_face_power: float = Field(
        0.0,
        ge=0,
        le=1,
        json_schema_extra=CHANGEABLE,
        description="df only: makes the swap look more like the source; try 0.01",
    )
    face_style_power: float = Field(
        0.0,
        ge=0,
        le=100,
        json_schema_extra=CHANGEABLE,
        description="how strongly to learn the colours of the destination's face; try 1",
    )
    bg_style_power: float = Field(
        0.0,
        ge=0,
        le=100,
        json_schema_extra=CHANGEABLE,
        description="how strongly to learn the colours around the destination's face; try 2",
    )
    gan_power: float = Field(
        0.0,
        ge=0,
        le=5,
        json_schema_extra=CHANGEABLE,
        description="strength of the GAN, for fine detail; only at the very end; try 0.1",
    )
    mixed_face_types: bool = Field(
        False,
        json_schema_extra=CHANGEABLE,
        description="allow source and destination of different face types; each face is cropped to the recipe's",
    )
    pretrain: bool = Field(
        False, description="teach the networks faces of many people first; continue in a new run with --init"
    )

    @field_validator("ct_mode", mode="before")
    @classmethod
    def _none_is_a_mode(cls, value: Any) -> Any:
        """Recipes say nothing by "none", which is a mode here."""
        return "none" if value is None else value

    @property
    def effective(self) -> "SAEHDObjective":
        """What is trained with: pretraining sets several options aside, as in the original."""
        if not self.pretrain:
            return self
        return self.model_copy(
            update={
                "random_warp": False,
                "random_src_flip": True,
                "random_dst_flip": True,
                "random_hsv_power": 0.0,
                "ct_mode": "none",
                "gan_power": 0.0,
                "face_style_power": 0.0,
                "bg_style_power": 0.0,
                "uniform_yaw": True,
            }
        )
