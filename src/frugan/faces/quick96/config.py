"""Sizes of a Quick96 recipe, which the original has fixed; names are those of SAEHD's options."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, Self

from pydantic import model_validator

from frugan.contract.settings import Settings, setting
from frugan.faces.data.face import FaceTypeOption
from frugan.faces.saehd.config import Archi

ARCHI = Archi("df", normalised=True, doubled=True)
"""SAEHD's df-ud."""


class Quick96Networks(Settings):
    """Encoder, bottleneck and two decoders."""

    resolution: Literal[96] = setting(96, "side of the faces, which are full faces")
    ae_dims: int = setting(128, "width of the bottleneck (DeepFaceLab has 128 alone)", ge=32, le=1024)
    e_dims: int = setting(64, "channels of the encoder (DeepFaceLab has 64 alone)", ge=16, le=256)
    d_dims: int = setting(64, "channels of the decoders (DeepFaceLab has 64 alone)", ge=16, le=256)
    d_mask_dims: int = setting(16, "channels of the mask decoders (DeepFaceLab has 16 alone)", ge=16, le=256)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name in ("e_dims", "d_dims", "d_mask_dims"):
            if (value := getattr(self, name)) % 2:
                raise ValueError(f"{name} {value}: expected an even number; the nearest is {value + 1}")
        return self

    @property
    def letters(self) -> Archi:
        """The architecture, of which there is one."""
        return ARCHI

    @property
    def face_type(self) -> FaceTypeOption:
        """How much of the head a face shows."""
        return "f"


WIDTHS = {"ae_dims": 128, "e_dims": 64, "d_dims": 64, "d_mask_dims": 16}
"""The original's, which is the only size that it reads."""


OPTION_NAMES: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(("batch_size", "bs"), "batch_size")
    | dict.fromkeys(("target_iter", "iterations", "iters", "iter"), "training.duration")
)
"""Word for an option of DeepFaceLab's -> what is to be typed; the original has none for how long it trains."""


def option_words(name: str, value: str) -> list[str] | None:
    """Words of the command line for an option of the original; None: it has no such option."""
    return [f"training.batch={value}"] if name == "batch_size" else None
