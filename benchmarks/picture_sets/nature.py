"""Plants by growth rules, textures by noise, landscapes, fish, crystals of snow."""

import numpy as np
from PIL import Image

from picture_sets.canvas import Canvas, Colour, Drawn, Factors, choose, gradient, hsv, noise, star

HABITS = {
    "tree": ("F", "FF-[-F+F+F]+[+F-F-F]", 3, 23.0),
    "bush": ("X", "", 4, 26.0),
    "fern": ("Y", "", 5, 20.0),
    "reed": ("F", "F[+F]F[-F]F", 3, 24.0),
}
"""Habit -> axiom, what F becomes (bushes and ferns have rules of their own), generations, angle in degrees
(Prusinkiewicz and Lindenmayer 1990)."""
BUSH, FERN = {"X": "F[+X][-X]FX", "F": "FF"}, {"Y": "F[+Y]F[-Y]+Y", "F": "FF"}
TEXTURES = ("marble", "wood", "clouds", "cells", "weave", "rust", "leopard", "dunes")
TIMES = ("dawn", "day", "dusk", "night")
MARKINGS = ("plain", "bands", "stripes", "spots")
FACETS = 12
"""Of a crystal's arm, from its middle to its tip: where branches may grow."""


def plant(random: np.random.Generator, side: int) -> Drawn:
    """A plant that grew by rules, with leaves and perhaps blossoms: transparent, without classes."""
    habit = choose(random, tuple(HABITS))
    axiom, rule, generations, angle = HABITS[habit]
    rules = {"bush": BUSH, "fern": FERN}.get(habit, {"F": rule})
    word = axiom
    for _ in range(generations):
        word = "".join(rules.get(letter, letter) for letter in word)
    degrees = angle * random.uniform(0.7, 1.3)
    segments, tips = _grown(random, word, degrees, float(random.normal(0, 4)))
    points = np.array([p for segment in segments for p in segment[:2]])
    low, high = points.min(0), points.max(0)
    scale = 0.86 / max(high - low)
    shift = np.array([0.5 - scale * (low[0] + high[0]) / 2, 0.96 - scale * high[1]])
    leaf, blossom = float(random.uniform(0.2, 0.42)), float(random.random())
    blossoms = int(random.integers(0, 13)) if random.random() < 0.6 else 0
    canvas = Canvas(side)
    for start, end, depth in segments:
        (a, b), (c, d) = start * scale + shift, end * scale + shift
        stem = hsv(0.09 + (leaf - 0.09) * min(1, depth / 3), 0.55, 0.35 + 0.07 * min(depth, 4))
        canvas.line([(a, b), (c, d)], stem, max(0.012, 0.035 - 0.008 * depth))
    for tip in tips:
        x, y = tip * scale + shift
        radius = float(random.uniform(0.014, 0.026))
        canvas.disc(x, y, radius, hsv(leaf + random.normal(0, 0.02), 0.7, random.uniform(0.45, 0.8)))
    for i in random.permutation(len(tips))[:blossoms]:
        x, y = tips[i] * scale + shift
        canvas.polygon(star(float(x), float(y), 0.05, 5, 0.55), hsv(blossom, 0.5, 1.0))
        canvas.disc(float(x), float(y), 0.015, (255, 225, 90))
    factors: Factors = {
        "habit": habit,
        "leaf": round(leaf, 3),
        "blossoms": min(blossoms, len(tips)),
        "blossom": round(blossom, 3),
    }
    return Drawn(canvas.done(opaque=False), factors)


def _grown(
    random: np.random.Generator, word: str, degrees: float, lean: float
) -> tuple[list[tuple[np.ndarray, np.ndarray, int]], list[np.ndarray]]:
    """Follow a word of growth: stems with how many forks they are from the root, and where they end."""
    at, heading, depth = np.zeros(2), np.radians(-90 + lean), 0
    stack: list[tuple[np.ndarray, float, int]] = []
    segments, tips = [], []
    for letter in word:
        if letter == "F":
            turned = heading + np.radians(random.normal(0, 4))
            there = at + np.array([np.cos(turned), np.sin(turned)])
            segments.append((at, there, depth))
            at = there
        elif letter in "+-":
            heading += np.radians(degrees + random.normal(0, 5)) * (1 if letter == "+" else -1)
        elif letter == "[":
            stack.append((at, heading, depth))
            depth += 1
        elif letter == "]":
            tips.append(at)
            at, heading, depth = stack.pop()
    return segments, [*tips, at]


