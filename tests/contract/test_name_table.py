"""Tables of names, read in both directions."""

import pytest
import torch
from torch import Tensor

from frugan.contract.name_table import NameTable, Row

TABLE = NameTable(
    [
        Row("block{n}/w", "blocks.{n}.weight", lambda value: value.T, lambda value: value.T),
        Row("{path}/kind_{kind}", "{path}.{kind}"),
        Row("{path}/u1", None),
        Row(None, "{path}.made", create=lambda shape: torch.ones(*shape)),
    ],
    {"n": {"": "0", "_1": "1"}, "kind": {"a": "first", "b": "second"}, "path": ".+"},
)
THEIRS = {
    "block/w": torch.randn(2, 3),
    "block_1/w": torch.randn(4, 3),
    "deep/er/kind_a": torch.randn(1),
    "deep/er/u1": torch.randn(1),
}
OURS = {"blocks.0.weight": (3, 2), "blocks.1.weight": (3, 4), "deep/er.first": (1,), "x.made": (2, 2)}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_there_and_back() -> None:
    translated = TABLE.to_ours(THEIRS, OURS)
    assert translated.faults == []
    assert {key: tuple(value.shape) for key, value in translated.tensors.items()} == OURS
    assert torch.equal(translated.tensors["blocks.1.weight"], THEIRS["block_1/w"].T)
    back = TABLE.to_theirs(translated.tensors, [key for key in THEIRS if not key.endswith("u1")])
    assert back.faults == []  # what the other program has none of is left out
    assert same(back.tensors, {key: value for key, value in THEIRS.items() if not key.endswith("u1")})


@pytest.mark.parametrize(
    ("change", "faults"),
    [
        ({"block_2/w": torch.ones(1)}, ["block_2/w: unknown here"]),
        ({"deep/er/kind_c": torch.ones(1)}, ["deep/er/kind_c: unknown here"]),
        ({"block/w": None}, ["blocks.0.weight: not there"]),
        ({"deep/er/kind_a": None, "q": torch.ones(1)}, ["deep/er.first: not there", "q: unknown here"]),
    ],
)
def test_names_left_over_and_missing_ones_are_told(change: dict[str, Tensor | None], faults: list[str]) -> None:
    given = {key: value for key, value in {**THEIRS, **change}.items() if value is not None}
    assert TABLE.to_ours(given, OURS).faults == faults


def test_two_names_that_become_one_are_told() -> None:
    table = NameTable([Row("a{n}", "x{n}"), Row("b{n}", "x{n}")], {"n": r"\d"})
    translated = table.to_ours({"a1": torch.ones(1), "b1": torch.ones(1)}, {"x1": (1,)})
    assert translated.faults == ["x1: there twice"]
