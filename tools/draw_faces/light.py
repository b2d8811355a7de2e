"""How skin, cloth and hair look in the light of a moment.

Directions are in the camera's frame (x right, y down, z toward the viewer); colours are linear; pictures are planar:
[3, ...] with any shape behind.
"""

from dataclasses import dataclass

import numpy as np

from frugan.faces.data.geometry import opencv
from tools.draw_faces.chart import Array
from tools.draw_faces.moment import Moment
from tools.draw_faces.person import Hair

_WARM, _COLD = np.array([1.10, 0.98, 0.80]), np.array([0.88, 0.99, 1.16])
# light that enters skin leaves it a little further on, red light furthest: edges of shadows are red
_SPREAD = (0.32, 0.16, 0.11)
_STEPS_MM = (4, 7, 11, 16, 22, 30, 40, 54)  # toward the light, where something may stand in its way
_THICK_MM = 45.0  # of what throws shadows: light passes behind what is nearer than that


@dataclass(frozen=True, eq=False)
class Lamps:
    """The light of one moment: a direction, [3], and a colour, [3], of each lamp; light from above and below, [3]."""

    key: Array
    key_colour: Array
    half: Array  # between the main light and the viewer
    rim: Array
    rim_colour: Array
    above: Array
    below: Array


def lamps_of(moment: Moment) -> Lamps:
    """Return the lamps of one moment."""
    azimuth, elevation = moment.light
    key = np.array(
        [np.sin(azimuth) * np.cos(elevation), -np.sin(elevation), np.cos(azimuth) * np.cos(elevation)], np.float32
    )
    share = 0.5 + 0.5 * moment.warmth
    colour, opposite = _COLD + (_WARM - _COLD) * share, _WARM + (_COLD - _WARM) * share
    half = key + np.array([0, 0, 1], np.float32)
    return Lamps(
        key,
        (colour * (1.62 - 0.80 * moment.softness)).astype(np.float32),
        half / np.linalg.norm(half),
        np.array([-0.80 if azimuth >= 0 else 0.80, -0.35, -0.48], np.float32),
        (opposite * 1.3 * moment.rim).astype(np.float32),
        (opposite * (0.26 + 0.58 * moment.softness)).astype(np.float32),
        (colour * (0.12 + 0.22 * moment.softness)).astype(np.float32),
    )


