"""How much of the head an aligned picture shows."""

from enum import IntEnum

from frugan.data.wording import shown
from frugan.errors import BadInput


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
        """Whether models are made for this type."""
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
