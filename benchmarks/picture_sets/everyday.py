"""Everyday things: clothes as a shop shows them, and houses from the street."""

import numpy as np
from PIL import Image

from picture_sets.canvas import Canvas, Colour, Drawn, Factors, choose, hsv, noise

CLOTHES = ("shirt", "jumper", "trousers", "dress", "shoe", "hat")
PRINTS = ("plain", "stripes", "checks", "badge")
ROOFS = ("gable", "hip", "flat", "gambrel")


def garment(random: np.random.Generator, side: int) -> Drawn:
    """A garment on white, as a shop shows it: opaque, grey, soft, six classes."""
    kind, pattern = choose(random, CLOTHES), choose(random, PRINTS)
    wide, long = float(random.uniform(0.85, 1.15)), float(random.uniform(0.85, 1.12))
    tone, other = int(random.integers(25, 215)), int(random.integers(25, 235))
    shape = Canvas(side)
    for outline in _outlines(random, kind):
        shape.polygon([(0.5 + (x - 0.5) * wide, 0.5 + (y - 0.5) * long) for x, y in outline], (255, 255, 255))
    cloth = Canvas(side, (tone, tone, tone))
    mark = (other, other, other)
    step = float(random.uniform(0.07, 0.16))
    if pattern == "badge":
        cloth.disc(0.5, float(random.uniform(0.4, 0.6)), float(random.uniform(0.05, 0.11)), mark)
    elif pattern != "plain":
        for i in range(int(1 / step) + 1):
            cloth.box(0, i * step, 1, i * step + step / 2, mark)
            if pattern == "checks":
                cloth.box(i * step, 0, i * step + step / 3, 1, mark)
    folds = noise(random, 48, 3, 3)[..., None] - 0.5  # [48, 48, 1]
    light = np.linspace(18, -18, 48)[None, :, None] * float(random.choice([-1.0, 1.0]))
    flat = np.asarray(cloth.image.convert("RGB").resize((4 * side, 4 * side)), np.float32)
    shade = Image.fromarray((folds * 70 + light)[..., 0].astype(np.float32)).resize((4 * side, 4 * side))
    cloth.paste(np.clip(flat + np.asarray(shade)[..., None], 0, 255))
    canvas = Canvas(side, (255, 255, 255))
    canvas.image.paste(cloth.image, (0, 0), shape.image.getchannel("A"))
    factors: Factors = {
        "class": kind,
        "pattern": pattern,
        "tone": tone,
        "width": round(wide, 2),
        "length": round(long, 2),
    }
    return Drawn(canvas.done().convert("L"), factors)


def _outlines(random: np.random.Generator, kind: str) -> list[list[tuple[float, float]]]:
    """Polygons of a garment that fills most of a square."""
    vary = [float(v) for v in random.uniform(-1, 1, 4)]
    neck, waist = 0.07 + 0.02 * vary[0], 0.2 + 0.04 * vary[1]

    def mirrored(right: list[tuple[float, float]]) -> list[tuple[float, float]]:
        return [*right, *[(1 - x, y) for x, y in right[::-1]]]

    if kind in ("shirt", "jumper"):
        cuff = (0.88, 0.4 + 0.04 * vary[2]) if kind == "shirt" else (0.87, 0.78 + 0.05 * vary[2])
        inner = (0.78, cuff[1] + 0.06)
        body = [(0.5 + neck, 0.16), (0.72, 0.22), cuff, inner, (0.5 + waist, 0.4), (0.5 + waist + 0.01, 0.88)]
        return [mirrored([(0.5, 0.16 + 0.06 * (1 + vary[3]) / 2), *body])]
    if kind == "trousers":
        leg, hem = 0.19 + 0.02 * vary[1], 0.1 + 0.04 * vary[2]
        left = [(0.5 - leg, 0.08), (0.5, 0.08), (0.5, 0.34), (0.44, 0.93), (0.44 - 2 * hem, 0.93)]
        return [left, [(1 - x, y) for x, y in left]]
    if kind == "dress":
        flare = 0.28 + 0.08 * vary[2]
        return [
            mirrored(
                [
                    (0.5, 0.2),
                    (0.5 + neck, 0.08),
                    (0.62, 0.08),
                    (0.63, 0.28),
                    (0.5 + waist * 0.6, 0.45),
                    (0.5 + flare, 0.93),
                ]
            )
        ]
    if kind == "shoe":
        heel, toe = 0.62 + 0.1 * vary[0], 0.6 + 0.05 * vary[1]
        high = 0.34 + 0.12 * vary[2]
        upper = [(0.1, high), (0.34, high), (0.45, heel - 0.06), (0.8, toe), (0.93, 0.72), (0.93, 0.78), (0.1, 0.78)]
        if vary[3] < 0:
            upper = [(1 - x, y) for x, y in upper]
        return [upper]
    crown, brim = 0.2 + 0.05 * vary[0], 0.38 + 0.08 * vary[1]
    top = 0.3 + 0.1 * vary[2]
    angles = np.linspace(0, np.pi, 16)
    dome = [(float(0.5 + crown * np.cos(a)), float(0.65 - (0.65 - top) * np.sin(a) ** 0.6)) for a in angles]
    rim = np.linspace(0, 2 * np.pi, 24)
    return [dome, [(float(0.5 + brim * np.cos(a)), float(0.66 + 0.06 * np.sin(a))) for a in rim]]


