"""Batch normalisation by operations of our own: what torch's give, its derivatives, what it keeps and moves."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from frugan.contract.layers import Observer, use_ops
from frugan.contract.ops import PLAIN
from frugan.kernels import norm
from frugan.kernels.norm import BatchNorm as Kernel
from frugan.kernels.norm import Rows, by_torch, normalised
from frugan.kernels.operation import Operation
from frugan.nn.batch_norm import BatchNorm, ConditionalBatchNorm
from frugan.stepmemory.work import SavedActivations, WorkCounter

ORDERS = (torch.channels_last, torch.contiguous_format)
EPS = 1e-4
NEAR = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}


def given(
    dtype: torch.dtype, order: torch.memory_format = torch.contiguous_format, *, shared: bool = False
) -> list[Tensor]:
    """A map, gains and biases; numbers far from 0."""
    generator = torch.Generator().manual_seed(3)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    x = (random(6, 5, 3, 4) + 4).to(dtype).contiguous(memory_format=order)
    return [each.to(dtype).requires_grad_() for each in (x, *(random(1 if shared else 6, 5) for _ in range(2)))]


def own(x: Tensor, gains: Tensor, biases: Tensor, groups: int, relu: bool) -> Tensor:
    return normalised(x, gains, biases, groups=groups, eps=EPS, biased=False, relu=relu)[0]


def torchs(x: Tensor, gains: Tensor, biases: Tensor, groups: int, relu: bool) -> Tensor:
    return by_torch(x, gains, biases, groups, EPS, relu=relu)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("groups", "relu"), [(1, True), (3, True), (2, False)])
def test_it_is_what_torch_gives(
    groups: int, relu: bool, shared: bool, dtype: torch.dtype, order: torch.memory_format
) -> None:
    tensors, sides = given(dtype, order, shared=shared), []
    weights = torch.linspace(-1, 2, 360, dtype=dtype).view(6, 5, 3, 4)
    for call in (own, torchs):
        x, gains, biases = tensors
        made = call(x, gains, biases, groups, relu)
        plain = torch.autograd.grad((made * weights).float().sum(), tensors, retain_graph=True)
        (first,) = torch.autograd.grad((made.float().square() * weights).sum(), tensors[:1], create_graph=True)
        sides.append([made, *plain, first, *torch.autograd.grad(first.float().square().sum(), tensors)])
    assert sides[0][0].stride() == sides[0][1].stride() == tensors[0].stride()
    for one, other in zip(*sides, strict=True):
        most = float(other.detach().float().abs().max())
        torch.testing.assert_close(one, other, rtol=NEAR[dtype], atol=NEAR[dtype] * most)


@pytest.mark.parametrize("shared", [False, True])
def test_derivatives(shared: bool) -> None:
    tensors = given(torch.float64, shared=shared)
    assert torch.autograd.gradcheck(lambda x, gains, biases: own(x, gains, biases, 2, True), tensors)
    assert torch.autograd.gradgradcheck(
        lambda x, gains, biases: own(x, gains, biases, 2, True), tensors, fast_mode=True
    )


def test_gains_that_are_made_of_the_map() -> None:
    """Each one's part of the gradient is its own, in a gradient of the gradient too."""
    x, _, biases = given(torch.float64)
    sides = []
    for call in (own, torchs):
        made = call(x, x.square().mean((2, 3)), biases, 2, True)
        (first,) = torch.autograd.grad(made.square().sum(), x, create_graph=True)
        sides.append([first, *torch.autograd.grad(first.square().sum(), x)])
    for one, other in zip(*sides, strict=True):
        torch.testing.assert_close(one, other)


def layers() -> list[tuple[BatchNorm | ConditionalBatchNorm, tuple[Tensor, ...]]]:
    """Of both kinds, and what they are given beside a map."""
    condition = torch.linspace(-1, 1, 18).view(6, 3)
    plain = BatchNorm(5, EPS, relu=True)
    conditional = ConditionalBatchNorm(5, nn.Linear(3, 5, bias=False), nn.Linear(3, 5, bias=False), EPS, biased=True)
    return [(plain, ()), (conditional, (condition,))]


