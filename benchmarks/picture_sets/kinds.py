"""The kinds of pictures that are drawn: as many as one likes, at any size, with what is in each."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from picture_sets.canvas import Drawn, Factors
from picture_sets.emblems import arms, badge, flag
from picture_sets.everyday import garment, house
from picture_sets.glyphs import glyph
from picture_sets.nature import fish, landscape, plant, snowflake, texture
from picture_sets.pixel_art import creature, tile, vehicle
from picture_sets.prints import chart, island_map, mosaic, stamp
from picture_sets.specimens import beetle, cells

DUPLICATES, BROKEN = 0.02, 0.005
"""Share of a messy folder's files that repeat another, and that no program can open."""


@dataclass(frozen=True)
class Kind:
    """One kind of pictures.

    Attributes:
        draw: random numbers and the height in pixels -> a picture with its factors.
        held_out: no setting may be chosen by looking at this kind; it is scored once, at the end.
    """

    draw: Callable[[np.random.Generator, int], Drawn]
    held_out: bool = False

    def drawn(self, seed: int, count: int, side: int) -> Iterator[Drawn]:
        """Pictures of a seed; each is the same, however many others are drawn."""
        for number in range(count):
            yield self.draw(np.random.default_rng([seed, number]), side)


KINDS = {
    "creatures": Kind(creature),
    "tiles": Kind(tile),
    "glyphs": Kind(glyph),
    "flags": Kind(flag),
    "arms": Kind(arms),
    "badges": Kind(badge),
    "plants": Kind(plant),
    "textures": Kind(texture),
    "landscapes": Kind(landscape),
    "stamps": Kind(stamp),
    "maps": Kind(island_map),
    "charts": Kind(chart),
    "mosaics": Kind(mosaic),
    "fish": Kind(fish),
    "snow": Kind(snowflake),
    "vehicles": Kind(vehicle),
    "clothes": Kind(garment, held_out=True),
    "houses": Kind(house, held_out=True),
    "beetles": Kind(beetle, held_out=True),
    "cells": Kind(cells, held_out=True),
}


def write_pictures(kind: Kind, out: Path, *, seed: int, count: int, side: int, messy: bool = False) -> None:
    """Write a folder of PNGs as a person has them, in a folder for each class, and factors.jsonl beside it.

    Args:
        messy: also a few duplicates, files that cannot be opened and a note.
    """
    random = np.random.default_rng([seed, 1 << 32])
    lines: list[Factors] = []
    written: list[Path] = []
    for number, drawn in enumerate(kind.drawn(seed, count, side)):
        path = out / str(drawn.factors.get("class", "")) / f"{number:06d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        drawn.picture.save(path)
        lines.append({"file": path.relative_to(out).as_posix(), **drawn.factors})
        written.append(path)
    if messy:
        for i in random.integers(len(written), size=round(DUPLICATES * count) or 1):
            written[i].with_name(f"copy of {written[i].name}").write_bytes(written[i].read_bytes())
        for i in random.integers(len(written), size=round(BROKEN * count) or 1):
            written[i].with_name(f"{written[i].stem} (2).png").write_bytes(written[i].read_bytes()[:200])
        (out / "notes.txt").write_text("best ones first?\n", "utf-8")
    out.with_name(f"{out.name}-factors.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


def sheet(kind: Kind, *, seed: int, columns: int, rows: int, side: int, gap: int = 4) -> Image.Image:
    """Pictures side by side, transparent ones on a checked ground, to look at."""
    drawn = [each.picture.convert("RGBA") for each in kind.drawn(seed, columns * rows, side)]
    wide, high = drawn[0].size
    whole = Image.new("RGB", (columns * (wide + gap) + gap, rows * (high + gap) + gap), "white")
    for i, picture in enumerate(drawn):
        ground = Image.new("RGBA", picture.size, (225, 225, 230, 255))
        place = (gap + i % columns * (wide + gap), gap + i // columns * (high + gap))
        whole.paste(Image.alpha_composite(ground, picture).convert("RGB"), place)
    return whole
