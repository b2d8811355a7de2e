"""Linear maps of pictures: what they keep, and their derivatives."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from frugan.accelerator.precision import resolve_precision
from frugan.contract.resampling import mean_pool2d
from frugan.engine.plan import Plan
from frugan.engine.run.threads import rehearse
from frugan.engine.streams import Streams
from frugan.nn.linear_maps import conv2d
from frugan.planning.prediction import BlankPictures
from frugan.recipe.loading import load_recipe
from frugan.setup.recipe_setup import training_of

CASES = [(1, 1, 0), (3, 1, 1), (3, 2, 0), (3, 2, 1)]
"""Kernel, stride, padding."""


def _random(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    made = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))
    return made.to(dtype).contiguous(memory_format=torch.channels_last)


def _kept(function: Callable[[Tensor], Tensor], x: Tensor) -> set[int]:
    """Addresses of the memory that autograd keeps."""
    addresses: set[int] = set()

    def keep(tensor: Tensor) -> Tensor:
        addresses.add(tensor.untyped_storage().data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        function(x)
    return addresses


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("kernel", "stride", "padding"), CASES)
def test_a_convolution_with_a_weight_that_learns_nothing(
    kernel: int, stride: int, padding: int, dtype: torch.dtype
) -> None:
    """The bits of torch's, value and gradient, of an odd side too."""
    weight, bias = _random(8, 4, kernel, kernel, dtype=dtype), torch.linspace(-1, 1, 8, dtype=dtype)
    for side in (8, 9):
        ours, theirs = (_random(2, 4, side, side, dtype=dtype).requires_grad_() for _ in range(2))
        made = conv2d(ours, weight, bias, stride=stride, padding=padding)
        expected = F.conv2d(theirs, weight, bias, stride, padding)
        assert torch.equal(made, expected)
        upstream = _random(*made.shape, dtype=dtype)
        (gradient,), (wanted,) = (torch.autograd.grad(y, x, upstream) for y, x in ((made, ours), (expected, theirs)))
        assert torch.equal(gradient, wanted)
        assert gradient.stride() == wanted.stride()


@pytest.mark.parametrize(("kernel", "stride", "padding"), CASES)
def test_its_derivatives(kernel: int, stride: int, padding: int) -> None:
    x, weight, bias = _random(2, 3, 5, 4).requires_grad_(), _random(2, 3, kernel, kernel), torch.ones(2).double()

    def convolved(x: Tensor) -> Tensor:
        return conv2d(x, weight, bias, stride=stride, padding=padding)

    assert torch.autograd.gradcheck(convolved, (x,))
    assert torch.autograd.gradgradcheck(convolved, (x,), fast_mode=True)


def test_a_convolution_in_groups() -> None:
    """Values and both derivatives, of a weight that learns nothing."""
    x, weight = _random(2, 6, 5, 4).requires_grad_(), _random(4, 3, 3, 3)

    def convolved(x: Tensor) -> Tensor:
        return conv2d(x, weight, padding=1, groups=2)

    torch.testing.assert_close(convolved(x), F.conv2d(x, weight, padding=1, groups=2))
    assert torch.autograd.gradcheck(convolved, (x,))
    assert torch.autograd.gradgradcheck(lambda x: convolved(x).square(), (x,), fast_mode=True)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("kernel", "stride", "padding"), CASES)
