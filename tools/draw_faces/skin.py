"""What is painted on the skin: its tones, lips, brows, lashes, folds."""

from functools import lru_cache

import numpy as np

from frugan.faces.data.geometry import opencv
from tools.draw_faces.canvas import HEIGHT, LEFT, TOP, WIDTH, Canvas, ribbon
from tools.draw_faces.chart import Array
from tools.draw_faces.curves import Brow, Eye, Mouth, brow, eye, jaw_shift, mouth
from tools.draw_faces.moment import Moment
from tools.draw_faces.person import Person

_FINENESS = 2.5  # pixels per mm
_BROW_HAIRS = 130


def paint(person: Person, moment: Moment) -> tuple[Canvas, Canvas]:
    """Return a face's paint and its openings.

    Returns:
        R, G, B and gloss, [h, w, 4]; coverage of the eyes' and of the mouth's opening, [h, w, 2].
    """
    paints = Canvas(_FINENESS, _with_open_jaw(person, moment))
    openings = Canvas(_FINENESS, np.zeros((*paints.pixels.shape[:2], 2), np.float32))
    lines = mouth(person, moment)
    _paint_mouth(paints, person, lines)
    if moment.jaw > 0:
        inside = np.concatenate([lines.upper_inner, lines.lower_inner[::-1]])
        openings.paint(inside, np.array([0, 1], np.float32), 0.3)
    _paint_nose(paints, person)
    for side in (-1, 1):
        _paint_brow(paints, person, brow(person, moment, side))
        lids = eye(person, moment, side)
        _paint_eye(paints, person, lids)
        below_lashes = np.minimum(lids.upper + np.array([0, 0.2 + 0.5 * person.eyes.lashes]), lids.lower)
        white = np.concatenate([below_lashes, lids.lower[::-1]]).astype(np.float32)
        openings.paint(white, np.array([1, 0], np.float32), 0.25)
    return paints, openings


def _with_open_jaw(person: Person, moment: Moment) -> Array:
    base = _tones(person)
    if moment.jaw == 0:
        return base.copy()
    cv2 = opencv()
    x, y = _places()
    shift = jaw_shift(x, y, moment, person.bones.length)
    to_x, to_y = ((x - np.float32(LEFT)) * _FINENESS - 0.5, (y - shift - np.float32(TOP)) * _FINENESS - 0.5)
    return cv2.remap(base, to_x, to_y.astype(np.float32), cv2.INTER_LINEAR)  # type: ignore[no-any-return]


def _places() -> tuple[Array, Array]:
    """Return x, y in mm of a canvas's pixels."""
    columns = (np.arange(round(WIDTH * _FINENESS), dtype=np.float32) + 0.5) / _FINENESS + LEFT
    rows = (np.arange(round(HEIGHT * _FINENESS), dtype=np.float32) + 0.5) / _FINENESS + TOP
    x, y = np.meshgrid(columns, rows)
    return x.astype(np.float32), y.astype(np.float32)


@lru_cache(maxsize=4)
def _tones(person: Person) -> Array:
    """Return the resting face's bare skin, [h, w, 4]; kept, for it is the same in all frames."""
    cv2 = opencv()
    x, y = _places()
    skin = person.skin
    colour = np.array(skin.colour, np.float32)
    blush = np.array(skin.blush, np.float32)
    side = np.abs(x)

    def spot(cx: float, cy: float, rx: float, ry: float) -> Array:
        return np.exp(-(((side - cx) / rx) ** 2) - ((y - cy) / ry) ** 2)[..., None]

    paints = np.broadcast_to(colour, (*x.shape, 3)).copy()
    paints += (blush - colour) * (0.75 * spot(42, 2, 20, 16) + 0.6 * spot(0, -2, 14, 9) + 0.35 * spot(0, 74, 16, 12))
    paints *= 1 - np.array([0.10, 0.16, 0.14], np.float32) * spot(30, -22, 14, 7)  # under the eyes
    paints *= 1 - np.array([0.12, 0.20, 0.20], np.float32) * spot(31, -43, 17, 7)  # on the lids
    paints *= 1 + np.array([0.05, 0.04, 0.02], np.float32) * spot(0, -85, 45, 22)  # forehead
    rng = np.random.Generator(np.random.PCG64(11))
    for sigma, strength in ((1.0, 0.022), (5.0, 0.020), (16.0, 0.025)):
        noise = cv2.GaussianBlur(rng.standard_normal(x.shape).astype(np.float32), (0, 0), sigma)
        noise *= np.clip((80 - side) / 20, 0, 1) / noise.std()  # the sides of the head are seen at a slant
        paints *= 1 + np.float32(strength) * noise[..., None] * np.array([0.7, 1.0, 1.1], np.float32)
    gloss = 0.30 + 0.35 * spot(0, -10, 9, 30)[..., 0] + 0.25 * spot(0, -80, 35, 18)[..., 0]
    gloss += 0.12 * spot(40, -12, 16, 10)[..., 0]
    whole = Canvas(_FINENESS, np.concatenate([paints, gloss[..., None]], axis=2).astype(np.float32))
    _freckle(whole, person, rng)
    return whole.pixels


