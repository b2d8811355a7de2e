"""Hair: where it grows, how thick it lies, and which way its strands run."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from frugan.data.faces.drawn.chart import CELLS, REACH, Array, directions
from frugan.data.faces.drawn.person import Hair, Person
from frugan.data.faces.drawn.sculpture import ellipsoid, melt, reach
from frugan.data.faces.opencv import opencv

_BAKED_CELLS = 224


@dataclass(frozen=True, eq=False)
class Growth:
    """The hair on the chart, each float32 [CELLS, CELLS] but `normals`.

    Attributes:
        cover: 0 (skin) to 1.
        thickness: above the skin in mm.
        strands: -1 (in the depth between strands) to 1 (at the top of one).
        normals: of the hair's smooth outside, [3, CELLS, CELLS].
        along: unit vectors along the strands, [3, CELLS, CELLS].
    """

    cover: Array
    thickness: Array
    strands: Array
    normals: Array
    along: Array


@lru_cache(maxsize=4)
def _outside(hair: Hair) -> Array:
    """Return how far the hair reaches, mm, [CELLS, CELLS]."""
    cv2 = opencv()

    def long(x: Array, y: Array, z: Array) -> Array:
        side = np.abs(x)
        body = ellipsoid(x, y, z, (0, -50, -22), (88, 96, 100))
        body = melt(body, ellipsoid(side, y, z, (52, 20, -14), (36, 84, 52)), 20)
        return np.maximum(body, y - 96)

    def short(x: Array, y: Array, z: Array) -> Array:
        body = ellipsoid(x, y, z, (0, -46, -20), (80, 94, 94))
        return melt(body, ellipsoid(x, y, z, (6, -88, 8), (58, 58, 62)), 16)

    baked = reach(long if hair.long else short, _BAKED_CELLS)
    return cv2.resize(baked, (CELLS, CELLS), interpolation=cv2.INTER_CUBIC)  # type: ignore[no-any-return]


def grow(person: Person, bare: Array) -> Growth:
    """Return a person's hair on the bare head [CELLS, CELLS]."""
    return _grown(person, bare.tobytes())


@lru_cache(maxsize=4)
def _grown(person: Person, bare_bytes: bytes) -> Growth:
    cv2 = opencv()
    hair = person.hair
    bare = np.frombuffer(bare_bytes, np.float32).reshape(CELLS, CELLS)
    way = directions(CELLS)
    strands, along = _strands(hair, way)
    face = _face_opening(hair)  # 1 where skin shows
    blurred = cv2.GaussianBlur(face, (0, 0), 3.0)
    cover = np.clip((0.5 - blurred) * 3.5 + 0.5 + 0.55 * strands, 0, 1)
    cover = np.where(blurred > 0.985, 0, cover)
    rising = 1 - cv2.GaussianBlur(face, (0, 0), 5.0 if hair.long else 9.0)
    outside = _outside(hair)
    depth = np.maximum(outside - bare, 2.0) + 2.2 * strands
    slope = np.clip(rising * 2.0 - 0.55, 0.12, 1) if not hair.long else np.clip(rising * 2 - 0.4, 0.3, 1)
    thickness = np.asarray(cover * depth * slope, np.float32)
    smooth = cv2.GaussianBlur(bare + (np.maximum(outside - bare, 2.0) * slope), (0, 0), 4.0)
    return Growth(np.asarray(cover, np.float32), thickness, strands, outward(smooth, way), along)


def outward(radius: Array, way: Array) -> Array:
    """Return unit normals, [3, n, n], of a body that reaches `radius` in the directions `way`, [3, n, n]."""
    cv2 = opencv()
    cell = np.float32(2 * REACH / radius.shape[0])
    by_u = cv2.Sobel(radius, cv2.CV_32F, 1, 0, ksize=3, scale=1 / (8 * float(cell)))
    by_v = cv2.Sobel(radius, cv2.CV_32F, 0, 1, ksize=3, scale=1 / (8 * float(cell)))
    front = 1 + np.maximum(way[2], -0.999)
    scale = np.sqrt(2 / front)
    pull = -(by_u * way[0] + by_v * way[1]) * scale / (2 * front)
    slope = np.stack([by_u * scale, by_v * scale, pull])
    slope -= way * (slope * way).sum(axis=0)
    normal = way - slope / radius
    return np.asarray(normal / np.linalg.norm(normal, axis=0), np.float32)


def _face_opening(hair: Hair) -> Array:
    cv2 = opencv()
    outline = np.array([*hair.opening, *hair.opening_left[::-1]], np.float32)
    points = np.round(((outline + REACH) * (CELLS / (2 * REACH)) - 0.5) * 64).astype(np.int32)
    mask = np.zeros((CELLS, CELLS), np.uint8)
    cv2.fillPoly(mask, [points], 255, cv2.LINE_AA, 6)
    return mask.astype(np.float32) / 255


def _strands(hair: Hair, way: Array) -> tuple[Array, Array]:
    """Return the strands' pattern and direction: rings of noise about the pole, drawn out along its meridians."""
    cv2 = opencv()
    pole = np.array(hair.pole, np.float32)
    pole /= np.linalg.norm(pole)
    first = np.cross(pole, [0.0, 0.0, 1.0])
    first /= np.linalg.norm(first)
    second = np.cross(pole, first)
    up, a, b = ((axis[:, None, None] * way).sum(axis=0) for axis in (pole, first, second))
    down = np.arccos(np.clip(up, -1, 1))  # from the pole
    turn = np.arctan2(b, a)
    turn = turn + hair.wave * np.sin(down * 9 + 3 * np.sin(turn * 3)) + 0.5 * hair.wave * np.sin(down * 17 + 7 * turn)
    rng = np.random.Generator(np.random.PCG64(7))
    total = np.zeros(turn.shape, np.float32)
    for columns, rows, weight in ((48, 5, 0.5), (160, 7, 0.75), (420, 10, 0.7)):
        noise = rng.standard_normal((rows + 4, columns)).astype(np.float32)
        noise = np.concatenate([noise[:, -2:], noise, noise[:, :3]], axis=1)
        x = ((turn / (2 * np.pi)) % 1 * columns + 2).astype(np.float32)
        y = (down / np.pi * rows + 1).astype(np.float32)
        total += np.float32(weight) * cv2.remap(noise, x, y, cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    along = pole[:, None, None] - up * way
    along /= np.maximum(np.linalg.norm(along, axis=0), 1e-3)
    return np.tanh(total).astype(np.float32), along.astype(np.float32)
