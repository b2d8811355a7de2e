"""What is behind and below the head: a blurred background, neck, shoulders and clothes."""

from dataclasses import dataclass

import numpy as np

from frugan.faces.data.geometry import opencv
from tools.draw_faces.camera import NOTHING, View
from tools.draw_faces.chart import Array
from tools.draw_faces.moment import Moment
from tools.draw_faces.person import Person

_SMALL = 96  # pixels: the background is out of focus
_COLLAR_MM = 94.0  # below the head's centre, where the neck widens


def background(moment: Moment, size: int) -> Array:
    """Return the background of one moment, linear light, [3, size, size]."""
    cv2 = opencv()
    rng = np.random.Generator(np.random.PCG64(moment.scene))
    hue = rng.uniform(0, 1)
    first, second = (
        _colour(hue + rng.uniform(-0.08, 0.08), rng.uniform(0.1, 0.7), rng.uniform(0.05, 0.6)) for _ in "ab"
    )
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
        cv2.rectangle(layer, corner.tolist(), (int(corner[0] + wide), int(corner[1] + tall)), tint.tolist(), -1)
        picture += (layer - picture) * np.float32(rng.uniform(0.3, 0.8))
    picture = cv2.GaussianBlur(picture, (0, 0), float(rng.uniform(3.5, 9.0)))
    for _ in range(int(rng.integers(0, 9))):  # lights out of focus
        layer = picture.copy()
        centre = rng.integers(0, _SMALL, 2).tolist()
        tint = _colour(rng.uniform(0, 1), rng.uniform(0.1, 0.5), 1.0)
        cv2.circle(layer, centre, int(rng.integers(3, 8)), tint.tolist(), -1, cv2.LINE_AA)
        picture += (layer - picture) * np.float32(rng.uniform(0.05, 0.25))
    picture = cv2.GaussianBlur(picture, (0, 0), 0.8)
    large = cv2.resize(picture, (size, size), interpolation=cv2.INTER_LINEAR)
    return np.ascontiguousarray(large.transpose(2, 0, 1))


def _colour(hue: float, saturation: float, value: float) -> Array:
    """Return R, G, B of a hue in turns."""
    wheel = np.clip(np.abs((hue * 6 + np.array([0, 4, 2])) % 6 - 3) - 1, 0, 1)
    return np.asarray(value * (1 - saturation * (1 - wheel)), np.float32)


@dataclass(frozen=True, eq=False)
class Body:
    """Neck and shoulders as the pixels see them; T rows of the picture are below `top`."""

    top: int  # the first row with a body
    paint: Array  # reflected share, [3, T, S]
    gloss: Array  # [T, S]
    normal: Array  # [3, T, S], camera frame
    open_: Array  # share of the surroundings' light that arrives, [T, S]
    depth: Array  # mm toward the viewer, [S, S]
    cover: Array  # share of the pixel, [S, S]


def body(person: Person, moment: Moment, view: View) -> Body:
    """Return neck and shoulders: a stack of ellipses, in the camera's frame, that widens downward."""
    size, scale, bones = view.size, view.scale, person.bones
    nape = view.turn @ np.array([0, 15, -28], np.float32)
    top = int(np.clip(np.floor(nape[1] * scale + view.middle[1]), 0, size - 1))
    x = ((np.arange(size, dtype=np.float32) - view.middle[0]) / scale)[None, :]
    y = ((np.arange(top, size, dtype=np.float32) - view.middle[1]) / scale)[:, None]
    share = np.clip((y - nape[1]) / 110, 0, 1)
    axis = nape[0] * (0.9 - 0.65 * share)
    low = _COLLAR_MM * bones.length
    down = np.clip(y - low, 0, None)
    waist = np.clip((y - 60) / 60, -1, 1)
    half = bones.neck * (1 + 0.10 * waist * waist) + (bones.shoulders - bones.neck) * (1 - np.exp(-((down / 46) ** 2)))
    thick = np.minimum(half, bones.neck * 1.08 + 0.5 * down)
    inside = (x - axis) / half
    round_ = np.sqrt(np.clip(1 - inside * inside, 0, 1))
    slope = np.gradient(half, axis=0) * scale * 0.7
    normal = np.stack([inside, -slope * np.maximum(0.25, np.abs(inside)), round_ + 0.05])
    normal /= np.linalg.norm(normal, axis=0)
    depth = np.full((size, size), NOTHING, np.float32)
    depth[top:] = nape[2] - 6 + 0.10 * down + thick * round_
    cover = np.zeros((size, size), np.float32)
    cover[top:] = np.clip((1 - np.abs(inside)) * half * scale + 0.5, 0, 1)
    paint, gloss = _dressed(person, moment, x - axis, y, scale)
    under_chin = np.clip((y - 55) / 90, 0.35, 1)
    open_ = np.broadcast_to(under_chin, gloss.shape).astype(np.float32)
    return Body(top, paint, gloss, normal.astype(np.float32), open_, depth, cover)


def _dressed(person: Person, moment: Moment, x: Array, y: Array, scale: float) -> tuple[Array, Array]:
    """Return paint, [3, T, S], and gloss, [T, S], of skin above the collar and cloth below it; x, y in mm."""
    rng = np.random.Generator(np.random.PCG64(moment.scene))
    cloth = person.cloth[int(rng.integers(len(person.cloth)))]
    bones = person.bones
    across = np.clip(np.abs(x) / (bones.neck * 1.1), 0, 1)
    collar = _COLLAR_MM * bones.length + 24 + person.neckline * (1 - across * across)
    dressed = np.clip((y - collar) * scale + 0.5, 0, 1)
    hem = 1 - 0.25 * np.exp(-(((y - collar - 3.5) / 1.2) ** 2))
    skin = np.array(person.skin.colour) * (0.95, 0.92, 0.90)
    paint = np.stack([skin[i] + (cloth[i] * hem - skin[i]) * dressed for i in range(3)])
    return paint.astype(np.float32), (0.25 * (1 - dressed)).astype(np.float32)
