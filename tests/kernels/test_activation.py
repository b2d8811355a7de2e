"""Bias, leaky ReLU and clamp as one operation: what torch's operations give, to the bit, and its derivatives."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from frugan.contract.ops import PLAIN, Ops
from frugan.kernels import maps
from frugan.kernels.maps import grid_of
from frugan.nn.fir import fir_filter
from frugan.nn.modulated import modulated_conv2d
from frugan.setup.ops import kernel_names, ops_of
from frugan.stepmemory.work import WorkCounter

ALL = ops_of(kernel_names())
HALVES = (torch.float16, torch.bfloat16)


def biased_leaky_relu(x: Tensor, bias: Tensor, *, clamp: float | None = None, ops: Ops = PLAIN) -> Tensor:
    return ops.leaky_relu(x, bias, clamp)


def biased(x: Tensor, bias: Tensor, *, clamp: float | None, ops: Ops = PLAIN) -> Tensor:
    return ops.add_bias(x, bias, clamp)


def styled_leaky_relu(
    x: Tensor,
    factors: Tensor,
    noise: Tensor | None,
    strength: Tensor,
    bias: Tensor,
    clamp: float | None = None,
    ops: Ops = PLAIN,
) -> Tensor:
    return ops.styled_leaky_relu(x, factors, noise, strength, bias, clamp)


def random(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    made = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))
    return made.to(dtype).requires_grad_()


def given(dtype: torch.dtype, order: torch.memory_format = torch.contiguous_format) -> list[Tensor]:
    """A map, factors, noise, its strength and bias."""
    x = random(2, 5, 3, 4, dtype=dtype).detach().contiguous(memory_format=order).requires_grad_()
    wide = torch.promote_types(dtype, torch.float32)
    noise, strength = random(2, 1, 3, 4, dtype=wide), (random(1, dtype=wide).detach()[0] / 2).requires_grad_()
    return [x, random(2, 5, dtype=dtype), noise, strength, random(5, dtype=dtype)]


def both(call: Any, tensors: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Result, gradients, and gradients of a penalty on these, by one operation and by torch's."""
    sides = []
    for ops in (ALL, PLAIN):
        made = call(*tensors, ops=ops)
        plain = torch.autograd.grad(made.float().square().sum(), tensors, retain_graph=True)
        (first,) = torch.autograd.grad(made.float().sum(), tensors[:1], create_graph=True)
        penalty = (first.float().square().sum() + made.float().square().sum()) / 2
        sides.append([made, *plain, first, *torch.autograd.grad(penalty, tensors, allow_unused=True)])
    return [(own, torchs) for own, torchs in zip(*sides, strict=True) if own is not None]


@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("clamp", [None, 0.7])
def test_it_is_what_torch_gives(dtype: torch.dtype, order: torch.memory_format, clamp: float | None) -> None:
    x, factors, noise, strength, bias = given(dtype, order)
    near = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}[dtype]
    plain = both(partial(biased_leaky_relu, clamp=clamp), [x, bias])
    styled = both(partial(styled_leaky_relu, clamp=clamp), [x, factors, noise, strength, bias])
    colours = both(partial(biased, clamp=clamp), [x, bias])
    for own, torchs in (plain[0], plain[1], plain[3], styled[0], styled[1], colours[0]):
        assert torch.equal(own, torchs)
        assert own.stride() == torchs.stride()
    assert all(torch.equal(*pair) for pair in (colours[1], colours[3]))
    for own, torchs in plain + styled + colours:  # sums in another order, and not rounded in between
        torch.testing.assert_close(own, torchs, rtol=near, atol=near)


