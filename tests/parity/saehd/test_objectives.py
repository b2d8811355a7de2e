"""The operators that SAEHD's losses are made of."""

import pytest
import torch
from torch import Tensor

from frugan.contract.dssim import dssim
from frugan.objectives import gaussian_blur, style_loss, total_variation_of_channels_and_rows
from parity.saehd.golden import arrays, nchw
from parity.saehd.runs import total_variation_of_rows_and_columns

DSSIM = 1e-6
"""Absolute; the loss is 0 to 1. Measured: at most 7.5e-7, in float64 too: it is the original's rounding."""

DSSIM_GRADIENT = 1e-5
"""Of the largest value. Measured: at most 2.6e-6, in float64 2.1e-6."""

BLUR = 2e-6
"""Of the largest value. Measured: at most 1.4e-6 at radius 8, in float64 too, where the original adds up 1089 products
in fp32; 4e-7 up to radius 1.5."""

STYLE = 3e-6
"""Relative. Measured: at most 1.6e-6, in float64 1.5e-6."""

VARIATION = 1e-6
"""Relative. Measured: 6e-8."""

DSSIMS, BLURS, STYLES = (arrays(f"ops/{name}.npz") for name in ("dssim", "gaussian_blur", "style_loss"))
SIZES = sorted(int(name[2:]) for name in DSSIMS if name.startswith("fs") and "grad" not in name)
RADII = sorted({float(name.split("_r")[1]) for name in BLURS if "_r" in name})


def images(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    a, b = (nchw(DSSIMS[name]).to(dtype).requires_grad_() for name in ("img1", "img2"))
    return a, b


@pytest.mark.parametrize("size", SIZES)
def test_dssim(size: int) -> None:
    ours = dssim(*images(), size).detach()
    reference = torch.from_numpy(DSSIMS[f"fs{size}"])
    assert ours.shape == reference.shape
    assert (ours - reference).abs().max() <= DSSIM


@pytest.mark.parametrize("size", [4, 11])
def test_another_window_of_dssim_is_noticed(size: int) -> None:
    ours = dssim(*images(), size + 1).detach()
    assert (ours - torch.from_numpy(DSSIMS[f"fs{size}"])).abs().max() > 2 * DSSIM


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradient_of_dssim(dtype: torch.dtype) -> None:
    a, b = images(dtype)
    for name, gradient in zip(("img1", "img2"), torch.autograd.grad(dssim(a, b, 11).sum(), (a, b)), strict=True):
        reference = nchw(DSSIMS[f"fs11_grad_{name}"])
        assert (gradient - reference).abs().max() <= DSSIM_GRADIENT * reference.abs().max()


@pytest.mark.parametrize("radius", RADII)
@pytest.mark.parametrize("picture", ["img", "mask"])
def test_gaussian_blur(picture: str, radius: float) -> None:
    reference = nchw(BLURS[f"{picture}_r{radius:g}"])
    blurred = gaussian_blur(nchw(BLURS[picture]), radius)
    assert (blurred - reference).abs().max() <= BLUR * reference.abs().max()


@pytest.mark.parametrize(("name", "radius", "weight"), [("r0_w1", 0, 1), ("r4_w100", 4, 100), ("r8_w10000", 8, 10000)])
def test_style_loss(name: str, radius: int, weight: float) -> None:
    loss = weight * style_loss(nchw(STYLES["target"]), nchw(STYLES["style"]), radius)
    assert loss.tolist() == pytest.approx(STYLES[name].tolist(), rel=STYLE)


def test_total_variation_is_the_one_of_gpus() -> None:
    variation = total_variation_of_channels_and_rows(nchw(STYLES["target"]))
    assert variation.tolist() == pytest.approx(STYLES["tv_nchw_as_on_gpu"].tolist(), rel=VARIATION)
    assert variation.tolist() != pytest.approx(STYLES["tv_nhwc"].tolist(), rel=0.1)


def test_total_variation_that_stands_in_for_the_recordings() -> None:
    variation = total_variation_of_rows_and_columns(nchw(STYLES["target"]))
    assert variation.tolist() == pytest.approx(STYLES["tv_nhwc"].tolist(), rel=VARIATION)
