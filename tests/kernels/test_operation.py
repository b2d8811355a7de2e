"""What torch is told of our own operations, and on which card their kernels start."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from frugan.kernels.activation import leaky_relu
from frugan.kernels.operation import Operation

SCHEMA = "stand_in(Tensor? x, Tensor[] others, float by) -> Tensor"


class OnSecondCard(Tensor):
    """Says that it is there."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 1)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[..., Any]]:
    """What torch is told, by dispatch key; it knows nothing of it."""
    found: dict[str, Callable[..., Any]] = {}

    class Library:
        def __init__(self, *_: str) -> None: ...

        def define(self, schema: str) -> str:
            return str(leaky_relu.name)  # one that torch has

        def impl(self, name: str, function: Callable[..., Any], key: str) -> None:
            found[key] = function

    monkeypatch.setattr(torch.library, "Library", Library)
    return found


@pytest.mark.parametrize("at", ["alone", "in a list"])
def test_kernels_start_on_the_card_that_holds_their_tensors(
    at: str, told: dict[str, Callable[..., Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever is current: Triton starts them on that one."""
    current = [0]

    @contextmanager
    def device_index(index: int) -> Iterator[None]:
        before, current[0] = current[0], index
        yield
        current[0] = before

    monkeypatch.setattr(torch.accelerator, "device_index", device_index)
    started: list[tuple[int, float]] = []

    def start(x: Tensor | None, others: list[Tensor], by: float) -> Any:
        started.append((current[0], by))
        return others or x

    Operation(SCHEMA, start, start, start)
    there = torch.ones(2).as_subclass(OnSecondCard)
    values = (there, []) if at == "alone" else (None, [there])
    found = told["CUDA"](*values, 2.0)
    assert found is (there if at == "alone" else values[1])
    assert (started, current) == ([(1, 2.0)], [0])


def test_float64_goes_the_plain_way_without_a_gradient(told: dict[str, Callable[..., Any]]) -> None:
    def start(x: Tensor, others: list[Tensor], by: float) -> Tensor:
        pytest.fail("started")

    Operation(SCHEMA, start, lambda x, others, by: x * by, torch.empty_like)
    x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    found = told["CUDA"](x, [], 2.0)
    assert torch.equal(found, x * 2)
    assert not found.requires_grad
