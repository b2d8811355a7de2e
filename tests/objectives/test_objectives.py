"""Losses against their formulas."""

import pytest
import torch
from torch import nn

from frugan.objectives import ADVERSARIAL_LOSSES, add_orthogonal_gradient, relativistic


def test_hinge() -> None:
    outputs = torch.tensor([[-2.0], [0.5], [3.0]])
    loss = ADVERSARIAL_LOSSES["hinge"]
    assert float(loss.real(outputs)) == pytest.approx((3 + 0.5 + 0) / 3)
    assert float(loss.fake(outputs)) == pytest.approx((0 + 1.5 + 4) / 3)
    assert float(loss.generator(outputs)) == -0.5


def test_non_saturating_is_cross_entropy() -> None:
    outputs = torch.randn(9, 1)
    loss, entropy = ADVERSARIAL_LOSSES["non-saturating"], nn.functional.binary_cross_entropy_with_logits
    torch.testing.assert_close(loss.real(outputs), entropy(outputs, torch.ones(9, 1)))
    torch.testing.assert_close(loss.fake(outputs), entropy(outputs, torch.zeros(9, 1)))
    torch.testing.assert_close(loss.generator(outputs), entropy(outputs, torch.ones(9, 1)))


def test_relativistic_is_cross_entropy_of_the_difference_of_each_pair() -> None:
    real, fake = torch.tensor([[3.0], [-1.0], [0.5]]), torch.tensor([[1.0], [2.0], [0.5]])
    entropy = nn.functional.binary_cross_entropy_with_logits
    torch.testing.assert_close(relativistic(real, fake), entropy(real - fake, torch.ones(3, 1)))
    torch.testing.assert_close(relativistic(fake, real), entropy(real - fake, torch.zeros(3, 1)))
    shuffled = relativistic(real, fake[[1, 2, 0]])  # pair by pair: an average over all pairs would not notice
    assert abs(float(shuffled) - float(relativistic(real, fake))) > 0.1
    assert relativistic(real.bfloat16(), fake.bfloat16()).dtype == torch.float32


def test_losses_are_fp32_of_half_outputs() -> None:
    for loss in ADVERSARIAL_LOSSES.values():
        assert loss.real(torch.randn(4, 1, dtype=torch.bfloat16)).dtype == torch.float32


def test_orthogonal_gradient_is_half_that_of_the_penalty() -> None:
    weight, bias = nn.Parameter(torch.randn(4, 3, 2, 2)), nn.Parameter(torch.randn(4))
    matrix = weight.flatten(1)
    gram = matrix @ matrix.T
    penalty = (gram * (1 - torch.eye(4))).square().sum()
    (expected,) = torch.autograd.grad(penalty, weight)
    weight.grad, bias.grad = torch.zeros_like(weight), torch.zeros_like(bias)
    add_orthogonal_gradient([weight, bias], 0.01)
    torch.testing.assert_close(weight.grad, 0.01 * expected / 2)
    assert not bias.grad.any()
