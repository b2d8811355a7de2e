"""Options of an AMP recipe. Names and defaults are the original's, but `train_inters`, which it has not."""

from types import MappingProxyType
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from frugan.contract.settings import CHANGEABLE, Settings, restarts, setting
from frugan.faces.amp.networks import ARCHI
from frugan.faces.data.face import ColourTransfer
from frugan.faces.saehd import config as saehd
from frugan.faces.saehd.config import EVEN, LEAST_RESOLUTION, MOST_RESOLUTION, check_patch, check_widths

DEFAULT_RESOLUTION = 224


class AMPNetworks(Settings):
    """Encoder, two inter networks, decoder and the patch discriminator."""

    resolution: int = setting(DEFAULT_RESOLUTION, "side of the faces; a multiple of 32 from 64 to 640")
    face_type: Literal["f", "wf", "head"] = setting(
        "wf", "how much of the head a face shows: f (full), wf (whole face) or head"
    )
    ae_dims: int = setting(256, "width of the encoder's vector", ge=32, le=1024)
    inter_dims: int = setting(1024, "channels of the code, which are the source's or the destination's", ge=32, le=2048)
    e_dims: int = setting(64, "channels of the encoder", ge=16, le=256)
    d_dims: int = setting(64, "channels of the decoder", ge=16, le=256)
    d_mask_dims: int = Field(ge=16, le=256, description="channels of the mask decoder; default: a third of d_dims")
    gan_patch_size: int = Field(
        ge=3,
        le=640,
        json_schema_extra=restarts("patch_discriminator"),
        description="patch size of the GAN's discriminator, in pixels; default: about an eighth of the resolution",
    )
    gan_dims: int = setting(16, "channels of the patch discriminator", restarts("patch_discriminator"), ge=4, le=512)

    @model_validator(mode="before")
    @classmethod
    def _derived_defaults(cls, values: Any) -> Any:
        """Two defaults follow from other fields, as in SAEHD."""
        return saehd.with_derived_defaults(values, DEFAULT_RESOLUTION) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        nearest = ARCHI.nearest_resolution(self.resolution, LEAST_RESOLUTION, MOST_RESOLUTION)
        if nearest != self.resolution:
            raise ValueError(
                f"resolution {self.resolution}: AMP is defined for multiples of {ARCHI.multiple} from "
                f"{LEAST_RESOLUTION} to {MOST_RESOLUTION}; the nearest is {nearest}"
            )
        check_widths({name: getattr(self, name) for name in EVEN})
        check_patch(self.gan_patch_size, self.resolution)
        return self


class AMPObjective(Settings):
    """Losses and sampling of AMP training. Masks, eyes and mouth always count."""

    morph_factor: float = setting(
        0.5,
        "share of the code's channels that come from the source when it is learned, drawn anew for every sample",
        CHANGEABLE,
        ge=0.1,
        le=0.5,
    )
    train_inters: bool = setting(
        False, "train both inter networks too, which DeepFaceLab leaves as they were drawn: another model than its own"
    )
    uniform_yaw: bool = setting(
        False, "show all head angles equally often (for sets with few profile faces)", CHANGEABLE
    )
    blur_out_mask: bool = setting(False, "blur just outside the mask", CHANGEABLE)
    random_warp: bool = setting(True, "warp the input at random; switch off towards the end, for sharpness", CHANGEABLE)
    random_src_flip: bool = setting(False, "mirror source faces at random", CHANGEABLE)
    random_dst_flip: bool = setting(True, "mirror destination faces at random", CHANGEABLE)
    ct_mode: ColourTransfer = setting("none", "give source faces the colours of destination faces", CHANGEABLE)
    gan_power: float = setting(
        0.0, "strength of the GAN on both sides, for fine detail; only at the very end; try 0.1", CHANGEABLE, ge=0, le=5
    )
    mixed_face_types: bool = setting(
        False, "allow source and destination of different face types; each face is cropped to the recipe's", CHANGEABLE
    )

    @field_validator("ct_mode", mode="before")
    @classmethod
    def _none_is_a_mode(cls, value: Any) -> Any:
        """Recipes say nothing by "none", which is a mode here."""
        return "none" if value is None else value


LEFT_OUT = saehd.LEFT_OUT
OPTION_NAMES = MappingProxyType({word: name for word, name in saehd.OPTION_NAMES.items() if name != "adabelief"})
"""Word for an option of the original -> its name; it has no other optimizer."""


def option_words(name: str, value: str) -> list[str] | None:
    """Words of the command line for an option of the original; None: it has no such option.

    Raises:
        BadInput: the option has no such value, or nothing stands for it.
    """
    if name == "adabelief":  # it has no other optimizer
        return None
    return saehd.option_words(name, value, AMPNetworks, AMPObjective)
