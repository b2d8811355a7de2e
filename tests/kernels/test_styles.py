"""Styles of all layers at once, by operations of our own: what layers make of them one by one, and derivatives."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from frugan.contract.layers import use_ops
from frugan.contract.ops import PLAIN
from frugan.families.stylegan2.config import StyleGAN2Networks
from frugan.families.stylegan2.networks import Generator
from frugan.kernels import styles as kernels
from frugan.kernels.operation import Operation, operations
from frugan.kernels.styles import Styles, modulations, one_by_one
from frugan.stepmemory.work import WorkCounter

WIDTHS, OUTPUTS, PLACES = (5, 5, 3, 4, 2), (3, 4, 2), (0, 1, 1, 1, 2)
"""Of layers: inputs, outputs of those that are demodulated, and the styles that they take; three take one."""


def random(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    made = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))
    return made.to(dtype).requires_grad_()


def leaves(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Styles, weights, biases and sums of squares."""
    weights = [random(width, 6, dtype=dtype) for width in WIDTHS]
    biases = [random(width, dtype=dtype) for width in WIDTHS]
    squares = [
        random(outputs, width, dtype=dtype).detach().square().requires_grad_()
        for outputs, width in zip(OUTPUTS, WIDTHS, strict=False)
    ]
    return [random(2, 3, 6, dtype=dtype), *weights, *biases, *squares]


def made_of(*tensors: Tensor, dtypes: tuple[torch.dtype, ...], plain: bool = False) -> tuple[Tensor, ...]:
    styles, *others = tensors
    count = len(WIDTHS)
    affines = list(zip(others[:count], others[count : 2 * count], PLACES, strict=True))
    squares = others[2 * count :]
    if plain:
        alone = [F.linear(styles[:, place], weight, bias) for weight, bias, place in affines]
        factors, norms = one_by_one(alone, squares, dtypes, 1e-3)
    else:
        factors, norms = modulations(styles, affines, squares, dtypes, 1e-3)
    return (*factors, *norms)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16, torch.float32])
def test_it_is_what_layers_make_one_by_one(half: torch.dtype) -> None:
    """In the dtype of each; and gradients, and those of a penalty on these."""
    dtypes = (torch.float32, half, half, torch.float32, half)
    near = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}[half]
    sides = []
    for plain in (False, True):
        tensors = leaves(torch.float32)
        made = made_of(*tensors, dtypes=dtypes, plain=plain)
        assert [each.dtype for each in made] == [*dtypes, *dtypes[: len(OUTPUTS)]]
        assert all(each.is_contiguous() for each in made)
        total = torch.cat([(each.float() * (i + 1) / 30).flatten() for i, each in enumerate(made)]).square().sum()
        (alone,) = torch.autograd.grad(made[4].float().sum(), tensors[:1], retain_graph=True)
        (first,) = torch.autograd.grad(total, tensors[:1], create_graph=True)
        sides.append([*made, alone, first, *torch.autograd.grad(first.square().sum(), tensors)])
    for own, torchs in zip(*sides, strict=True):
        assert own.shape == torchs.shape
        most = float(torchs.detach().float().abs().max())
        torch.testing.assert_close(own, torchs, rtol=near, atol=near * most)


def test_derivatives() -> None:
    def call(*tensors: Tensor) -> tuple[Tensor, ...]:
        return made_of(*tensors, dtypes=(torch.float64,) * len(WIDTHS))

    assert torch.autograd.gradcheck(call, leaves())
    assert torch.autograd.gradgradcheck(call, leaves(), fast_mode=True)


