"""Spectral norms found together are those of single layers, and so is the way of their gradients."""

from functools import partial
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from frugan.contract.layers import Observer
from frugan.engine.plan import Layout
from frugan.engine.state.working_weights import working_weights
from frugan.nn.spectral_norm import SNConv2d, SNEmbedding, SNLinear, SpectralNorm


class Several(nn.Module):
    """Layers of several shapes, two of them alike; one is frozen."""

    def __init__(self, iterations: int = 1, singular_values: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        linear = partial(SNLinear, 4, 7, iterations=iterations, singular_values=singular_values)
        convolution = partial(SNConv2d, iterations=iterations, singular_values=singular_values)
        table = SNEmbedding(9, 4, iterations=iterations, singular_values=singular_values)
        self.layers = nn.ModuleList([convolution(3, 5, 3), convolution(5, 5, 3), linear(), table])
        self.frozen = linear().requires_grad_(False)
        self.double()


def _together(network: Several, upstream: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights and masters' gradients as the engine makes them; buffers move."""
    observer = Observer()
    with working_weights({"n": network}, {"n": Layout()}, ("n",), observer) as working:
        weights = {name: leaf.detach().clone() for name, leaf in network.named_parameters() if "weight" in name}
        torch.stack(
            [(leaf * upstream[n]).sum() for n, leaf in network.named_parameters() if n in upstream]
        ).sum().backward()
        working["n"].carry()
    observer.commit(None)
    return weights, {name: p.grad for name, p in network.named_parameters() if p.grad is not None}


def _by_hand(
    network: Several, upstream: dict[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """By the definition, each layer alone: weights, gradients by autograd, next u."""
    weights, gradients, vectors = {}, {}, {}
    for name, layer in network.named_modules():
        if not isinstance(layer, SpectralNorm):
            continue
        key, master = f"{name}.weight", layer.weight.detach().clone().requires_grad_()
        matrix, u = master.flatten(1), layer.u0
        for _ in range(layer.iterations):
            v = nn.functional.normalize(u @ matrix.detach())
            u = nn.functional.normalize(v @ matrix.detach().T)
        made = master / (v @ matrix.T @ u.T).squeeze()
        weights[key], vectors[name] = made.detach(), u
        if key in upstream:
            (gradients[key],) = torch.autograd.grad((made * upstream[key]).sum(), master)
    return weights, gradients, vectors


@pytest.mark.parametrize("iterations", [1, 3])
def test_together_as_alone(iterations: int) -> None:
    network = Several(iterations)
    upstream = {
        n: torch.randn_like(p) for n, p in network.named_parameters() if n.endswith("weight") and p.requires_grad
    }
    expected, wanted, vectors = _by_hand(network, upstream)
    weights, gradients = _together(network, upstream)
    for key, value in expected.items():
        torch.testing.assert_close(weights[key], value, rtol=1e-12, atol=1e-12)
    assert gradients.keys() == wanted.keys()
    for key, value in wanted.items():
        torch.testing.assert_close(gradients[key], value, rtol=1e-11, atol=1e-12)
    for name, u in vectors.items():
        torch.testing.assert_close(network.get_submodule(name).u0, u, rtol=1e-12, atol=1e-12)


def test_further_singular_values_are_followed() -> None:
    network = Several(iterations=60, singular_values=2)
    _together(network, {"layers.2.weight": torch.ones(7, 4, dtype=torch.float64)})
    layer = network.layers[2]
    assert isinstance(layer, SNLinear)
    exact = torch.linalg.svdvals(layer.weight)
    followed = torch.cat([layer.sv0, cast(Tensor, layer.sv1)])
    torch.testing.assert_close(followed, exact[:2], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_gradients_are_divided_in_fp32(dtype: torch.dtype) -> None:
    """A gradient near the end of half precision, divided by a small singular value, leaves its range."""
    torch.manual_seed(0)
    layer = SNLinear(4, 4, bias=False)
    with torch.no_grad():
        layer.weight.mul_(1e-3)
    with working_weights({"n": layer}, {"n": Layout(dtype)}, ("n",), Observer()) as working:
        (layer.weight * 6e4).sum().backward()
        working["n"].carry()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.float32
    assert bool(torch.isfinite(layer.weight.grad).all())
    assert float(layer.weight.grad.abs().max()) > 65504
