"""The original's layers alone, as our networks use torch's."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frugan.faces.saehd import networks
from frugan.faces.saehd.config import Archi
from frugan.faces.saehd.networks import (
    CodeDiscriminator,
    Downscale,
    Inter,
    PatchDiscriminator,
    Residual,
    depth_to_space,
    pixel_norm,
    spread_leaky_relu,
)
from parity.saehd.golden import arrays, nchw
from parity.saehd.weights import from_file

LIMIT = 1e-6
"""Of the largest value. Measured: at most 3e-7."""

NARROW = PatchDiscriminator(12, 4)  # strides 2, 1, 2
CODE = CodeDiscriminator(3, 8, 4)


def error(ours: Tensor, reference: Tensor) -> float:
    assert ours.shape == reference.shape
    return float((ours - reference).abs().max() / reference.abs().max())


@pytest.mark.parametrize(
    ("case", "layer"),
    [
        ("conv0_k5_s2_pSAME_d1", Downscale(3, 4, cosine=False).conv1),
        ("conv1_k5_s2_pSAME_d1", Downscale(3, 4, cosine=False).conv1),
        ("conv2_k4_s2_pSAME_d1", CODE.convs[0]),
        ("conv3_k3_s2_pSAME_d1", CODE.convs[1]),
        ("conv3_k3_s2_pSAME_d1", NARROW.convs[0]),
        ("conv4_k3_s1_pSAME_d1", NARROW.convs[1]),
        ("conv4_k3_s1_pSAME_d1", Residual(4, cosine=False).conv1),
        ("conv7_k1_s1_pSAME_d1", NARROW.in_conv),
        ("conv9_k3_s2_p1_d1", NARROW.convs[2]),
    ],
)
def test_convolution(case: str, layer: nn.Conv2d) -> None:
    of = {name[len(case) + 1 :]: value for name, value in arrays("ops/conv_dense.npz").items() if name.startswith(case)}
    weight = from_file(of["w"])
    assert weight.shape[2:] == layer.weight.shape[2:]
    out = F.conv2d(nchw(of["x"]), weight, from_file(of["b"]), layer.stride, layer.padding)
    assert error(out, nchw(of["y"])) <= LIMIT


@pytest.mark.parametrize(("case", "index"), [("convT10_k3_s2", 0), ("convT11_k3_s2", 2), ("convT12_k3_s1", 1)])
def test_transposed_convolution(case: str, index: int) -> None:
    of = {name[len(case) + 1 :]: value for name, value in arrays("ops/conv_dense.npz").items() if name.startswith(case)}
    layer, expected = NARROW.upconvs[index], nchw(of["y"])
    assert isinstance(layer, nn.ConvTranspose2d)
    out = F.conv_transpose2d(nchw(of["x"]), from_file(of["w"]), from_file(of["b"]), layer.stride, layer.padding)  # type: ignore[arg-type]
    assert error(networks._cropped(out, expected), expected) <= LIMIT


def test_dense_layer() -> None:
    of = arrays("ops/conv_dense.npz")
    out = F.linear(
        from_file(of["dense_maxout0_x"]).T, from_file(of["dense_maxout0_w"]), from_file(of["dense_maxout0_b"])
    )
    assert error(out, torch.from_numpy(of["dense_maxout0_y"])) <= LIMIT


@pytest.mark.parametrize(("x", "y", "factor"), [("x_nhwc", "y_nhwc", 2), ("x3_nhwc", "y3_nhwc", 3)])
@pytest.mark.parametrize("channels_last", [False, True])
def test_depth_to_space(x: str, y: str, factor: int, channels_last: bool) -> None:
    of = arrays("ops/depth_to_space.npz")
    given = nchw(of[x])
    if channels_last:
        given = given.contiguous(memory_format=torch.channels_last)
    out = depth_to_space(given, factor)
    assert torch.equal(out, nchw(of[y]))
    assert out.is_contiguous(memory_format=torch.channels_last) == channels_last


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_activation_and_spreading_in_one_pass(order: torch.memory_format) -> None:
    x = torch.randn(2, 12, 5, 7, generator=torch.Generator().manual_seed(0)).contiguous(memory_format=order)
    gradient = torch.randn(2, 3, 10, 14, generator=torch.Generator().manual_seed(1))
    x.requires_grad_()
    apart, at_once = depth_to_space(F.leaky_relu(x, 0.1)), spread_leaky_relu(x, 0.1)
    assert torch.equal(apart, at_once)
    assert apart.stride() == at_once.stride()
    assert torch.equal(*(torch.autograd.grad(made, x, gradient)[0] for made in (apart, at_once)))


def test_depth_to_space_as_recorded_channels_first() -> None:
    of = arrays("ops/depth_to_space.npz")
    assert torch.equal(depth_to_space(torch.from_numpy(of["x_nchw"])), torch.from_numpy(of["y_nchw"]))


def test_pixel_shuffle_is_noticed() -> None:
    of = arrays("ops/depth_to_space.npz")
    assert not torch.equal(F.pixel_shuffle(nchw(of["x_nhwc"]), 2), nchw(of["y_nhwc"]))


def test_pixel_norm() -> None:
    of = arrays("ops/flatten_reshape.npz")
    assert error(pixel_norm(torch.from_numpy(of["pn_x"])), torch.from_numpy(of["pn_y"])) <= LIMIT


def test_flattened_maps_are_channels_first() -> None:
    of = arrays("ops/flatten_reshape.npz")
    assert torch.equal(nchw(of["x_nhwc"]).flatten(1), torch.from_numpy(of["flat"]))


def test_inter_makes_maps_of_vectors_as_recorded() -> None:
    of = arrays("ops/flatten_reshape.npz")
    inter = Inter(Archi.parse("df-t"), 64, 80, 80, 5)  # 4x4 of 5 channels, no upscale
    with torch.no_grad():
        for dense in (inter.dense1, inter.dense2):
            dense.weight.copy_(torch.eye(80))
            dense.bias.zero_()
        out = inter(torch.from_numpy(of["v80"]))
    assert np.array_equal(out.numpy(), nchw(of["reshape_w3_h4_c5_nhwc"]).numpy())
