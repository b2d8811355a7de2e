"""What is printed or laid: postage stamps, maps, charts, mosaics."""

import itertools

import numpy as np
from PIL import Image

from picture_sets.canvas import OVERSIZE, Canvas, Colour, Drawn, Factors, choose, gradient, hsv, noise, star
from picture_sets.glyphs import text
from picture_sets.nature import landscape, plant

PAPER: Colour = (246, 240, 222)
PAGES: tuple[Colour, ...] = ((70, 62, 58), (34, 48, 66), (225, 221, 210))
"""Of albums."""
MOTIFS = ("landscape", "plant", "star", "head")
CHARTS = ("bars", "lines", "pie", "points", "area", "rings")
FIGURES = ("rosette", "spiral", "fish", "vase", "meander", "sun")


def stamp(random: np.random.Generator, side: int) -> Drawn:
    """A perforated stamp on an album's page, perhaps cancelled: opaque, without classes."""
    motif, value = choose(random, MOTIFS), int(choose(random, (1, 2, 5, 10, 20, 25, 40, 50)))
    hue, upright = float(random.random()), bool(random.random() < 0.6)
    ground = choose(random, PAGES)
    canvas = Canvas(side, ground)
    wide, high = (0.66, 0.86) if upright else (0.88, 0.66)
    left, top = 0.5 - wide / 2, 0.5 - high / 2
    canvas.box(left, top, left + wide, top + high, PAPER)
    holes = 11
    for i in range(holes + 1):
        for x, y in ((left + wide * i / holes, top), (left + wide * i / holes, top + high)):
            canvas.disc(x, y, 0.019, ground)
    for i in range(1, holes):
        for x, y in ((left, top + high * i / holes), (left + wide, top + high * i / holes)):
            canvas.disc(x, y, 0.019, ground)
    inner = (left + 0.06, top + 0.06, left + wide - 0.06, top + high - 0.06)
    ink, light = hsv(hue, 0.75, 0.5), hsv(hue + 0.05, 0.25, 0.93)
    canvas.box(*inner, ink)
    inside = tuple(v + d for v, d in zip(inner, (0.02, 0.02, -0.02, -0.13), strict=True))
    canvas.box(inside[0], inside[1], inside[2], inside[3], light)
    _motif(random, canvas, motif, inside, ink)
    text(canvas, f"{value}c", inner[2] - 0.04, inner[3] - 0.055, 0.12, PAPER, "rm")
    if not upright:
        text(canvas, "POST", inner[0] + 0.03, inner[3] - 0.055, 0.085, PAPER, "lm")
    cancelled = bool(random.random() < 0.5)
    if cancelled:
        x, y = float(random.uniform(0.15, 0.85)), float(random.uniform(0.15, 0.4))
        for radius in (0.2, 0.14):
            canvas.disc(x, y, radius, None, (25, 25, 30))
        for i in range(4):
            wave = [(x + 0.2 + t * 0.6, y - 0.09 + 0.06 * i + 0.015 * np.sin(9 * t)) for t in np.linspace(0, 1, 16)]
            canvas.line([(float(a), float(b)) for a, b in wave], (25, 25, 30), 0.01)
    factors: Factors = {
        "motif": motif,
        "value": value,
        "hue": round(hue, 3),
        "upright": int(upright),
        "cancelled": int(cancelled),
    }
    return Drawn(canvas.done(), factors)


