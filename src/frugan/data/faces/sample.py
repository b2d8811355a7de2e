"""From an aligned picture to what training takes: the face bent and not, its mask, and its eyes and mouth.

Source: DeepFaceLab's behaviour; the random numbers are drawn in the original's order.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from frugan.data.faces.alignment import alignment_matrix
from frugan.data.faces.colour_transfer import transfer_colour
from frugan.data.faces.face import Face
from frugan.data.faces.face_type import FaceType
from frugan.data.faces.landmark_masks import eyes_mouth_mask, face_mask
from frugan.data.faces.opencv import opencv
from frugan.data.faces.warp import Warp, draw_warp
from frugan.errors import BadInput

Picture = NDArray[np.float32]

_LEAST_SIZE = 64  # smaller samples are made at this size, then made smaller


@dataclass(frozen=True)
class SampleSettings:
    """How samples are made.

    Attributes:
        resolution: R, their side in pixels.
        face_type: how much of the head they show.
        random_warp: bend the grid of `FaceSample.warped`.
        random_flip: mirror 4 samples in 10.
        hsv_power: how far hue, saturation and value of `FaceSample.warped` are moved; 0 is not at all.
        colour_transfer: how they get the colours of a reference picture.
        eyes_mouth: make that mask too.
    """

    resolution: int
    face_type: FaceType
    random_warp: bool
    random_flip: bool
    hsv_power: float = 0.0
    colour_transfer: Literal["none", "rct", "lct", "mkl", "idt", "sot"] = "none"
    eyes_mouth: bool = True


@dataclass(frozen=True, eq=False)
class FaceSample:
    """One sample; all four show the face in the same place.

    Attributes:
        warped: what the network sees, BGR within [0, 1], float32 [R, R, 3].
        target: what it should give back, likewise.
        mask: 1 on the face, float32 [R, R, 1].
        eyes_mouth: greatest on eyes and mouth, where it is 1, float32 [R, R, 1].
    """

    warped: Picture
    target: Picture
    mask: Picture
    eyes_mouth: Picture | None


def make_sample(
    face: Face,
    picture: NDArray[np.uint8],
    settings: SampleSettings,
    seed: int,
    reference: NDArray[np.uint8] | None = None,
) -> FaceSample:
    """Make one sample; it depends on the arguments alone.

    Args:
        face: what is known of the picture.
        picture: uint8 BGR [H, W, 3].
        settings: how.
        seed: 0 to 2^32 - 1.
        reference: uint8 BGR [h, w, 3], whose colours are taken, unless `settings.colour_transfer` is "none".

    Raises:
        BadInput: the picture shows less of the head than the settings want, its mask cannot be decoded, or OpenCV is
            not installed.
        ValueError: colours are to be transferred, but there is no reference.
    """
    if settings.face_type > face.face_type:  # the numbers grow with what is shown
        raise BadInput(
            f"{face.name}: extracted as {face.face_type.in_files}, the recipe wants {settings.face_type.option}, which "
            f"shows more: extract again as {settings.face_type.in_files}, or set networks.face_type to what is there"
        )
    size = max(settings.resolution, _LEAST_SIZE)
    random = np.random.RandomState(seed)
    warp = draw_warp(size, seed, random, may_flip=settings.random_flip)

    target = _aligned(face, _unit(picture), settings.face_type, size, cubic=True)
    if settings.colour_transfer != "none":
        if reference is None:
            raise ValueError(f"colour transfer {settings.colour_transfer!r} without a reference picture")
        colours = opencv().resize(_unit(reference), (size, size))
        # a stream of its own: the original draws from a global one, so there is no order to keep
        target = transfer_colour(settings.colour_transfer, target, colours, np.random.RandomState([seed, 1]))
    warped = _shift_hsv(target, settings.hsv_power, random) if settings.hsv_power else target
    if settings.random_warp:
        warped = warp.bend_picture(warped)

    mask = _whole_mask(face, *picture.shape[:2])
    eyes_mouth = None
    if settings.eyes_mouth:
        parts = eyes_mouth_mask(face.landmarks, *picture.shape[:2])
        parts *= mask != 0
        eyes_mouth = _up_to_one(_placed_mask(face, parts, settings, warp))
    placed_target = _placed_picture(target, settings, warp)
    return FaceSample(
        warped=placed_target if warped is target else _placed_picture(warped, settings, warp),
        target=placed_target,
        mask=_placed_mask(face, mask, settings, warp),
        eyes_mouth=eyes_mouth,
    )


def _placed_picture(picture: Picture, settings: SampleSettings, warp: Warp) -> Picture:
    """Return a picture, float32 [size, size, 3], turned and so on: [R, R, 3]."""
    moved = _resized(warp.move_picture(picture), settings.resolution, cubic=True)
    return moved.clip(0, 1, out=moved)


def _placed_mask(face: Face, mask: Picture, settings: SampleSettings, warp: Warp) -> Picture:
    """Return a mask of the whole picture, float32 [H, W], cut to the face, turned and so on: [R, R, 1]."""
    moved = warp.move_mask(_aligned(face, mask, settings.face_type, warp.size, cubic=False))
    return _resized(moved, settings.resolution, cubic=False)[..., None]


def _whole_mask(face: Face, height: int, width: int) -> Picture:
    """Return the mask that came with the picture, at its size, else that from landmarks: float32 [height, width]."""
    if face.xseg_mask is None:
        return face_mask(face.landmarks, height, width, face.eyebrows_expand_mod)
    cv2 = opencv()
    mask = cv2.imdecode(np.frombuffer(face.xseg_mask, np.uint8), cv2.IMREAD_GRAYSCALE)
    if mask is None:
        raise BadInput(f"{face.name}: its XSeg mask cannot be decoded; expected a PNG or a JPEG: make the mask again")
    if mask.shape == (height, width):
        return _unit(mask)
    resized: Picture = cv2.resize(_unit(mask), (width, height), interpolation=cv2.INTER_CUBIC)
    return resized.clip(0, 1, out=resized)


def _aligned(face: Face, picture: Picture, face_type: FaceType, size: int, *, cubic: bool) -> Picture:
    """Return a picture, float32 [H, W, 3], or mask, [H, W], cut to the face type: [size, size, 3] or [size, size]."""
    if face.face_type is face_type:
        return _resized(picture, size, cubic=cubic)
    cv2 = opencv()
    try:
        matrix = alignment_matrix(face.landmarks, size, face_type)
    except BadInput as error:
        raise BadInput(f"{face.name}: {error}") from error
    cut: Picture = cv2.warpAffine(
        picture,
        matrix,
        (size, size),
        flags=cv2.INTER_CUBIC if cubic else cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_REPLICATE if cubic else cv2.BORDER_CONSTANT,
    )
    return cut


def _resized(picture: Picture, size: int, *, cubic: bool) -> Picture:
    """Return a picture, float32 [H, W, 3], or mask, [H, W], at a size: [size, size, 3] or [size, size]."""
    if picture.shape[:2] == (size, size):
        return picture
    cv2 = opencv()
    resized: Picture = cv2.resize(picture, (size, size), interpolation=cv2.INTER_CUBIC if cubic else cv2.INTER_LINEAR)
    return resized


def _shift_hsv(picture: Picture, power: float, random: np.random.RandomState) -> Picture:
    """Return the picture with hue turned by up to ±180 `power` degrees, saturation and value by up to ±`power` / 2."""
    cv2 = opencv()
    hue, saturation, value = cv2.split(cv2.cvtColor(picture, cv2.COLOR_BGR2HSV))  # hue in degrees
    degrees = max(1, int(180 * power))
    hue = (hue + random.randint(-degrees, degrees + 1)) % 360
    saturation = (saturation + (random.random_sample() - 0.5) * power).clip(0, 1)
    value = (value + (random.random_sample() - 0.5) * power).clip(0, 1)
    shifted: Picture = cv2.cvtColor(cv2.merge([hue, saturation, value]), cv2.COLOR_HSV2BGR)
    return shifted.clip(0, 1, out=shifted)


def _up_to_one(mask: Picture) -> Picture:
    """Return a mask divided by its greatest value, unless that is 0."""
    greatest = mask.max()
    return mask / greatest if greatest else mask


def _unit(picture: NDArray[np.uint8]) -> Picture:
    """Return bytes as float32 within [0, 1]."""
    unit: Picture = picture.astype(np.float32)
    unit /= 255
    return unit
