"""What torch is told of our own operations, and on which card their kernels start."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from frugan.nn.own_operations import registered

SCHEMA = "stand_in(Tensor? x, Tensor[] others, float by) -> Tensor"


class OnSecondCard(Tensor):
    """Says that it is there."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 1)


@pytest.mark.parametrize("at", ["alone", "in a list"])
def test_kernels_start_on_the_card_that_holds_their_tensors(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever is current: Triton starts them on that one."""
    told: dict[str, Callable[..., Tensor]] = {}

    class Library:
        def __init__(self, *_: str) -> None: ...

        def define(self, schema: str) -> str:
            return schema

        def impl(self, name: str, function: Callable[..., Tensor], key: str) -> None:
            told[key] = function

    current = [0]

    @contextmanager
    def device_index(index: int) -> Iterator[None]:
        before, current[0] = current[0], index
        yield
        current[0] = before

    monkeypatch.setattr(torch.library, "Library", Library)
    monkeypatch.setattr(torch.accelerator, "device_index", device_index)
    started: list[tuple[int, float]] = []

    def start(x: Tensor | None, others: list[Tensor], by: float) -> Any:
        started.append((current[0], by))
        return others or x

    registered({SCHEMA: (start, start, start)})
    there = torch.ones(2).as_subclass(OnSecondCard)
    given = (there, []) if at == "alone" else (None, [there])
    made = told["CUDA"](*given, 2.0)
    assert made is (there if at == "alone" else given[1])
    assert (started, current) == ([(1, 2.0)], [0])
