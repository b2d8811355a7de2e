"""What a naturalist keeps: beetles on pins, and cells under a microscope."""

import numpy as np
from PIL import Image

from picture_sets.canvas import Canvas, Drawn, Factors, choose, gradient, hsv, noise

WING_CASES = ("plain", "spots", "bands", "grooves")
STAINS = {"pink": (0.93, 0.78), "blue": (0.6, 0.68), "green": (0.38, 0.5)}
"""Hues of a cell's body and of its nucleus."""


def beetle(random: np.random.Generator, side: int) -> Drawn:
    """A beetle from above, with legs, feelers and wing cases: transparent, without classes."""
    hue, other = float(random.random()), float(random.random())
    pattern, marks = choose(random, WING_CASES), int(random.integers(1, 5))
    wide, long = float(random.uniform(0.15, 0.27)), float(random.uniform(0.2, 0.29))
    neck, head = float(random.uniform(0.5, 0.9)), float(random.uniform(0.06, 0.1))
    feelers, dark = float(random.uniform(0.1, 0.26)), hsv(hue, 0.5, 0.15)
    canvas = Canvas(side)
    waist = 0.42
    reach = float(random.uniform(0.12, 0.2))
    bends = random.uniform(-0.06, 0.06, 3)
    for pair, bend in enumerate(bends):
        root = waist + 0.02 + 0.13 * pair
        turn = (-0.8, 0.1, 0.9)[pair] + float(bend) * 4
        for way in (-1, 1):
            knee = (0.5 + way * (wide + reach * 0.6), root + 0.5 * reach * np.sin(turn))
            foot = (0.5 + way * (wide + reach), root + 1.4 * reach * np.sin(turn))
            canvas.line([(0.5, root), (float(knee[0]), float(knee[1])), (float(foot[0]), float(foot[1]))], dark, 0.022)
    top = waist - 0.1 - head
    for way in (-1, 1):
        tip = (0.5 + way * (0.05 + feelers * 0.8), top - feelers * 0.75)
        canvas.line(
            [(0.5 + way * head * 0.4, top), (0.5 + way * (0.03 + feelers * 0.6), top - feelers * 0.3), tip], dark, 0.014
        )
        canvas.disc(*tip, 0.014, dark)
    canvas.disc(0.5, top + head * 0.3, head, hsv(hue, 0.7, 0.3), dark)
    _oval(canvas, 0.5, waist - 0.06, wide * neck, 0.11, hsv(hue, 0.75, 0.5), dark)
    # the wing cases: an egg, marked on its right side and mirrored
    body = Canvas(side)
    _oval(body, 0.5, waist + long * 0.9, wide, long, (255, 255, 255), None)
    cases = Canvas(side, hsv(hue, 0.8, 0.7))
    across = np.abs(np.linspace(-1, 1, 48)) * 0.5 / wide
    shine = gradient(across, [(0, hsv(hue, 0.85, 0.55)), (0.45, hsv(hue, 0.4, 0.98)), (1, hsv(hue, 0.9, 0.4))])
    cases.paste(np.broadcast_to(shine, (48, 48, 3)))
    mark = hsv(other, 0.8, 0.9 if random.random() < 0.5 else 0.15)
    for i in range(marks if pattern != "plain" else 0):
        level = waist + long * 1.8 * (i + 0.7) / (marks + 0.4)
        if pattern == "bands":
            cases.box(0, level, 1, level + 0.5 * long / marks, mark)
        elif pattern == "grooves":
            aside = wide * (i + 0.6) / (marks + 0.3)
            for way in (-1, 1):
                cases.line([(0.5 + way * aside, 0), (0.5 + way * aside, 1)], mark, 0.012)
        else:
            aside, radius = wide * float(random.uniform(0.3, 0.7)), float(random.uniform(0.02, 0.05))
            for way in (-1, 1):
                cases.disc(0.5 + way * aside, level, radius, mark)
    cases.line([(0.5, 0), (0.5, 1)], dark, 0.014)
    canvas.image.paste(cases.image, (0, 0), body.image.getchannel("A"))
    _oval(canvas, 0.5, waist + long * 0.9, wide, long, None, dark)
    picture = canvas.done(opaque=False).rotate(float(random.normal(0, 12)), Image.Resampling.BICUBIC)
    factors: Factors = {
        "hue": round(hue, 3),
        "other": round(other, 3),
        "pattern": pattern,
        "marks": marks,
        "width": round(wide, 2),
        "length": round(long, 2),
        "feelers": round(feelers, 2),
    }
    return Drawn(picture, factors)