@pytest.mark.parametrize("clamp", [None, 0.7])
def test_derivatives(clamp: float | None) -> None:
    x, factors, noise, strength, bias = given(torch.float64)
    plain = partial(biased_leaky_relu, clamp=clamp, ops=ALL)
    styled = partial(styled_leaky_relu, clamp=clamp, ops=ALL)
    cases: tuple[tuple[Any, Any], ...] = (
        (plain, (x, bias)),
        (partial(biased, clamp=clamp, ops=ALL), (x, bias)),
        (styled, (x, factors, noise, strength, bias)),
        (lambda x, factors, bias: styled(x, factors, None, strength, bias), (x, factors, bias)),
    )
    for call, tensors in cases:
        assert torch.autograd.gradcheck(call, tensors)
        assert torch.autograd.gradgradcheck(call, tensors, fast_mode=True)


@pytest.mark.parametrize("of", [(0,), (1,), (0, 1), (0, 1, 2, 3, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_gradients_of_some_gradients(dtype: torch.dtype, of: tuple[int, ...]) -> None:
    """Of those for x, for the factors, both as path lengths ask for, and all."""
    tensors, sides = given(dtype, torch.channels_last), []
    near = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}[dtype]
    for call, chosen in ((partial(styled_leaky_relu, clamp=0.7), tensors), (modulated, tensors[:2])):
        for ops in (ALL, PLAIN):
            made = call(*chosen, ops=ops)
            weights = random(*made.shape, dtype=dtype)
            first = torch.autograd.grad(made, chosen, weights, create_graph=True)
            outputs = [each for i, each in enumerate(first) if i in of]
            given_them = [random(*each.shape, dtype=dtype).detach() for each in outputs]
            found = torch.autograd.grad(outputs, [weights, *chosen], given_them, allow_unused=True)
            sides.append([each for each in found if each is not None and each.any()])
    for own, torchs in (*zip(*sides[:2], strict=True), *zip(*sides[2:], strict=True)):
        torch.testing.assert_close(own, torchs, rtol=near, atol=near * float(torchs.abs().max()))


def modulated(x: Tensor, factors: Tensor, *, ops: Ops) -> Tensor:
    """Twice x·factors, by a convolution."""
    weight = torch.eye(x.shape[1], dtype=x.dtype)[:, :, None, None] * 2
    return modulated_conv2d(x, weight, factors, demodulate=False, ops=ops)


@pytest.mark.parametrize(("noisy", "every"), [(False, False), (False, True), (True, True)])
def test_gradients_of_gradients_of_gradients(noisy: bool, every: bool) -> None:
    """Of those for x and factors, and of every one."""
    x, factors, noise, strength, bias = given(torch.float64)
    styled, weights = [x, factors, *([noise, strength] if noisy else []), bias], random(*x.shape)

    def gradients(*of: Tensor) -> tuple[Tensor, ...]:
        *others, bias, weights = of
        x, factors, *drawn = others
        noise = drawn[0] if drawn else None
        made = styled_leaky_relu(x, factors, noise, drawn[-1] if drawn else strength, bias, clamp=0.7, ops=ALL)
        return torch.autograd.grad(made, of[: -1 if every else 2], weights, create_graph=True)

    def of_product(x: Tensor, factors: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(modulated(x, factors, ops=ALL), (x, factors), weights, create_graph=True)

    assert torch.autograd.gradgradcheck(gradients, (*styled, weights), fast_mode=True)
    assert every or torch.autograd.gradgradcheck(of_product, (x, factors, weights), fast_mode=True)


def test_gradients_of_gradients_are_one_operation_and_its_sums() -> None:
    """As of path lengths: of all that is given, by what the gradients of maps and factors are worth."""
    x, factors, noise, strength, bias = given(torch.float16, torch.channels_last)
    styled = partial(styled_leaky_relu, noise=noise.detach(), strength=strength, bias=bias)
    for call, chosen in ((styled, [x, factors]), (modulated, [x, factors])):
        made = call(*chosen, ops=ALL)
        weights = random(*made.shape, dtype=made.dtype).detach().contiguous(memory_format=torch.channels_last)
        weights.requires_grad_()
        with WorkCounter() as counter:
            first = torch.autograd.grad(made, chosen[:2], weights, create_graph=True)
        own = 3 if call is modulated else 2  # the convolution's; its input is not scaled again
        assert counter.work.operations == own
        values = [torch.ones_like(each) for each in first]
        with WorkCounter() as counter:
            torch.autograd.grad(first, [weights, *chosen[:2]], values)
        assert counter.work.operations == own


def test_what_no_gradient_comes_to_is_left_alone() -> None:
    """A gradient of a gradient asks for slopes, and not for what was made; a penalty's first not for a bias's sum."""
    x, bias = random(2, 5, 3, 4), random(5)
    for call in (biased_leaky_relu, partial(biased, clamp=0.7)):
        made, weights = call(x * 2, bias, ops=ALL), random(2, 5, 3, 4)
        with WorkCounter() as counter:
            (first,) = torch.autograd.grad(made, x, weights, create_graph=True)
        assert counter.work.operations == 2  # slopes, and what made x twice as large
        with WorkCounter() as counter:
            torch.autograd.grad(first, [weights, x, bias], torch.ones_like(x), allow_unused=True)
        assert counter.work.operations <= 3


@pytest.mark.parametrize("ops", [PLAIN, ALL])
@pytest.mark.parametrize("dtype", HALVES)
def test_what_was_clamped_has_no_gradient(dtype: torch.dtype, ops: Ops) -> None:
    """0.7 is no half: it was held to less, and a gradient came through."""
    x, bias = torch.full((2, 3), 9.0, dtype=dtype, requires_grad=True), torch.zeros(3, dtype=dtype)
    (gradient,) = torch.autograd.grad(biased_leaky_relu(x, bias, clamp=0.7, ops=ops).sum(), x)
    assert not gradient.any()


@pytest.mark.parametrize("up", [False, True])
def test_a_modulated_convolution(up: bool) -> None:
    """Its gradients, and theirs."""
    x, styles, weight = random(2, 5, 4, 6), random(2, 5), random(3, 5, 3, 3)
    call = partial(modulated_conv2d, weight=weight, upsample_by=fir_filter().double() if up else None)
    for own, torchs in both(lambda *tensors, ops: call(tensors[0], styles=tensors[1], ops=ops), [x, styles]):
        torch.testing.assert_close(own, torchs, check_dtype=False)
    assert torch.autograd.gradgradcheck(lambda x, styles: call(x, styles=styles, ops=ALL), (x, styles), fast_mode=True)


def test_noise_that_all_samples_share() -> None:
    x, factors, _, strength, bias = given(torch.float32)
    noise = random(3, 4, dtype=torch.float32)
    for own, torchs in both(styled_leaky_relu, [x, factors, noise, strength, bias]):
        torch.testing.assert_close(own, torchs)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_noise_is_scaled_as_torch_scales_it(dtype: torch.dtype) -> None:
    """Rounded to its own precision and then to the map's, where a half precision has more of it."""
    x, factors, noise, strength, bias = (each.detach() for each in given(torch.float32))
    values = x.to(dtype), factors.to(dtype)
    for drawn in (noise, noise.half(), noise.bfloat16()):
        one, other = (styled_leaky_relu(*values, drawn, strength, bias, ops=ops) for ops in (ALL, PLAIN))
        assert torch.equal(one, other)


@pytest.mark.parametrize("shape", [(3, 7), (0, 4, 2, 2), (2, 4, 0, 3), (1, 1, 1, 1)])
def test_vectors_and_empty_maps(shape: tuple[int, ...]) -> None:
    for own, torchs in both(biased_leaky_relu, [random(*shape), random(shape[1])]):
        assert own.shape == torchs.shape
        torch.testing.assert_close(own, torchs, check_dtype=False)


def test_maps_and_gradients_that_lie_otherwise_are_laid_out() -> None:
    x, bias = random(2, 5, 8, 4)[:, :, ::2], random(5)
    made = biased_leaky_relu(x, bias, ops=ALL)
    assert torch.equal(made, biased_leaky_relu(x, bias))
    turned = torch.randn(4, 5, 4, 2, dtype=torch.float64).permute(3, 1, 0, 2)
    (own,) = torch.autograd.grad(made, bias, turned)
    torch.testing.assert_close(own, torch.autograd.grad(biased_leaky_relu(x, bias), bias, turned)[0])


def test_without_data_it_is_of_the_same_shapes_and_strides() -> None:
    for order in (torch.channels_last, torch.contiguous_format):
        x, factors, noise, strength, bias = (each.detach() for each in given(torch.bfloat16, order))
        tensors: dict[str, list[Any]] = {
            "leaky_relu": [x, bias, 1.0],
            "leaky_relu_slopes": [x, x, None, True],
            "styled_leaky_relu": [x, factors, noise, strength, bias, 1.0],
            "styled_leaky_relu_slopes": [x, x, x, factors, noise, None],
            "unscaled": [x, x, factors],
            "unscaled_twice": [x, x, x, factors, x, factors, 1.0],
            "added_up": [factors.float(), factors.float(), factors.float().flatten(), 2, torch.bfloat16],
        }
        for name, values in tensors.items():
            operation = getattr(torch.ops.frugan, name)
            found, expected = (
                operation(*(each.to(device) if isinstance(each, Tensor) else each for each in values))
                for device in ("meta", "cpu")
            )
            pairs = [(found, expected)] if isinstance(found, Tensor) else list(zip(found, expected, strict=True))
            for one, other in pairs:
                assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)


@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format])
def test_each_map_moves_once(order: torch.memory_format) -> None:
    """Counted as every operation is; rows of sums are small beside it."""
    x = torch.empty(8, 64, 64, 64, dtype=torch.float16, device="meta").contiguous(memory_format=order)
    made, gradient = torch.empty_like(x), torch.empty_like(x)
    factors, bias, noise, strength = x.new_empty(8, 64), x.new_empty(64), x.new_empty(8, 1, 64, 64), x.new_empty(())
    cases: dict[str, tuple[int, list[Any]]] = {
        "leaky_relu": (2, [x, bias, 1.0]),
        "leaky_relu_slopes": (3, [gradient, made, 1.0, True]),
        "styled_leaky_relu": (2, [x, factors, noise, strength, bias, 1.0]),
        "styled_leaky_relu_slopes": (4, [gradient, made, x, factors, noise, 1.0]),
        "unscaled": (3, [gradient, x, factors]),
        "unscaled_twice": (5, [gradient, None, x, factors, x.clone(), factors, None]),
    }
    for name, (passes, values) in cases.items():
        with WorkCounter() as counter:
            getattr(torch.ops.frugan, name)(*values)
        assert counter.work.operations == 1
        assert passes <= counter.work.bytes_moved / x.nbytes < passes + 0.15, name


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 67, 5, 5), (8, 32, 256, 256), (64, 512, 4, 4), (2, 3, 1024, 1024)])
@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("apart", [False, True])
def test_programs_cover_a_map_and_their_sums_are_small(
    shape: tuple[int, ...], order: torch.memory_format, apart: bool
) -> None:
    x = torch.empty(shape, device="meta").contiguous(memory_format=order)
    grid = grid_of(x, apart=apart, summed=True)
    assert grid.pictures * grid.pixels * grid.channels == x.numel()
    assert grid.block_p * grid.block_c <= maps.TILE
    assert grid.blocks * grid.block_c >= grid.channels > (grid.blocks - 1) * grid.block_c
    chunk = grid.block_p * grid.loops
    assert grid.rows * chunk >= grid.pictures * grid.pixels > grid.rows * chunk - grid.pictures * chunk
    if grid.pictures < maps.MOST_PROGRAMS:
        assert grid.rows * grid.blocks <= 2 * maps.MOST_PROGRAMS
