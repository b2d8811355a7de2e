"""The surface of one person's head in one moment: the sculpture with expression, and hair upon it."""

from dataclasses import dataclass

import numpy as np

from frugan.faces.data.geometry import opencv
from tools.draw_faces.camera import march
from tools.draw_faces.canvas import LEFT, TOP, Canvas
from tools.draw_faces.chart import CELLS, Array, cells_of, directions, from_chart, grid, looked_up
from tools.draw_faces.curves import EYE_Y, JAW_LENGTHENS, MM_PER_CHART, Mouth, brow, eye, jaw_shift, mouth
from tools.draw_faces.hair import Growth, growth_of
from tools.draw_faces.moment import Moment
from tools.draw_faces.person import Person
from tools.draw_faces.sculpture import Bare, melt

_BUMPS_PER_MM = 1.25
_LID_MM = 0.8
_EYE_CELLS = 50  # from the middle of an eyeball to where its lids end
_NOSE_MM = 105.0  # no face is further forward


@dataclass(frozen=True, eq=False)
class Surface:
    """How far a head reaches in every direction."""

    radius: Array  # mm, float32 [CELLS, CELLS]
    skin: Array  # the same without hair
    growth: Growth  # the hair
    beard: Array  # how densely it grows, 0 to 1, [CELLS, CELLS]
    balls: Array  # middles of the eyeballs, [2, 3], mm, left of the picture first
    ball: float  # the eyeballs' radius in mm

    def points(self, flat: Array) -> Array:
        """Return where the skin has the given x, y: [n, 2] -> [n, 3], mm."""
        return on_surface(self.skin, flat)

    def reach(self, ways: Array) -> Array:
        """Return how far the skin is in given directions, unit vectors [n, 3] -> [n], mm."""
        x, y, z = (np.ascontiguousarray(ways[:, i : i + 1]) for i in range(3))
        return looked_up(self.skin, cells_of(x, y, z, np.ones_like(x)))[:, 0]


def on_surface(radius: Array, flat: Array) -> Array:
    """Return the foremost points of a head with the given x, y: [n, 2] -> [n, 3], mm."""
    x, y = (np.ascontiguousarray(flat[:, i : i + 1], np.float32) for i in range(2))
    ahead = np.zeros((3, *x.shape), np.float32)
    ahead[2] = 1
    z, _ = march(radius, np.stack([x, y, 0 * x]), ahead, np.full_like(x, _NOSE_MM), 24)
    return np.concatenate([x, y, z], axis=1)


def shape(person: Person, moment: Moment) -> Surface:
    """Return the surface of one person in one moment."""
    cv2 = opencv()
    bare = Bare.of(person.bones).radius
    u, v = grid(CELLS)
    way = directions(CELLS)
    down = jaw_shift(way[0] * bare, way[1] * bare, moment, person.bones.length) / MM_PER_CHART
    moved = from_chart(u), from_chart(v - down)
    # the jaw swings about a point before the ears, not about the chart's middle: it gets further away from that
    skin = cv2.remap(bare, *moved, cv2.INTER_LINEAR) * (1 + JAW_LENGTHENS * down * np.clip(way[2] * 2 + 0.5, 0, 1))
    balls, ball = _eyeballs(person, skin)
    skin = _over_balls(skin, way, balls, ball + _LID_MM)
    skin = skin + _looked_up(bumps(person, moment), way, skin)
    growth = growth_of(person)
    radius = skin + growth.thickness
    beard = growth.beard
    if person.skin.beard > 0:
        beard = cv2.remap(beard, *moved, cv2.INTER_LINEAR)
        beard *= 1 - _looked_up(_lip_sheet(person, moment), way, skin)
        rough = cv2.resize(growth.beard_strands, (CELLS, CELLS), interpolation=cv2.INTER_AREA)
        radius = radius + beard * (2.6 + 1.0 * rough)
    return Surface(radius, skin, growth, beard, balls, ball)


def _lip_sheet(person: Person, moment: Moment) -> Canvas:
    """Return where no beard grows about the lips, 0 to 1."""
    sheet = Canvas(_BUMPS_PER_MM)
    lines = mouth(person, moment)
    around = np.concatenate([lines.upper_outer, lines.lower_outer[::-1] + np.array([0, 1], np.float32)])
    sheet.paint(around, 1.0, 0.9)
    return sheet


def _looked_up(heights: Canvas, way: Array, skin: Array) -> Array:
    """Return a canvas of heights as seen on the chart; nothing on the back of the head."""
    cv2 = opencv()
    f = np.float32(heights.fineness)
    x = (way[0] * skin - np.float32(LEFT)) * f - 0.5
    y = (way[1] * skin - np.float32(TOP)) * f - 0.5
    values = cv2.remap(heights.pixels, x, y, cv2.INTER_LINEAR)
    values[way[2] < 0.05] = 0
    return values  # type: ignore[no-any-return]


