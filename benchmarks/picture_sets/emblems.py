"""Flags, coats of arms and round badges."""

import numpy as np

from picture_sets.canvas import Canvas, Colour, Drawn, Factors, choose, hsv, star

RED, BLUE, GREEN, YELLOW, WHITE, BLACK, ORANGE, SKY = (
    (206, 17, 38),
    (0, 56, 147),
    (0, 122, 61),
    (252, 209, 22),
    (255, 255, 255),
    (20, 20, 24),
    (244, 120, 32),
    (90, 170, 226),
)
CLOTH = (RED, BLUE, GREEN, YELLOW, WHITE, BLACK, ORANGE, SKY)
LAYOUTS = ("bands", "pales", "nordic", "cross", "saltire", "disc", "hoist", "canton")
WIDE = 1.5
"""Width of a flag by its height."""
METALS: tuple[Colour, ...] = ((245, 205, 70), (240, 240, 236))
TINCTURES: tuple[Colour, ...] = ((190, 30, 45), (30, 70, 160), (20, 120, 70), (30, 30, 36), (110, 50, 130))
DIVISIONS = ("plain", "pale", "fess", "quarterly", "bend", "chevron")
CHARGES = ("star", "disc", "lozenge", "crescent", "cross", "tower")
SYMBOLS = ("star", "heart", "bolt", "leaf", "drop", "check", "plus", "moon", "sun", "bell")


def flag(random: np.random.Generator, side: int) -> Drawn:
    """A flag, one and a half times as wide as high: opaque, eight classes by layout."""
    layout = choose(random, LAYOUTS)
    first, second, third = (CLOTH[i] for i in random.permutation(len(CLOTH))[:3])
    canvas = Canvas(side, first, WIDE)
    if layout == "bands":
        for i, colour in enumerate((first, second, third)):
            canvas.box(0, i / 3, WIDE, (i + 1) / 3, colour)
    elif layout == "pales":
        for i, colour in enumerate((first, second, third)):
            canvas.box(i * WIDE / 3, 0, (i + 1) * WIDE / 3, 1, colour)
    elif layout in ("nordic", "cross"):
        middle = 0.5 if layout == "nordic" else WIDE / 2
        for width, colour in ((0.13, second), (0.06, third)):
            canvas.box(0, 0.5 - width, WIDE, 0.5 + width, colour)
            canvas.box(middle - width, 0, middle + width, 1, colour)
    elif layout == "saltire":
        for width, colour in ((0.22, second), (0.1, third)):
            canvas.line([(0, 0), (WIDE, 1)], colour, width)
            canvas.line([(0, 1), (WIDE, 0)], colour, width)
    elif layout == "disc":
        canvas.disc(WIDE / 2, 0.5, 0.3, second)
    elif layout == "hoist":
        canvas.box(0, 0.5, WIDE, 1, second)
        canvas.polygon([(0, 0), (0.72, 0.5), (0, 1)], third)
    else:
        for i in range(7):
            canvas.box(0, i / 7, WIDE, (i + 1) / 7, second if i % 2 else first)
        canvas.box(0, 0, 0.62, 4 / 7, third)
    stars = int(random.integers(0, 6)) if layout in ("canton", "bands", "disc") else 0
    _stars(canvas, stars, (0.31, 2 / 7) if layout == "canton" else (WIDE / 2, 0.5), WHITE if third != WHITE else RED)
    colours = "-".join("{:02x}{:02x}{:02x}".format(*colour) for colour in (first, second, third))
    return Drawn(canvas.done(), {"class": layout, "colours": colours, "stars": stars})


def _stars(canvas: Canvas, stars: int, middle: tuple[float, float], colour: Colour) -> None:
    """One star in the middle, or several in a ring round it."""
    ring = 0.17 if stars > 1 else 0.0
    for i in range(stars):
        angle = 2 * np.pi * i / stars
        x, y = middle[0] + ring * np.cos(angle), middle[1] + ring * np.sin(angle)
        canvas.polygon(star(float(x), float(y), 0.09 if stars > 1 else 0.18), colour)


