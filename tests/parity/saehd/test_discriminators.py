"""Both discriminators' recorded forwards, and the table of layers for every patch size."""

import pytest
import torch
from torch import Tensor, nn

from frugan.faces.saehd.config import stack_for
from frugan.faces.saehd.networks import CodeDiscriminator, PatchDiscriminator
from parity.saehd.golden import arrays, nchw, record
from parity.saehd.weights import fill, from_file, parameter_name

LIMIT = 1e-5
"""Of the largest value. Measured: at most 1e-6."""

SEED, WIDTH = 9, 8
PATCHES = {3: 4, 8: 4, 12: 4, 16: 3}
CODES = {4: 6, 8: 6, 16: 4}
META = "ops/discriminators/meta.json"


def check_names(file: str, network: nn.Module) -> None:
    recorded = {parameter_name(key): shape for key, shape in record(META)[file]["weights"]}
    ours = {key: parameter.shape for key, parameter in network.named_parameters()}
    assert ours.keys() == recorded.keys()
    for key, shape in recorded.items():
        assert from_file(torch.zeros(shape).numpy()).shape == ours[key], key


def error(ours: Tensor, reference: Tensor) -> float:
    assert ours.shape == reference.shape
    return float((ours - reference).abs().max() / reference.abs().max())


@torch.no_grad()
@pytest.mark.parametrize(("patch", "channels"), PATCHES.items())
def test_patch_discriminator(patch: int, channels: int) -> None:
    network = PatchDiscriminator(patch, channels)
    fill(network, f"D_src{patch}", SEED)
    check_names(f"unet_patch{patch}_base{channels}.npy", network)
    recorded = arrays("ops/discriminators/io.npz")
    center, out = network(nchw(recorded[f"p{patch}_x"]))
    assert error(center, nchw(recorded[f"p{patch}_center"])) <= LIMIT
    assert error(out, nchw(recorded[f"p{patch}_out"])) <= LIMIT


@torch.no_grad()
@pytest.mark.parametrize(("side", "channels"), CODES.items())
def test_code_discriminator(side: int, channels: int) -> None:
    network = CodeDiscriminator(channels, side, WIDTH)
    fill(network, f"dis{side}", SEED)
    check_names(f"code_res{side}_ch{channels}.npy", network)
    recorded = arrays("ops/discriminators/io.npz")
    assert error(network(nchw(recorded[f"code{side}_x"])), nchw(recorded[f"code{side}_y"])) <= LIMIT


def test_stack_of_layers_for_every_patch_size() -> None:
    table = record(META)["find_archi_table"]
    assert len(table) > 80
    for patch, entry in table.items():
        stack = stack_for(int(patch))
        assert [[3, stride] for stride in stack.strides] == entry["layers"], patch
        assert stack.receptive_field == entry["rf"], patch
