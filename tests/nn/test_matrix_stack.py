"""Matrices of one width in a stack do what each does by itself; and spectral norm with a stack what it does without."""

from typing import cast

import pytest
import torch
from torch import Tensor, nn

from frugan.contract.layers import Observer
from frugan.engine.plan import Layout
from frugan.engine.state.working_weights import working_weights
from frugan.nn.spectral_norm import FEWEST, SMALL_ELEMENTS, MatrixStack, SNConv2d, SNLinear, stackable
from limits import Limit

ROWS = (5, 3, 1, 4, 2, 3)
PLACES = (0, 2, 3, 5)


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_stack_does_what_each_matrix_does() -> None:
    matrices = [_random(rows, 7, seed=i) for i, rows in enumerate(ROWS)]
    stack = MatrixStack(PLACES, matrices)
    whole = stack.whole(matrices)
    left = [_random(1, rows, seed=10 + i) for i, rows in enumerate(ROWS)]
    right = [_random(1, 7, seed=20 + i) for i in range(len(ROWS))]
    rows = stack.from_left(left, whole)
    for row, i in zip(rows.split(1), PLACES, strict=True):
        torch.testing.assert_close(row, left[i] @ matrices[i])
    for product, row, i in zip(stack.from_right(rows, whole), rows.split(1), PLACES, strict=True):
        torch.testing.assert_close(product, row @ matrices[i].T)
    factors = _random(len(ROWS), seed=30)
    for i, part in stack.parts(whole * stack.by_row(factors)).items():
        torch.testing.assert_close(part, matrices[i] * factors[i])
    others = [_random(rows, 7, seed=40 + i) for i, rows in enumerate(ROWS)]
    expected = torch.stack([(matrices[i] * others[i]).sum() for i in PLACES])
    torch.testing.assert_close(stack.dots(whole, stack.whole(others)), expected)
    stack.subtract_outer(whole, dict(enumerate(left)), right)
    for i, part in stack.parts(whole).items():
        torch.testing.assert_close(part, matrices[i] - left[i].T @ right[i])


def test_small_matrices_of_one_width_are_stacked_and_others_are_not() -> None:
    alike = [torch.zeros(3, 8) for _ in range(FEWEST - 1)]
    kernels = torch.zeros(3, 8, 1, 1), torch.zeros(3, 8, 3, 3), torch.zeros(3, 72)
    large = torch.zeros(SMALL_ELEMENTS // 8 + 1, 8)
    assert stackable([*alike, large, kernels[1], kernels[2]]) == []
    assert stackable([large, *alike, kernels[1], kernels[0]]) == [[*range(1, FEWEST), FEWEST + 1]]


class _Layers(nn.Module):
    """Eight small weights of one width, one of which gets no gradient where it is told so."""

    def __init__(self) -> None:
        super().__init__()
        self.linears = nn.ModuleList(SNLinear(6, rows, bias=False) for rows in (2, 3, 4, 5, 6))
        self.kernels = nn.ModuleList(SNConv2d(6, rows, 1, bias=False) for rows in (2, 3, 4))

    def forward(self, x: Tensor, *, all_of_them: bool) -> Tensor:
        """[N, 6] -> []."""
        linears = self.linears if all_of_them else self.linears[1:]
        y = torch.cat([layer(x) for layer in linears], 1).square().sum()
        pictures = x[:, :, None, None]
        return y + torch.cat([layer(pictures) for layer in self.kernels], 1).pow(3).sum()


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("all_of_them", [True, False])
def test_spectral_norm_is_the_same(limit: Limit, channels_last: bool, all_of_them: bool) -> None:
    def run() -> tuple[list[Tensor], list[Tensor]]:
        torch.manual_seed(0)
        network = _Layers()
        observer = Observer()
        layout = Layout(channels_last=channels_last)
        with working_weights({"n": network}, {"n": layout}, ("n",), observer) as working:
            network(_random(4, 6).float(), all_of_them=all_of_them).backward()
            kernels = [cast(Tensor, layer.weight) for layer in network.kernels]
            weights, strides = [each.detach().clone() for each in kernels], [each.stride() for each in kernels]
            working["n"].carry()
        observer.commit(None)
        assert all(stride[1] == 1 for stride in strides) or not channels_last
        left = [p for p in network.parameters() if p.grad is None]
        assert len(left) == (0 if all_of_them else 1)
        assert all(p.grad is None or p.grad.stride() == p.stride() for p in network.parameters())
        gradients = [p.grad for p in network.parameters() if p.grad is not None]
        return [*weights, *gradients], list(network.buffers())

    assert len(stackable(list(_Layers().parameters()))[0]) == 8
    stacked = run()
    limit("matrices in a stack", 100)
    torch.testing.assert_close(stacked, run(), rtol=1e-5, atol=1e-6)
