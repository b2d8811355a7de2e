"""Many matrices at once, by operations of our own: what spectral norms make of them one by one."""

from typing import Any, cast

import pytest
import torch
from torch import Tensor

from frugan.contract.layers import Observer, ScaledWeight, use_ops
from frugan.contract.ops import PLAIN, Ops
from frugan.kernels import scaling as kernels
from frugan.kernels.scaling import SpectralNorm as Kernel
from frugan.nn.spectral_norm import SNConv2d, SNEmbedding, SNLinear, SpectralNorm, SpectralScaling
from frugan.stepmemory.work import WorkCounter

BY_KERNELS = Kernel()
SHAPES = ((5, 3, 3, 3), (7, 4), (1, 6, 1, 1), (24, 2), (2, 30, 3, 3))


def weights(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in SHAPES]


def layers() -> list[SpectralNorm]:
    """Of all kinds, with enough alike for a stack."""
    torch.manual_seed(5)
    stack = [SNLinear(6, 4, bias=False) for _ in range(7)]
    return [SNConv2d(3, 5, 3), SNLinear(6, 2), SNEmbedding(9, 4), *stack, SNConv2d(8, 4, 1), SNConv2d(5, 3, 3)]


@pytest.mark.parametrize("half", [False, True])
def test_layers_divide_and_carry_as_one_by_one(half: bool) -> None:
    """Gradients in another precision and layout, and of one weight none."""
    norms, ends = layers(), []
    generator = torch.Generator().manual_seed(6)
    gradients: list[Tensor | None] = [torch.randn(norm.weight.shape, generator=generator) for norm in norms]
    gradients = [g.half() if half and g is not None and i != 10 else g for i, g in enumerate(gradients)]
    gradients[0] = gradients[0].contiguous(memory_format=torch.channels_last)  # type: ignore[union-attr]
    gradients[2] = None
    for ops in (BY_KERNELS, PLAIN):
        observer = Observer()
        for norm in norms:
            use_ops(norm, ops)
            norm.observer = observer
        masters = [norm.weight.detach() for norm in norms]
        pairs = zip(norms, masters, strict=True)
        scaling = SpectralScaling.find([ScaledWeight(norm, "weight", master) for norm, master in pairs])
        carried = scaling.carry(masters, gradients)
        assert [each is None for each in carried] == [i == 2 for i in range(len(norms))]
        for each, master in zip(carried, masters, strict=True):
            assert each is None or (each.stride(), each.dtype) == (master.stride(), master.dtype)
        seen = observer.sums(torch.device("cpu"))
        ends.append([*scaling.divisors, *(each for each in carried if each is not None), *scaling.left, *seen])
    for own, torchs in zip(*ends, strict=True):
        torch.testing.assert_close(own, torchs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("ops", [BY_KERNELS, PLAIN], ids=["kernels", "torch's"])
def test_a_loss_scale_is_taken_out_on_the_way(ops: Ops) -> None:
    """A power of 2: the same bits."""
    norms = layers()
    for norm in norms:
        use_ops(norm, ops)
    masters = [norm.weight.detach() for norm in norms]
    pairs = zip(norms, masters, strict=True)
    scaling = SpectralScaling.find([ScaledWeight(norm, "weight", master) for norm, master in pairs])
    gradients: list[Tensor | None] = [torch.randn_like(master) for master in masters]
    gradients[2] = None
    plain = scaling.carry(masters, gradients)
    scaled = scaling.carry(masters, [None if g is None else g * 1024 for g in gradients], torch.tensor(1 / 1024))
    for one, other in zip(plain, scaled, strict=True):
        assert one is other is None or torch.equal(cast(Tensor, one), cast(Tensor, other))


def test_a_gradient_in_any_layout_is_read_as_it_lies() -> None:
    matrix = torch.randn(3, 4, 3, 2)
    for gradient in (
        torch.randn(3, 4, 2, 3).mT,
        torch.randn(4, 3, 3, 2).transpose(0, 1),
        torch.ones(()).expand(3, 4, 3, 2),
    ):
        followed = kernels._by_spots(gradient)
        assert torch.equal(followed, gradient)
        assert followed.stride(2) == followed.stride(3) * 2
        torch.testing.assert_close(kernels.dots_of([gradient], [matrix])[0], (gradient * matrix).sum())


def test_weights_are_divided_together_each_in_its_own_precision_and_layout() -> None:
    norms = layers()
    masters = [norm.weight.detach() for norm in norms]
    dtypes = [torch.float32 if i == 10 else torch.float16 for i in range(len(norms))]
    for norm in norms:
        use_ops(norm, BY_KERNELS)
    pairs = zip(norms, masters, strict=True)
    scaling = SpectralScaling.find([ScaledWeight(norm, "weight", master) for norm, master in pairs])
    found = scaling.divided(masters, dtypes, last=True)
    assert set(found) == set(range(len(norms)))
    for place, made in found.items():
        expected = torch.div(masters[place], scaling.divisors[place]).to(dtypes[place])
        if made.ndim == 4:
            assert made.stride() == torch.empty_like(expected, memory_format=torch.channels_last).stride()
        torch.testing.assert_close(made.reshape(expected.shape), expected)


def test_without_data_it_is_of_the_same_shapes_and_strides() -> None:
    matrices = weights()
    gradients = [m.half().contiguous(memory_format=torch.channels_last) if m.ndim == 4 else m.half() for m in matrices]
    rows, columns = (torch.randn(sum(m.flatten(1).shape[i] for m in matrices)) for i in range(2))
    cases: dict[str, tuple[Any, ...]] = {
        "scaling_times": (rows, matrices, False),
        "scaling_divided": (matrices, torch.ones(len(matrices)), torch.float16, True),
        "scaling_dots": (gradients, matrices),
        "scaling_carried": (gradients, rows, columns, torch.ones(len(matrices))),
    }
    for name, values in cases.items():
        empty, filled = (getattr(torch.ops.frugan, name)(*(on(each, device) for each in values)) for device in DEVICES)
        pairs = [(empty, filled)] if isinstance(empty, Tensor) else list(zip(empty, filled, strict=True))
        for one, other in pairs:
            assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype), name
    turned = kernels.times(columns, matrices, True)
    assert turned.shape == (kernels.SPLITS, len(rows))


DEVICES = ("meta", "cpu")


def on(value: Any, device: str) -> Any:
    if isinstance(value, list):
        return [on(each, device) for each in value]
    return value.to(device) if isinstance(value, Tensor) else value


def test_matrices_move_as_often_as_they_must() -> None:
    matrices = [torch.empty(64, 64, 3, 3, device="meta") for _ in range(5)]
    whole_bytes = sum(matrix.nbytes for matrix in matrices)
    rows = torch.empty(64 * 5, device="meta")
    with WorkCounter() as products:
        right, _ = kernels.vectors_times(rows, matrices)
    with WorkCounter() as carried:
        gradients = [torch.empty_like(matrix) for matrix in matrices]
        kernels.dots_of(gradients, matrices)
        kernels.through(gradients, rows, right, torch.empty(5, device="meta"))
    assert (products.work.operations, carried.work.operations) == (4, 3)
    assert 2 <= products.work.bytes_moved / whole_bytes < 2.6  # parts of sums are as many as eight rows
    assert 4 <= carried.work.bytes_moved / whole_bytes < 4.1