def _oval(
    canvas: Canvas,
    x: float,
    y: float,
    wide: float,
    high: float,
    fill: tuple[int, int, int] | None,
    edge: tuple[int, int, int] | None,
) -> None:
    box = [v * canvas.scale for v in (x - wide, y - high, x + wide, y + high)]
    canvas.pen.ellipse(box, fill=fill, outline=edge, width=max(2, canvas.scale // 70) if edge else 0)


def cells(random: np.random.Generator, side: int) -> Drawn:
    """Stained cells under a microscope, some dividing, seen through each other: opaque, soft, without classes."""
    stain, count = choose(random, tuple(STAINS)), int(random.integers(3, 13))
    hue, core = (value + float(random.normal(0, 0.02)) for value in STAINS[stain])
    size, light = float(random.uniform(0.09, 0.2)), float(random.uniform(0.86, 0.98))
    rows, columns = np.mgrid[: 2 * side, : 2 * side] / (2 * side)  # each [2 side, 2 side]
    values = np.ones((2 * side, 2 * side, 3)) * np.array(hsv(hue, 0.06, light))
    values -= 14 * noise(random, 2 * side, 3, 3)[..., None]
    dividing = 0
    body, nucleus, rim = (np.array(hsv(*c)) / 255 for c in ((hue, 0.3, 0.95), (core, 0.65, 0.6), (hue, 0.5, 0.75)))
    for _ in range(count):
        x, y = random.random(2)
        turn, long = float(random.uniform(0, np.pi)), float(random.uniform(1.0, 1.6))
        radius = size * float(random.uniform(0.75, 1.25))
        split = bool(random.random() < 0.12)
        dividing += split
        along = (columns - x) * np.cos(turn) + (rows - y) * np.sin(turn)
        aside = (rows - y) * np.cos(turn) - (columns - x) * np.sin(turn)
        wobble = 0.12 * np.sin(3 * np.arctan2(aside, along) + random.uniform(0, 6))
        away = np.hypot(along / long, aside) / radius + wobble  # 1: at the edge
        values *= _mixed(_soft(away, 1.0, 0.1), body)
        values *= _mixed(np.exp(-(((away - 0.95) / 0.09) ** 2)), rim)
        gap = 0.5 * radius * long if split else 0.0
        for way in (-1, 1) if split else (1,):
            inner = np.hypot(along - way * gap + 0.15 * radius, aside) / (radius * (0.3 if split else 0.42))
            values *= _mixed(_soft(inner, 1.0, 0.25), nucleus)
    canvas = Canvas(side, (0, 0, 0))
    canvas.paste(np.clip(values, 0, 255))
    factors: Factors = {
        "stain": stain,
        "count": count,
        "size": round(size, 2),
        "dividing": dividing,
        "light": round(light, 2),
    }
    return Drawn(canvas.done(), factors)


def _soft(away: np.ndarray, edge: float, width: float) -> np.ndarray:
    """1 within an edge and 0 beyond it, with a soft step."""
    inside: np.ndarray = np.clip((edge - away) / width + 0.5, 0, 1)
    return inside


def _mixed(share: np.ndarray, colour: np.ndarray) -> np.ndarray:
    """What light is multiplied with, [h, w, 3]: a stain's colour where it is, white elsewhere."""
    through: np.ndarray = 1 - share[..., None] * (1 - colour)
    return through
