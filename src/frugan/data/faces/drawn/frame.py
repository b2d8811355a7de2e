"""One frame: a drawn person in a moment, with 68 landmarks that fit exactly."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from frugan.data.faces.drawn.camera import Hits, View, look, view_of
from frugan.data.faces.drawn.canvas import LEFT, TOP, Canvas
from frugan.data.faces.drawn.chart import CELLS, Array, directions
from frugan.data.faces.drawn.hair import STRAND_CELLS, outward
from frugan.data.faces.drawn.insides import eyeball, inside_mouth
from frugan.data.faces.drawn.landmarks import landmarks
from frugan.data.faces.drawn.light import Lamps, lamps_of, shade_hair, shade_skin, shadow
from frugan.data.faces.drawn.moment import Moment
from frugan.data.faces.drawn.person import Person
from frugan.data.faces.drawn.skin import paint
from frugan.data.faces.drawn.surface import Surface, shape
from frugan.data.faces.drawn.surroundings import background, body
from frugan.data.faces.opencv import opencv


@dataclass(frozen=True, eq=False)
class DrawnFrame:
    """A picture of a face.

    Attributes:
        picture: uint8 [size, size, 3], BGR.
        landmarks: float32 [68, 2]: x, y in pixels.
    """

    picture: NDArray[np.uint8]
    landmarks: NDArray[np.float32]


def draw_frame(person: Person, moment: Moment, size: int = 384) -> DrawnFrame:
    """Draw a person in a moment.

    Args:
        person: who.
        moment: how.
        size: side of the picture in pixels, even.

    Raises:
        BadInput: OpenCV is not installed.
    """
    surface = shape(person, moment)
    view = view_of(moment, size)
    hits = look(surface.radius, view)
    lamps = lamps_of(moment)
    torso = body(person, moment, view)
    scene = np.maximum(np.where(hits.cover > 0.5, hits.depth, -500), np.where(torso.cover > 0.5, torso.depth, -500))
    scene = scene.astype(np.float32)
    light = background(moment, size)
    below = shade_skin(
        torso.paint, torso.gloss, torso.normal, shadow(torso.depth, scene, lamps, view.scale), torso.cover, lamps
    )
    light += (below - light) * torso.cover[..., None]
    head = _shade_head(person, moment, surface, view, hits, shadow(hits.depth, scene, lamps, view.scale), lamps)
    in_front = np.where(hits.depth > torso.depth, 1, 1 - torso.cover) * hits.cover
    light += (head - light) * in_front[..., None]
    return DrawnFrame(_developed(light), landmarks(person, moment, surface, view))


def _developed(light: Array) -> NDArray[np.uint8]:
    """Return linear light as the bytes of a picture, BGR."""
    shoulder = light * (1 + light * 0.12) / (1 + light * 0.42)  # bright parts are compressed, not cut off
    bytes_ = np.sqrt(np.clip(shoulder * 1.12, 0, 1)) * 255 + 0.5
    return np.ascontiguousarray(np.clip(bytes_, 0, 255).astype(np.uint8)[..., ::-1])


def _shade_head(
    person: Person, moment: Moment, surface: Surface, view: View, hits: Hits, reached: Array, lamps: Lamps
) -> Array:
    cv2 = opencv()
    way = directions(CELLS)
    normal = _seen(outward(surface.radius, way), hits, view)
    bay = cv2.GaussianBlur(surface.radius, (0, 0), 7.0) - surface.radius  # mm that the surroundings stand above
    open_ = np.clip(1 - 0.13 * cv2.remap(bay, *hits.cells, cv2.INTER_LINEAR), 0.25, 1.1)
    paints, openings = paint(person, moment)
    colours = _on_face(paints, hits)
    gaps = _on_face(openings, hits)
    gaps[hits.points[2] < 8] = 0
    light = shade_skin(colours[..., :3], colours[..., 3], normal, reached, open_, lamps)
    toward = view.turn.T @ lamps.key
    _fill_eyes(light, gaps[..., 0], person, moment, surface, view, toward, lamps)
    _fill_mouth(light, gaps[..., 1], person, moment, surface, view, toward, lamps)
    growth = surface.growth
    smooth = _seen(growth.normals, hits, view)
    cover = np.clip(2.5 * cv2.remap(growth.cover, *hits.cells, cv2.INTER_LINEAR), 0, 1)
    hair = shade_hair(person.hair, _fine(growth.strands, hits), smooth, _seen(growth.along, hits, view), reached, lamps)
    if person.skin.beard > 0:
        strands = _fine(growth.beard_strands, hits)
        density = cv2.remap(surface.beard, *hits.cells, cv2.INTER_LINEAR)
        density = np.clip(density * (1.25 + 0.9 * strands), 0, 1)
        beard = shade_hair(person.hair, strands, normal, _seen(growth.beard_along, hits, view), reached, lamps)
        light += (beard * open_[..., None] - light) * density[..., None]
    return np.asarray(light + (hair - light) * cover[..., None], np.float32)


def _fine(strands: Array, hits: Hits) -> Array:
    """Return the pattern of strands as the pixels see it, [S, S]."""
    cv2 = opencv()
    finer = np.float32(STRAND_CELLS / CELLS)
    x, y = ((cells + 0.5) * finer - 0.5 for cells in hits.cells)
    return cv2.remap(strands, x, y, cv2.INTER_LINEAR)  # type: ignore[no-any-return]


def _seen(field: Array, hits: Hits, view: View) -> Array:
    """Return a chart of vectors, [3, CELLS, CELLS], as the pixels see it, [3, S, S], turned to the camera's frame."""
    cv2 = opencv()
    found = cv2.remap(np.ascontiguousarray(field.transpose(1, 2, 0)), *hits.cells, cv2.INTER_LINEAR)
    return np.ascontiguousarray((found @ view.turn.T).transpose(2, 0, 1))