@pytest.mark.parametrize("order", ORDERS)
def test_layers_give_and_observe_the_same(order: torch.memory_format) -> None:
    x = given(torch.float32, order)[0].detach()
    for layer, others in layers():
        ends: list[list[Tensor]] = []
        for ops in (Kernel(), PLAIN):
            use_ops(layer, ops)
            layer.normalisation_batch, layer.observer = 2, Observer()
            layer.stored_mean.zero_()
            layer.stored_var.fill_(1)
            made = layer(x, *others)
            layer.observer.commit(None)
            assert made.stride() == x.stride()
            ends.append([made, layer.stored_mean.clone(), layer.stored_var.clone()])
        for one, other in zip(*ends, strict=True):
            torch.testing.assert_close(one, other)
        assert not torch.equal(ends[0][1], torch.zeros(5))


def test_no_layer_uses_it_where_torchs_way_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluation has other statistics."""
    x = given(torch.float32)[0].detach()
    layer = layers()[0][0]
    use_ops(layer, Kernel())
    monkeypatch.setattr(Operation, "__call__", None)
    layer.eval()(x)
    layer.train()
    with pytest.raises(TypeError):
        layer(x)
    monkeypatch.undo()
    layer.normalisation_batch = 4
    with pytest.raises(ValueError, match="6 samples are not a whole number of normalisation groups of 4"):
        layer(x)


def test_without_data_it_is_of_the_same_shapes_and_strides() -> None:
    for order in ORDERS:
        x, gains, biases = (each.detach() for each in given(torch.bfloat16, order))
        rows = norm.moments(x, 2)
        found = norm.statistics(rows, 2, *of_rows(x, 2), EPS, False)
        sums = norm.slopes(x, x, found, gains, biases, True)
        totals = norm.gathered(sums, gains, 6, 2)[2]
        cases: dict[str, tuple[Any, ...]] = {
            "norm_moments": (x, 2),
            "norm_statistics": (rows, 2, *of_rows(x, 2), EPS, True),
            "norm_applied": (x, found, gains, biases, True),
            "norm_slopes": (x, x, found, gains, biases, True),
            "norm_gathered": (sums, gains, 6, 2),
            "norm_unapplied": (x, x, found, gains, biases, totals, True),
        }
        for name, values in cases.items():
            operation = getattr(torch.ops.frugan, name)
            empty, filled = (
                operation(*(each.to(device) if isinstance(each, Tensor) else each for each in values))
                for device in ("meta", "cpu")
            )
            pairs = [(empty, filled)] if isinstance(empty, Tensor) else list(zip(empty, filled, strict=True))
            for one, other in pairs:
                assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype), name


def of_rows(x: Tensor, groups: int) -> tuple[int, int]:
    rows = Rows.of(x, groups)
    return rows.grid.pixels, rows.chunk


@pytest.mark.parametrize("order", ORDERS)
def test_maps_move_as_often_as_they_must_and_one_is_kept(order: torch.memory_format) -> None:
    """Counted as every operation is; rows of sums are small beside a map."""
    x = torch.empty(8, 64, 64, 64, dtype=torch.float16, device="meta").contiguous(memory_format=order).requires_grad_()
    gains, biases = (x.new_empty(8, 64).requires_grad_() for _ in range(2))
    saved = SavedActivations([x, gains, biases])
    with WorkCounter() as forward, saved.watch():
        made = own(x, gains, biases, 2, True)
    with WorkCounter() as backward:
        torch.autograd.grad(made, [x, gains, biases], torch.empty_like(made))
    assert (forward.work.operations, backward.work.operations) == (3, 3)
    assert 3 <= forward.work.bytes_moved / x.nbytes < 3.3
    assert 5 <= backward.work.bytes_moved / x.nbytes < 5.3
    assert saved.saved_bytes < 0.01 * x.nbytes  # what is given is there anyway


@pytest.mark.parametrize("shape", [(4, 67, 5, 5), (32, 96, 128, 128), (32, 1536, 4, 4), (2, 3, 256, 256)])
@pytest.mark.parametrize("order", ORDERS)
def test_rows_cover_a_group(shape: tuple[int, ...], order: torch.memory_format) -> None:
    x = torch.empty(shape, device="meta").contiguous(memory_format=order)
    for groups in (1, 2):
        rows = Rows.of(x, groups)
        assert rows.units == (groups if rows.grid.last else shape[0])
        assert rows.units * rows.grid.pixels * shape[1] == x.numel()
        of_each = -(-rows.grid.pixels // rows.chunk)
        assert rows.grid.rows == rows.units * of_each
        assert norm._count(rows.grid.rows // groups, rows.grid.pixels, rows.chunk) * groups * shape[1] == x.numel()