def arms(random: np.random.Generator, side: int) -> Drawn:
    """A shield with a division and charges: transparent, six classes by division."""
    division, charge = choose(random, DIVISIONS), choose(random, CHARGES)
    metal, tincture = choose(random, METALS), choose(random, TINCTURES)
    field, other = (metal, tincture) if random.random() < 0.5 else (tincture, metal)
    canvas = Canvas(side)
    canvas.box(0.12, 0.06, 0.88, 0.95, field)
    if division == "pale":
        canvas.box(0.5, 0.06, 0.88, 0.95, other)
    elif division == "fess":
        canvas.box(0.12, 0.36, 0.88, 0.58, other)
    elif division == "quarterly":
        canvas.box(0.5, 0.06, 0.88, 0.46, other)
        canvas.box(0.12, 0.46, 0.5, 0.95, other)
    elif division == "bend":
        canvas.line([(0.05, 0.0), (0.95, 0.9)], other, 0.17)
    elif division == "chevron":
        canvas.line([(0.05, 0.85), (0.5, 0.38), (0.95, 0.85)], other, 0.14)
    charges = int(random.integers(1, 4))
    ink = choose(random, [colour for colour in TINCTURES + METALS if colour not in (field, other)])
    places = {1: ((0.5, 0.42),), 2: ((0.32, 0.26), (0.68, 0.26)), 3: ((0.32, 0.26), (0.68, 0.26), (0.5, 0.66))}
    for x, y in places[charges]:
        _charge(canvas, charge, x, y, 0.2 if charges == 1 else 0.12, ink)
    outline = _shield()
    shape = Canvas(side)
    shape.polygon(outline, (255, 255, 255))
    canvas.image.putalpha(shape.image.getchannel("A"))
    canvas.pen.line(
        [(x * canvas.scale, y * canvas.scale) for x, y in [*outline, outline[0]]], fill=(40, 34, 30), width=side // 5
    )
    factors: Factors = {
        "class": division,
        "charge": charge,
        "charges": charges,
        "ink": "{:02x}{:02x}{:02x}".format(*ink),
    }
    return Drawn(canvas.done(opaque=False), factors)


def _shield() -> list[tuple[float, float]]:
    t = np.linspace(0, 1, 24)
    right = [(0.88 - 0.38 * u**2.2, 0.5 + 0.45 * u) for u in t]
    left = [(1 - x, y) for x, y in reversed(right)]
    return [(0.12, 0.06), (0.88, 0.06), *((float(x), float(y)) for x, y in (*right, *left))]


def _charge(canvas: Canvas, charge: str, x: float, y: float, size: float, ink: Colour) -> None:
    if charge == "star":
        canvas.polygon(star(x, y, size), ink)
    elif charge == "disc":
        canvas.disc(x, y, size * 0.8, ink)
    elif charge == "lozenge":
        canvas.polygon([(x, y - size), (x + size * 0.7, y), (x, y + size), (x - size * 0.7, y)], ink)
    elif charge == "crescent":
        angles = np.linspace(-0.3 * np.pi, 1.3 * np.pi, 40)
        outer = [(x + size * np.cos(a), y + size * np.sin(a)) for a in angles]
        inner = [(x + size * 0.75 * np.cos(a), y - size * 0.3 + size * 0.75 * np.sin(a)) for a in reversed(angles)]
        canvas.polygon([(float(a), float(b)) for a, b in (*outer, *inner)], ink)
    elif charge == "cross":
        canvas.box(x - size / 4, y - size, x + size / 4, y + size, ink)
        canvas.box(x - size, y - size / 4, x + size, y + size / 4, ink)
    else:
        canvas.box(x - size * 0.6, y - size * 0.5, x + size * 0.6, y + size, ink)
        for i in (-1, 0, 1):
            canvas.box(x + (0.45 * i - 0.17) * size, y - size, x + (0.45 * i + 0.17) * size, y - size * 0.5, ink)


