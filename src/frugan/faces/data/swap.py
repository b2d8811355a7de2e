"""The call by which `frugan swap` uses a family: a face of the destination in, the source's face and masks out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from frugan.contract.phase import Networks
from frugan.faces.data.face import FaceTypeOption


@dataclass(frozen=True)
class FaceSwap:
    """Networks that turn a face of the destination into one of the source, as one call."""

    resolution: int  # R, side of the square that they see
    face_type: FaceTypeOption  # how much of the head that shows
    # faces [n, 3, R, R], BGR in [0, 1] -> the swapped face [n, 3, R, R], its mask [n, 1, R, R], and the mask of the
    # given face [n, 1, R, R], all fp32 in [0, 1]
    call: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


@runtime_checkable
class SwapsFaces(Protocol):
    """A family whose networks swap faces."""

    def face_swap(self, networks: Any, built: Networks) -> FaceSwap:
        """Return what swaps faces, of prepared networks."""
