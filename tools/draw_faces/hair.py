"""Hair and beard: where they grow, how thick they lie, and which way their strands run."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from frugan.faces.data.geometry import opencv
from tools.draw_faces.chart import CELLS, REACH, Array, directions, from_chart, grid
from tools.draw_faces.person import Hair, Person
from tools.draw_faces.sculpture import Bare, ellipsoid, melt, reach

STRAND_CELLS = 1024  # side of the chart of strands, which are finer than all else
_BAKED_CELLS = 224
# where a beard grows, right half of the chart from the top: along the cheek, under the nose; then back along the throat
_BEARD = (
    (0.0, 0.235), (0.14, 0.225), (0.27, 0.27), (0.40, 0.36), (0.55, 0.45), (0.78, 0.42), (0.98, 0.26), (1.10, -0.05),
    (1.16, -0.30), (1.27, -0.30), (1.27, 0.1), (1.30, 0.4), (1.26, 0.75), (1.0, 1.02), (0.5, 1.14), (0.0, 1.2),
)  # fmt: skip
_LONG_NOISE = ((40, 4, 0.35), (150, 6, 0.45), (420, 9, 0.55), (800, 14, 0.45))  # round the pole, along, weight
_SHORT_NOISE = ((60, 6, 0.25), (300, 40, 0.5), (700, 70, 0.7))
_CROWN = (0.0, -0.95, 0.3)


@dataclass(frozen=True, eq=False)
class Growth:
    """A person's hair on the chart."""

    shown: Array  # how far the skin is hidden, 0 to 1, [CELLS, CELLS]
    thickness: Array  # above the skin in mm, [CELLS, CELLS]
    normals: Array  # of the hair's smooth outside, [CELLS, CELLS, 3]
    along: Array  # unit vectors along the strands, [CELLS, CELLS, 3]
    strands: Array  # -1 (in the depth between strands) to 1 (at the top of one), [STRAND_CELLS, STRAND_CELLS]
    beard: Array  # how densely it grows in the resting face, 0 to 1, [CELLS, CELLS]
    beard_along: Array  # as `along`
    beard_strands: Array  # as `strands`


@lru_cache(maxsize=4)
def growth_of(person: Person) -> Growth:
    """Return a person's hair; kept, for it is the same in all frames."""
    cv2 = opencv()
    hair = person.hair
    bare = Bare.of(person.bones).radius
    way = directions(CELLS)
    strands, along = _strands(np.array(hair.pole), hair.wave, _LONG_NOISE, 7)
    coarse = cv2.resize(strands, (CELLS, CELLS), interpolation=cv2.INTER_AREA)
    face = _filled([*hair.opening, *hair.opening_left[::-1]])  # 1 where skin shows
    edge = cv2.GaussianBlur(face, (0, 0), 2.2 if hair.long else 3.2)
    ragged = coarse * np.clip((1.0 - grid(CELLS)[1]) / 0.2, 0, 1)  # but for the cut ends below
    cover = np.where(edge > 0.985, 0, np.clip((0.5 - edge) * 3.0 + 0.5 + 0.5 * ragged, 0, 1)).astype(np.float32)
    rising = 1 - cv2.GaussianBlur(face, (0, 0), 4.0 if hair.long else 6.0)
    slope = np.clip(rising * 2 - 0.5, 0.25, 1) if hair.long else np.clip(rising * 2.0 - 0.7, 0.10, 1)
    depth = np.maximum(_outside(hair) - bare, 2.0) * slope
    thickness = cover * (depth + 1.6 * ragged * np.sqrt(slope))
    # under thick hair somewhat beyond the edge, so that no skin is seen on the side of a lock
    shown = cv2.GaussianBlur(cv2.dilate(cover, np.ones((3, 3), np.uint8)), (0, 0), 0.7) if hair.long else cover
    shown = np.clip((2.5 if hair.long else 1.4) * shown, 0, 1).astype(np.float32)
    normals = outward(cv2.GaussianBlur(bare + depth, (0, 0), 4.0), way)
    beard_strands, beard_along = _strands(np.array(_CROWN), 0.03, _SHORT_NOISE, 8)
    outline = [*_BEARD, *((-u, v) for u, v in _BEARD[::-1])]
    beard = cv2.GaussianBlur(_filled(outline), (0, 0), 5.0) * np.float32(person.skin.beard)
    return Growth(shown, thickness.astype(np.float32), normals, along, strands, beard, beard_along, beard_strands)


