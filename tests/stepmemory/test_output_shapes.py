"""What operations give by our rules is what torch's kernels give: every rule that a step meets, on a real CPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from contract.made_up import MadeUpFamily
from contract.rig import BF16
from frugan.families import families
from frugan.planning.prediction import predict
from frugan.stepmemory.dataless import META, RULES, Dataless, WithoutData
from frugan.stepmemory.work import tensors_in
from planning.tasks import plan_of, task

aten = torch.ops.aten
MADE = (aten.empty.memory_format, aten.randn.generator, aten.rand.generator, aten.randint.generator)
"""Of no operand: nothing to get wrong but what they are given."""


class Compared(Dataless):
    """Runs operations on zeros as well, and notes where they give something else."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[Any] = set()
        self.wrong: list[str] = []

    def _first_time(self, func: Any, args: Any, kwargs: Any, key: Any, tensors: Any) -> Any:
        result = super()._first_time(func, args, kwargs, key, tensors)
        if func in RULES and func not in MADE:
            self.seen.add(func)
            given = {name: _real(value) for name, value in kwargs.items() if name != "device"}
            theirs = func(*_real(args), **given)
            ours, expected = ([*map(_described, tensors_in(out))] for out in (result[0], theirs))
            if ours != expected:
                self.wrong.append(f"{func} of {[*map(_described, tensors)]}: {ours}, and torch {expected}")
        return result


def _real(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu").zero_()
    return type(value)(_real(each) for each in value) if isinstance(value, list | tuple) else value


def _described(x: Tensor) -> tuple[Any, ...]:
    """Strides of dimensions of one element mean nothing; memory of a scalar may be for more."""
    strides = tuple(s for n, s in zip(x.shape, x.stride(), strict=True) if n != 1)
    return tuple(x.shape), strides, x.dtype, x.untyped_storage().nbytes() if not x.ndim else None


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(f, id=f.name, marks=[] if f.name in ("made-up", "biggan") else pytest.mark.long)
        for f in (MadeUpFamily(), *families().values())
    ],
)
def test_a_whole_step(family: Any) -> None:
    compared = Compared()
    of = task(family)
    predict(of, plan_of(of, of.group, BF16), "card", of.stages[0], dataless=compared)
    assert len(compared.seen) > 20
    assert not compared.wrong, "\n".join(compared.wrong[:10])


