"""Options of an XSeg recipe. Names and defaults are the original's; it knows base 32 and 256 pixels alone."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Self

from pydantic import model_validator

from frugan.contract.settings import ADDED, CHANGEABLE, Settings, setting
from frugan.faces.data.face import FaceTypeOption
from frugan.faces.xseg.networks import DIVISOR

LEAST_RESOLUTION, MOST_RESOLUTION = DIVISOR, 16 * DIVISOR
PRETRAINING_ENDS = "objective.pretrain=false"
"""Word of the command line by which a resumption ends it."""


class XSegNetworks(Settings):
    """The mask network."""

    resolution: int = setting(
        256, "side of the faces; a multiple of 64 up to 1024 (DeepFaceLab has 256 alone)", ge=LEAST_RESOLUTION
    )
    face_type: FaceTypeOption = setting(
        "wf", "how much of the head a face shows: h (half), mf, f (full), wf (whole face) or head"
    )
    base: int = setting(32, "channels of the first level (DeepFaceLab has 32 alone)", ge=2, le=256)
    eps: float = setting(
        1e-6,
        "start of what each normalisation adds to its mean square, and learns (DeepFaceLab has 0.000001 alone); "
        "a larger one makes maps that are nearly 0 matter less, and rounding with them",
        gt=0,
        le=1,
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        nearest = min(MOST_RESOLUTION, max(LEAST_RESOLUTION, round(self.resolution / DIVISOR) * DIVISOR))
        if nearest != self.resolution:
            raise ValueError(
                f"resolution {self.resolution}: six halvings want a multiple of {DIVISOR} from {LEAST_RESOLUTION} to "
                f"{MOST_RESOLUTION}; the nearest is {nearest}"
            )
        return self


class XSegObjective(Settings):
    """Losses of the mask network, which are the original's."""

    pretrain: bool = setting(
        False,
        "teach the network to draw faces of many people in grey first (data.pretrain), without labels; false on a "
        "resumption ends it: steps count from 0 again",
        CHANGEABLE,
    )
    as_original: bool = setting(
        False,
        "take applied masks of another size than their picture for ones of its size, which misplaces them, as "
        "DeepFaceLab does",
        CHANGEABLE | ADDED,
    )


OPTION_NAMES: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(("batch_size", "bs"), "batch_size")
    | dict.fromkeys(("target_iter", "iterations", "iters", "iter"), "training.duration")
)
"""Word for an option of DeepFaceLab's -> what is to be typed; the original has none for how long it trains."""


def option_words(name: str, value: str) -> list[str] | None:
    """Words of the command line for an option of the original; None: it has no such option."""
    if name == "batch_size":
        return [f"training.batch={value}"]
    if name == "face_type":
        return [f"networks.face_type={value}"]
    if name == "pretrain":
        return [f"objective.pretrain={'true' if value.lower() in ('y', 'yes', 'true', '1') else 'false'}"]
    return None
