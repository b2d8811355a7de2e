"""Many people who do not exist, for pretraining: each somewhere between the two that are drawn, or a little beyond."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from frugan.faces.data.faceset import ALIGNED, SOURCES
from tools.draw_faces.drawn_faceset import draw_faceset
from tools.draw_faces.people import PEOPLE
from tools.draw_faces.person import Bones, Brows, Eyes, Lips, Person, Skin

BEYOND = 0.2
"""Share of the difference between two people by which others may go beyond them."""
SIDE_PIXELS = 128
Part = TypeVar("Part", Bones, Eyes, Brows, Lips, Skin)


def draw_crowd(workspace: Path, people: int, faces: int, *, seed: int) -> None:
    """Draw the same people on both sides of a workspace, as pretraining wants them, in other moments.

    Args:
        workspace: folder; each person has one below data_src/aligned and one below data_dst/aligned.
        people: how many of them.
        faces: of each, on each side.
        seed: of people and moments.
    """
    random = np.random.default_rng(seed)
    crowd = [_between(*PEOPLE, random) for _ in range(people)]
    for number in range(people):
        for moments, source in enumerate(SOURCES.values()):
            folder = workspace / source / ALIGNED / f"{number:03d}"
            draw_faceset(folder, number, faces, seed=seed + moments, size=SIDE_PIXELS, people=crowd)


def _between(one: Person, other: Person, random: np.random.Generator) -> Person:
    """Hair and clothes of one of the two, everything else mixed."""
    hair, cloth = (getattr((one, other)[random.integers(2)], name) for name in ("hair", "cloth"))
    return Person(
        name="someone",
        bones=_mixed(one.bones, other.bones, random),
        eyes=_mixed(one.eyes, other.eyes, random),
        brows=_mixed(one.brows, other.brows, random),
        lips=_mixed(one.lips, other.lips, random),
        skin=_mixed(one.skin, other.skin, random),
        hair=hair,
        cloth=cloth,
        neckline=one.neckline,
    )


def _mixed(one: Part, other: Part, random: np.random.Generator) -> Part:
    """Of two parts of a face, every number between theirs; a colour's three by the same share."""
    found: dict[str, Any] = {}
    for field in fields(one):
        a, b = getattr(one, field.name), getattr(other, field.name)
        share = random.uniform(-BEYOND, 1 + BEYOND)
        both = [np.asarray(each, float) for each in (a, b)]
        value = both[0] + share * (both[1] - both[0])
        if min(each.min() for each in both) >= 0:  # a width, a share, a colour: never below nothing
            value = value.clip(0)
        found[field.name] = tuple(value.tolist()) if isinstance(a, tuple) else type(a)(value)
    return replace(one, **found)
