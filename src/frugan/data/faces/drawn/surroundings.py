"""What is behind and below the head: a blurred background, neck, shoulders and clothes."""

from dataclasses import dataclass

import numpy as np

from frugan.data.faces.drawn.camera import View
from frugan.data.faces.drawn.chart import Array
from frugan.data.faces.drawn.moment import Moment
from frugan.data.faces.drawn.person import Person
from frugan.data.faces.opencv import opencv

_SMALL = 96  # pixels: the background is out of focus


def background(moment: Moment, size: int) -> Array:
    """Return the background of one moment, linear light, [size, size, 3]."""
    cv2 = opencv()
    rng = np.random.Generator(np.random.PCG64(moment.scene))
    hue = rng.uniform(0, 1)
    first, second = (_colour(hue + rng.uniform(-0.08, 0.08), rng.uniform(0.1, 0.55), rng.uniform(0.08, 0.5)) for _ in "ab")
    angle = rng.uniform(0, 2 * np.pi)
    line = np.linspace(-1, 1, _SMALL, dtype=np.float32)
    x, y = np.meshgrid(line, line)
    share = np.clip(0.5 + 0.5 * (x * np.cos(angle) + y * np.sin(angle)), 0, 1)[..., None]
    picture = (first + (second - first) * share).astype(np.float32)
    for _ in range(int(rng.integers(2, 7))):
        corner = rng.integers(-20, _SMALL, 2)
        wide, tall = rng.integers(8, 50), rng.integers(12, 80)
        tint = _colour(hue + rng.uniform(-0.2, 0.2), rng.uniform(0.05, 0.6), rng.uniform(0.04, 0.7))
        layer = picture.copy()
        cv2.rectangle(layer, corner.tolist(), (corner + (wide, tall)).tolist(), tint.tolist(), -1)
        picture += (layer - picture) * np.float32(rng.uniform(0.3, 0.8))
    picture = cv2.GaussianBlur(picture, (0, 0), float(rng.uniform(3.5, 9.0)))
    for _ in range(int(rng.integers(0, 9))):  # lights out of focus
        layer = picture.copy()
        centre = rng.integers(0, _SMALL, 2).tolist()
        tint = _colour(rng.uniform(0, 1), rng.uniform(0.1, 0.5), 1.0)
        cv2.circle(layer, centre, int(rng.integers(3, 8)), tint.tolist(), -1, cv2.LINE_AA)
        picture += (layer - picture) * np.float32(rng.uniform(0.05, 0.25))
    picture = cv2.GaussianBlur(picture, (0, 0), 0.8)
    return cv2.resize(picture, (size, size), interpolation=cv2.INTER_CUBIC).clip(0.005, 1)  # type: ignore[no-any-return]


def _colour(hue: float, saturation: float, value: float) -> Array:
    """Return R, G, B of a hue in turns."""
    wheel = np.clip(np.abs((hue * 6 + np.array([0, 4, 2])) % 6 - 3) - 1, 0, 1)
    return (value * (1 - saturation * (1 - wheel))).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Body:
    """Neck and shoulders as the pixels see them.

    Attributes:
        paint: reflected share, [S, S, 3].
        gloss: [S, S].
        normal: [3, S, S], camera frame.
        depth: mm toward the viewer, [S, S].
        cover: share of the pixel, [S, S].
    """

    paint: Array
    gloss: Array
    normal: Array
    depth: Array
    cover: Array


def body(person: Person, moment: Moment, view: View) -> Body:
    """Return neck and shoulders: a stack of ellipses, in the camera's frame, that widens downward."""
    size, scale = view.size, view.scale
    bones = person.bones
    x = ((np.arange(size, dtype=np.float32) - view.middle[0]) / scale)[None, :]
    y = ((np.arange(size, dtype=np.float32) - view.middle[1]) / scale)[:, None]
    top = view.turn @ np.array([0, 15, -28], np.float32)
    share = np.clip((y - top[1]) / 110, 0, 1)
    axis = top[0] * (1 - share) * 0.9 + top[0] * share * 0.25
    low = 96 * bones.length
    down = np.clip(y - low, 0, None)
    half = bones.neck * (1 + 0.10 * np.clip((y - 60) / 60, -1, 1) ** 2) + (bones.shoulders - bones.neck) * (
        1 - np.exp(-((down / 40) ** 1.5))
    )
    thick = np.minimum(half, bones.neck * 1.08 + 0.5 * down)
    inside = (x - axis) / half
    round_ = np.sqrt(np.clip(1 - inside * inside, 0, 1))
    depth = top[2] - 6 + 0.10 * down + thick * round_
    slope = np.gradient(half, axis=0) * scale * 0.7
    normal = np.stack([inside, -slope * np.maximum(0.25, np.abs(inside)) + 0 * x, round_ + 0.05])
    normal /= np.linalg.norm(normal, axis=0)
    cover = np.clip((1 - np.abs(inside)) * half * scale + 0.5, 0, 1) * np.clip((y - top[1]) / 4, 0, 1)
    rng = np.random.Generator(np.random.PCG64(moment.scene))
    cloth = np.array(person.cloth[int(rng.integers(len(person.cloth)))], np.float32)
    collar = low + 24 + (16 if person.hair.long else 2) * (1 - np.clip(np.abs(x - axis) / (bones.neck * 1.1), 0, 1) ** 2)
    dressed = np.clip((y - collar) * scale + 0.5, 0, 1)[..., None]
    hem = (1 - 0.25 * np.exp(-(((y - collar - 3.5) / 1.2) ** 2)))[..., None]
    skin = np.array(person.skin.colour, np.float32) * np.array([0.95, 0.92, 0.90], np.float32)
    paint = skin + (cloth * hem - skin) * dressed
    return Body(
        paint.astype(np.float32),
        (0.25 * (1 - dressed[..., 0])).astype(np.float32),
        normal.astype(np.float32),
        np.broadcast_to(depth, (size, size)).astype(np.float32),
        cover.astype(np.float32),
    )
