"""R1 against what it is of functions whose gradient is known."""

import pytest
import torch
from torch import Tensor, nn

from frugan.objectives import r1_penalty

ONE = torch.ones(())


def pictures(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(3, 2, 4, 5, generator=torch.Generator().manual_seed(1), dtype=dtype).requires_grad_()


def test_of_a_linear_function_it_is_half_its_weights_squared() -> None:
    x, weight = pictures(), torch.randn(2, 4, 5)
    penalty = r1_penalty((x * weight).sum((1, 2, 3))[:, None], x, ONE)
    torch.testing.assert_close(penalty, (weight.square().sum() / 2).expand(3))


@pytest.mark.parametrize("scale", [1.0, 65536.0])
def test_value_and_derivative_of_a_quadratic_function(scale: float) -> None:
    """a·|x|²/2 has the gradient a·x; so the penalty is a²·|x|²/2, and its derivative in a is a·|x|²."""
    x, a = pictures(), torch.tensor(0.7, requires_grad=True)
    squares = x.detach().square().sum((1, 2, 3))
    penalty = r1_penalty((a * x.square()).sum((1, 2, 3))[:, None] / 2, x, torch.tensor(scale))
    torch.testing.assert_close(penalty, 0.7**2 * squares / 2)
    penalty.sum().backward()
    torch.testing.assert_close(a.grad, 0.7 * squares.sum())


def test_the_loss_scale_keeps_gradients_that_fp16_would_lose() -> None:
    """A gradient of 1e-8 is 0 in fp16, whose smallest number is 6e-8."""
    small = torch.tensor(1e-4, dtype=torch.float16)

    def penalty(scale: float) -> Tensor:
        x = pictures()
        return r1_penalty((x.half() * small * small).sum((1, 2, 3))[:, None], x, torch.tensor(scale))

    assert float(penalty(1.0).max()) == 0
    torch.testing.assert_close(penalty(16384.0), (40 * small.float() ** 4 / 2).expand(3), rtol=1e-2, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_networks_in_half_precision_give_nearly_the_same(dtype: torch.dtype) -> None:
    """Value, and gradient in the weights, through a double backward in half precision."""
    torch.manual_seed(0)
    exact = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.Softplus(), nn.Flatten(), nn.Linear(160, 1))
    half = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.Softplus(), nn.Flatten(), nn.Linear(160, 1))
    half.load_state_dict(exact.state_dict())
    half.to(dtype)
    results = []
    for network, scale in ((exact, 1.0), (half, 1024.0)):
        x = pictures()
        penalty = r1_penalty(network(x.to(next(network.parameters()).dtype)), x, torch.tensor(scale))
        assert penalty.dtype == torch.float32
        (penalty.mean() * scale).backward()
        results.append((penalty.detach(), next(network.parameters()).grad))
    (value, gradient), (half_value, half_gradient) = results
    torch.testing.assert_close(half_value, value, rtol=0.03, atol=0)
    assert gradient is not None
    assert half_gradient is not None
    assert float((half_gradient.float() / 1024 - gradient).norm() / gradient.norm()) < 0.03