def _motif(random: np.random.Generator, canvas: Canvas, motif: str, inside: tuple[float, ...], ink: Colour) -> None:
    left, top, right, bottom = inside
    x, y, size = (left + right) / 2, (top + bottom) / 2, min(right - left, bottom - top) / 2
    if motif in ("landscape", "plant"):
        large = tuple(round((b - a) * canvas.scale) for a, b in ((left, right), (top, bottom)))
        inner = (landscape if motif == "landscape" else plant)(random, max(large) // OVERSIZE).picture
        fitted = inner.convert("RGBA").resize((max(large),) * 2, Image.Resampling.BICUBIC)
        fitted = fitted.crop((0, max(large) - large[1], large[0], max(large)))
        canvas.image.alpha_composite(fitted, (round(left * canvas.scale), round(top * canvas.scale)))
    elif motif == "star":
        canvas.polygon(star(x, y, size * 0.9, int(random.integers(5, 9)), 0.45), ink)
    else:
        skin, hair = (
            hsv(0.07, 0.35, 0.95),
            hsv(float(random.choice([0.08, 0.05, 0.12])), 0.6, float(random.uniform(0.2, 0.6))),
        )
        canvas.disc(x, y + size * 1.05, size * 0.75, ink)
        canvas.box(left, bottom, right, bottom + 0.02, ink)
        canvas.disc(x, y - size * 0.12, size * 0.52, hair)
        canvas.disc(x, y, size * 0.45, skin)
        for eye in (-1, 1):
            canvas.disc(x + eye * size * 0.17, y - size * 0.04, size * 0.05, (30, 30, 40))


def island_map(random: np.random.Generator, side: int) -> Drawn:
    """An island with heights, rivers, roads and towns, as an atlas has it: opaque, without classes."""
    fine = 2 * side
    rows, columns = np.mgrid[:fine, :fine] / fine - 0.5
    x, y = random.normal(0, 0.06, 2)
    away = np.hypot(rows - y, columns - x)
    height = noise(random, fine, 3, 5) - 1.5 * away + float(random.uniform(0.05, 0.2))
    palette = choose(random, ("green", "ochre", "grey"))
    land: dict[str, list[Colour]] = {
        "green": [(150, 200, 130), (220, 215, 150), (190, 140, 90), (245, 245, 245)],
        "ochre": [(235, 220, 170), (220, 190, 120), (180, 130, 70), (120, 80, 50)],
        "grey": [(225, 228, 220), (195, 198, 190), (150, 152, 148), (245, 245, 245)],
    }
    stops = [(-0.8, (120, 175, 215)), (-0.05, (180, 215, 235)), (0.0, (200, 228, 240)), (0.001, land[palette][0])]
    stops += [(0.15, land[palette][1]), (0.35, land[palette][2]), (0.6, land[palette][3])]
    canvas = Canvas(side, (0, 0, 0))
    steps = np.where(height > 0, np.round(height * 16) / 16 + 0.002, height)
    canvas.paste(gradient(steps, [(place, colour) for place, colour in stops]))
    rivers, towns = int(random.integers(0, 3)), int(random.integers(0, 5))
    down, across = np.gradient(height)
    for _ in range(rivers):
        path = _downhill(random, height, down, across)
        canvas.line([(float(c) / fine, float(r) / fine) for r, c in path], (70, 130, 200), 0.013)
    dry = np.argwhere(height > 0.04)
    places = [dry[i] / fine for i in random.integers(0, len(dry), towns)] if len(dry) else []
    for a, b in itertools.pairwise(places):
        canvas.line([(float(a[1]), float(a[0])), (float(b[1]), float(b[0]))], (190, 60, 50), 0.013)
    for row, column in places:
        canvas.disc(float(column), float(row), 0.025, (255, 255, 255), (40, 40, 40))
    factors: Factors = {
        "palette": palette,
        "rivers": rivers,
        "towns": len(places),
        "land": round(float((height > 0).mean()), 2),
    }
    return Drawn(canvas.done(), factors)


def _downhill(
    random: np.random.Generator, height: np.ndarray, down: np.ndarray, across: np.ndarray
) -> list[np.ndarray]:
    """The way of water from a high place to the sea."""
    side = len(height)
    high = np.argwhere(height > np.quantile(height, 0.93))
    at = high[random.integers(len(high))].astype(float)
    path = [at]
    for _ in range(side):
        row, column = np.clip(at.astype(int), 0, side - 1)
        if height[row, column] <= 0:
            break
        slope = np.array([down[row, column], across[row, column]])
        at = at - 1.5 * slope / max(float(np.hypot(*slope)), 1e-6) + random.normal(0, 0.5, 2)
        path.append(at)
    return path if len(path) > 1 else [at, at]


def chart(random: np.random.Generator, side: int) -> Drawn:
    """A small chart with axes: opaque, on white, six classes."""
    kind, series = choose(random, CHARTS), int(random.integers(1, 4))
    hue, count = float(random.random()), int(random.integers(4, 8))
    colours = [hsv(hue + i / 3.3, 0.6, 0.85) for i in range(3)]
    canvas = Canvas(side, (255, 255, 255))
    left, top, right, bottom = 0.14, 0.08, 0.95, 0.86
    if kind not in ("pie", "rings"):
        for i in range(5):
            y = top + (bottom - top) * i / 4
            canvas.line([(left, y), (right, y)], (215, 215, 220), 0.006)
            canvas.line([(0.05, y), (0.1, y)], (150, 150, 155), 0.014)
        canvas.line([(left, top), (left, bottom), (right, bottom)], (60, 60, 65), 0.014)
    trend = float(random.uniform(-0.5, 0.5))
    places = np.linspace(0, 1, count)
    values = [
        np.clip(0.5 + trend * (places - 0.5) + random.normal(0, 0.16, count) - 0.12 * i, 0.08, 0.97)
        for i in range(series)
    ]
    if kind == "bars":
        width = (right - left) / count
        for i, row in enumerate(values):
            thick = 0.76 * width / series
            for j, v in enumerate(row):
                x = left + width * (j + 0.12) + thick * i
                canvas.box(x, bottom - (bottom - top) * float(v), x + thick, bottom - 0.007, colours[i])
    elif kind in ("lines", "area", "points"):
        for i, row in enumerate(values):
            points = [
                (float(left + 0.03 + (right - left - 0.06) * a), float(bottom - (bottom - top) * v))
                for a, v in zip(places, row, strict=True)
            ]
            if kind == "area":
                canvas.polygon([(points[0][0], bottom - 0.007), *points, (points[-1][0], bottom - 0.007)], colours[i])
            elif kind == "lines":
                canvas.line(points, colours[i], 0.028)
            for x, y in points if kind != "area" else ():
                canvas.disc(x, y, 0.03 if kind == "points" else 0.024, colours[i])
    else:
        _pie(random, canvas, series + 2, hue, hollow=kind == "rings")
    return Drawn(
        canvas.done(), {"class": kind, "series": series, "hue": round(hue, 3), "count": count, "trend": round(trend, 2)}
    )


def _pie(random: np.random.Generator, canvas: Canvas, slices: int, hue: float, *, hollow: bool) -> None:
    shares = random.dirichlet(np.full(slices, 3.0))
    angles = -90 + 360 * np.concatenate([[0], np.cumsum(shares)])
    box = [v * canvas.scale for v in (0.1, 0.1, 0.9, 0.9)]
    for i, (a, b) in enumerate(itertools.pairwise(angles)):
        fill, width = hsv(hue + i / slices, 0.55, 0.88), canvas.scale // 50
        canvas.pen.pieslice(box, float(a), float(b), fill=fill, outline=(255, 255, 255), width=width)
    if hollow:
        canvas.disc(0.5, 0.5, 0.22, (255, 255, 255))


def mosaic(random: np.random.Generator, side: int) -> Drawn:
    """A figure laid of square stones with joints: opaque, without classes."""
    figure, stones = choose(random, FIGURES), int(choose(random, (14, 18, 22)))
    hue = float(random.random())
    rows, columns = (np.mgrid[:stones, :stones] + 0.5) / stones - 0.5
    radius, angle = np.hypot(rows, columns), np.arctan2(rows, columns)
    folds, turn = int(random.integers(5, 9)), float(random.uniform(0, np.pi))
    if figure == "rosette":
        inside = radius < 0.26 + 0.14 * np.cos(folds * angle + turn)
    elif figure == "spiral":
        inside = (np.sin(angle + 22 * radius + turn) > 0) & (radius < 0.45)
    elif figure == "fish":
        facing = 1 if turn < np.pi / 2 else -1
        body = (columns / 0.33) ** 2 + (rows / 0.17) ** 2 < 1
        tail = (facing * columns < -0.22) & (np.abs(rows) < -facing * columns - 0.18)
        inside = body | tail
    elif figure == "vase":
        width = 0.12 + 0.16 * np.sin((rows + 0.42) * 4) ** 2
        inside = (np.abs(columns) < width) & (np.abs(rows) < 0.42)
    elif figure == "meander":
        inside = ((np.floor((rows + 0.5) * folds) + np.floor((columns + 0.5) * folds)) % 2 > 0) & (
            np.maximum(np.abs(rows), np.abs(columns)) < 0.42
        )
    else:
        inside = (radius < 0.2) | ((radius < 0.42) & (np.cos(2 * folds * angle + turn) > 0.35))
    ground, ink = hsv(0.11, 0.18, 0.88), hsv(hue, 0.6, 0.6)
    canvas = Canvas(side, (120, 112, 100))
    border = np.maximum(np.abs(rows), np.abs(columns)) > 0.5 - 1.2 / stones
    for row in range(stones):
        for column in range(stones):
            base = ink if inside[row, column] else hsv(hue + 0.5, 0.35, 0.55) if border[row, column] else ground
            shade = float(random.uniform(0.82, 1.08))
            fill: Colour = tuple(min(255, int(v * shade)) for v in base)  # type: ignore[assignment]
            gap, jitter = 0.07 / stones, random.normal(0, 0.03 / stones, 2)
            x, y = float(column / stones + jitter[0]), float(row / stones + jitter[1])
            canvas.box(x + gap, y + gap, x + 1 / stones - gap, y + 1 / stones - gap, fill)
    return Drawn(canvas.done(), {"figure": figure, "stones": stones, "hue": round(hue, 3), "folds": folds})
