"""Hard-edged pictures on a coarse grid: creatures as in a game, the tiles that they walk on, and vehicles."""

import numpy as np
from PIL import Image

from picture_sets.canvas import Colour, Drawn, Factors, choose, hsv

GRID = 20
"""Cells of a creature's side."""
TILE_GRID = 16
PLANS = ("biped", "blob", "bug", "ghost", "bird")
TILES = ("grass", "water", "stone", "brick", "wood", "sand", "lava", "snow")
VEHICLE_GRID = 32
VEHICLES = ("car", "van", "bus", "lorry", "tractor")


def creature(random: np.random.Generator, side: int) -> Drawn:
    """A mirrored creature with an outline, eyes and a belly, on nothing: transparent, without classes."""
    plan = choose(random, PLANS)
    hue, eyes, horns = float(random.random()), int(random.integers(1, 4)), int(random.integers(0, 3))
    saturation, value = float(random.uniform(0.45, 0.95)), float(random.uniform(0.65, 1.0))
    half = _body(random, plan, horns)  # bool [GRID, GRID / 2]
    body = np.concatenate([half[:, ::-1], half], 1)
    lean = int(random.integers(-1, 2))
    shades = [hsv(hue + 0.03 * (i - 1), saturation, value * (0.6 + 0.2 * i)) for i in range(3)]
    rows, columns = np.mgrid[:GRID, :GRID]
    height = (rows - GRID / 2) / GRID + 0.25 * np.abs(columns - GRID / 2 + 0.5) / GRID
    light = np.where(height < -0.12, 2, np.where(height > 0.2, 0, 1))
    cells = np.zeros((GRID, GRID, 4), np.uint8)
    for shade, colour in enumerate(shades):
        cells[body & (light == shade)] = (*colour, 255)
    if random.random() < 0.6:
        belly = body & (np.abs(columns - GRID / 2 + 0.5) < 3) & (rows > 10) & (rows < 16)
        cells[belly] = (*hsv(hue + 0.5, 0.25, 1.0), 255)
    if random.random() < 0.4:
        spots = random.random((GRID, GRID // 2)) < 0.12
        cells[body & np.concatenate([spots[:, ::-1], spots], 1)] = (*hsv(hue + 0.35, saturation, 0.9), 255)
    _eyes(cells, eyes, lean)
    cells[_outline(body)] = (*hsv(hue, 0.7, 0.18), 255)
    picture = Image.fromarray(cells, "RGBA").resize((side, side), Image.Resampling.NEAREST)
    return Drawn(picture, {"plan": plan, "hue": round(hue, 3), "eyes": eyes, "horns": horns, "gaze": lean})


def _body(random: np.random.Generator, plan: str, horns: int) -> np.ndarray:
    """The right half of a body without its outline."""
    rows, columns = np.mgrid[:GRID, : GRID // 2]
    bulge = random.uniform(-1, 1, 3)
    body: np.ndarray

    def oval(row: float, high: float, wide: float) -> np.ndarray:
        within: np.ndarray = ((rows - row) / high) ** 2 + ((columns + 0.5) / wide) ** 2 < 1
        return within

    if plan == "biped":
        body = oval(6.5, 4, 4 + bulge[0]) | oval(12, 4, 3.2 + bulge[1])
        leg = 1 + (bulge[2] > 0)
        body |= (columns >= leg) & (columns < leg + 2) & (rows > 11) & (rows < 18)
        arm = int(random.integers(9, 13))
        body |= (rows >= arm) & (rows < arm + 2) & (columns < 6 + (bulge[0] > 0))
    elif plan == "blob":
        body = oval(12, 6, 7 + bulge[0]) & (rows < 17) | oval(9, 5, 5 + bulge[1]) & (rows < 17)
    elif plan == "bug":
        body = oval(6, 3, 3 + 0.5 * bulge[0]) | oval(12, 5, 4.5 + bulge[1])
        for row in (9, 12, 15):
            body |= (rows == row) & (columns < 8) | (rows == row + 1) & (columns == 7)
    elif plan == "ghost":
        body = oval(8, 6, 6 + bulge[0]) | (rows >= 8) & (rows < 17) & (columns < 6 + round(bulge[0]))
        body &= ~((rows >= 15) & ((columns + int(bulge[1] > 0)) % 3 == 2))
    else:
        body = oval(6, 3.5, 3.5) | oval(12, 4.5, 4 + bulge[0])
        wing = int(random.integers(7, 11))
        body |= (rows >= wing) & (rows < wing + 5) & (columns < 9 - np.abs(rows - wing - 2)) & (columns > 2)
        body |= (rows >= 16) & (rows < 18) & (columns == 1)
    for horn in range(horns):
        body |= (columns == 2 + 2 * horn) & (rows >= 2 + horn) & (rows < 7)
    inside = np.zeros((GRID, GRID // 2), bool)
    inside[1:-1, :-1] = body[1:-1, :-1]
    return inside


def _eyes(cells: np.ndarray, eyes: int, gaze: int) -> None:
    places = {1: ((9, 6),), 2: ((7, 6), (11, 6)), 3: ((6, 7), (9, 5), (12, 7))}[eyes]
    for column, row in places:
        cells[row : row + 2, column : column + 2] = 255
        cells[row + 1, column + (gaze > 0)] = (20, 20, 30, 255)


def _outline(body: np.ndarray) -> np.ndarray:
    padded = np.pad(body, 1)
    near = padded[:-2, 1:-1] | padded[2:, 1:-1] | padded[1:-1, :-2] | padded[1:-1, 2:]
    outline: np.ndarray = near & ~body
    return outline


def tile(random: np.random.Generator, side: int) -> Drawn:
    """A tile of the ground, opaque, in eight classes of which the first are common and the last are rare."""
    kind = choose(random, TILES, [2.0**-i for i in range(len(TILES))])
    tint, seed = float(random.uniform(-0.03, 0.03)), random.random((TILE_GRID, TILE_GRID))
    rows, columns = np.mgrid[:TILE_GRID, :TILE_GRID]
    shade = 0.85 + 0.15 * seed
    if kind == "brick":
        high, wide = 4, int(choose(random, (4, 8)))
        shifted = columns + (rows // high % 2) * wide // 2
        mortar = (rows % high == 0) | (shifted % wide == 0)
        cells = _painted(np.where(mortar, 0.55, shade), 0.03 + tint, np.where(mortar, 0.1, 0.65))
    elif kind == "wood":
        plank = rows // 4
        lines = (rows % 4 == 0) | ((columns + plank * 7) % TILE_GRID == 0)
        cells = _painted(
            np.where(lines, 0.3, 0.55 + 0.12 * (plank % 2) + 0.1 * seed), 0.08 + tint, np.full_like(seed, 0.6)
        )
    elif kind == "water":
        wave = np.sin(2 * np.pi * (columns + 3 * np.sin(rows / 2.5 + 6 * seed[0, 0])) / TILE_GRID + rows * 1.3)
        cells = _painted(0.7 + 0.2 * (wave > 0.6), 0.58 + tint, np.where(wave > 0.6, 0.3, 0.75))
    elif kind == "lava":
        flow = np.sin(columns / 2 + 6 * seed[0, 0]) + np.cos(rows / 2 + 6 * seed[0, 1])
        cells = _painted(
            np.where(flow > 0.2, 1.0, 0.35), np.where(flow > 1.0, 0.14, 0.03) + tint, np.where(flow > 0.2, 0.9, 0.5)
        )
    elif kind == "stone":
        stones = _nearest_of(random, 7)
        cells = _painted(
            np.where(stones < 0, 0.3, 0.5 + 0.05 * stones + 0.06 * seed), 0.6 + tint, np.full_like(seed, 0.08)
        )
    else:
        hue, saturation, value = {"grass": (0.3, 0.65, 0.6), "sand": (0.13, 0.4, 0.88), "snow": (0.58, 0.07, 0.97)}[
            kind
        ]
        cells = _painted(value * shade, hue + tint, np.full_like(seed, saturation))
        _strewn(random, cells, kind)
    picture = Image.fromarray(cells, "RGB").resize((side, side), Image.Resampling.NEAREST)
    return Drawn(picture, {"class": kind, "tint": round(tint, 3)})


def _painted(value: np.ndarray, hue: float | np.ndarray, saturation: np.ndarray) -> np.ndarray:
    hues = np.broadcast_to(hue, value.shape)
    flat = [hsv(h, s, v) for h, s, v in zip(hues.flat, saturation.flat, value.flat, strict=True)]
    return np.array(flat, np.uint8).reshape(*value.shape, 3)


def _nearest_of(random: np.random.Generator, stones: int) -> np.ndarray:
    """Number of the nearest of some points for each cell, on a tile that repeats; -1 between two."""
    rows, columns = np.mgrid[:TILE_GRID, :TILE_GRID]
    points = random.uniform(0, TILE_GRID, (stones, 2))
    distances = []
    for row, column in points:
        down, across = np.abs(rows - row), np.abs(columns - column)
        distances.append(np.hypot(np.minimum(down, TILE_GRID - down), np.minimum(across, TILE_GRID - across)))
    ordered = np.sort(distances, 0)
    return np.where(ordered[1] - ordered[0] < 0.9, -1, np.argmin(distances, 0))


def _strewn(random: np.random.Generator, cells: np.ndarray, kind: str) -> None:
    """Blades, flowers, pebbles or glints on a plain tile."""
    marks: dict[str, list[Colour]] = {
        "grass": [(40, 120, 40), (50, 140, 45), (250, 220, 80), (235, 120, 160)],
        "sand": [(200, 170, 110), (180, 150, 100)],
        "snow": [(200, 220, 245), (255, 255, 255)],
    }
    for _ in range(int(random.integers(4, 12))):
        row, column = random.integers(1, TILE_GRID - 1, 2)
        cells[row, column] = choose(random, marks[kind])
        if kind == "grass":
            cells[row - 1, column] = (40, 120, 40)


def vehicle(random: np.random.Generator, side: int) -> Drawn:
    """A small vehicle from the side in the middle of much nothing: transparent, five classes."""
    kind = choose(random, VEHICLES)
    long, high = {"car": (18, 6), "van": (18, 9), "bus": (24, 10), "lorry": (24, 10), "tractor": (15, 8)}[kind]
    long, high = long + int(random.integers(-2, 3)), high + int(random.integers(-1, 2))
    hue, saturation, value = float(random.random()), float(random.uniform(0.3, 0.95)), float(random.uniform(0.5, 1))
    coat, dark, trim = (hsv(hue, saturation, value * share) for share in (1.0, 0.6, 0.8))
    stripe, glass = hsv(hue + random.uniform(0.2, 0.8), 0.8, 0.95), hsv(0.56, random.uniform(0.2, 0.5), 0.9)
    cells = np.zeros((VEHICLE_GRID, VEHICLE_GRID, 4), np.uint8)
    left, ground = (VEHICLE_GRID - long) // 2, 23
    floor, right = ground - 2, left + long

    def fill(top: int, bottom: int, start: int, end: int, colour: Colour) -> None:
        cells[top:bottom, start:end] = (*colour, 255)

    if kind == "car":
        waist = floor - high // 2
        fill(waist, floor, left, right, coat)
        start, end = left + 3 + int(random.integers(0, 3)), right - 4 - int(random.integers(0, 3))
        fill(floor - high, waist, start + 1, end - 1, coat)
        fill(floor - high + 1, waist, start + 1, (start + end) // 2, glass)
        fill(floor - high + 1, waist, (start + end) // 2 + 1, end - 1, glass)
    elif kind == "tractor":
        fill(floor - high // 2, floor, left, right, coat)
        fill(floor - high - 2, floor - high // 2, left + 1, left + 7, dark)
        fill(floor - high - 1, floor - high // 2, left + 2, left + 6, glass)
        fill(floor - high, floor - high // 2, right - 3, right - 2, (60, 60, 66))
    elif kind == "lorry":
        cab = right - 6
        fill(floor - high, floor, left, cab - 1, stripe if random.random() < 0.5 else (225, 225, 220))
        for column in range(left + 2, cab - 1, 4):
            fill(floor - high + 1, floor - 1, column, column + 1, (170, 170, 170))
        fill(floor - high + 2, floor, cab, right, coat)
        fill(floor - high + 3, floor - high + 6, cab + 2, right, glass)
    else:
        fill(floor - high, floor, left, right, coat)
        cells[floor - high, [left, right - 1]] = 0
        row = floor - high + 2
        for column in range(left + 1, right - 2, 4):
            if kind == "bus" or column > right - 8:
                fill(row, row + 3, column, column + 3, glass)
        if random.random() < 0.6:
            fill(floor - 3, floor - 2, left, right, stripe)
    fill(floor - 1, floor, left, right, trim)
    fill(floor - 2, floor - 1, right - 1, right, (255, 240, 150))
    places = {"bus": (4, -5), "lorry": (3, 8, -4)}.get(kind, (3, -4))
    for number, place in enumerate(places):
        radius = 4 if kind == "tractor" and number == 0 else 2
        _wheel(cells, ground - radius, (left if place > 0 else right) + place, radius)
    cells[_outline(cells[..., 3] > 0)] = (*hsv(hue, 0.5, 0.16), 255)
    flipped = bool(random.random() < 0.5)
    picture = Image.fromarray(cells[:, ::-1].copy() if flipped else cells, "RGBA")
    shown = picture.resize((side, side), Image.Resampling.NEAREST)
    factors: Factors = {"class": kind, "hue": round(hue, 3), "long": long, "high": high, "flipped": int(flipped)}
    return Drawn(shown, factors)


def _wheel(cells: np.ndarray, row: int, column: int, radius: int) -> None:
    rows, columns = np.mgrid[:VEHICLE_GRID, :VEHICLE_GRID]
    away = np.hypot(rows - row, columns - column)
    cells[away < radius + 0.4] = (40, 40, 46, 255)
    cells[away < radius / 2] = (190, 190, 195, 255)
