"""The kinds of pictures that are drawn: as many as one likes, at any size, with what is in each."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from picture_sets.canvas import Drawn
from picture_sets.emblems import arms, badge, flag
from picture_sets.everyday import garment, house
from picture_sets.glyphs import glyph
from picture_sets.nature import fish, landscape, plant, snowflake, texture
from picture_sets.pixel_art import creature, tile, vehicle
from picture_sets.prints import chart, island_map, mosaic, stamp
from picture_sets.specimens import beetle, cells


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
