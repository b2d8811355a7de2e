"""Sums of squares of weights: both ways to find them, as a CPU does and as a card does."""

import pytest
import torch

from frugan.contract.layers import SumsSquares, squares_by_norms, squares_of


def _layer(weight: torch.Tensor, factor: float) -> SumsSquares:
    layer = SumsSquares()
    layer.weight, layer.squares_factor = weight, factor
    return layer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_card_finds_what_a_cpu_finds(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    shapes = ((8, 4, 3, 3), (5, 7, 1, 1))
    weights = [torch.randn(shape).to(dtype, memory_format=torch.channels_last) for shape in shapes]
    layers = [_layer(weight, factor) for weight, factor in zip(weights, (1.0, 0.25), strict=True)]
    expected = [
        w.double().square().sum((2, 3)) * layer.squares_factor for w, layer in zip(weights, layers, strict=True)
    ]
    for squares in (squares_of(layers), squares_by_norms(layers)):
        assert [each.dtype for each in squares] == [torch.float32, torch.float32]
        torch.testing.assert_close([each.double() for each in squares], expected, rtol=1e-6, atol=0)
