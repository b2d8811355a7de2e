"""The operations that StyleGAN2 is made of, one by one, against the release's."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from frugan.contract.elementwise import clamped, leaky_relu, scaled_noise, second_moment_norm
from frugan.contract.ops import PLAIN, StyleLayer
from frugan.nn.batch_norm import MinibatchStd
from frugan.nn.equalised import EqualisedLinear, downsampling_conv2d
from frugan.nn.fir import KeptKernels, downsample2d, fir_filter, upfirdn2d, upsample2d
from frugan.nn.modulated import demodulation, modulated_conv2d

LIMIT = 1e-5
GOLDEN = Path(__file__).parents[2] / "golden" / "stylegan2"


@cache
def recorded() -> dict[str, Tensor]:
    return load_file(GOLDEN / "operations.safetensors")


def of(part: str, name: str) -> Tensor:
    return recorded()[f"{part}.{name}"]


def square(name: str) -> Tensor:
    """A filter in two directions."""
    fir = of("filters", f"filter.{name}")
    return torch.outer(fir, fir) if fir.ndim == 1 else fir


def near(ours: Tensor, reference: Tensor, limit: float = LIMIT) -> bool:
    scale = max(1.0, float(reference.abs().max()))
    return ours.shape == reference.shape and bool((ours - reference).abs().max() <= limit * scale)


UPFIRDN = {
    "u1": ("1331", {"up": 2}),
    "u2": ("1331", {"down": 2, "padding": (1, 1, 1, 1)}),
    "u3": ("asym3", {"up": 2, "down": 3, "padding": (1, 2, 0, 3), "gain": 2.5}),
    "u5": ("rand2d_3x5", {"up": 3, "padding": (3, 3, 2, 2)}),
    "u6": ("sym6", {"up": 2, "padding": (5, 5, 5, 5), "gain": 4}),
    "u7": ("sym6", {"down": 2, "padding": (6, 6, 6, 6), "flip": True}),
    "u8": ("impulse", {"up": 2}),
    "u9": ("1331", {"padding": (2, 1, 2, 1), "gain": 4}),
}


@pytest.mark.parametrize("case", UPFIRDN)
def test_upfirdn2d_and_its_gradient(case: str) -> None:
    name, settings = UPFIRDN[case]
    x = of("upfirdn2d", "x").requires_grad_()
    made = upfirdn2d(x, square(name), **settings)  # type: ignore[arg-type]
    assert near(made, of("upfirdn2d", f"{case}.y"))
    (gradient,) = torch.autograd.grad(made, x, of("upfirdn2d", f"{case}.dy"))
    assert near(gradient, of("upfirdn2d", f"{case}.dx"))


@pytest.mark.parametrize(
    "settings",
    [
        {"up": 2, "padding": (2, 1, 2, 1)},
        {"down": 2, "padding": (1, 1, 0, 3)},
        {"up": 3, "down": 2, "padding": (-1, 2, 4, 0)},
    ],
)
def test_upfirdn2d_is_differentiable_twice(settings: dict[str, int]) -> None:
    x = torch.randn(1, 2, 5, 4, dtype=torch.float64, requires_grad=True)
    fir = torch.randn(4, 3, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda t: upfirdn2d(t, fir, **settings), (x,))  # type: ignore[arg-type]
    assert torch.autograd.gradgradcheck(lambda t: upfirdn2d(t, fir, **settings).square(), (x,), fast_mode=True)  # type: ignore[arg-type]


def test_the_filter_and_twice_and_half_the_side() -> None:
    assert torch.equal(fir_filter(), square("1331"))
    x = of("upfirdn2d", "x")
    assert near(upsample2d(x, fir_filter()), of("upfirdn2d", "up1.y"))
    assert near(downsample2d(x, fir_filter()), of("upfirdn2d", "dn1.y"))


@pytest.mark.parametrize(("case", "gain", "clamp"), [("def", 2**0.5, None), ("g", 0.7, 0.9)])
def test_leaky_relu_and_its_gradients(case: str, gain: float, clamp: float | None) -> None:
    x, b = of("bias_act", "x").requires_grad_(), of("bias_act", "b").requires_grad_()
    made = leaky_relu(gain * x, gain * b, clamp=clamp)
    assert near(made, of("bias_act", f"lrelu.{case}.y"))
    dx, db = torch.autograd.grad(made, (x, b), of("bias_act", "v"))
    assert near(dx, of("bias_act", f"lrelu.{case}.dx"))
    assert near(db, of("bias_act", f"lrelu.{case}.db"))


def test_clamp_without_activation() -> None:
    made = clamped(0.7 * (of("bias_act", "x") + of("bias_act", "b").view(1, -1, 1, 1)), 0.9)
    assert near(made, of("bias_act", "linear.g.y"))


def test_leaky_relu_is_differentiable_twice() -> None:
    x, b = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 4, 2), (4,)))
    assert torch.autograd.gradgradcheck(lambda x, b: leaky_relu(x, b, clamp=1.0) ** 3, (x, b), fast_mode=True)


def test_kernels_are_kept_until_the_filter_is_written_to() -> None:
    kept, fir = KeptKernels(), fir_filter().double()
    first = kept.of(fir, torch.float64, 4.0, turned=True)
    assert kept.of(fir, torch.float64, 4.0, turned=True) is first
    assert kept.of(fir, torch.float32, 4.0, turned=True) is not first
    with torch.no_grad():
        fir[0, 1] = 7
    assert float(kept.of(fir, torch.float64, 4.0, turned=True)[3, 2]) == 28
    other = fir_filter().double()
    assert torch.equal(kept.of(other, torch.float64, 1.0, turned=False), other)


def test_demodulation_is_differentiable_twice() -> None:
    def composed(squares: Tensor, styles: Tensor) -> Tensor:
        return (styles.square() @ squares.T + 0.1).rsqrt()

    squares, styles = (torch.rand(*shape, dtype=torch.float64).requires_grad_() for shape in ((3, 4), (2, 4)))
    made = demodulation(squares, styles, 0.1, torch.float64)
    torch.testing.assert_close(made, composed(squares, styles))
    assert torch.autograd.gradcheck(lambda a, b: demodulation(a, b, 0.1, torch.float64), (squares, styles))
    assert torch.autograd.gradgradcheck(
        lambda a, b: demodulation(a, b, 0.1, torch.float64), (squares, styles), fast_mode=True
    )


def test_scaled_noise_and_its_gradients() -> None:
    noise, strength = torch.randn(2, 1, 3, 3, dtype=torch.float64), torch.tensor(0.3, dtype=torch.float64)
    noise.requires_grad_()
    strength.requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: scaled_noise(a, b, torch.float64), (noise, strength))
    half = scaled_noise(noise.float(), strength.float(), torch.bfloat16)
    assert torch.equal(half, (noise.float() * strength.float()).bfloat16())


def test_linear_layers_together() -> None:
    layers = [EqualisedLinear(6, outputs) for outputs in (3, 4, 3, 3)]
    inputs = [torch.randn(2, 6) for _ in layers]
    asked = [StyleLayer(layer.weight, layer.bias, i, torch.float32, None) for i, layer in enumerate(layers)]
    outputs, norms = PLAIN.styles(torch.stack(inputs, 1), asked, None)
    assert not norms
    for output, layer, given in zip(outputs, layers, inputs, strict=True):
        torch.testing.assert_close(output, layer(given))


def test_convolutions_that_resample() -> None:
    x, fir = of("conv2d_resample", "x"), fir_filter()
    for case, made in {
        "c1": modulated_conv2d(
            x, of("conv2d_resample", "c1.w"), torch.ones(x.shape[:2]), demodulate=False, upsample_by=fir
        ),
        "c2": downsampling_conv2d(x, of("conv2d_resample", "c2.w"), fir),
        "c3": downsampling_conv2d(x, of("conv2d_resample", "c3.w"), fir),
        "c4": upsample2d(torch.nn.functional.conv2d(x, of("conv2d_resample", "c4.w")), fir),
    }.items():
        assert near(made, of("conv2d_resample", f"{case}.y")), case


MODULATED: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "m2": ("w3", None, {}),
    "m4": ("w3", "noise_8", {}),
    "m6": ("w3", "noise_16", {"upsample_by": fir_filter()}),
    "m8": ("w1", None, {"demodulate": False}),
}


@pytest.mark.parametrize("case", MODULATED)
def test_modulated_convolution_and_its_gradients(case: str) -> None:
    weight, noise, settings = MODULATED[case]
    x, w, s = (of("modulated_conv2d", name).requires_grad_() for name in ("x", weight, "styles"))
    settings = {**settings, "noise": of("modulated_conv2d", noise) if noise else None}
    made = modulated_conv2d(x, w, s, **settings)
    assert near(made, of("modulated_conv2d", f"{case}.y"))
    gradients = torch.autograd.grad(made, (x, w, s), of("modulated_conv2d", f"{case}.dy"))
    for gradient, name in zip(gradients, ("dx", "dw", "dstyles"), strict=True):
        assert near(gradient, of("modulated_conv2d", f"{case}.{name}")), name


@pytest.mark.parametrize(("case", "x_scale", "style_scale"), [("h2", 1, 1), ("h3", 1e4, 1), ("h4", 1, 1e4)])
def test_modulated_convolution_in_half_precision(case: str, x_scale: float, style_scale: float) -> None:
    """Inputs and styles of 10,000 do not overflow: by the styles' norm here, by the weights' in their layer."""
    w = of("modulated_conv2d", "w3")
    w = w / (w.abs().amax((1, 2, 3), keepdim=True) * w[0].numel() ** 0.5)
    noise = of("modulated_conv2d", "noise_8") if case == "h2" else None
    x = (of("modulated_conv2d", "x") * x_scale).half()
    made = modulated_conv2d(x, w.half(), of("modulated_conv2d", "styles") * style_scale, noise=noise)
    assert near(made.float(), of("modulated_conv2d", f"{case}.y"), 2e-3)


def test_minibatch_std_of_groups() -> None:
    """The release strides over a batch; here a group is samples in a row."""
    x = of("misc", "x")
    rows = torch.arange(8).view(4, 2).T.flatten()  # samples 0, 2, 4, 6 and 1, 3, 5, 7
    for group, maps in ((4, 1), (4, 2), (None, 1)):
        layer = MinibatchStd(maps)
        layer.normalisation_batch = group
        output = layer(x[rows] if group else x)
        reference = of("misc", f"mbstd_g{group}_f{maps}")
        assert near(output, reference[rows] if group else reference)
    layer = MinibatchStd(1)
    layer.normalisation_batch = 4
    with pytest.raises(ValueError, match="6 samples are not a whole number of groups of 4"):
        layer(x[:6])


def test_fully_connected_and_second_moment() -> None:
    layer = EqualisedLinear(16, 5, activate=True, rate=0.01)
    with torch.no_grad():
        for name in ("weight", "bias"):
            getattr(layer, name).copy_(layer.working_weight(name, of("misc", f"fc.{name}")))
    assert near(layer(of("misc", "z")), of("misc", "fc.y"))
    assert near(second_moment_norm(of("misc", "z")), of("misc", "norm2"))