def texture(random: np.random.Generator, side: int) -> Drawn:
    """A surface seen from close by: opaque, eight classes."""
    kind, hue = choose(random, TEXTURES), float(random.normal(0, 0.02))
    rough = noise(random, side, 4, 5)
    rows, columns = np.mgrid[:side, :side] / side
    turn = float(random.uniform(0, np.pi))
    along = rows * np.sin(turn) + columns * np.cos(turn)
    stops: list[tuple[float, Colour]]
    if kind == "marble":
        values = np.abs(np.sin(np.pi * (3 * along + 2.2 * rough))) ** 0.5
        stops = [(0, hsv(0.6 + hue, 0.15, 0.35)), (0.4, hsv(0.1 + hue, 0.05, 0.8)), (1, hsv(0.1 + hue, 0.03, 0.97))]
    elif kind == "wood":
        rings = np.hypot((rows - 0.5) * 0.6, columns + random.uniform(0.3, 1.5)) * 9 + 1.5 * rough
        values = rings % 1
        stops = [(0, hsv(0.07 + hue, 0.6, 0.75)), (0.8, hsv(0.06 + hue, 0.65, 0.5)), (1, hsv(0.05 + hue, 0.7, 0.35))]
    elif kind == "clouds":
        values = noise(random, side, 3, 5)
        stops = [(0.3, hsv(0.58 + hue, 0.6, 0.85)), (0.6, hsv(0.58, 0.2, 0.95)), (0.9, (255, 255, 255))]
    elif kind in ("cells", "leopard"):
        first, second = _two_nearest(random, side, int(random.integers(14, 30)))
        values = second - first if kind == "cells" else first / second + 0.3 * rough
        stops = (
            [(0, hsv(0.4 + hue, 0.5, 0.2)), (0.15, hsv(0.33 + hue, 0.5, 0.7)), (0.6, hsv(0.25 + hue, 0.4, 0.95))]
            if kind == "cells"
            else [(0.4, hsv(0.08, 0.8, 0.25)), (0.65, hsv(0.08, 0.8, 0.15)), (0.75, hsv(0.11 + hue, 0.55, 0.9))]
        )
        values = values / values.max() if kind == "cells" else values
    elif kind == "weave":
        count = int(random.integers(6, 11))
        over = (np.floor(rows * count) + np.floor(columns * count)) % 2
        thread = np.where(over > 0, np.sin(np.pi * (rows * count % 1)), np.sin(np.pi * (columns * count % 1)))
        values = np.clip(thread * (0.75 + 0.25 * over) + 0.15 * (rough - 0.5), 0, 1)
        tone = float(random.random())
        stops = [(0, hsv(tone, 0.6, 0.2)), (1, hsv(tone + hue, 0.45, 0.9))]
    elif kind == "rust":
        values = noise(random, side, 5, 6)
        stops = [(0.3, hsv(0.55, 0.15, 0.45)), (0.5, hsv(0.05 + hue, 0.75, 0.45)), (0.8, hsv(0.07 + hue, 0.85, 0.8))]
    else:
        values = (np.sin(2 * np.pi * (6 * along + 0.9 * rough)) + 1) / 2
        stops = [(0, hsv(0.08 + hue, 0.55, 0.6)), (1, hsv(0.12 + hue, 0.35, 0.97))]
    canvas = Canvas(side, (0, 0, 0))
    canvas.paste(gradient(values, stops))
    return Drawn(canvas.done(), {"class": kind, "hue": round(hue, 3), "turn": round(turn, 2)})


