"""Sizes, rates, channels, paddings and filters are exactly those of StyleGAN3's release."""

from typing import Any

import pytest
import torch

from frugan.families.stylegan3.config import LayerShape, StyleGAN3Networks
from frugan.families.stylegan3.filters import bessel_j1, layer_filters
from parity.stylegan3.golden import CASES, load


def numbers(layer: LayerShape, *, rotation: bool) -> dict[str, Any]:
    """Numbers of a layer under the recording's names."""
    before, after = layer.input, layer.output
    return {
        "in_size": [before.size, before.size],
        "out_size": [after.size, after.size],
        "in_ch": before.channels,
        "out_ch": after.channels,
        "in_sr": before.rate,
        "out_sr": after.rate,
        "tmp_sr": layer.rate,
        "in_cutoff": before.cutoff,
        "out_cutoff": after.cutoff,
        "in_hw": before.half_width,
        "out_hw": after.half_width,
        "up": layer.up,
        "down": layer.down,
        "up_taps": layer.up_taps,
        "down_taps": layer.down_taps,
        "padding": list(layer.padding),
        "critical": after.critical,
        "radial": rotation and not after.critical,
    }


@pytest.mark.parametrize("name", CASES)
def test_every_number_of_every_layer(name: str) -> None:
    case = load(name)
    networks = case.networks
    rotation = networks.equivariance == "rotation"
    ours = {layer.name: numbers(layer, rotation=rotation) for layer in networks.layer_shapes}
    theirs = {
        key: {field: value for field, value in layer.items() if field != "use_fp16"}
        for key, layer in case.layers.items()
    }
    assert ours == theirs
    assert [networks.half_at_rate(layer.output.rate) for layer in networks.layer_shapes] == [
        layer["use_fp16"] for layer in case.layers.values()
    ]


@pytest.mark.parametrize("name", CASES)
def test_filters_are_equal_to_the_last_digit(name: str) -> None:
    case = load(name)
    found: dict[str, torch.Tensor | None] = {}
    for layer in case.networks.layer_shapes:
        up, down = layer_filters(layer, radial=case.networks.equivariance == "rotation")
        found |= {f"synthesis.{layer.name}.up_filter": up, f"synthesis.{layer.name}.down_filter": down}
    recorded = {key: value for key, value in case.state.items() if key.endswith("_filter")}
    assert recorded.keys() == {key for key, value in found.items() if value is not None}
    for key, value in recorded.items():
        ours = found[key]
        assert ours is not None
        assert torch.equal(ours, value), key


CHANNELS_256 = [512] * 9 + [362, 256, 181, 128, 128, 3]


def test_the_published_size() -> None:
    layers = StyleGAN3Networks(resolution=256).layer_shapes
    assert [layer.output.rate for layer in layers] == [16] * 3 + [32] * 2 + [64] * 2 + [128] * 3 + [256] * 5
    assert [layer.output.size for layer in layers] == [36] * 3 + [52] * 2 + [84] * 2 + [148] * 3 + [276] * 3 + [256] * 2
    assert [layer.output.channels for layer in layers] == CHANNELS_256


@pytest.mark.parametrize("equivariance", ["translation", "rotation"])
@pytest.mark.parametrize("resolution", [32, 64, 128, 256, 512, 1024])
def test_filters_leave_the_outputs_size(resolution: int, equivariance: Any) -> None:
    networks = StyleGAN3Networks(resolution=resolution, equivariance=equivariance)
    for layer in networks.layer_shapes:
        convolved = layer.input.size + layer.kernel - 1
        upsampled = convolved * layer.up + sum(layer.padding[:2]) - layer.up_taps + 1
        assert (upsampled - layer.down_taps) // layer.down + 1 == layer.output.size
        up, down = layer_filters(layer, radial=equivariance == "rotation")
        assert (up is None) == (down is None) == (layer.index == networks.layers)
        for fir in (up, down):
            if fir is not None:
                assert fir.sum().item() == pytest.approx(1, abs=1e-6)
                assert torch.equal(fir, fir.flip(0))
    last = networks.layer_shapes[-1].output
    assert (last.size, last.rate, last.channels, last.critical) == (resolution, resolution, 3, True)


def test_bessels_function_where_tables_have_it() -> None:
    # Abramowitz and Stegun, table 9.1
    known = {
        0.0: 0.0,
        1.0: 0.4400505857,
        2.0: 0.5767248078,
        5.0: -0.3275791376,
        10.0: 0.0434727462,
        50.0: -0.0975118281,
    }
    values = bessel_j1(torch.tensor([*known], dtype=torch.float64))
    assert values.tolist() == pytest.approx([*known.values()], abs=1e-10)
