"""Modulated convolutions: what they keep, and their derivatives."""

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from frugan.nn.fir import fir_filter, upfirdn2d
from frugan.nn.modulated import modulated_conv2d

WAYS = pytest.mark.parametrize("up", [False, True], ids=["plain", "upsampling"])


SHAPES = ((2, 3, 4, 4), (5, 3, 3, 3), (2, 3))


def _given(
    dtype: torch.dtype = torch.float64, shapes: Sequence[Sequence[int]] = SHAPES
) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    x, weight, styles = (torch.randn(shape, dtype=torch.float64, generator=draw) for shape in shapes)
    last = torch.channels_last
    x, weight = (tensor.to(dtype).contiguous(memory_format=last).requires_grad_() for tensor in (x, weight))
    return x, weight, styles.to(torch.float32 if dtype != torch.float64 else dtype).requires_grad_()


def _made(x: Tensor, weight: Tensor, styles: Tensor, *, up: bool) -> Tensor:
    return modulated_conv2d(x, weight, styles, demodulate=False, upsample_by=fir_filter() if up else None)


def _composed(x: Tensor, weight: Tensor, styles: Tensor, *, up: bool) -> Tensor:
    scaled = x * styles.to(x.dtype)[:, :, None, None]
    if not up:
        return F.conv2d(scaled, weight, padding=1)
    spread = F.conv_transpose2d(scaled, weight.transpose(0, 1), stride=2)
    return upfirdn2d(spread, fir_filter(), padding=(1, 1, 1, 1), gain=4)


@WAYS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_the_bits_of_torchs_own_operations(up: bool, dtype: torch.dtype) -> None:
    made, expected = (way(*_given(dtype), up=up) for way in (_made, _composed))
    assert torch.equal(made, expected)
    gradients, wanted = (
        torch.autograd.grad(way(*given, up=up).square().sum(), given)
        for way, given in ((_made, _given(dtype)), (_composed, _given(dtype)))
    )
    assert all(torch.equal(a, b) for a, b in zip(gradients, wanted, strict=True))
    assert gradients[1].is_contiguous(memory_format=torch.channels_last), "autograd would copy it into that layout"


@WAYS
def test_derivatives_of_both_orders(up: bool) -> None:
    given = _given(shapes=((2, 2, 3, 3), (3, 2, 3, 3), (2, 2)))
    assert torch.autograd.gradcheck(lambda *of: _made(*of, up=up), given)
    assert torch.autograd.gradgradcheck(lambda *of: _made(*of, up=up), given, fast_mode=True)


@WAYS
@pytest.mark.parametrize("learns", [(0,), (1,), (2,), (1, 2)])
def test_where_not_all_of_it_learns(up: bool, learns: tuple[int, ...]) -> None:
    for order in (1, 2):
        ends = []
        for way in (_made, _composed):
            given = [each.detach().requires_grad_(i in learns) for i, each in enumerate(_given())]
            wanted = [given[i] for i in learns]
            found = torch.autograd.grad(way(*given, up=up).square().sum(), wanted, create_graph=order == 2)
            if order == 2:
                found = torch.autograd.grad(torch.stack([each.square().sum() for each in found]).sum(), wanted)
            ends.append(found)
        for own, torchs in zip(*ends, strict=True):
            torch.testing.assert_close(own, torchs)


@WAYS
def test_the_scaled_input_is_not_kept(up: bool) -> None:
    """Of what has the size of pictures, the input alone, which the activation before keeps anyway."""
    x, weight, styles = _given()
    kept: set[int] = set()

    def keep(tensor: Tensor) -> Tensor:
        if tensor.numel() >= x.numel() and tensor.data_ptr() != weight.data_ptr():
            kept.add(tensor.data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        _made(x, weight, styles, up=up)
    assert kept == {x.data_ptr()}