def _two_nearest(random: np.random.Generator, side: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Distances of each pixel to the nearest and the second nearest of some points (Worley 1996)."""
    points = random.random((count, 2)).astype(np.float32)
    axis = (np.arange(side, dtype=np.float32) + 0.5) / side
    down, across = axis[:, None, None] - points[:, 0], axis[None, :, None] - points[:, 1]
    nearest = np.partition(np.hypot(down, across), 1, -1)
    return nearest[..., 0], nearest[..., 1]


def landscape(random: np.random.Generator, side: int) -> Drawn:
    """Ridges behind each other under a sky, perhaps with water and trees: opaque, without classes."""
    time = choose(random, TIMES)
    skies: dict[str, tuple[Colour, Colour]] = {
        "dawn": ((120, 150, 210), (255, 205, 170)),
        "day": ((60, 130, 220), (190, 225, 250)),
        "dusk": ((60, 50, 110), (250, 130, 80)),
        "night": ((8, 12, 40), (40, 50, 95)),
    }
    top, horizon = skies[time]
    canvas = Canvas(side, top)
    ramp = np.linspace(0, 1, 32)[:, None, None]
    canvas.paste(np.broadcast_to(np.array(top) * (1 - ramp) + np.array(horizon) * ramp, (32, 32, 3)))
    x, y, radius = float(random.uniform(0.1, 0.9)), float(random.uniform(0.1, 0.4)), float(random.uniform(0.05, 0.09))
    if time == "night":
        for star_x, star_y in random.random((25, 2)):
            canvas.disc(float(star_x), float(star_y) * 0.6, 0.005, (230, 230, 250))
    canvas.disc(x, y, radius, (245, 245, 225) if time == "night" else (255, 240, 180))
    ridges, hue = int(random.integers(2, 5)), float(random.choice([0.28, 0.33, 0.6, 0.09]))
    dim = {"dawn": 0.85, "day": 1.0, "dusk": 0.6, "night": 0.35}[time]
    across = np.linspace(0, 1, 65)
    for ridge in range(ridges):
        near = (ridge + 1) / ridges
        base = 0.45 + 0.35 * near
        line = noise(random, 65, 3 + ridge, 4)[32]
        heights = base - (0.28 - 0.12 * near) * line
        colour = np.array(hsv(hue, 0.55, 0.62 * dim)) * near + np.array(horizon) * (1 - near) * 0.9
        fill: Colour = (int(colour[0]), int(colour[1]), int(colour[2]))
        canvas.polygon([(0, 1), *((float(a), float(b)) for a, b in zip(across, heights, strict=True)), (1, 1)], fill)
        if near == 1:
            trees = int(random.integers(0, 12))
            for i in random.integers(0, 65, trees):
                _tree(canvas, float(across[i]), float(heights[i]) + 0.02, float(random.uniform(0.06, 0.13)), dim)
    water = bool(random.random() < 0.4)
    if water:
        level = float(random.uniform(0.82, 0.9))
        canvas.box(0, level, 1, 1, hsv(0.57, 0.5, 0.75 * dim))
        for _ in range(10):
            a, b = float(random.random()), float(random.uniform(level, 1))
            canvas.line([(a, b), (a + 0.12, b)], hsv(0.57, 0.25, 0.95 * dim), 0.008)
    factors: Factors = {
        "time": time,
        "ridges": ridges,
        "hue": round(hue, 2),
        "water": int(water),
        "sun_x": round(x, 2),
        "sun_y": round(y, 2),
    }
    return Drawn(canvas.done(), factors)


def _tree(canvas: Canvas, x: float, y: float, height: float, dim: float) -> None:
    canvas.box(x - 0.006, y - height * 0.3, x + 0.006, y, hsv(0.07, 0.6, 0.35 * dim))
    for i in range(3):
        top, wide = y - height * (1 - 0.22 * i), height * (0.18 + 0.09 * i)
        canvas.polygon(
            [(x, top), (x + wide, top + height * 0.4), (x - wide, top + height * 0.4)], hsv(0.36, 0.6, 0.42 * dim)
        )


def fish(random: np.random.Generator, side: int) -> Drawn:
    """A fish from the side, shaded, with fins and markings: transparent, without classes."""
    length, height = float(random.uniform(0.5, 0.74)), float(random.uniform(0.16, 0.42))
    hue, other = float(random.random()), float(random.random())
    saturation, marking = float(random.uniform(0.35, 0.9)), choose(random, MARKINGS)
    marks, fork, bump = int(random.integers(2, 7)), float(random.uniform(0.1, 0.6)), float(random.uniform(0.7, 1.5))
    snout, rump = 0.5 - length / 2 - 0.06, 0.5 + length / 2 - 0.06
    fin = hsv(other, saturation, 0.75)
    edge = hsv(hue, 0.8, 0.25)
    canvas = Canvas(side)
    tail = height * float(random.uniform(0.35, 0.6))
    canvas.polygon(
        [
            (rump - 0.05, 0.5),
            (rump + 0.16, 0.5 - tail),
            (rump + 0.16 - 0.14 * fork, 0.5),
            (rump + 0.16, 0.5 + tail),
        ],
        fin,
        edge,
    )
    spread, at = float(random.uniform(0.06, 0.17)), float(random.uniform(0.4, 0.55))
    for up, share in ((-1, 1.0), (1, 0.6)):
        root = 0.5 + up * height * 0.42
        back = snout + length * (at + 0.3)
        canvas.polygon([(snout + length * at, root), (back, root + up * spread * share), (back, root)], fin, edge)
    across = np.linspace(0, 1, 40)
    bow = np.sin(np.pi * across**bump) ** 0.8 * height / 2 * (1 - 0.25 * across)
    upper = [(float(snout + length * a), float(0.5 - b)) for a, b in zip(across, bow, strict=True)]
    lower = [(float(snout + length * a), float(0.5 + 0.85 * b)) for a, b in zip(across, bow, strict=True)]
    body = Canvas(side)
    body.polygon([*upper, *lower[::-1]], (255, 255, 255))
    scales = Canvas(side, (0, 0, 0))
    ramp = np.linspace(-1, 1, 48)[:, None] / max(height, 0.2) / 2
    scales.paste(
        np.broadcast_to(
            gradient(
                ramp,
                [(-0.5, hsv(hue, saturation, 0.55)), (0, hsv(hue, saturation, 0.95)), (0.5, hsv(hue, 0.15, 1.0))],
            ),
            (48, 48, 3),
        )
    )
    mark = hsv(other, saturation, 0.85)
    for i in range(marks if marking != "plain" else 0):
        place = (i + 0.6) / (marks + 0.2)
        if marking == "bands":
            scales.box(snout + length * place, 0, snout + length * (place + 0.5 / marks), 1, mark)
        elif marking == "stripes":
            level = 0.5 + (place - 0.5) * height * 0.8
            scales.line([(0, level), (1, level)], mark, 0.4 * height / marks)
        else:
            for _ in range(3):
                x, y = snout + length * random.random(), 0.5 + height * (random.random() - 0.5)
                scales.disc(float(x), float(y), float(random.uniform(0.012, 0.03)), mark)
    canvas.image.paste(scales.image, (0, 0), body.image.getchannel("A"))
    canvas.pen.line([(x * canvas.scale, y * canvas.scale) for x, y in [*upper, *lower[::-1]]], edge, canvas.scale // 80)
    eye = snout + 0.16 * length
    canvas.disc(eye, 0.5 - 0.12 * height, 0.028, (250, 250, 240), edge)
    canvas.disc(eye, 0.5 - 0.12 * height, 0.014, (15, 15, 20))
    picture = canvas.done(opaque=False).rotate(float(random.normal(0, 8)), Image.Resampling.BICUBIC)
    left = bool(random.random() < 0.5)
    if not left:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    factors: Factors = {
        "hue": round(hue, 3),
        "other": round(other, 3),
        "marking": marking,
        "marks": marks,
        "length": round(length, 2),
        "height": round(height, 2),
        "left": int(left),
    }
    return Drawn(picture, factors)


def snowflake(random: np.random.Generator, side: int) -> Drawn:
    """A crystal of snow with six like arms, light on dark: opaque, grey, without classes."""
    ground = int(random.integers(5, 70))
    canvas = Canvas(side, (ground, ground, ground))
    glow = noise(random, 32, 2, 2)
    canvas.paste(np.repeat((ground + 30 * glow)[..., None], 3, -1))
    turn, radius = float(random.uniform(0, np.pi / 3)), float(random.uniform(0.3, 0.45))
    plate, branches = float(random.uniform(0, 0.5)), int(random.integers(0, 5))
    angle, width = float(np.radians(random.choice([45.0, 60.0]))), float(random.uniform(0.012, 0.03))
    places = np.sort(random.permutation(np.arange(2, FACETS))[:branches]) / FACETS
    lengths = random.uniform(0.15, 0.5, branches) * (1.1 - places)
    light = int(random.integers(170, 256))
    ice, shade = (light, light, light), (light - 60, light - 60, light - 60)
    arms = [turn + i * np.pi / 3 for i in range(6)]

    def at(arm: float, along: float, aside: float = 0.0) -> tuple[float, float]:
        x = along * np.cos(arm) - aside * np.sin(arm)
        return float(0.5 + radius * x), float(0.5 + radius * (along * np.sin(arm) + aside * np.cos(arm)))

    if plate > 0.1:
        canvas.polygon([at(arm, plate) for arm in arms], shade, ice)
    for arm in arms:
        canvas.line([(0.5, 0.5), at(arm, 1)], ice, width)
        for place, length in zip(places, lengths, strict=True):
            for way in (-1, 1):
                tip = at(arm, place + length * np.cos(angle), way * length * np.sin(angle))
                canvas.line([at(arm, place), tip], ice, 0.8 * width)
        canvas.disc(*at(arm, 1), 0.9 * width, ice)
    factors: Factors = {
        "turn": round(turn, 2),
        "radius": round(radius, 2),
        "plate": round(plate, 2),
        "branches": branches,
        "light": light,
    }
    return Drawn(canvas.done().convert("L"), factors)
