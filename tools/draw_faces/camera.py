"""Where points of a head come to lie in the picture, and which point each pixel sees."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from frugan.faces.data.geometry import opencv
from tools.draw_faces.chart import Array, cells_of, looked_up
from tools.draw_faces.moment import Moment

DISTANCE_MM = 1400.0  # of the camera from the head's centre
NOTHING = -500.0  # mm: the depth of what is not there
_SIDE_MM = 340.0  # that the picture shows at the head's depth
_RAISED_MM = 8.0  # the head's centre lies a little above the picture's
_LEVELS = ((4, 44, 0.0), (2, 14, 3.0), (1, 8, 1.0))  # pixels in one, steps of its ray, mm that it starts nearer
_NEAR_PIXELS = 1.5
_FAR_STEPS = 28  # to what is behind the nose or the chin
_ROW = 256  # pixels: those that see the head are kept as rows of that length, for OpenCV wants two dimensions


@dataclass(frozen=True, eq=False)
class View:
    """A camera before a turned head."""

    turn: Array  # from the head's frame to the camera's (x right, y down, z toward the viewer), [3, 3]
    scale: float  # pixels per mm at the depth of the head's centre
    middle: tuple[float, float]  # of the head in the picture, x, y in pixels
    size: int  # of the picture in pixels

    def project(self, points: Array) -> Array:
        """Return where points of the head, [n, 3] in mm, lie in the picture, [n, 2] in pixels."""
        seen = points @ self.turn.T
        nearer = DISTANCE_MM / (DISTANCE_MM - seen[:, 2:])
        return np.asarray(seen[:, :2] * nearer * self.scale + self.middle, np.float32)

    def rays(self, rows: NDArray[np.intp], columns: NDArray[np.intp], shrink: int = 1) -> tuple[Array, Array]:
        """Return the rays of pixels: starts and steps of 1 mm toward the viewer, each [3, ...], head frame.

        Args:
            rows: of the pixels, [...].
            columns: of the pixels, [...].
            shrink: how many pixels of this view make one of those.
        """
        x = ((columns + 0.5) * shrink - 0.5 - self.middle[0]) / self.scale
        y = ((rows + 0.5) * shrink - 0.5 - self.middle[1]) / self.scale
        x, y = x.astype(np.float32), y.astype(np.float32)
        back = self.turn.T
        start = np.stack([back[i, 0] * x + back[i, 1] * y for i in range(3)])
        step = np.stack([back[i, 2] - start[i] * np.float32(1 / DISTANCE_MM) for i in range(3)])
        return start, step


def view_of(moment: Moment, size: int) -> View:
    """Return the camera of one moment for a picture of `size` pixels."""
    yaw, pitch, roll = moment.yaw, moment.pitch, moment.roll
    side = np.array([[np.cos(yaw), 0, -np.sin(yaw)], [0, 1, 0], [np.sin(yaw), 0, np.cos(yaw)]])
    nod = np.array([[1, 0, 0], [0, np.cos(pitch), -np.sin(pitch)], [0, np.sin(pitch), np.cos(pitch)]])
    tilt = np.array([[np.cos(roll), -np.sin(roll), 0], [np.sin(roll), np.cos(roll), 0], [0, 0, 1]])
    scale = size / _SIDE_MM * moment.zoom
    middle = (size * (0.5 + moment.shift[0]) - 0.5, size * (0.5 + moment.shift[1]) - 0.5 - _RAISED_MM * scale)
    return View((tilt @ nod @ side).astype(np.float32), scale, middle, size)


@dataclass(frozen=True, eq=False)
class Hits:
    """What the pixels see that see the head; the last one may come more than once."""

    rows: NDArray[np.intp]  # of the pixels, [k, 256]
    columns: NDArray[np.intp]  # of the pixels, [k, 256]
    points: Array  # where their rays meet the head, or come nearest, [3, k, 256], head frame, mm
    depth: Array  # along the rays, mm toward the viewer, [k, 256]
    cover: Array  # share of the pixel that the head fills, [k, 256]
    cells: tuple[Array, Array]  # the points' places on the chart, for cv2.remap, two [k, 256]

    def spread(self, values: Array, size: int, elsewhere: float) -> Array:
        """Return values of the pixels, [k, 256], as a picture, [size, size]."""
        picture = np.full((size, size), elsewhere, np.float32)
        picture[self.rows, self.columns] = values
        return picture


def look(radius: Array, view: View) -> Hits:
    """Return what each pixel of a view sees of a head, float32 [CELLS, CELLS].

    A coarse picture first, then finer ones, whose rays start where the coarser ones ended.
    """
    cv2 = opencv()
    around = np.ones((3, 3), np.uint8)
    reach = float(radius.max())
    front: Array = np.full((1, 1), reach, np.float32)
    near = np.ones((1, 1), np.uint8)
    for shrink, steps, margin in _LEVELS:
        side = -(-view.size // shrink)
        front = cv2.resize(front, (side, side))
        near = cv2.resize(near, (side, side), interpolation=cv2.INTER_NEAREST)
        rows, columns = (_in_rows(places) for places in np.nonzero(near))
        start, step = view.rays(rows, columns, shrink)
        depth, gap = march(radius, start, step, front[rows, columns] + np.float32(margin), steps)
        if shrink > 1:
            # a pixel beside an edge may see what its neighbour sees: start from the nearer
            whole = np.full((side, side), -reach, np.float32)
            whole[rows, columns] = depth
            front = cv2.dilate(whole, around)
            near = np.zeros((side, side), np.uint8)
            near[rows, columns] = gap < _NEAR_PIXELS * shrink / view.scale
            near = cv2.dilate(near, around)
    _go_on(radius, start, step, depth, gap)
    # edges one pixel soft, without specks
    met = np.zeros((view.size, view.size), np.uint8)
    met[rows, columns] = np.where(gap == 0, 255, 0)
    met = cv2.GaussianBlur(cv2.morphologyEx(cv2.medianBlur(met, 3), cv2.MORPH_CLOSE, around), (3, 3), 0)
    points = start + depth * step
    cells = cells_of(points[0], points[1], points[2], np.sqrt((points * points).sum(axis=0)))
    return Hits(rows, columns, points, depth, met[rows, columns] * np.float32(1 / 255), cells)


def _go_on(radius: Array, start: Array, step: Array, depth: Array, gap: Array) -> None:
    """Send rays that passed close by a foremost part, such as the nose, on to what is behind it."""
    late = np.nonzero(gap > 0)
    count = len(late[0])
    few = [np.stack([_in_rows(axis[late]) for axis in part]) for part in (start, step)]
    onward = _in_rows(depth[late])
    further, still = (each.ravel()[:count] for each in march(radius, few[0], few[1], onward, _FAR_STEPS, least=1.5))
    better = still < gap[late]
    late = late[0][better], late[1][better]
    depth[late], gap[late] = further[better], still[better]


def _in_rows(values: NDArray) -> NDArray:
    """Return [n] as [k, 256], the last one repeated."""
    return np.pad(values, (0, -len(values) % _ROW), mode="edge").reshape(-1, _ROW)


def march(
    radius: Array, start: Array, step: Array, depth: Array, steps: int, least: float = 0.2
) -> tuple[Array, Array]:
    """Go along rays, from `depth` downward, until a surface is passed, and halve the way back to it.

    Args:
        radius: of the body in all directions, mm, [CELLS, CELLS].
        start: of the rays, [3, k, m], mm.
        step: of the rays per mm of depth, [3, k, m].
        depth: to begin at, mm, [k, m].
        steps: how many.
        least: length of a step, mm.

    Returns:
        the depth where the surface is met, or nearest, [k, m]; how far outside of it the ray stays, mm, [k, m].
    """
    outside = best = depth
    inside = np.full(depth.shape, -1e6, np.float32)
    nearest = np.full(depth.shape, 1e6, np.float32)
    for _ in range(steps):
        x, y, z = (start[i] + depth * step[i] for i in range(3))
        length = np.sqrt(x * x + y * y + z * z)
        gap = length - looked_up(radius, cells_of(x, y, z, length))
        passed = gap < 0
        inside = np.where(passed, depth, inside)
        outside = np.where(passed, outside, depth)
        best = np.where(gap < nearest, depth, best)
        nearest = np.minimum(gap, nearest)
        # no further than what a wall of hair is thick
        onward = outside - np.clip(np.float32(0.7) * gap, np.float32(least), np.float32(6))
        halved = (outside + inside) * np.float32(0.5)
        depth = np.where(passed | (onward < inside), halved, np.maximum(onward, np.float32(-200)))
    hit = inside > -1e5
    best = np.where(hit, inside, best)
    return best, np.where(hit, np.float32(0), nearest)