def _outside(hair: Hair) -> Array:
    """Return how far the hair reaches, mm, [CELLS, CELLS]."""
    cv2 = opencv()

    def long(x: Array, y: Array, z: Array) -> Array:
        side = np.abs(x)
        body = ellipsoid(x, y, z, (0, -50, -22), (88, 97, 100))
        body = melt(body, ellipsoid(side, y, z, (52, 20, -14), (37, 84, 52)), 20)
        return -melt(-body, 98 - y, 8)

    def short(x: Array, y: Array, z: Array) -> Array:
        body = ellipsoid(x, y, z, (0, -46, -22), (79, 93, 92))
        return melt(body, ellipsoid(x, y, z, (10, -92, 18), (56, 52, 56)), 16)

    baked = reach(long if hair.long else short, _BAKED_CELLS)
    return cv2.resize(baked, (CELLS, CELLS), interpolation=cv2.INTER_CUBIC)  # type: ignore[no-any-return]


def outward(radius: Array, way: Array) -> Array:
    """Return unit normals, [n, n, 3], of a body that reaches `radius` in the directions `way`, [3, n, n]."""
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
    normal /= np.sqrt((normal * normal).sum(axis=0))
    return np.ascontiguousarray(normal.transpose(1, 2, 0))


def _filled(outline: list[tuple[float, float]]) -> Array:
    """Return the inside of an outline on the chart, 0 to 1, [CELLS, CELLS]."""
    cv2 = opencv()
    points = np.round(from_chart(np.array(outline, np.float32)) * 64).astype(np.int32)
    mask = np.zeros((CELLS, CELLS), np.uint8)
    cv2.fillPoly(mask, [points], 255, cv2.LINE_AA, 6)
    return mask.astype(np.float32) * np.float32(1 / 255)


def _strands(pole: Array, wave: float, noises: tuple[tuple[int, int, float], ...], seed: int) -> tuple[Array, Array]:
    """Return strands' pattern, fine, and direction, coarse: noise about the pole, drawn out along its meridians."""
    cv2 = opencv()
    pole = (pole / np.linalg.norm(pole)).astype(np.float32)
    first = np.cross(pole, [0.0, 0.0, 1.0]).astype(np.float32)
    first /= np.linalg.norm(first)
    second = np.cross(pole, first)
    way = directions(STRAND_CELLS)
    up, a, b = ((axis[:, None, None] * way).sum(axis=0) for axis in (pole, first, second))
    down = np.arccos(np.clip(up, -1, 1))  # from the pole
    turn = np.arctan2(b, a)
    turn = turn + wave * np.sin(down * 7 + 2 * np.sin(turn * 2)) + 0.4 * wave * np.sin(down * 13 + 5 * turn)
    rng = np.random.Generator(np.random.PCG64(seed))
    total = np.zeros(turn.shape, np.float32)
    for columns, rows, weight in noises:
        noise = rng.standard_normal((rows + 4, columns)).astype(np.float32)
        noise = np.concatenate([noise[:, -2:], noise, noise[:, :3]], axis=1)
        x = ((turn / (2 * np.pi)) % 1 * columns + 2).astype(np.float32)
        y = (down / np.pi * rows + 1).astype(np.float32)
        total += np.float32(weight) * cv2.remap(noise, x, y, cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    total *= np.clip(down * 2.5, 0.15, 1)  # no star where all strands begin
    way = directions(CELLS)
    along = pole[:, None, None] - (pole[:, None, None] * way).sum(axis=0) * way
    along /= np.maximum(np.linalg.norm(along, axis=0), 1e-3)
    return np.tanh(total).astype(np.float32), np.ascontiguousarray(along.transpose(1, 2, 0), np.float32)