def _on_face(sheet: Canvas, hits: Hits) -> Array:
    cv2 = opencv()
    f = np.float32(sheet.fineness)
    x = (hits.points[0] - np.float32(LEFT)) * f - 0.5
    y = (hits.points[1] - np.float32(TOP)) * f - 0.5
    return cv2.remap(sheet.pixels, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)  # type: ignore[no-any-return]


def _fill_eyes(
    light: Array, gap: Array, person: Person, moment: Moment, surface: Surface, view: View, toward: Array, lamps: Lamps
) -> None:
    start, step = view.rays(view.size)
    for side, centre in zip((-1, 1), surface.balls, strict=True):
        rows, columns = np.nonzero((gap > 0.01) & ((start[0] * side > 0) if True else False))
        rows, columns = np.nonzero(gap > 0.01)
        ray = start[:, rows, columns], step[:, rows, columns]
        depth = (centre @ view.turn[2]).astype(np.float32)
        near = (ray[0][0] + depth * ray[1][0]) * side > 0
        rows, columns = rows[near], columns[near]
        if len(rows) == 0:
            continue
        ray = ray[0][:, near], ray[1][:, near]
        seen = eyeball(person, moment, *ray, centre, surface.ball, toward, side)
        tint = (lamps.key_colour + lamps.above) / 1.6
        share = gap[rows, columns, None]
        light[rows, columns] += (seen * tint - light[rows, columns]) * share


def _fill_mouth(
    light: Array, gap: Array, person: Person, moment: Moment, surface: Surface, view: View, toward: Array, lamps: Lamps
) -> None:
    rows, columns = np.nonzero(gap > 0.01)
    if len(rows) == 0:
        return
    start, step = view.rays(view.size)
    front = float(surface.points(np.array([[0, 25.0 * person.bones.length]], np.float32))[0, 2])
    seen = inside_mouth(person, moment, start[:, rows, columns], step[:, rows, columns], front, toward)
    tint = (lamps.key_colour + lamps.above) / 1.6
    share = gap[rows, columns, None]
    light[rows, columns] += (seen * tint - light[rows, columns]) * share