def _eyeballs(person: Person, skin: Array) -> tuple[Array, float]:
    """Return the middles of the eyeballs, [2, 3], and their radius, mm: a little further out than the bare sockets."""
    apart = person.eyes.apart
    ball = 0.86 * person.eyes.width
    flat = np.array([[-apart, EYE_Y - 0.5], [apart, EYE_Y - 0.5]], np.float32)
    balls = on_surface(skin, flat)
    balls[:, 2] = balls[:, 2].mean() + 4.0 - ball
    return balls, ball


def _over_balls(skin: Array, way: Array, balls: Array, ball: float) -> Array:
    """Return the skin drawn over the eyeballs."""
    drawn = skin.copy()
    for centre in balls:
        middle = [float(cells) for cells in cells_of(centre[0], centre[1], centre[2], np.sqrt(centre @ centre))]
        box = tuple(slice(round(place) - _EYE_CELLS, round(place) + _EYE_CELLS) for place in middle[::-1])
        part, (x, y, z) = skin[box], way[:, *box]
        toward = x * centre[0] + y * centre[1] + z * centre[2]
        inside = toward * toward - np.float32(centre @ centre - ball * ball)
        # beside the ball the bulge falls off steeply
        bulge = toward + np.sqrt(np.maximum(inside, 0)) - np.float32(12 / ball) * np.sqrt(np.maximum(-inside, 0))
        drawn[box] = -melt(-part, -bulge, 2.5)
    return drawn


def bumps(person: Person, moment: Moment) -> Canvas:
    """Return what the features and the expression add to the skin, mm."""
    sheet = Canvas(_BUMPS_PER_MM)
    lines = mouth(person, moment)
    _lips(sheet, person, moment, lines)
    smile = max(moment.smile, 0.0)
    for side in (-1, 1):
        corner = lines.upper_inner[0 if side < 0 else -1]
        wing = np.array([side * (person.bones.nose_width + 1.5), 1.0 + person.bones.nose_drop], np.float32)
        beside = corner + np.array([side * (5.0 + 3 * smile), 1.0], np.float32)
        fold = np.stack([wing, (wing + corner) / 2 + np.array([side * 5.0, -2.0], np.float32), beside])
        sheet.groove(fold, 2.5, -(0.5 + 2.0 * smile), 2.0)
        cheek = np.array([side * 40.0, -6 * smile], np.float32)
        sheet.add(_disc(cheek, 15), 4.5 * smile, 6.0)
        lids = eye(person, moment, side)
        sheet.groove(lids.crease, 1.4, -1.6, 0.7)
        bag = lids.lower + np.array([0, 5.5], np.float32)
        sheet.groove(bag, 1.5, -0.5 - 0.9 * smile, 1.4)
        arch = brow(person, moment, side)
        sheet.groove(arch.spine, person.brows.thickness, 0.8, 1.5)
        crease = np.array([[side * 4.5, EYE_Y - 19], [side * 4.0, EYE_Y - 9]], np.float32)
        sheet.groove(crease, 1.5, -1.8 * moment.frown, 1.2)
    return sheet


def _lips(sheet: Canvas, person: Person, moment: Moment, lines: Mouth) -> None:
    full = person.lips.full * (1 + 0.5 * moment.pucker - 0.25 * max(moment.smile, 0))
    upper = np.concatenate([lines.upper_outer, lines.upper_inner[::-1]])
    lower = np.concatenate([lines.lower_inner, lines.lower_outer[::-1]])
    around = np.concatenate([lines.upper_outer, lines.lower_outer[::-1]])
    sheet.add(around, full * 0.45, 4.0)
    sheet.add(upper, full * 0.9, 1.5)
    sheet.add(lower, full * 1.1, 1.9)
    sheet.groove(lines.upper_inner, 1.2, -2.2, 0.9)
    if moment.jaw > 0:
        sheet.add(np.concatenate([lines.upper_inner, lines.lower_inner[::-1]]), -5.0, 1.5)
    top = lines.upper_outer[len(lines.upper_outer) // 2]
    philtrum = np.array([[0, 13 + person.bones.nose_drop], [0, top[1] - 1]], np.float32)
    sheet.groove(philtrum, 3.5, -1.0, 1.2)
    bottom = lines.lower_outer[len(lines.lower_outer) // 2]
    dent = np.array([[-12, bottom[1] + 4.5], [0, bottom[1] + 4.0], [12, bottom[1] + 4.5]], np.float32)
    sheet.groove(dent, 4, -1.8, 2.5)


def _disc(middle: Array, radius: float) -> Array:
    turn = np.linspace(0, 2 * np.pi, 25, dtype=np.float32)[:-1]
    return np.asarray(middle + radius * np.stack([np.cos(turn), np.sin(turn)], axis=1), np.float32)
