"""How skin, cloth and hair look in the light of a moment; directions in the camera's frame, linear colours."""

from dataclasses import dataclass

import numpy as np

from frugan.data.faces.drawn.chart import Array
from frugan.data.faces.drawn.moment import Moment
from frugan.data.faces.drawn.person import Hair
from frugan.data.faces.opencv import opencv


@dataclass(frozen=True, eq=False)
class Lamps:
    """The light of one moment: a direction, [3], and a colour, [3], of each lamp, and light from above and below."""

    key: Array
    key_colour: Array
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
    warm, cold = np.array([1.10, 0.98, 0.80]), np.array([0.88, 0.99, 1.16])
    share = 0.5 + 0.5 * moment.warmth
    colour = cold + (warm - cold) * share
    opposite = cold + (warm - cold) * (1 - share)
    strength = 1.45 - 0.75 * moment.softness
    rim = np.array([-0.80 if azimuth >= 0 else 0.80, -0.35, -0.48], np.float32)
    return Lamps(
        key,
        (colour * strength).astype(np.float32),
        rim,
        (opposite * 1.6 * moment.rim).astype(np.float32),
        (opposite * (0.28 + 0.55 * moment.softness)).astype(np.float32),
        (colour * (0.13 + 0.22 * moment.softness)).astype(np.float32),
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
    small = 0.5
    near = cv2.resize(depth, None, fx=small, fy=small, interpolation=cv2.INTER_AREA)
    wall = cv2.resize(scene, None, fx=small, fy=small, interpolation=cv2.INTER_AREA)
    reached = np.ones(near.shape, np.float32)
    for distance in (4, 7, 11, 16, 22, 30, 40, 54):
        move = lamps.key * np.float32(distance)
        shift = np.array([[1, 0, -move[0] * scale * small], [0, 1, -move[1] * scale * small]], np.float32)
        seen = cv2.warpAffine(wall, shift, near.shape[::-1], borderValue=-500.0)
        above = seen - (near + move[2])
        soft = np.float32(0.12 * distance + 1.0)
        behind = 1 - np.clip((above - 45) / 20, 0, 1)  # far in front of it: the light passes behind
        reached = np.minimum(reached, 1 - np.clip((above - 0.8) / soft, 0, 1) * behind)
    reached = cv2.GaussianBlur(reached, (0, 0), 1.2)
    return cv2.resize(reached, depth.shape[::-1], interpolation=cv2.INTER_LINEAR)  # type: ignore[no-any-return]


def shade_skin(paint: Array, gloss: Array, normal: Array, reached: Array, open_: Array, lamps: Lamps) -> Array:
    """Return the light that skin or cloth sends to the viewer, [S, S, 3].

    Args:
        paint: reflected share, [S, S, 3].
        gloss: 0 to 1, [S, S].
        normal: [3, S, S].
        reached: share of the main light that arrives, [S, S].
        open_: share of the surroundings' light that arrives, [S, S].
        lamps: of the moment.
    """
    facing = _dot(normal, lamps.key)
    # light that enters skin leaves it a little further on, red light furthest: edges of shadows are red
    wrap = np.array([0.32, 0.16, 0.11], np.float32)
    spread = np.clip((facing[..., None] + wrap) / (1 + wrap), 0, 1)
    through = reached[..., None] ** np.array([0.75, 1.0, 1.1], np.float32)
    light = spread * through * lamps.key_colour
    up = (0.5 - 0.5 * normal[1])[..., None]
    light += (lamps.below + (lamps.above - lamps.below) * up) * open_[..., None]
    light += 0.10 * np.clip(normal[2], 0, 1)[..., None]
    behind = np.clip(_dot(normal, lamps.rim) * 1.4, 0, 1)
    light += (behind * behind)[..., None] * lamps.rim_colour
    half = lamps.key + np.array([0, 0, 1], np.float32)
    half /= np.linalg.norm(half)
    shine = np.clip(_dot(normal, half), 0, 1)
    edge = 1 - np.clip(normal[2], 0, 1)
    strength = (0.10 + 0.5 * edge**4) * gloss * reached
    shine2 = shine * shine
    shine8 = shine2**4
    spots = (0.55 * shine8 * shine2 + 1.3 * shine8**6) * strength
    return np.asarray(paint * light + spots[..., None] * lamps.key_colour, np.float32)


def shade_hair(hair: Hair, strands: Array, normal: Array, along: Array, reached: Array, lamps: Lamps) -> Array:
    """Return the light that hair sends to the viewer, [S, S, 3] (after J. Kajiya and T. Kay, SIGGRAPH 1989).

    Args:
        hair: its colours.
        strands: -1 between strands to 1 on one, [S, S].
        normal: of the hair's outside, [3, S, S].
        along: of the strands, [3, S, S].
        reached: share of the main light that arrives, [S, S].
        lamps: of the moment.
    """
    colour, tips = np.array(hair.colour, np.float32), np.array(hair.tips, np.float32)
    facing = _dot(normal, lamps.key)
    with_light = _dot(along, lamps.key)
    body = np.sqrt(np.clip(1 - with_light * with_light, 0, 1)) * np.clip(facing * 0.7 + 0.35, 0, 1) * reached
    half = lamps.key + np.array([0, 0, 1], np.float32)
    half /= np.linalg.norm(half)
    lit = np.clip(facing + 0.3, 0, 1) * reached
    lean = _dot(along, half) + 0.10 * strands
    shine = np.clip(1 - lean * lean, 0, 1) ** 24 * lit
    lean = _dot(along, half) - 0.22 + 0.14 * strands
    glow = np.clip(1 - lean * lean, 0, 1) ** 8 * lit
    share = np.clip(0.5 + 0.5 * strands, 0, 1)
    paint = colour + (tips - colour) * (share * share * 0.5)[..., None]
    deep = (0.45 + 0.55 * share)[..., None]
    up = (0.5 - 0.5 * normal[1])[..., None]
    light = body[..., None] * lamps.key_colour + (lamps.below + (lamps.above - lamps.below) * up) * 0.8
    behind = np.clip(_dot(normal, lamps.rim) * 1.4, 0, 1)
    light = light + (behind * (0.4 + 0.6 * share))[..., None] * lamps.rim_colour * 1.3
    white = np.array([0.10, 0.095, 0.09], np.float32) * (0.3 + 0.7 * share)[..., None]
    gleam = shine[..., None] * white * lamps.key_colour + glow[..., None] * tips * 0.35 * deep
    return np.asarray(paint * light * deep + gleam, np.float32)


def _dot(field: Array, vector: Array) -> Array:
    return np.asarray(field[0] * vector[0] + field[1] * vector[1] + field[2] * vector[2], np.float32)
