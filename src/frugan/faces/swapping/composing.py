"""A swapped face on its frame: which mask, how its edge is treated, in which colours, and how it is laid on.

What no recording says is a plain formula here, which docs/faces.md names.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from frugan.faces.data.colour_transfer import transfer_colour
from frugan.faces.data.face import ColourTransfer
from frugan.faces.data.geometry import opencv

Picture = NDArray[np.float32]
"""BGR [H, W, 3], or a mask [H, W], in [0, 1]."""
MaskMode = Literal["learned", "learned-prd", "learned-dst", "xseg", "xseg-prd", "xseg-dst", "all"]
"""The mask of the swapped face (prd), of the destination's (dst), or their product; from the model or from XSeg."""
BlendMode = Literal["overlay", "seamless"]

LEAST = 1 / 255
"""Smaller values of a mask count as none."""


def uses_xseg(mode: MaskMode) -> bool:
    """Whether a mask mode asks for XSeg."""
    return mode == "all" or mode.startswith("xseg")


@dataclass(frozen=True)
class Look:
    """How swapped faces are laid on frames."""

    mask: MaskMode = "learned"
    erode: int = 0  # pixels of the model's square by which masks are narrowed; below 0 they are widened
    blur: int = 0  # pixels of the square on either side over which a mask's edge falls off
    colours: ColourTransfer = "none"  # how the swapped face gets the destination's colours
    blend: BlendMode = "overlay"


@dataclass(frozen=True, eq=False)
class SwappedFace:
    """One face in the square of the model, [R, R], with the masks that are wanted."""

    matrix: NDArray[np.float32]  # the map from the frame to the square, [2, 3]
    target: Picture  # the destination's face
    face: Picture  # the swapped one
    masks: tuple[Picture, ...]  # whose product counts


def product(masks: tuple[Picture, ...]) -> Picture:
    """Return the product of masks [R, R], without what is nearly 0."""
    mask: Picture = np.prod(np.stack(masks), axis=0, dtype=np.float32).clip(0, 1)
    mask[mask < LEAST] = 0
    return mask


def edged(mask: Picture, erode: int, blur: int) -> Picture:
    """Return a mask [R, R] narrowed, then blurred; beyond the square there is no face.

    Args:
        erode: radius in pixels of the ellipse that is taken off the edge, or put on if it is below 0.
        blur: radius in pixels of the Gaussian, whose kernel is 2·blur + 1 wide with OpenCV's usual sigma.
    """
    cv2 = opencv()
    if erode:
        side = 2 * abs(erode) + 1
        element = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (side, side))
        change = cv2.erode if erode > 0 else cv2.dilate
        mask = change(mask, element, borderType=cv2.BORDER_CONSTANT, borderValue=0)
    if blur:
        mask = cv2.GaussianBlur(mask, (2 * blur + 1, 2 * blur + 1), 0, borderType=cv2.BORDER_CONSTANT)
    return mask


def compose(frame: NDArray[np.uint8], faces: list[SwappedFace], look: Look, seed: int) -> NDArray[np.uint8]:
    """Lay swapped faces on a frame, one after the other; pixels outside their masks stay as they are.

    Args:
        frame: uint8 BGR [H, W, 3].
        seed: of colour transfers that draw.
    """
    for place, one in enumerate(faces):
        random = np.random.RandomState((seed * 1009 + place) % (1 << 32))
        face = one.face
        if look.colours != "none":
            face = transfer_colour(look.colours, face, one.target, random).clip(0, 1)
        frame = _laid_on(frame, face, edged(product(one.masks), look.erode, look.blur), one.matrix, look.blend)
    return frame


def _laid_on(
    frame: NDArray[np.uint8], face: Picture, mask: Picture, matrix: NDArray[np.float32], blend: BlendMode
) -> NDArray[np.uint8]:
    cv2 = opencv()
    size = (frame.shape[1], frame.shape[0])
    back = cv2.WARP_INVERSE_MAP
    share = cv2.warpAffine(mask, matrix, size, flags=back | cv2.INTER_LINEAR).clip(0, 1)[..., None]  # [H, W, 1]
    if not share.any():
        return frame
    laid = cv2.warpAffine(face, matrix, size, flags=back | cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE).clip(0, 1)
    if blend == "seamless":
        laid = _cloned(frame, laid, share[..., 0])
    mixed = np.rint(255 * share * laid + (1 - share) * frame).clip(0, 255).astype(np.uint8)
    return np.where(share > 0, mixed, frame)


def _cloned(frame: NDArray[np.uint8], laid: Picture, share: Picture) -> Picture:
    """The face with the frame's colours at the edge of its mask, by Poisson's equation (Pérez and others 2003).

    A mask that reaches the frame's border is cut one pixel before it: there the equation has no outside.
    """
    cv2 = opencv()
    region = np.where(share > 0, np.uint8(255), np.uint8(0))
    region[[0, -1]] = 0
    region[:, [0, -1]] = 0
    left, top, width, height = cv2.boundingRect(region)
    if width < 3 or height < 3:
        return laid
    middle = (left + width // 2, top + height // 2)
    source, mask = np.rint(laid * 255).astype(np.uint8), region.copy()  # OpenCV 5 writes into the mask
    cloned = cv2.seamlessClone(source, frame, mask, middle, cv2.NORMAL_CLONE)
    return np.where(region[..., None] > 0, cloned.astype(np.float32) / 255, laid)
