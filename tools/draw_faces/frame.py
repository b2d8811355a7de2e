"""One frame: a drawn person in a moment, with 68 landmarks that fit exactly."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from frugan.faces.data.geometry import opencv
from tools.draw_faces.camera import NOTHING, Hits, View, look, view_of
from tools.draw_faces.canvas import LEFT, TOP, Canvas
from tools.draw_faces.chart import CELLS, Array, directions, looked_up
from tools.draw_faces.hair import STRAND_CELLS, outward
from tools.draw_faces.insides import eyeball, inside_mouth
from tools.draw_faces.landmarks import landmarks
from tools.draw_faces.light import Lamps, lamps_of, shade_hair, shade_skin, shadow
from tools.draw_faces.moment import Moment
from tools.draw_faces.person import Person
from tools.draw_faces.skin import paint
from tools.draw_faces.surface import Surface, shape
from tools.draw_faces.surroundings import background, body

_FEWEST_PIXELS = 64
_LEAST_GAP = 0.01
_EDGE_CELLS = 9  # of the chart, from one pixel to the next


@dataclass(frozen=True, eq=False)
class DrawnFrame:
    """A picture of a face."""

    picture: NDArray[np.uint8]  # uint8 [size, size, 3], BGR
    landmarks: NDArray[np.float32]  # float32 [68, 2]: x, y in pixels


def draw_frame(person: Person, moment: Moment, size: int = 384) -> DrawnFrame:
    """Draw a person in a moment.

    Args:
        person: who.
        moment: how.
        size: side of the picture in pixels, even, at least 64.

    Raises:
        ValueError: another size.
        BadInput: OpenCV is not installed.
    """
    if size < _FEWEST_PIXELS or size % 2:
        raise ValueError(f"size {size}: expected an even number of pixels, at least {_FEWEST_PIXELS}")
    surface = shape(person, moment)
    view = view_of(moment, size)
    hits = look(surface.radius, view)
    lamps = lamps_of(moment)
    torso = body(person, moment, view)
    light = background(moment, size)  # [3, S, S]
    head_depth = hits.spread(np.where(hits.cover > 0.5, hits.depth, NOTHING), size, NOTHING)
    scene = np.maximum(head_depth, np.where(torso.cover > 0.5, torso.depth, NOTHING))
    rows = slice(torso.top, None)
    reached = shadow(torso.depth, scene, lamps, view.scale)
    below = shade_skin(torso.paint, torso.gloss, torso.normal, reached[rows], torso.open_, lamps)
    light[:, rows] += (below - light[:, rows]) * torso.cover[rows]
    at = hits.rows, hits.columns
    reached = shadow(hits.spread(hits.depth, size, 0.0), scene, lamps, view.scale)[at]
    head = _shade_head(person, moment, surface, view, hits, reached, lamps)
    shown = np.where(hits.depth > torso.depth[at], 1, 1 - torso.cover[at]) * hits.cover
    light[:, hits.rows, hits.columns] += (head - light[:, hits.rows, hits.columns]) * shown
    picture = _smoothed(_developed(light), hits)
    return DrawnFrame(picture, landmarks(person, moment, surface, view))


def _developed(light: Array) -> NDArray[np.uint8]:
    """Return linear light, [3, S, S], as the bytes of a picture, [S, S, 3], BGR."""
    light = light * (1.36 + 0.12 * light) / (1 + 0.54 * light)  # bright parts are compressed, not cut off
    levels = np.clip(np.sqrt(np.clip(light, 0, 1)) * 255 + 0.5, 0, 255).astype(np.uint8)
    return np.ascontiguousarray(levels[::-1].transpose(1, 2, 0))


def _smoothed(picture: NDArray[np.uint8], hits: Hits) -> NDArray[np.uint8]:
    """Return a picture whose inner edges, where one part of the head stands before another, are a pixel soft."""
    cv2 = opencv()
    around = np.ones((3, 3), np.uint8)
    edge = np.zeros(picture.shape[:2], np.bool_)
    for cells in hits.cells:
        edge |= cv2.morphologyEx(hits.spread(cells, len(picture), CELLS / 2), cv2.MORPH_GRADIENT, around) > _EDGE_CELLS
    soft = cv2.GaussianBlur(cv2.medianBlur(picture, 3), (3, 3), 0)
    return np.where(edge[..., None], soft, picture)


def _shade_head(
    person: Person, moment: Moment, surface: Surface, view: View, hits: Hits, reached: Array, lamps: Lamps
) -> Array:
    """Return the light that comes from the head, [3, k, 256]."""
    cv2 = opencv()
    growth = surface.growth
    normal = _seen(outward(surface.radius, directions(CELLS)), hits, view)
    bay = cv2.GaussianBlur(surface.radius, (0, 0), 7.0) - surface.radius  # mm that the surroundings stand above
    open_ = np.clip(1 - 0.13 * looked_up(bay, hits.cells), 0.25, 1.1)
    paints, openings = paint(person, moment)
    colours, gaps = _on_face(paints, hits), _on_face(openings, hits)
    gaps[:, hits.points[2] < 8] = 0
    light = shade_skin(colours[:3], colours[3], normal, reached, open_, lamps)
    _fill(light, gaps, person, moment, surface, view, hits, lamps)
    if person.skin.beard > 0:
        strands = _fine(growth.beard_strands, hits)
        density = np.clip(looked_up(surface.beard, hits.cells) * (1.35 + 0.7 * strands), 0, 1)
        beard = shade_hair(person.hair, strands, normal, _seen(growth.beard_along, hits, view), reached, lamps)
        light *= 1 - 0.45 * looked_up(surface.beard, hits.cells)  # skin between the hairs is in their shade
        light += (beard * open_ - light) * density
    smooth, along = _seen(growth.normals, hits, view), _seen(growth.along, hits, view)
    hair = shade_hair(person.hair, _fine(growth.strands, hits), smooth, along, reached, lamps)
    return np.asarray(light + (hair - light) * looked_up(growth.shown, hits.cells), np.float32)


def _fine(strands: Array, hits: Hits) -> Array:
    """Return the pattern of strands as the pixels see it, [k, 256]."""
    finer = np.float32(STRAND_CELLS / CELLS)
    return looked_up(strands, ((hits.cells[0] + 0.5) * finer - 0.5, (hits.cells[1] + 0.5) * finer - 0.5))


def _seen(field: Array, hits: Hits, view: View) -> Array:
    """Return a chart of vectors, [CELLS, CELLS, 3], as the pixels see it, [3, k, 256], in the camera's frame."""
    normals = looked_up(field, hits.cells)
    return np.ascontiguousarray((normals @ view.turn.T).transpose(2, 0, 1))


