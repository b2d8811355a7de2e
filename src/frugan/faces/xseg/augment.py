"""Random changes of a face's colours, sharpness and background, under which XSeg learns its mask.

Source: DeepFaceLab's behaviour, whose draws are kept in order: numpy's RandomState is a frozen generator (NEP 19).
"""

from collections.abc import Callable

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

from frugan.faces.data.geometry import opencv

Picture = NDArray[np.float32]
"""Float32 BGR [R, R, 3], about [0, 1]."""
Mask = NDArray[np.float32]
"""Float32 [R, R, 1] in [0, 1]."""

_CHANCE = 25  # per cent
_MOST_KERNEL = 5


def one_of_two(random: RandomState) -> bool:
    """Draw the first of two ways, in half of all cases."""
    return bool(random.randint(2) == 0)


def _happens(random: RandomState) -> bool:
    return bool(random.randint(100) < _CHANCE)


def faded_circle(side: int, random: RandomState) -> Mask:
    """Draw a circle: 1 in its middle, fading to 0. [R, R, 1].

    It fades over as many pixels as its outer radius, where the difference of both radii seems to be meant.
    """
    start = int(random.randint(side))
    end = start + int(random.randint(side - start))
    row, column = int(random.randint(side)), int(random.randint(side))
    rows, columns = np.ogrid[:side, :side]
    distance = np.sqrt((rows - row) ** 2 + (columns - column) ** 2)
    faded: Mask = np.clip(1 - (distance - start) / max(1, end), 0, 1)[..., None].astype(np.float32)
    return faded


Filter = Callable[[Picture, RandomState], Picture]


def within_circle(picture: Picture, random: RandomState, change: Filter) -> Picture:
    """Return the picture, changed inside a random circle that is drawn first."""
    circle = faded_circle(len(picture), random)
    changed = change(picture, random)
    # blending a picture with itself would round it, which the original does not
    return picture if changed is picture else picture * (1 - circle) + changed * circle


def shift_hsv(picture: Picture, random: RandomState) -> Picture:
    """Turn the hue by any angle, move saturation and value by up to a half."""
    cv2 = opencv()
    hue, saturation, value = cv2.split(cv2.cvtColor(picture, cv2.COLOR_BGR2HSV))  # hue in degrees
    hue = (hue + random.randint(360)) % 360
    saturation = (saturation + random.random_sample() - 0.5).clip(0, 1)
    value = (value + random.random_sample() - 0.5).clip(0, 1)
    shifted: Picture = cv2.cvtColor(cv2.merge([hue, saturation, value]), cv2.COLOR_HSV2BGR)
    return shifted.clip(0, 1)


def change_levels(picture: Picture, random: RandomState) -> Picture:
    """Move each channel's black, white and middle, as an editor's levels do."""

    def drawn(first: float, factor: float) -> NDArray[np.float32]:
        return (first + factor * random.random_sample(3)).astype(np.float32)

    black, white, gamma = drawn(0, 0.25), drawn(1, -0.25), drawn(0.5, 1)
    out_black, out_white = drawn(0, 0.25), drawn(1, -0.25)
    inside = ((picture - black) / (white - black)).clip(0, 1)
    changed: Picture = (inside ** (1 / gamma) * (out_white - out_black) + out_black).clip(0, 1)
    return changed