def _freckle(sheet: Canvas, person: Person, rng: np.random.Generator) -> None:
    dark = np.array([0.42, 0.19, 0.10, 0.3], np.float32)
    for _ in range(person.skin.freckles):
        place = np.array([rng.normal(0, 30), rng.normal(-8, 14)], np.float32)
        size = rng.uniform(0.35, 0.95)
        turn = np.linspace(0, 2 * np.pi, 9)[:-1]
        round_ = np.stack([np.cos(turn), np.sin(turn) * rng.uniform(0.7, 1.0)], axis=1)
        sheet.paint((place + size * round_).astype(np.float32), dark, 0.35, rng.uniform(0.15, 0.55))


def _paint_mouth(sheet: Canvas, person: Person, lines: Mouth) -> None:
    lips = person.lips
    red = np.array([*lips.colour, 0.25 + lips.gloss], np.float32)
    upper = np.concatenate([lines.upper_outer, lines.upper_inner[::-1]])
    lower = np.concatenate([lines.lower_inner, lines.lower_outer[::-1]])
    darker = red * np.array([0.78, 0.72, 0.74, 0.8], np.float32)
    sheet.paint(upper, darker, 0.8, 0.9)
    sheet.paint(lower, red, 0.9, 0.88)
    middle = (0.45 * lines.lower_inner + 0.55 * lines.lower_outer)[8:-8]
    sheet.stroke(middle, 3.0, red * np.array([1.15, 1.25, 1.25, 1.2], np.float32), 1.5, 0.5)
    line = np.array([lips.colour[0] * 0.25, lips.colour[1] * 0.16, lips.colour[2] * 0.16, 0.1], np.float32)
    taper = np.asarray(1.6 * np.sin(np.linspace(0.25, np.pi - 0.25, len(lines.upper_inner))), np.float32)
    sheet.paint(ribbon(lines.upper_inner, taper), line, 0.35, 0.85)
    for corner in (lines.upper_inner[0], lines.upper_inner[-1]):
        dot = corner + np.array([[-1.6, -1.2], [1.6, -1.2], [1.6, 1.2], [-1.6, 1.2]], np.float32)
        sheet.paint(dot, line, 1.2, 0.55)


def _paint_nose(sheet: Canvas, person: Person) -> None:
    bones, colour = person.bones, np.array(person.skin.colour, np.float32)
    dark = np.array([*(colour * np.array([0.10, 0.055, 0.05])), 0.0], np.float32)
    edge = np.array([*(colour * np.array([0.45, 0.30, 0.27])), 0.2], np.float32)
    out, drop = bones.nose_width, bones.nose_drop
    for side in (-1, 1):
        mirror = np.array([side, 1], np.float32)
        hole = np.array([[3.2, 6.8], [5.5, 4.7], [out - 6.5, 5.0], [out - 5.2, 6.8], [6.5, 7.8]], np.float32)
        sheet.paint((hole + np.array([0, drop], np.float32)) * mirror, dark, 0.6, 0.9)
        wing = np.array([[out - 1.5, -5], [out + 0.2, -1], [out - 0.4, 4], [out - 4, 7]], np.float32)
        sheet.stroke((wing + np.array([0, drop], np.float32)) * mirror, 1.0, edge, 0.9, 0.5)