def test_gradients_may_come_in_any_layout_and_masters_in_any_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spread out from one number, or turned, into each kind of product: a kernel would read what lies behind."""
    seen = []

    def called(self: Operation[..., Any], *values: Any) -> Any:
        tensors = [of for value in values for of in (value if isinstance(value, list | tuple) else [value])]
        tensors = [tensor for tensor in tensors if isinstance(tensor, Tensor)]
        seen.append(self.name)
        assert all(tensor.is_contiguous() and tensor.dtype == tensors[0].dtype for tensor in tensors), self.name
        return getattr(torch.ops.frugan, self.name)(*values)

    monkeypatch.setattr(Operation, "__call__", called)
    layers = kernels.Layers(2, (0, 0, 5), 10, 20)
    one = random(1).detach()
    x, y = one.expand(20), one.expand(18)
    turned = [random(width, outputs).detach().T for outputs, width in ((3, 5), (4, 5), (2, 5))]
    kernels._Products.apply(x, layers, *turned)
    kernels._GivenBack.apply(y, layers, *turned)
    kernels._Outers.apply(y, x, layers, [each.shape for each in turned], True)
    kernels._OverLargest.apply(y, None, [3, 4, 2], [True, False, True], 2)
    tensors = leaves(torch.float32)
    halves = [tensors[0], *(each.bfloat16() for each in tensors[1:])]
    made = made_of(*halves, dtypes=(torch.float16,) * len(WIDTHS))
    torch.autograd.grad(torch.stack([each.float().sum() for each in made]).sum(), tensors[:1])
    assert len(set(seen)) == len(list(operations(kernels)))


def test_the_largest_factor_in_fp16_is_one_and_colours_keep_their_scale() -> None:
    made = made_of(*leaves(torch.float32), dtypes=(torch.float16,) * len(WIDTHS))
    demodulated, colours = made[: len(OUTPUTS)], made[len(OUTPUTS) : len(WIDTHS)]
    assert all(bool((each.abs().amax(1) == 1).all()) for each in demodulated)
    assert not any(bool((each.abs().amax(1) == 1).any()) for each in colours)
    styles, *others = leaves(torch.float32)
    broken = made_of(styles * float("nan"), *others, dtypes=(torch.float16,) * len(WIDTHS))
    assert all(bool(each.isnan().all()) for each in broken)


def values() -> dict[str, tuple[Any, ...]]:
    """Of each operation what it may be given: two samples of two layers that share their inputs, and of one more."""
    matrices, biases = [torch.randn(3, 5), torch.randn(4, 5), torch.randn(2, 5)], [torch.randn(n) for n in (3, 4, 2)]
    x, y, at = torch.randn(20), torch.randn(18), (2, [0, 0, 5], 10)
    return {
        "styles_products": (x, matrices, biases, *at),
        "styles_given_back": (y, matrices, *at, 20),
        "styles_outers": (y, x, [3, 4, 2], [5, 5, 5], *at, True),
        "styles_over_largest": (y, None, [3, 4, 2], [True, False, True], 2),
    }


def test_without_data_it_is_of_the_same_shapes_and_strides() -> None:
    rows, _, *others = values()["styles_over_largest"]
    for name, given in (*values().items(), ("styles_over_largest", (rows, torch.ones(3, 2), *others))):
        empty, filled = (getattr(torch.ops.frugan, name)(*(on(each, device) for each in given)) for device in DEVICES)
        pairs = [(empty, filled)] if isinstance(empty, Tensor) else list(zip(empty, filled, strict=True))
        for one, other in pairs:
            assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype), name


DEVICES = ("meta", "cpu")


def on(value: Any, device: str) -> Any:
    if isinstance(value, list):
        return [on(each, device) for each in value]
    return value.to(device) if isinstance(value, Tensor) else value


def test_operations_are_as_many_for_many_layers_as_for_few() -> None:
    """Forward and backward; each matrix is read once a product, and its gradient written once."""
    counts = []
    for layers in (2, 12):
        matrices = [torch.empty(64, 64, device="meta", requires_grad=True) for _ in range(2 * layers)]
        biases = [torch.empty(64, device="meta", requires_grad=True) for _ in range(layers)]
        styles = torch.empty(4, layers, 64, device="meta", requires_grad=True)
        affines = list(zip(matrices[:layers], biases, range(layers), strict=True))
        with WorkCounter() as counter:
            made = modulations(styles, affines, matrices[layers:], [torch.float16] * layers, 1e-8)
            flat = [each for part in made for each in part]
            torch.autograd.backward(flat, [torch.empty_like(each) for each in flat])
        counts.append(counter.work.operations)
        moved = counter.work.bytes_moved / sum(matrix.nbytes for matrix in matrices)
    assert counts[0] == counts[1] < 30
    assert 3 <= moved < 6  # rows of four samples are many beside matrices of 64 columns


@pytest.mark.parametrize("architecture", ["skip", "resnet"])
def test_a_generator(architecture: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures, and gradients of a penalty on lengths; where layers' gains differ, each is by itself."""
    config = StyleGAN2Networks(resolution=16, channel_base=256, channel_max=16, generator_architecture=architecture)
    torch.manual_seed(1)
    generator = Generator(config).double()
    for parameter in generator.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ws = torch.randn(2, generator.styles, config.style_size, dtype=torch.float64, requires_grad=True)
    calls, sides = list[str](), []
    products = kernels._Products.apply

    def counted(*of: Any) -> Any:
        calls.append("called")
        return products(*of)

    monkeypatch.setattr(kernels._Products, "apply", counted)
    for ops in (Styles(), PLAIN):
        use_ops(generator, ops)
        pictures = generator.synthesis(ws)
        (lengths,) = torch.autograd.grad(pictures.square().sum(), ws, create_graph=True)
        to_parameters = torch.autograd.grad(lengths.square().sum(), list(generator.synthesis.parameters()))
        sides.append([pictures, lengths, *to_parameters])
    assert bool(calls) == (architecture == "skip")
    for own, torchs in zip(*sides, strict=True):
        torch.testing.assert_close(own, torchs)
