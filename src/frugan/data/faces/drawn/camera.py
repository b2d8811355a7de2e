"""Where points of a head come to lie in the picture, and which point each pixel sees."""

from dataclasses import dataclass

import numpy as np

from frugan.data.faces.drawn.chart import Array, cells_of
from frugan.data.faces.drawn.moment import Moment
from frugan.data.faces.opencv import opencv

DISTANCE_MM = 1400.0  # of the camera from the head's centre
_SIDE_MM = 315.0  # that the picture shows at the head's depth
_EYES_ABOVE_MIDDLE = -8.0  # mm: the head's centre lies a little above the picture's


@dataclass(frozen=True, eq=False)
class View:
    """A camera before a turned head.

    Attributes:
        turn: from the head's frame to the camera's (x right, y down, z toward the viewer), [3, 3].
        scale: pixels per mm at the depth of the head's centre.
        middle: of the head in the picture, x, y in pixels.
        size: of the picture in pixels.
    """

    turn: Array
    scale: float
    middle: tuple[float, float]
    size: int

    def project(self, points: Array) -> Array:
        """Return where points of the head, [n, 3] in mm, lie in the picture, [n, 2] in pixels."""
        seen = points @ self.turn.T
        nearer = DISTANCE_MM / (DISTANCE_MM - seen[:, 2:])
        return np.asarray(seen[:, :2] * nearer * self.scale + self.middle, np.float32)

    def rays(self, size: int) -> tuple[Array, Array]:
        """Return the rays of a picture of `size`: starts and steps toward the viewer, each [3, size, size], head frame.

        A step is 1 mm deep.
        """
        shrink = self.size / size
        line = (np.arange(size, dtype=np.float32) + 0.5) * shrink - 0.5
        x = np.broadcast_to((line - self.middle[0]) / self.scale, (size, size)).astype(np.float32)
        y = np.broadcast_to(((line - self.middle[1]) / self.scale)[:, None], (size, size)).astype(np.float32)
        back = self.turn.T
        flat = np.stack([x, y]).reshape(2, -1)
        start = (back[:, :2] @ flat).reshape(3, size, size)
        step = back[:, 2, None, None] - start / np.float32(DISTANCE_MM)
        return start.astype(np.float32), step.astype(np.float32)


def view_of(moment: Moment, size: int) -> View:
    """Return the camera of one moment for a picture of `size` pixels."""
    yaw, pitch, roll = moment.yaw, moment.pitch, moment.roll
    side = np.array([[np.cos(yaw), 0, np.sin(yaw)], [0, 1, 0], [-np.sin(yaw), 0, np.cos(yaw)]])
    nod = np.array([[1, 0, 0], [0, np.cos(pitch), -np.sin(pitch)], [0, np.sin(pitch), np.cos(pitch)]])
    tilt = np.array([[np.cos(roll), -np.sin(roll), 0], [np.sin(roll), np.cos(roll), 0], [0, 0, 1]])
    scale = size / _SIDE_MM * moment.zoom
    middle = (
        size * (0.5 + moment.shift[0]) - 0.5,
        size * (0.5 + moment.shift[1]) - 0.5 + _EYES_ABOVE_MIDDLE * scale,
    )
    return View((tilt @ nod @ side).astype(np.float32), scale, middle, size)


@dataclass(frozen=True, eq=False)
class Hits:
    """What the pixels see of a head.

    Attributes:
        points: where the rays meet it, or come nearest, [3, S, S], head frame, mm.
        depth: along the rays, mm toward the viewer, [S, S].
        cover: share of the pixel that the head fills, [S, S].
        cells: the points' places on the chart, for cv2.remap, two [S, S].
    """

    points: Array
    depth: Array
    cover: Array
    cells: tuple[Array, Array]


def look(radius: Array, view: View) -> Hits:
    """Return what each pixel of a view sees of a head, float32 [CELLS, CELLS]."""
    cv2 = opencv()
    half = view.size // 2
    reach = np.float32(radius.max())
    start, step = view.rays(half)
    square = (start * start).sum(axis=0)
    depth = np.sqrt(np.maximum(reach * reach - square, 0))
    depth, gap, _ = _march(radius, start, step, depth, 30, 0.6)
    # a pixel beside an edge may see what its neighbour sees: start from the nearer
    depth = cv2.dilate(depth, np.ones((3, 3), np.uint8))
    depth = cv2.resize(depth, (view.size, view.size), interpolation=cv2.INTER_LINEAR)
    start, step = view.rays(view.size)
    depth, gap_fine, cells = _march(radius, start, step, depth + 1, 9, 0.7)
    # rays that pass close by a foremost part, such as the nose, have further to go
    near = cv2.dilate((gap < 1).astype(np.uint8), np.ones((3, 3), np.uint8))
    near = cv2.resize(near, (view.size, view.size), interpolation=cv2.INTER_NEAREST)
    rows, columns = np.nonzero((gap_fine > 0) & (near > 0))
    few = (start[:, rows, columns, None], step[:, rows, columns, None])  # [3, n, 1]
    onward, gap_few, cells_few = _march(radius, *few, depth[rows, columns, None], 24, 0.6)
    depth[rows, columns], gap_fine[rows, columns] = onward[:, 0], gap_few[:, 0]
    for all_cells, some in zip(cells, cells_few, strict=True):
        all_cells[rows, columns] = some[:, 0]
    cover = np.clip(1.0 - gap_fine * np.float32(view.scale), 0, 1)
    return Hits(start + depth * step, depth, cover, cells)


def _march(
    radius: Array, start: Array, step: Array, depth: Array, steps: int, pace: float
) -> tuple[Array, Array, tuple[Array, Array]]:
    """Go from `depth` away from the viewer until the surface is passed, and halve the way back to it.

    Returns:
        the best depth, how far outside the surface the ray stays, its cells on the chart.
    """
    cv2 = opencv()
    outside = best = depth
    inside = np.full(depth.shape, -1e6, np.float32)
    least = np.full(depth.shape, 1e6, np.float32)
    for _ in range(steps):
        x, y, z = (start[i] + depth * step[i] for i in range(3))
        length = np.sqrt(x * x + y * y + z * z)
        cells = cells_of(x, y, z, length)
        gap = length - cv2.remap(radius, *cells, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        passed = gap < 0
        inside = np.where(passed, depth, inside)
        outside = np.where(passed, outside, depth)
        nearer = gap < least
        best = np.where(nearer, depth, best)
        least = np.where(nearer, gap, least)
        onward = outside - np.maximum(np.float32(pace) * gap, 0.2)
        halved = (outside + inside) * np.float32(0.5)
        depth = np.where(passed | (onward < inside), halved, np.maximum(onward, -200))
    found = inside > -1e5
    best = np.where(found, (outside + np.maximum(inside, outside - 2)) * np.float32(0.5), best)
    x, y, z = (start[i] + best * step[i] for i in range(3))
    cells = cells_of(x, y, z, np.sqrt(x * x + y * y + z * z))
    return best, np.where(found, 0, least), cells
