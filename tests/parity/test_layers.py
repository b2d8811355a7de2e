"""Layers alone against the recording of the original's layers.

Left out, because we do not ship them: the original's second batch norm ("mybn": running variance without Bessel's
correction, standing statistics), its synchronised one, which adds its gain, and its second orthogonal regulariser,
which it never calls. What "mybn" and the default share is compared: the output in training, and the running mean.
"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from frugan.contract.layers import Observer
from frugan.engine.plan import Layout
from frugan.engine.state.working_weights import working_weights
from frugan.nn.batch_norm import ConditionalBatchNorm
from frugan.nn.spectral_norm import SNConv2d, SNEmbedding, SNLinear, SpectralNorm
from frugan.objectives import add_orthogonal_gradient
from parity.golden import FOLDER
from parity.passes import eval_forward, train_forward

UNITS = load_file(Path(FOLDER) / "units.safetensors")
LIMIT = 1e-6
"""Of the largest value. Measured: at most 3e-7 (outputs and buffers), 2e-7 (gradients)."""


def difference(ours: Tensor, reference: Tensor) -> float:
    return float((ours - reference).abs().max() / reference.abs().max())


def entries(prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in UNITS.items() if key.startswith(prefix)}


def layer(name: str) -> SpectralNorm:
    made: dict[str, SpectralNorm] = {
        "conv": SNConv2d(4, 6, 3, padding=1, iterations=2, singular_values=3),
        "lin": SNLinear(9, 5, singular_values=2),
        "emb": SNEmbedding(7, 5),
    }
    made[name].load_state_dict(entries(f"sn.{name}.before."))
    return made[name]


def buffer_errors(name: str, module: nn.Module) -> dict[str, float]:
    return {key: difference(value, UNITS[f"sn.{name}.after.{key}"]) for key, value in module.named_buffers()}


LAYERS = ("conv", "lin", "emb")


@pytest.mark.parametrize("name", LAYERS)
def test_spectral_norm_in_training_gives_the_recorded_output_and_vectors(name: str) -> None:
    module = layer(name)
    out = train_forward(module, lambda m: m(UNITS[f"sn.{name}.x"]))
    assert difference(out, UNITS[f"sn.{name}.y_train"]) <= LIMIT
    assert max(buffer_errors(name, module).values()) <= LIMIT


@pytest.mark.parametrize("name", LAYERS)
def test_spectral_norm_in_evaluation_gives_the_recorded_output_and_keeps_its_vectors(name: str) -> None:
    module = layer(name)
    module.load_state_dict(entries(f"sn.{name}.after."))
    before = {key: value.clone() for key, value in module.state_dict().items()}
    out = eval_forward(module, lambda m: m(UNITS[f"sn.{name}.x"]))
    assert difference(out, UNITS[f"sn.{name}.y_eval_after"]) <= LIMIT
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())


@pytest.mark.parametrize("name", LAYERS)
def test_gradient_goes_through_the_singular_value_as_recorded(name: str) -> None:
    module = layer(name).train()
    with working_weights({"module": module}, {"module": Layout()}, ("module",), Observer()) as working:
        out = module(UNITS[f"sn.{name}.x"])
        (out.flatten() * torch.cos(torch.arange(out.numel()).float())).sum().backward()
        working["module"].carry()
    assert module.weight.grad is not None
    assert difference(module.weight.grad, UNITS[f"sn.{name}.grad_weight"]) <= LIMIT


@pytest.mark.parametrize("name", LAYERS)
def test_one_power_iteration_too_many_is_noticed(name: str) -> None:
    module = layer(name)
    module.iterations += 1
    out = train_forward(module, lambda m: m(UNITS[f"sn.{name}.x"]))
    assert difference(out, UNITS[f"sn.{name}.y_train"]) > 100 * LIMIT
    assert max(buffer_errors(name, module).values()) > 100 * LIMIT


def orthogonal_gradients(strength: float) -> dict[str, float]:
    differences: dict[str, float] = {}
    for key, value in entries("ortho.in.").items():
        parameter = nn.Parameter(value.clone())
        parameter.grad = torch.zeros_like(parameter)
        add_orthogonal_gradient([parameter], strength)
        reference = UNITS[f"ortho.grad.{key}"]
        if parameter.ndim == 1:
            assert torch.equal(parameter.grad, reference), f"{key}: a bias is not regularised"
        else:
            differences[key] = difference(parameter.grad, reference)
    return differences


def test_orthogonal_regularisation_adds_the_recorded_gradient() -> None:
    differences = orthogonal_gradients(1e-2)
    assert len(differences) == 2
    assert max(differences.values()) <= LIMIT
    assert min(orthogonal_gradients(0.9e-2).values()) > 100 * LIMIT


class Given(nn.Module):
    """Gives the same value for every condition."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value

    def forward(self, _: Tensor) -> Tensor:
        """[...] -> the value [B, C]."""
        return self.value


def batch_norm(eps: float) -> tuple[Tensor, ConditionalBatchNorm]:
    gain, bias = UNITS["bn.gain"].flatten(1), UNITS["bn.bias"].flatten(1)
    norm = ConditionalBatchNorm(6, Given(gain - 1), Given(bias), eps=eps)
    return train_forward(norm, lambda m: m(UNITS["bn.x"], torch.zeros(4))), norm


def test_batch_norm_gives_the_recorded_output_and_running_statistics() -> None:
    out, norm = batch_norm(1e-5)
    assert difference(out, UNITS["mybn.y_train"]) <= LIMIT
    assert difference(norm.stored_mean, UNITS["mybn.mean"]) <= LIMIT
    # The recorded variance is the variant's; ours has Bessel's correction for 4 samples of 3x3, as the default has.
    batch_variance = (UNITS["mybn.var"] - 0.9) / 0.1
    assert difference(norm.stored_var, 0.9 + 0.1 * batch_variance * 36 / 35) <= LIMIT
    assert difference(batch_norm(1e-4)[0], UNITS["mybn.y_train"]) > 5 * LIMIT
