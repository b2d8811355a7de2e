"""ReLU and means in one pass, by operations of our own: torch's bits, their derivatives, what moves and is kept."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from frugan.contract.layers import use_ops
from frugan.contract.ops import PLAIN
from frugan.families.biggan.config import BigGANNetworks
from frugan.families.biggan.networks import DeepDiscriminatorBlock, DiscriminatorBlock, Layers
from frugan.kernels import pooling
from frugan.kernels.operation import Operation, operations
from frugan.kernels.pooling import Pooling
from frugan.stepmemory.work import SavedActivations, WorkCounter

KERNEL = Pooling()
LAST = torch.channels_last
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
NAMES = {operation.name for operation in operations(pooling)}


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).contiguous(memory_format=LAST)


def halved(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 2)


def test_a_single_channels_gradient_in_either_layout() -> None:
    """It is in both at once, with strides of one of them."""
    gradient = torch.randn(1, 1, 3, 3, generator=torch.Generator().manual_seed(1))
    for given in (gradient, gradient.contiguous(memory_format=LAST), gradient[:, :, :1, :1].expand(1, 1, 3, 3)):
        x = random(1, 1, 6, 6).requires_grad_()
        (made,) = torch.autograd.grad(KERNEL.means_plus(x, lambda: random(1, 1, 3, 3), x), x, given)
        assert torch.equal(made, given.repeat_interleave(2, 2).repeat_interleave(2, 3) / 4)


def relu_and_means(x: Tensor) -> tuple[Tensor, Tensor]:
    activated, means, _ = KERNEL.relu_and_means(x)
    return activated, means()


Call = Callable[[Tensor, Tensor], tuple[Tensor, ...]]
CALLS: dict[str, tuple[Call, Call]] = {
    "relu and means": (lambda x, _: relu_and_means(x), lambda x, _: (F.relu(x), halved(x))),
    "relu and itself": (lambda x, _: KERNEL.relu_and_itself(x), lambda x, _: (F.relu(x), x)),
    "means plus": (
        lambda x, small: (KERNEL.means_plus(x, lambda: small, x),),
        lambda x, small: (halved(x) + small,),
    ),
    "means of relu": (lambda x, _: (KERNEL.relu_means(x)(),), lambda x, _: (halved(F.relu(x)),)),
}
"""By operations of our own, and by torch's."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
def test_bits_are_torchs(name: str, dtype: torch.dtype) -> None:
    ends = []
    for call in CALLS[name]:
        x, small = random(2, 5, 6, 4, dtype=dtype).requires_grad_(), random(2, 5, 3, 2, dtype=dtype).requires_grad_()
        made = call(x, small)
        upstream = [random(*each.shape, dtype=dtype) for each in made]
        gradients = torch.autograd.grad(made, [x, small], upstream, allow_unused=True)
        ends.append([*made, *(each for each in gradients if each is not None)])
    for one, other in zip(*ends, strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()


@pytest.mark.parametrize("name", CALLS)
def test_derivatives(name: str) -> None:
    given = [random(2, 3, 4, 6, dtype=torch.float64).requires_grad_(), random(2, 3, 2, 3, dtype=torch.float64)]
    call = CALLS[name][0]
    assert torch.autograd.gradcheck(lambda x: call(x, given[1]), given[:1])
    assert torch.autograd.gradgradcheck(
        lambda x: [each.square() for each in call(x, given[1])], given[:1], fast_mode=True
    )


@pytest.mark.parametrize("name", ["relu and means", "relu and itself"])
@pytest.mark.parametrize("part", [0, 1])
def test_what_one_of_two_is_used_of(name: str, part: int) -> None:
    ends = []
    for call in CALLS[name]:
        x = random(2, 3, 4, 4).requires_grad_()
        ends.append(torch.autograd.grad(call(x, x)[part].square().sum(), x)[0])
    assert torch.equal(*ends)


def test_they_are_for_maps_in_channels_last(monkeypatch: pytest.MonkeyPatch) -> None:
    x = random(2, 3, 4, 4).contiguous()
    monkeypatch.setattr(Operation, "__call__", None)
    for call, plain in (
        (relu_and_means, CALLS["relu and means"][1]),
        (KERNEL.relu_and_itself, lambda x, _: (F.relu(x), x)),
    ):
        assert all(torch.equal(*pair) for pair in zip(call(x), plain(x, x), strict=True))
    assert torch.equal(KERNEL.relu_means(x)(), halved(F.relu(x)))
    assert torch.equal(KERNEL.means_plus(x, lambda: halved(x), x), 2 * halved(x))
    with pytest.raises(TypeError):
        KERNEL.relu_means(random(2, 3, 4, 4))()


def test_what_is_not_a_number_stays_so() -> None:
    x = random(1, 2, 4, 4)
    x[0, 0, 0, 0] = float("nan")
    assert relu_and_means(x)[0].isnan().sum() == relu_and_means(x)[1].isnan().sum() == 1
    assert KERNEL.relu_means(x)().isnan().sum() == 1


@pytest.mark.parametrize("shape", [(2, 5, 6, 4), (1, 1, 2, 2), (3, 4, 2, 2)])
def test_without_data_they_are_of_the_same_shapes_and_strides(shape: tuple[int, ...]) -> None:
    x, small = random(*shape), random(*shape[:2], shape[2] // 2, shape[3] // 2)
    cases = {
        "pooled_beside_relu": (x,),
        "pooled_plus": (x, small),
        "pooled_relu": (x,),
        "pooled_beside_relu_slopes": (x, x, small),
        "passed_plus": (x, x, x),
        "pooled_relu_slopes": (small, x),
    }
    assert cases.keys() == NAMES
    for name, values in cases.items():
        operation = getattr(torch.ops.frugan, name)
        empty, filled = (operation(*(each.to(device) for each in values)) for device in ("meta", "cpu"))
        pairs = [(empty, filled)] if isinstance(empty, Tensor) else list(zip(empty, filled, strict=True))
        for one, other in pairs:
            assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype), name


@pytest.mark.parametrize(
    ("name", "passes", "kept"),
    [
        ("relu and means", (2.25, 3.25), 1.0),
        ("relu and itself", (2.0, 4.0), 1.0),
        ("means plus", (1.5, 1.25), 0.0),  # and what is kept anyway, which here is its input
        ("means of relu", (1.25, 2.25), 0.0),
    ],
)
def test_maps_move_as_often_as_they_must(name: str, passes: tuple[float, float], kept: float) -> None:
    """Each way is one operation; what is given is there anyway."""
    x = torch.empty(2, 64, 64, 64, dtype=torch.float16, device="meta").contiguous(memory_format=LAST).requires_grad_()
    small = x.new_empty(2, 64, 32, 32).contiguous(memory_format=LAST)
    saved = SavedActivations([x, small])
    with WorkCounter() as forward, saved.watch():
        outputs = CALLS[name][0](x, small)
    with WorkCounter() as backward:
        torch.autograd.grad(outputs, x, [torch.empty_like(each) for each in outputs])
    assert (forward.work.operations, backward.work.operations) == (1, 1)
    assert (forward.work.bytes_moved / x.nbytes, backward.work.bytes_moved / x.nbytes) == passes
    assert saved.saved_bytes == kept * x.nbytes


def blocks() -> dict[str, Any]:
    """Of discriminators, of all kinds; of wide ones 8x8 pixels are few, and means are not folded away."""
    torch.manual_seed(3)
    layers = Layers(BigGANNetworks(resolution=128, classes=2))
    return {
        "first": DiscriminatorBlock(layers, 4, 8, wide=True, first=True, downsample=True),
        "first, wide": DiscriminatorBlock(layers, 4, 24, wide=True, first=True, downsample=True),
        "halving": DiscriminatorBlock(layers, 4, 8, wide=True, first=False, downsample=True),
        "halving, wide": DiscriminatorBlock(layers, 4, 24, wide=True, first=False, downsample=True),
        "last": DiscriminatorBlock(layers, 4, 4, wide=True, first=False, downsample=False),
        "deep, halving": DeepDiscriminatorBlock(layers, 4, 8, downsample=True),
        "deep": DeepDiscriminatorBlock(layers, 4, 4, downsample=False),
    }


@pytest.mark.parametrize("name", blocks())
def test_blocks_are_what_they_are_without(name: str) -> None:
    """By hand: the input's ReLU through convolutions, beside a skip; both halved."""
    block, ends = blocks()[name], []
    x = random(2, 4, 8, 8).requires_grad_()
    for ops in (KERNEL, PLAIN):
        use_ops(block, ops)
        made = block(x)
        ends.append([made, *torch.autograd.grad(made.square().sum(), [x, *block.parameters()])])
    assert all(torch.equal(*pair) for pair in zip(*ends, strict=True))
    smaller: Callable[[Tensor], Tensor] = halved if block.downsample else (lambda x: x)
    if isinstance(block, DiscriminatorBlock):
        h = block.conv2(F.relu(block.conv1(x if block.first else F.relu(x))))
        expected = smaller(h) + block.conv_sc(smaller(x))
    else:
        h = block.conv1(F.relu(x))
        for convolution in (block.conv2, block.conv3):
            h = convolution(F.relu(h))
        skip = smaller(x) if block.conv_sc is None else torch.cat([smaller(x), block.conv_sc(smaller(x))], 1)
        expected = block.conv4(smaller(F.relu(h))) + skip
    torch.testing.assert_close(ends[0][0], expected)


def test_a_block_that_is_recomputed_is_so_before_its_gradient_is_spread() -> None:
    """Or a map as large as the block's largest would lie beside all that is made again."""
    block, x, order = blocks()["halving, wide"], random(2, 4, 8, 8).requires_grad_(), list[str]()
    use_ops(block, KERNEL)

    class Order(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            order.append(func.__name__)
            return func(*args, **(kwargs or {}))

    made = checkpoint(block, x, use_reentrant=False)
    with Order():
        made.sum().backward()
    assert order.index("pooled_beside_relu.default") < order.index("mul.Tensor")