def _x(*shape: int, last: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    made = torch.empty(shape, dtype=dtype, device=META)
    return made.to(memory_format=torch.channels_last) if last else made


CASES: dict[str, Callable[[], object]] = {
    "sum of a column and a row": lambda: _x(3, 1) + _x(1, 4),
    "channels-last with a channel's factor": lambda: _x(2, 3, 4, 4, last=True) * _x(3, 1, 1),
    "transposed beside contiguous": lambda: _x(4, 3).t() + _x(3, 4),
    "half beside a full number": lambda: _x(3, dtype=torch.bfloat16) + _x(),
    "half beside full ones": lambda: _x(3, dtype=torch.bfloat16) * _x(3),
    "integers divided": lambda: _x(3, dtype=torch.int64) / 2,
    "integers times a fraction": lambda: _x(3, dtype=torch.int64) * 0.5,
    "booleans added up": lambda: torch.sum(_x(3) > 0),
    "compared": lambda: _x(2, 3, 4, 4, last=True) >= _x(4),
    "where of numbers": lambda: torch.where(_x(3) > 0, _x(3, dtype=torch.bfloat16), 0.0),
    "padded": lambda: F.pad(_x(2, 3, 4, 4, last=True), (1, 2, 0, 1)),
    "strided convolution": lambda: F.conv2d(_x(2, 3, 9, 9, last=True), _x(5, 3, 3, 3), None, 2, 1),
    "convolution by a channels-last weight": lambda: F.conv2d(_x(2, 3, 9, 9), _x(5, 3, 3, 3, last=True)),
    "grouped convolution": lambda: F.conv2d(_x(1, 6, 9, 9), _x(4, 3, 3, 3), groups=2),
    "transposed convolution": lambda: F.conv_transpose2d(_x(2, 3, 9, 9), _x(3, 5, 3, 3), None, 2, 1, 1),
    "average pool": lambda: F.avg_pool2d(_x(2, 3, 9, 9, last=True), 3, 2, 1),
    "average pool, rounded up": lambda: F.avg_pool2d(_x(2, 3, 8, 8), 3, 2, ceil_mode=True),
    "maximum pool": lambda: F.max_pool2d(_x(2, 3, 8, 8, last=True), 2),
    "upsampled": lambda: F.interpolate(_x(2, 3, 4, 4, last=True), scale_factor=2),
    "concatenated": lambda: torch.cat([_x(2, 3, 4, 4, last=True), _x(2, 1, 4, 4, last=True)], 1),
    "concatenated, of two layouts": lambda: torch.cat([_x(2, 3, 4, 4, last=True), _x(2, 3, 4, 4)], 1),
    "stacked": lambda: torch.stack([_x(2, 3), _x(2, 3)], -1),
    "range": lambda: torch.arange(1, 8, 2, device=META),
    "range of fractions": lambda: torch.arange(0.0, 1.0, 0.25, device=META),
    "softmax": lambda: torch.softmax(_x(2, 3, 4), -1),
    "norm over dimensions": lambda: torch.linalg.vector_norm(_x(2, 3, 4), dim=(0, 2), keepdim=True),
    "variance": lambda: _x(4, 2, 3).var(0, correction=0),
    "rows by number": lambda: _x(5, 4)[_x(3, dtype=torch.int64)],
    "columns by number": lambda: _x(5, 4)[:, _x(3, dtype=torch.int64)],
    "clamped": lambda: _x(2, 3, 4, 4, last=True).clamp(-1, 1),
    "flipped": lambda: _x(2, 3, 4, 4, last=True).flip(3),
    "power": lambda: _x(3, dtype=torch.bfloat16) ** 2,
    "groups of rows": lambda: F.grouped_mm(_x(8, 16), _x(3, 16, 8), offs=_x(3, dtype=torch.int32)),
    "groups of columns": lambda: F.grouped_mm(_x(8, 16), _x(16, 8), offs=_x(3, dtype=torch.int32)),
    "groups of matrices": lambda: F.grouped_mm(_x(3, 8, 16), _x(3, 16, 8)),
    "mean squared error": lambda: F.mse_loss(_x(3, 4), _x(3, 4)),
    "squared errors": lambda: F.mse_loss(_x(3, 4), _x(3, 4), reduction="none"),
    "sum of smooth errors": lambda: F.smooth_l1_loss(_x(3, 4), _x(3, 4), reduction="sum", beta=2.0),
    "binary cross entropy": lambda: F.binary_cross_entropy(_x(3, 4), _x(3, 4), _x(4)),
    "soft margin": lambda: F.soft_margin_loss(_x(3, 4), _x(3, 4)),
    "norms": lambda: torch._foreach_norm([_x(3), _x(2, 3)]),
}


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str) -> None:
    compared = Compared()
    with WithoutData(compared):
        CASES[name]()
    assert compared.seen
    assert not compared.wrong, "\n".join(compared.wrong)


class Wrong(Dataless):
    """Gives twice the elements."""

    def _first_time(self, func: Any, args: Any, kwargs: Any, key: Any, tensors: Any) -> Any:
        result, known = super()._first_time(func, args, kwargs, key, tensors)
        return _x(2 * result.numel()), known


class ComparedWrong(Compared, Wrong):
    """What is wrong, compared."""


def test_a_wrong_rule_is_found() -> None:
    """The comparison can fail."""
    compared = ComparedWrong()
    with WithoutData(compared):
        torch.relu(_x(3))
    assert compared.wrong


def test_shapes_that_do_not_fit_are_refused() -> None:
    with WithoutData(Dataless()), pytest.raises(RuntimeError, match="do not broadcast"):
        _x(3) + _x(4)
