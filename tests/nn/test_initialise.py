"""First weights."""

import pytest
import torch
from torch import nn

from frugan.nn.initialise import initialise
from frugan.nn.spectral_norm import SNConv2d, SNEmbedding


def _network() -> nn.Sequential:
    return nn.Sequential(SNConv2d(6, 4, 3), nn.Linear(8, 16), SNEmbedding(5, 7))


def test_orthogonal_rows() -> None:
    network = _network()
    initialise(network, "orthogonal", torch.Generator().manual_seed(0))
    matrix = network[0].weight.flatten(1)  # type: ignore[operator]
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(4), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("how", "std"), [("normal", 0.02), ("xavier", (2 / (200 + 300)) ** 0.5)])
def test_spread(how: str, std: float) -> None:
    layer = nn.Linear(200, 300)
    initialise(layer, how, torch.Generator().manual_seed(0))  # type: ignore[arg-type]
    assert float(layer.weight.detach().std()) == pytest.approx(std, rel=0.02)
    assert float(layer.bias.detach().abs().max()) <= 200**-0.5


def test_everything_random_comes_from_the_generator() -> None:
    first, second = _network(), _network()
    for network in (first, second):
        initialise(network, "normal", torch.Generator().manual_seed(3))
    for (name, a), (_, b) in zip(first.state_dict().items(), second.state_dict().items(), strict=True):
        assert torch.equal(a, b), name