def test_a_convolution_that_learns(kernel: int, stride: int, padding: int, groups: int) -> None:
    """Torch's values; gradients and second derivatives in all that it is given."""
    x, weight = _random(2, 4, 5, 4).requires_grad_(), _random(4, 4 // groups, kernel, kernel).requires_grad_()
    bias = torch.linspace(-1, 1, 4).double().requires_grad_()

    def convolved(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return conv2d(x, weight, bias, stride=stride, padding=padding, groups=groups, penalised=True)

    assert torch.equal(convolved(x, weight, bias), F.conv2d(x, weight, bias, stride, padding, 1, groups))
    assert torch.autograd.gradcheck(convolved, (x, weight, bias))
    assert torch.autograd.gradgradcheck(lambda *given: convolved(*given).square(), (x, weight, bias), fast_mode=True)


class _Convolutions(TorchDispatchMode):
    """Notes what is done, and with kernels of what size."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[tuple[int, ...]] = []
        self.in_weights = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.convolution.default:
            self.kernels.append(tuple(args[1].shape[2:]))
        if function is torch.ops.aten.convolution_backward.default:
            self.in_weights += args[-1][1]
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("groups", [1, 2])
def test_a_penalty_asks_for_no_more_than_it_needs(groups: int) -> None:
    """Its first gradient leaves out weights, and no kernel is as large as the picture; gradients are torch's."""
    weights = [_random(4, 4 // groups, 3, 3).requires_grad_() for _ in range(2)]
    ends = []
    ours = partial(conv2d, penalised=True)
    for convolve in (ours, F.conv2d):
        x = _random(2, 4, 9, 9).requires_grad_()
        first, second = _Convolutions(), _Convolutions()
        made = x
        for weight in weights:
            made = F.leaky_relu(convolve(made, weight, padding=1, groups=groups), 0.2)
        with first:
            (gradient,) = torch.autograd.grad(made.square().sum(), x, create_graph=True)
        with second:
            ends.append(torch.autograd.grad(gradient.square().sum(), weights))
        if convolve is ours:
            assert first.in_weights == 0
            assert second.in_weights == 4  # of each weight: from its use forward and from its use in the gradient
            assert {*first.kernels, *second.kernels} == {(3, 3)}
        else:  # should torch mend it, ours is not needed any more
            assert max(second.kernels) == (9, 9)
    for own, torchs in zip(*ends, strict=True):
        torch.testing.assert_close(own, torchs)


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (
            "biggan-digits-32",
            ["objective.r1_every=1", "networks.generator_channels=2", "training.normalisation_batch=4"],
        ),
        ("stylegan2-digits-32", ["networks.channel_base=64", "objective.r1_every=1", "objective.path_length_every=1"]),
        ("r3gan-digits-32", ["networks.widths=[8,8,8,8]", "networks.groups=[2,2,2,2]"]),
    ],
)
def test_no_training_has_a_kernel_as_large_as_a_picture(recipe: str, words: list[str]) -> None:
    """Its penalties neither: all phases that differentiate gradients say so."""
    training = training_of(load_recipe(recipe, ["training.batch=4", "training.precision=fp32", *words]))
    plan = Plan(training.batch, resolve_precision("fp32", torch.device("cpu")))
    stage = training.stages[0]
    state = training.state(plan, torch.device("cpu"))
    step = training.step(BlankPictures(stage.sources), Streams(0), stage=stage)
    with _Convolutions() as convolutions:
        rehearse(step, state, plan)
    assert convolutions.in_weights
    assert max(height * width for height, width in convolutions.kernels) <= 4 * 4


def test_what_is_kept() -> None:
    """Only where the weight learns is the input needed again."""
    x, weight = _random(2, 3, 4, 4).requires_grad_(), _random(2, 3, 3, 3)
    own = x.untyped_storage().data_ptr()
    assert own not in _kept(lambda x: conv2d(x, weight), x)
    assert own in _kept(lambda x: conv2d(x, weight.requires_grad_()), x)
    assert not _kept(mean_pool2d, x)
    assert own in _kept(lambda x: F.avg_pool2d(x, 2), x)  # should torch mend it, ours is not needed any more


def test_a_weight_that_learns_gets_its_gradient() -> None:
    x, weight, bias = _random(2, 3, 4, 4).requires_grad_(), _random(2, 3, 3, 3).requires_grad_(), torch.ones(2).double()
    for learning in ((weight,), (weight, bias.requires_grad_())):
        gradients = torch.autograd.grad(conv2d(x, weight, bias, padding=1).square().sum(), (x, *learning))
        wanted = torch.autograd.grad(F.conv2d(x, weight, bias, padding=1).square().sum(), (x, *learning))
        assert all(torch.equal(a, b) for a, b in zip(gradients, wanted, strict=True))
    with_bias_alone = conv2d(x, weight.detach(), bias, padding=1)
    assert torch.autograd.grad(with_bias_alone.sum(), bias)[0].tolist() == [32.0, 32.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_means_of_four(dtype: torch.dtype) -> None:
    ours, theirs = (_random(2, 3, 6, 4, dtype=dtype).requires_grad_() for _ in range(2))
    made, expected = mean_pool2d(ours), F.avg_pool2d(theirs, 2)
    assert torch.equal(made, expected)
    upstream = _random(*made.shape, dtype=dtype)
    (gradient,), (wanted,) = (torch.autograd.grad(y, x, upstream) for y, x in ((made, ours), (expected, theirs)))
    assert torch.equal(gradient, wanted)
    assert gradient.stride() == wanted.stride()


def test_derivatives_of_means() -> None:
    x = _random(2, 3, 4, 6).requires_grad_()
    assert torch.autograd.gradcheck(mean_pool2d, (x,))
    assert torch.autograd.gradgradcheck(mean_pool2d, (x,), fast_mode=True)


class _Called(TorchDispatchMode):
    """Notes what is called."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_the_gradient_of_what_is_held_constant_is_one_convolution() -> None:
    """Torch's own way stands a dummy in for the input, in whose order cuDNN would copy the gradient, and back."""
    x = _random(2, 4, 8, 8).requires_grad_()
    made = conv2d(x, _random(8, 4, 3, 3), padding=1)
    upstream = _random(*made.shape)
    with _Called() as called:
        torch.autograd.grad(made, x, upstream)
    assert "convolution.default" in called.operations
    assert not [name for name in called.operations if "convolution_backward" in name or "expand" in name]