def shadow(depth: Array, scene: Array, lamps: Lamps, scale: float) -> Array:
    """Return how much of the main light reaches points, 0 to 1, [S, S].

    Args:
        depth: of the points toward the viewer, mm, [S, S].
        scene: depth of all that stands in the light's way, [S, S].
        lamps: of the moment.
        scale: pixels per mm.
    """
    cv2 = opencv()
    near = cv2.resize(depth, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
    wall = cv2.resize(scene, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
    reached = np.ones(near.shape, np.float32)
    for distance in _STEPS_MM:
        move = lamps.key * np.float32(distance)
        shift = np.array([[1, 0, -move[0] * scale / 2], [0, 1, -move[1] * scale / 2]], np.float32)
        above = cv2.warpAffine(wall, shift, near.shape[::-1], borderValue=-500.0) - (near + move[2])
        soft = np.float32(0.12 * distance + 1.0)
        in_front = 1 - np.clip((above - _THICK_MM) / 20, 0, 1)
        np.minimum(reached, 1 - np.clip((above - 0.8) / soft, 0, 1) * in_front, out=reached)
    reached = cv2.GaussianBlur(reached, (0, 0), 1.2)
    return cv2.resize(reached, depth.shape[::-1], interpolation=cv2.INTER_LINEAR)  # type: ignore[no-any-return]


def shade_skin(paint: Array, gloss: Array, normal: Array, reached: Array, open_: Array, lamps: Lamps) -> Array:
    """Return the light that skin or cloth sends to the viewer, [3, ...].

    Args:
        paint: reflected share, [3, ...].
        gloss: 0 to 1, [...].
        normal: [3, ...].
        reached: share of the main light that arrives, [...].
        open_: share of the surroundings' light that arrives, [...].
        lamps: of the moment.
    """
    facing = _dot(normal, lamps.key)
    through = (0.5 * (reached + np.sqrt(reached)), reached, reached)
    up = np.clip(0.5 - 0.5 * normal[1], 0, 1) * open_
    down = open_ - up
    ahead = 0.10 * np.clip(normal[2], 0, 1)
    behind = np.clip(_dot(normal, lamps.rim) * 1.4, 0, 1) ** 2
    shine = np.clip(_dot(normal, lamps.half), 0, 1)
    edge = (1 - np.clip(normal[2], 0, 1)) ** 2
    shine *= shine  # to the 2nd
    shine8 = shine * shine
    shine8 *= shine8
    shine48 = shine8 * shine8 * shine8
    shine48 *= shine48
    spots = (0.5 * shine8 * shine + 1.3 * shine48) * (0.10 + 0.5 * edge * edge) * gloss * reached
    light = np.empty_like(paint)
    for i, wrap in enumerate(_SPREAD):
        spread = np.clip((facing + np.float32(wrap)) * np.float32(1 / (1 + wrap)), 0, 1)
        light[i] = paint[i] * (
            spread * through[i] * lamps.key_colour[i]
            + up * lamps.above[i]
            + down * lamps.below[i]
            + ahead
            + behind * lamps.rim_colour[i]
        )
        light[i] += spots * lamps.key_colour[i]
    return light


def shade_hair(hair: Hair, strands: Array, normal: Array, along: Array, reached: Array, lamps: Lamps) -> Array:
    """Return the light that hair sends to the viewer, [3, ...] (after J. Kajiya and T. Kay, SIGGRAPH 1989).

    Args:
        hair: its colours.
        strands: -1 between strands to 1 on one, [...].
        normal: of the hair's outside, [3, ...].
        along: of the strands, [3, ...].
        reached: share of the main light that arrives, [...].
        lamps: of the moment.
    """
    facing = _dot(normal, lamps.key)
    with_light = _dot(along, lamps.key)
    with_half = _dot(along, lamps.half)
    body = np.sqrt(np.clip(1 - with_light * with_light, 0, 1)) * np.clip(facing * 0.7 + 0.35, 0, 1) * reached
    lit = np.clip(facing + 0.3, 0, 1) * reached
    share = 0.5 + 0.5 * strands
    deep = 0.45 + 0.55 * share
    shine = _ring(with_half + 0.10 * strands, 5) * lit * (0.3 + 0.7 * share)
    glow = _ring(with_half - 0.22 + 0.14 * strands, 3) * lit * deep
    up = np.clip(0.5 - 0.5 * normal[1], 0, 1)
    behind = np.clip(_dot(normal, lamps.rim) * 1.4, 0, 1) * (0.4 + 0.6 * share)
    light = np.empty((3, *strands.shape), np.float32)
    for i in range(3):
        paint = hair.colour[i] + (hair.tips[i] - hair.colour[i]) * 0.5 * share * share
        around = lamps.below[i] + (lamps.above[i] - lamps.below[i]) * up
        light[i] = paint * deep * (body * lamps.key_colour[i] + 0.8 * around + 1.3 * behind * lamps.rim_colour[i])
        light[i] += shine * ((0.03 + 0.4 * hair.tips[i]) * lamps.key_colour[i]) + glow * (0.35 * hair.tips[i])
    return light


def _ring(lean: Array, doublings: int) -> Array:
    """Return how brightly a strand mirrors, by the cosine between it and the mirror's axis; narrower if doubled."""
    ring = np.clip(1 - lean * lean, 0, 1)
    for _ in range(doublings):
        ring = ring * ring
    return np.asarray(ring, np.float32)


def _dot(field: Array, vector: Array) -> Array:
    return np.asarray(field[0] * vector[0] + field[1] * vector[1] + field[2] * vector[2], np.float32)
