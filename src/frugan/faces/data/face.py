"""Metadata of one aligned picture, face types, and how samples are made."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from frugan.errors import BadInput
from frugan.wording import shown

ColourTransfer = Literal["none", "rct", "lct", "mkl", "idt", "sot"]
FaceTypeOption = Literal["h", "mf", "f", "wf", "head"]


class FaceType(IntEnum):
    """Kinds of aligned pictures; numbers and names are those in DeepFaceLab's files."""

    HALF = 0
    MID_FULL = 1
    FULL = 2
    FULL_NO_ALIGN = 3
    WHOLE_FACE = 4
    HEAD = 10
    HEAD_NO_ALIGN = 20
    MARK_ONLY = 100

    @property
    def in_files(self) -> str:
        """The word for it in aligned JPEGs, for instance "whole_face"."""
        return _WORDS[self]

    @property
    def is_option(self) -> bool:
        """Whether a model can have this type."""
        return self in _OPTIONS

    @property
    def option(self) -> str:
        """The word for it in a model's options: h, mf, f, wf or head.

        Raises:
            ValueError: models are made for five of the types only.
        """
        if self not in _OPTIONS:
            raise ValueError(f"{self.name} is no face type of a model; expected one of {', '.join(_OPTIONS.values())}")
        return _OPTIONS[self]

    @staticmethod
    def from_file(text: str) -> "FaceType":
        """Return the type that an aligned JPEG calls `text`.

        Raises:
            BadInput: no such word.
        """
        return _named(text, _WORDS)

    @staticmethod
    def from_option(text: str) -> "FaceType":
        """Return the type that a model's options call `text`.

        Raises:
            BadInput: no such word.
        """
        return _named(text, _OPTIONS)


_WORDS = {
    FaceType.HALF: "half_face",
    FaceType.MID_FULL: "midfull_face",
    FaceType.FULL: "full_face",
    FaceType.FULL_NO_ALIGN: "full_face_no_align",
    FaceType.WHOLE_FACE: "whole_face",
    FaceType.HEAD: "head",
    FaceType.HEAD_NO_ALIGN: "head_no_align",
    FaceType.MARK_ONLY: "mark_only",
}
_OPTIONS = {
    FaceType.HALF: "h",
    FaceType.MID_FULL: "mf",
    FaceType.FULL: "f",
    FaceType.WHOLE_FACE: "wf",
    FaceType.HEAD: "head",
}


def _named(text: str, words: dict[FaceType, str]) -> FaceType:
    for face_type, word in words.items():
        if word == text:
            return face_type
    raise BadInput(f"face type {shown(text)!r}: expected one of {', '.join(words.values())}")


LANDMARKS = 68


@dataclass(frozen=True, eq=False)
class Polygon:
    """One hand-drawn outline that adds to the face's mask or takes from it."""

    include: bool  # whether its inside belongs to the face
    points: NDArray[np.float32]  # float32 [n, 2]: x, y in pixels of the aligned picture


@dataclass(frozen=True, eq=False)
class Face:
    """One aligned picture's metadata (as its own extractor writes it)."""

    name: str  # file name, for messages
    face_type: FaceType  # how much of the head it shows
    height: int  # of the picture in pixels
    width: int  # of the picture in pixels
    landmarks: NDArray[np.float32]  # float32 [68, 2]: x, y in pixels of the aligned picture
    eyebrows_expand_mod: float = 1.0  # how far the mask rises above the eyebrows; 1 is usual
    polygons: tuple[Polygon, ...] = ()  # hand-drawn outlines of the mask
    xseg_mask: bytes | None = None  # the mask as an encoded PNG or JPEG; its resolution may differ from the picture's
    source_filename: str | None = None  # the frame it was cut from
    person: str | None = None  # in sets of many people, whose face it is
    # float32 [68, 2]: the landmarks in the frame. Only in JPEGs, as the next two.
    source_landmarks: NDArray[np.float32] | None = None
    # float32 [4]: left, top, right, bottom of the found face in the frame
    source_rect: NDArray[np.float32] | None = None
    image_to_face: NDArray[np.float64] | None = None  # float64 [2, 3]: the map from the frame to the aligned picture
    oddities: tuple[
        str, ...
    ] = ()  # what its file says wrong and training does without, in words that follow "faces with"


@dataclass(frozen=True)
class SampleSettings:
    """How samples are made."""

    resolution: int  # R, their side in pixels
    face_type: FaceType  # how much of the head they show
    random_warp: bool  # bend the grid of the picture that the network sees, which it learns to undo
    random_flip: bool  # mirror 4 samples in 10
    hsv_power: float = 0.0  # how far hue, saturation and value of that picture are moved; 0 is not at all
    colour_transfer: ColourTransfer = "none"  # how they get the colours of a reference picture
    eyes_mouth: bool = True  # make that mask too
    scale: float = 1.15  # most of the random scale; 1 / scale is the least

    @property
    def channels(self) -> dict[str, int]:
        """Name of each tensor of a sample -> its channels."""
        return {"warped": 3, "target": 3, "mask": 1} | ({"eyes_mouth": 1} if self.eyes_mouth else {})