def sharpen(picture: Picture, random: RandomState) -> Picture:
    """Sharpen by a box or a Gaussian, in a quarter of all cases; strongly in some."""
    cv2 = opencv()
    size = int(random.randint(_MOST_KERNEL)) + 1
    if not _happens(random):
        return picture
    box = one_of_two(random)
    amount = int(random.randint(10 if box else 50))
    size += size % 2 == 0
    if not amount:
        return picture.copy()  # blended with itself, unlike what is left alone
    if box:
        kernel = np.zeros((size, size), np.float32)
        kernel[size // 2, size // 2] = 1
        kernel += (kernel - np.float32(1) / (size * size)) * amount
        boxed: Picture = cv2.filter2D(picture, -1, kernel)
        return boxed
    blurred = cv2.GaussianBlur(picture, (size, size), 0)
    weighted: Picture = cv2.addWeighted(picture, 1 + 0.5 * amount, blurred, -0.5 * amount, 0)
    return weighted


def motion_blur(picture: Picture, random: RandomState) -> Picture:
    """Blur along a line of any direction, in a quarter of all cases."""
    cv2 = opencv()
    size, angle = int(random.randint(_MOST_KERNEL)) + 1, int(random.randint(360))
    if not _happens(random):
        return picture
    line = np.zeros((size, size), np.float32)
    line[(size - 1) // 2] = 1
    turn = cv2.getRotationMatrix2D((size / 2 - 0.5, size / 2 - 0.5), angle, 1.0)
    kernel = cv2.warpAffine(line, turn, (size, size))
    blurred: Picture = cv2.filter2D(picture, -1, kernel * (1.0 / np.sum(kernel)))
    return blurred


def gaussian_blur(picture: Picture, random: RandomState) -> Picture:
    """Blur, in a quarter of all cases."""
    if not _happens(random):
        return picture
    size = 2 * int(random.randint(_MOST_KERNEL)) + 1
    blurred: Picture = opencv().GaussianBlur(picture, (size, size), 0)
    return blurred


def squeeze(interpolation: str) -> Filter:
    """Return a filter that makes the picture smaller and large again, in a quarter of all cases.

    Args:
        interpolation: OpenCV's name of it, such as "INTER_LINEAR".
    """

    def squeezed(picture: Picture, random: RandomState) -> Picture:
        if not _happens(random):
            return picture
        cv2, (height, width) = opencv(), picture.shape[:2]
        share = random.random_sample()
        size = width - int(share * int(width * 0.75)), height - int(share * int(height * 0.75))
        flag = getattr(cv2, interpolation)
        large: Picture = cv2.resize(cv2.resize(picture, size, interpolation=flag), (width, height), interpolation=flag)
        return large

    return squeezed


def through_jpeg(picture: Picture, random: RandomState) -> Picture:
    """Compress and read again, in a quarter of all cases."""
    if not _happens(random):
        return picture
    cv2 = opencv()
    quality = int(random.randint(10, 101))
    _, data = cv2.imencode(".jpg", (picture * 255).astype(np.uint8), [cv2.IMWRITE_JPEG_QUALITY, quality])
    read: Picture = cv2.imdecode(data, cv2.IMREAD_UNCHANGED).astype(np.float32) / np.float32(255.0)
    return read


def glow(picture: Picture, part: Mask, random: RandomState) -> Picture:
    """Add the blurred inside of a mask to the picture."""
    side = len(picture)
    size = int(random.randint(side // 4, side))
    size += 1 - size % 2
    shining: Picture = opencv().GaussianBlur(picture * part, (size, size), 0)
    return picture + shining


def change_colours(picture: Picture, random: RandomState) -> Picture:
    """Shift hue and the like, or change levels, in the whole picture."""
    return shift_hsv(picture, random) if one_of_two(random) else change_levels(picture, random)


def degrade(picture: Picture, random: RandomState) -> Picture:
    """Change colours, sharpness and resolution, each inside a circle of its own; within [0, 1]."""
    picture = within_circle(picture, random, shift_hsv if one_of_two(random) else change_levels)
    if one_of_two(random):
        picture = within_circle(picture, random, sharpen)
    else:
        picture = within_circle(picture, random, motion_blur)
        picture = within_circle(picture, random, gaussian_blur)
    nearest = one_of_two(random)
    picture = within_circle(picture, random, squeeze("INTER_NEAREST" if nearest else "INTER_LINEAR"))
    return within_circle(picture.clip(0, 1), random, through_jpeg)


def behind(picture: Picture, mask: Mask, background: Picture, other: Mask, random: RandomState) -> Picture:
    """Put another picture's background behind a face, through which the old one shows in part.

    Args:
        mask: of the face.
        background: with its own face cut out.
        other: mask of that face.
    """
    kept = 1 - (1 - other) * (1 - mask)
    share = 0.15 + 0.85 * random.random_sample()
    mixed = picture * kept + picture * (1 - kept) * share + background * (1 - kept) * (1 - share)
    return mixed.astype(np.float32, copy=False)
