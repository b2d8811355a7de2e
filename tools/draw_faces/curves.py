"""The lines of a face as seen straight from the front, mm, and what an expression does to them.

x to the right of the picture, y down, from the head's centre. The left of the picture is the right of the person.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tools.draw_faces.chart import Array, coordinates, direction_at
from tools.draw_faces.moment import Moment
from tools.draw_faces.person import Person

EYE_Y = -34.0
MOUTH_Y = 35.5
JAW_DROP = 19.0  # mm that the lower lip sinks when the mouth is wide open
MM_PER_CHART = 84.0  # about the mouth
JAW_LENGTHENS = 0.35  # share of its length, per chart unit that the jaw goes down
_POINTS = 12  # between two given points of a curve


@dataclass(frozen=True, eq=False)
class Eye:
    """One eye: its lids from the inner to the outer corner, [n, 2] each; `crease` is the fold above."""

    side: int  # -1 on the left of the picture, 1 on the right
    middle: Array  # [2]
    upper: Array
    lower: Array
    crease: Array


@dataclass(frozen=True, eq=False)
class Mouth:
    """The lips' edges from the left of the picture to the right, each [n, 2]."""

    upper_outer: Array
    upper_inner: Array
    lower_inner: Array
    lower_outer: Array


@dataclass(frozen=True, eq=False)
class Brow:
    """One brow: its spine from the inner to the outer end, [n, 2], and its thickness along it, [n], mm."""

    side: int
    spine: Array
    thickness: Array


def smooth(points: Array, between: int = _POINTS) -> Array:
    """Return a curve through points, [n, 2] -> [(n - 1) * between + 1, 2] (Catmull and Rom, 1974)."""
    padded = np.concatenate([2 * points[:1] - points[1:2], points, 2 * points[-1:] - points[-2:-1]])
    t = (np.arange(between, dtype=np.float32) / between)[None, :, None]
    a, b, c, d = (padded[i : len(points) - 1 + i, None] for i in range(4))
    curve = 0.5 * (2 * b + (c - a) * t + (2 * a - 5 * b + 4 * c - d) * t**2 + (3 * b - a - 3 * c + d) * t**3)
    return np.concatenate([curve.reshape(-1, 2), points[-1:]]).astype(np.float32)


def eye(person: Person, moment: Moment, side: int) -> Eye:
    """Return one eye's lines; `side` is -1 on the left of the picture, 1 on the right."""
    eyes = person.eyes
    open_ = moment.lids * (1 - 0.18 * max(moment.smile, 0))
    height = eyes.height * open_
    # a shut eye's lids meet low; the lower lid rises in a smile
    low = eyes.height * (0.47 - 0.10 * max(moment.smile, 0)) * min(1.0, 0.55 + 0.45 * open_)
    place = np.array([-1, -0.72, -0.3, 0.15, 0.6, 0.88, 1], np.float32)
    tilt = -eyes.tilt * place / 2
    top = low - height
    upper = np.array([0.10, 0.58, 0.96, 1.0, 0.72, 0.34, 0.06], np.float32) * top + tilt
    lower = np.array([0.10, 0.42, 0.80, 1.0, 0.86, 0.48, 0.06], np.float32) * low + tilt
    upper = np.minimum(upper, lower)
    upper[0] = lower[0] = tilt[0] + 0.8
    upper[-1] = lower[-1] = tilt[-1]
    x = place * eyes.width
    middle = np.array([side * eyes.apart, EYE_Y], np.float32)
    lift = np.array([0.2, 1.5, 2.6, 3.0, 2.9, 2.4, 1.6], np.float32) * (1.0 + 0.25 * (1 - min(open_, 1.0)))

    def line(y: NDArray[np.floating], wide: float = 1.0) -> Array:
        points = np.stack([x * wide * side, y], axis=1).astype(np.float32) + middle
        return smooth(points)

    closing = np.array([0.1, 0.5, 0.75, 0.8, 0.6, 0.3, 0.1], np.float32) * (low - 0.9 * eyes.height) + tilt
    crease = np.minimum(upper, closing) - lift  # stays where it is when the lid comes down
    return Eye(side, middle, line(upper), line(lower), line(crease, 1.03))