def badge(random: np.random.Generator, side: int) -> Drawn:
    """A round or rounded badge with a white symbol: transparent, ten classes by symbol."""
    symbol, round_, hue = choose(random, SYMBOLS), bool(random.random() < 0.5), float(random.random())
    canvas = Canvas(side)
    top, bottom = hsv(hue, 0.55, 0.98), hsv(hue + 0.06, 0.85, 0.75)
    shape = Canvas(side)
    if round_:
        shape.disc(0.5, 0.5, 0.46, (255, 255, 255))
    else:
        shape.pen.rounded_rectangle(
            [0.05 * shape.scale, 0.05 * shape.scale, 0.95 * shape.scale, 0.95 * shape.scale],
            0.2 * shape.scale,
            fill=(255, 255, 255),
        )
    ramp = np.linspace(0, 1, 32)[:, None, None]
    canvas.paste(np.broadcast_to(np.array(top) * (1 - ramp) + np.array(bottom) * ramp, (32, 32, 3)))
    size, turn = float(random.uniform(0.2, 0.27)), float(random.normal(0, 0.12))
    for points in _symbol(symbol, size):
        rotated = [
            (0.5 + x * np.cos(turn) - y * np.sin(turn), 0.5 + x * np.sin(turn) + y * np.cos(turn)) for x, y in points
        ]
        canvas.polygon([(float(x), float(y)) for x, y in rotated], WHITE)
    canvas.image.putalpha(shape.image.getchannel("A"))
    factors: Factors = {
        "class": symbol,
        "hue": round(hue, 3),
        "round": int(round_),
        "size": round(size, 3),
        "turn": round(turn, 2),
    }
    return Drawn(canvas.done(opaque=False), factors)


def _symbol(symbol: str, s: float) -> list[list[tuple[float, float]]]:
    """Polygons of a symbol about the origin."""
    t = np.linspace(0, 2 * np.pi, 48)
    crescent = [(s * np.cos(a), s * np.sin(a)) for a in np.linspace(0.25 * np.pi, 1.75 * np.pi, 40)]
    crescent += [(0.35 * s + 0.8 * s * np.cos(a), 0.8 * s * np.sin(a)) for a in np.linspace(1.65, 0.35, 40) * np.pi]
    heart = [
        (s * 1.05 * np.sin(a) ** 3, -s * 0.08 * (11 * np.cos(a) - 4 * np.cos(2 * a) - 2 * np.cos(3 * a))) for a in t
    ]
    across = [(-1.0, -0.3), (1.0, -0.3), (1.0, 0.3), (-1.0, 0.3)]
    bell = [(-0.8, 0.6), (-0.55, 0.3), (-0.5, -0.3), (-0.2, -0.85)]
    by_name = {
        "star": [star(0, 0, s * 1.15)],
        "heart": [heart],
        "bolt": [_times(s, [(0.1, -1), (-0.6, 0.15), (-0.05, 0.15), (-0.2, 1), (0.6, -0.2), (0.05, -0.2)])],
        "leaf": [[(s * np.cos(a), 0.55 * s * np.sin(a) * (1 - 0.5 * np.cos(a))) for a in t]],
        "drop": [[(0.7 * s * np.sin(a) * np.sin(a / 2), -s * np.cos(a)) for a in t]],
        "check": [_times(s, [(-1, 0.05), (-0.6, -0.3), (-0.2, 0.15), (0.65, -0.8), (1, -0.45), (-0.2, 0.85)])],
        "plus": [_times(s, across), _times(s, [(y, x) for x, y in across])],
        "moon": [crescent],
        "sun": [star(0, 0, s * 1.2, 12, 0.7)],
        "bell": [
            _times(s, bell + [(-x, y) for x, y in reversed(bell)]),
            _times(s, [(-0.2, 0.7), (0.2, 0.7), (0.1, 0.95), (-0.1, 0.95)]),
        ],
    }
    return [[(float(x), float(y)) for x, y in polygon] for polygon in by_name[symbol]]


def _times(size: float, points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(x * size, y * size) for x, y in points]