def house(random: np.random.Generator, side: int) -> Drawn:
    """A house from the street, with windows, a door, a fence and trees: opaque, without classes."""
    roof, floors, bays = choose(random, ROOFS), int(random.integers(1, 4)), int(random.integers(2, 5))
    wall, tiles = float(random.random()), float(random.uniform(-0.03, 0.12))
    pale = float(random.uniform(0.1, 0.5))
    wide = float(random.uniform(0.2, 0.34))
    middle, storey = 0.5 + float(random.uniform(-0.08, 0.08)), float(random.uniform(0.15, 0.19))
    ground = float(random.uniform(0.8, 0.88))
    dusk = bool(random.random() < 0.25)
    dim = 0.45 if dusk else 1.0
    canvas = Canvas(side, hsv(0.62, 0.5, 0.35) if dusk else hsv(0.56, float(random.uniform(0.15, 0.5)), 0.97))
    canvas.box(0, ground, 1, 1, hsv(0.3, 0.5, 0.6 * dim))
    left, right, top = middle - wide, middle + wide, ground - floors * storey
    trees = int(random.integers(0, 3))
    for _ in range(trees):
        x, size = float(random.choice([left, right])) + float(random.normal(0, 0.08)), float(random.uniform(0.08, 0.15))
        canvas.box(x - 0.015, ground - 0.18, x + 0.015, ground, hsv(0.08, 0.6, 0.4 * dim))
        canvas.disc(x, ground - 0.18 - size * 0.6, size, hsv(0.28 + float(random.normal(0, 0.03)), 0.6, 0.55 * dim))
    canvas.box(left, top, right, ground, hsv(wall, pale, 0.9 * dim))
    chimney = bool(random.random() < 0.5)
    high = float(random.uniform(0.12, 0.22))
    if chimney:
        x = middle + wide * 0.5
        canvas.box(x, top - high, x + 0.06, top, hsv(0.02, 0.6, 0.5 * dim))
    cover = hsv(tiles, 0.65, 0.55 * dim)
    eaves = 0.04
    corners = {
        "gable": [(left - eaves, top), (middle, top - high), (right + eaves, top)],
        "hip": [
            (left - eaves, top),
            (left + wide * 0.5, top - high * 0.8),
            (right - wide * 0.5, top - high * 0.8),
            (right + eaves, top),
        ],
        "flat": [(left - eaves, top), (left - eaves, top - 0.04), (right + eaves, top - 0.04), (right + eaves, top)],
        "gambrel": [
            (left - eaves, top),
            (left + wide * 0.25, top - high * 0.7),
            (middle, top - high),
            (right - wide * 0.25, top - high * 0.7),
            (right + eaves, top),
        ],
    }
    canvas.polygon(corners[roof], cover, hsv(tiles, 0.6, 0.3 * dim))
    glass: Colour = hsv(0.13, 0.6, 1.0) if dusk else hsv(0.57, 0.35, 0.6)
    frame = hsv(0.1, 0.05, 0.97 * dim)
    door = int(random.integers(bays))
    bay = 2 * wide / bays
    for floor in range(floors):
        for i in range(bays):
            x, y = left + bay * (i + 0.5), ground - storey * floor
            half = min(0.05, bay * 0.3)
            if floor == 0 and i == door:
                canvas.box(x - half, y - storey * 0.75, x + half, y, hsv(wall + 0.5, 0.6, 0.45 * dim))
                continue
            lit = not dusk or random.random() < 0.6
            canvas.box(x - half - 0.01, y - storey * 0.8, x + half + 0.01, y - storey * 0.25, frame)
            canvas.box(x - half, y - storey * 0.75, x + half, y - storey * 0.3, glass if lit else hsv(0.6, 0.4, 0.2))
    fence = bool(random.random() < 0.35)
    if fence:
        for i in range(18):
            x = i / 18 + 0.02
            canvas.box(x, ground + 0.01, x + 0.02, ground + 0.1, frame)
        canvas.box(0, ground + 0.04, 1, ground + 0.055, frame)
    factors: Factors = {
        "roof": roof,
        "floors": floors,
        "bays": bays,
        "wall": round(wall, 2),
        "dusk": int(dusk),
        "trees": trees,
        "fence": int(fence),
    }
    return Drawn(canvas.done(), factors)