def mouth(person: Person, moment: Moment) -> Mouth:
    """Return the lips' lines."""
    lips = person.lips
    smile, up = moment.smile, max(moment.smile, 0.0)
    width = lips.width * (1 + 0.24 * up - 0.30 * moment.pucker - 0.10 * moment.jaw)
    thin = 1 - 0.22 * up + 0.25 * moment.pucker
    line = MOUTH_Y * person.bones.length
    corner = line - 1.2 - 6.0 * smile + JAW_DROP * 0.36 * moment.jaw
    raised = 1.2 * moment.jaw + 3.2 * up * min(1.0, 0.35 + 2 * moment.jaw) * (moment.jaw > 0)  # upper lip, teeth show
    upper_y, lower_y = line - raised, line + JAW_DROP * moment.jaw
    place = np.array([-1, -0.62, -0.24, 0, 0.24, 0.62, 1], np.float32)
    x = place * width
    sag = 1.6 * (1 - moment.jaw)  # the closed lips' line waves: lowest beside the middle
    shape = np.array([0.0, 0.66, 0.98, 1.0, 0.98, 0.66, 0.0], np.float32)
    round_ = np.array([0.0, 0.72, 0.97, 1.0, 0.97, 0.72, 0.0], np.float32)
    upper_inner = corner + (upper_y - corner) * shape + sag * np.array([0, 0.1, 0.25, 0.6, 0.25, 0.1, 0])
    lower_inner = np.maximum(corner + (lower_y - corner) * round_, upper_inner)
    if moment.jaw == 0:
        lower_inner = upper_inner.copy()
    bow = lips.bow * (1 - 0.5 * up)
    over = np.array([0.0, 0.60, 1.0, 1.0, 1.0, 0.60, 0.0]) * lips.upper * thin
    over[3] -= bow
    under = np.array([0.0, 0.62, 0.97, 1.0, 0.97, 0.62, 0.0]) * lips.lower * thin
    lines = (upper_inner - over, upper_inner, lower_inner, lower_inner + under)
    return Mouth(*(smooth(np.stack([x, y], axis=1).astype(np.float32)) for y in lines))


def brow(person: Person, moment: Moment, side: int) -> Brow:
    """Return one brow's lines."""
    brows = person.brows
    inner = brows.inner - 2.5 * moment.frown
    place = np.array([0, 0.25, 0.5, 0.75, 1.0], np.float32)
    x = inner + (brows.outer - inner) * place
    rise = np.array([0.0, 0.5, 0.95, 1.0, 0.15]) * brows.arch + place * brows.slant
    raised = 5.5 * moment.brows * np.array([0.8, 1.0, 1.05, 0.9, 0.55])
    drawn_in = 4.5 * moment.frown * np.array([1.0, 0.7, 0.35, 0.1, 0.0])
    y = EYE_Y - brows.above - rise - raised + drawn_in
    spine = smooth(np.stack([x * side, y], axis=1).astype(np.float32))
    share = np.linspace(0, 1, len(spine), dtype=np.float32)
    thickness = brows.thickness * np.interp(share, [0, 0.12, 0.5, 0.8, 1], [0.7, 1.0, 0.95, 0.65, 0.25])
    return Brow(side, spine, thickness.astype(np.float32))


# the jaw's left half from the ear to the chin: where it is, mm, and which way is out of the face there in the picture
_JAW = (
    (-73.0, -25.0, 2.0), (-72.5, -6.0, 4.0), (-70.5, 13.0, 5.0), (-67.0, 31.0, 7.0), (-60.0, 47.5, 11.0),
    (-48.0, 61.5, 19.0), (-34.0, 72.0, 31.5), (-18.0, 80.0, 44.0), (0.0, 83.0, 50.0),
)  # fmt: skip
_OUT_DEGREES = (180, 180, 180, 170, 155, 135, 118, 104, 90)
_FORWARD = np.linspace(0, 1, 25)


def jaw_line(person: Person, moment: Moment) -> tuple[Array, Array]:
    """Return where the jaw's landmarks may lie and which way is outward.

    Returns:
        unit vectors from each of the 17 landmarks forward, [17, 25, 3]; the way out in the picture, [17, 2].
    """
    left = np.array(_JAW)
    left[:, 1] *= np.where(left[:, 1] > 0, person.bones.length, 1)
    jaw = np.concatenate([left, (left * (-1, 1, 1))[7::-1]]).astype(np.float32)  # [17, 3]
    down = jaw_shift(jaw[:, 0], jaw[:, 1], moment, person.bones.length) / MM_PER_CHART
    length = np.linalg.norm(jaw, axis=1)
    u, v = coordinates(jaw[:, 0], jaw[:, 1], jaw[:, 2], length)
    jaw = (direction_at(u, v + down) * length).T
    ahead = np.stack([jaw[:, 0] * 0.75, jaw[:, 1], jaw[:, 2] + 55], axis=1)
    lines = jaw[:, None] + (ahead - jaw)[:, None] * _FORWARD[:, None]
    lines /= np.linalg.norm(lines, axis=2, keepdims=True)
    angles = np.radians([*_OUT_DEGREES, *(180 - a for a in _OUT_DEGREES[7::-1])]) + moment.roll
    out = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return lines.astype(np.float32), out.astype(np.float32)


def jaw_shift(x: Array, y: Array, moment: Moment, length: float) -> Array:
    """Return how far an open mouth moves the skin down, mm, at x, y as seen from the front."""
    drop = np.float32(JAW_DROP * moment.jaw)
    ramp = np.clip((y - 31 * length) / (16 + drop), 0, 1)
    return np.asarray(drop * ramp * ramp * (3 - 2 * ramp) * np.exp(-np.square(np.square(x / 68))), np.float32)
