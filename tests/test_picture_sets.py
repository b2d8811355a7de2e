"""The pictures that quality is measured on are drawn the same each time."""

from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def _names() -> list[str]:
    return sorted(
        [
            "creatures",
            "tiles",
            "glyphs",
            "flags",
            "arms",
            "badges",
            "plants",
            "textures",
            "landscapes",
            "stamps",
            "maps",
            "charts",
            "mosaics",
            "fish",
            "snow",
            "vehicles",
            "clothes",
            "houses",
            "beetles",
            "cells",
        ]
    )


def test_no_kind_is_left_out() -> None:
    from picture_sets.kinds import KINDS  # noqa: PLC0415  (a program's part)

    assert sorted(KINDS) == _names()
    assert {name for name, kind in KINDS.items() if kind.held_out} == {"clothes", "houses", "beetles", "cells"}


@pytest.mark.parametrize("name", _names())
def test_a_picture_depends_on_seed_and_number_alone(name: str) -> None:
    from picture_sets.kinds import KINDS  # noqa: PLC0415

    few, more = (list(KINDS[name].drawn(3, count, 32)) for count in (2, 4))
    for one, other in zip(few, more, strict=False):
        assert one.factors == other.factors
        assert np.array_equal(np.asarray(one.picture), np.asarray(other.picture))
    assert all(drawn.picture.height == 32 for drawn in more)
    assert len({drawn.picture.tobytes() for drawn in more}) == 4
    assert next(KINDS[name].drawn(4, 1, 32)).picture.tobytes() != few[0].picture.tobytes()