def _on_face(sheet: Canvas, hits: Hits) -> Array:
    """Return what is painted on the face where the pixels see it, [channels, k, 256]."""
    f = np.float32(sheet.fineness)
    x = (hits.points[0] - np.float32(LEFT)) * f - 0.5
    y = (hits.points[1] - np.float32(TOP)) * f - 0.5
    return np.ascontiguousarray(looked_up(sheet.pixels, (x, y)).transpose(2, 0, 1))


def _fill(
    light: Array, gaps: Array, person: Person, moment: Moment, surface: Surface, view: View, hits: Hits, lamps: Lamps
) -> None:
    """Paint over the openings, `gaps` [2, k, 256], what is seen through them."""
    toward = view.turn.T @ lamps.key
    tint = (lamps.key_colour + lamps.above) / 1.6
    start, step = view.rays(hits.rows, hits.columns)
    for side, centre in zip((-1, 1), surface.balls, strict=True):
        here = (gaps[0] > _LEAST_GAP) & (hits.points[0] * side > 0)
        if here.any():
            seen = eyeball(person, moment, start[:, here], step[:, here], centre, surface.ball, toward, side)
            light[:, here] += ((seen * tint).T - light[:, here]) * gaps[0][here]
    here = gaps[1] > _LEAST_GAP
    if here.any():
        front = float(surface.points(np.array([[0, 25.0 * person.bones.length]], np.float32))[0, 2])
        seen = inside_mouth(person, moment, start[:, here], step[:, here], front, toward)
        light[:, here] += ((seen * tint).T - light[:, here]) * gaps[1][here]