def _paint_brow(sheet: Canvas, person: Person, arch: Brow) -> None:
    hair = np.array([*person.brows.colour, 0.15], np.float32)
    sheet.paint(ribbon(arch.spine, arch.thickness * 0.85), hair, 0.9, 0.7)
    rng = np.random.Generator(np.random.PCG64(17 + arch.side))
    share = rng.random(_BROW_HAIRS) ** 1.1
    place = np.minimum((share * len(arch.spine)).astype(int), len(arch.spine) - 1)
    along = np.gradient(arch.spine, axis=0)
    along = (along / np.linalg.norm(along, axis=1, keepdims=True))[place]
    across = rng.uniform(-0.5, 0.5, _BROW_HAIRS)
    root = arch.spine[place] + np.stack([0 * across, across * arch.thickness[place]], axis=1)
    rise = np.interp(share, [0, 0.25, 0.7, 1], [-0.9, -0.45, -0.1, 0.15]) + np.where(across < 0, 0.25, -0.15)
    way = along + np.stack([0 * rise, rise], axis=1)
    length = np.interp(share, [0, 0.3, 1], [3.2, 4.2, 3.0]) * rng.uniform(0.7, 1.15, _BROW_HAIRS)
    tip = root + way / np.linalg.norm(way, axis=1, keepdims=True) * length[:, None]
    lines = np.stack([root, (root + tip) / 2 + along * 0.35, tip], axis=1).astype(np.float32)
    sheet.hairs(
        lines, np.array([0.7, 0.55, 0.15], np.float32), hair, rng.uniform(0.4, 0.9, _BROW_HAIRS).astype(np.float32)
    )


def _paint_eye(sheet: Canvas, person: Person, lids: Eye) -> None:
    eyes, skin = person.eyes, np.array(person.skin.colour, np.float32)
    fold = np.array([*(skin * np.array([0.42, 0.30, 0.27])), 0.15], np.float32)
    sheet.paint(ribbon(lids.crease, 1.3 * _taper(len(lids.crease), 0.2)), fold, 0.7, 0.75)
    rim = np.array([*(skin * np.array([0.90, 0.60, 0.56])), 0.7], np.float32)
    sheet.stroke(lids.lower + np.array([0, 0.5], np.float32), 1.2, rim, 0.35, 0.7)
    under = np.array([*(skin * np.array([0.55, 0.42, 0.40])), 0.2], np.float32)
    sheet.stroke(lids.lower[8:] + np.array([0, 1.2], np.float32), 1.0, under, 0.5, 0.4 + 0.45 * eyes.lashes)
    lash = np.array([0.012, 0.008, 0.007, 0.05], np.float32)
    if eyes.lashes < 0.5:
        lash = np.array([*(np.array(person.brows.colour) * 0.35), 0.05], np.float32)
    width = (1.3 + 1.3 * eyes.lashes) * _taper(len(lids.upper), 0.55)
    sheet.paint(ribbon(lids.upper - np.array([0, 0.15 + 0.35 * eyes.lashes], np.float32), width), lash, 0.25, 0.95)
    corner = lids.upper[0]
    duct = corner + np.array([[-0.9, -0.7], [0.9, -0.7], [0.9, 0.8], [-0.9, 0.8]], np.float32)
    sheet.paint(duct, np.array([*(skin * np.array([0.9, 0.5, 0.45])), 0.8], np.float32), 0.6, 0.7)
    if eyes.lashes > 0.5:
        _paint_lashes(sheet, lids, lash)


def _taper(points: int, start: float) -> Array:
    """Return widths that grow from the inner corner outward."""
    return np.interp(np.linspace(0, 1, points), [0, 0.3, 0.75, 1], [start * 0.4, 0.75, 1.0, 0.9]).astype(np.float32)


def _paint_lashes(sheet: Canvas, lids: Eye, lash: Array) -> None:
    place = np.arange(len(lids.upper) // 5, len(lids.upper), 4)
    share = place / len(lids.upper)
    root = lids.upper[place]
    out = np.stack([lids.side * (share - 0.45) * 5.0, -(1.6 + 1.6 * share * (1.35 - share))], axis=1)
    bend = root + out * 0.5 + np.array([lids.side * 0.4, 0.5])
    lines = np.stack([root, bend, root + out], axis=1).astype(np.float32)
    sheet.hairs(lines, np.array([0.8, 0.6, 0.1], np.float32), lash, np.full(len(place), 0.85, np.float32))
