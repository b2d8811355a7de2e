"""Layers with an equalised learning rate: masters of unit variance, scaled by a constant of the layer.

Source: Karras et al. 2017 (arXiv 1710.10196), section 4.1. The scaled weight is the working weight, which is computed
once per phase in fp32, and then cast.
"""

import math
from collections.abc import Sequence
from typing import Literal, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frugan.contract.elementwise import GAIN, SLOPE, clamped
from frugan.contract.layers import Penalised, Scaled, ScaledWeight, Scaling, UsesOps
from frugan.contract.ops import PLAIN, Ops
from frugan.nn.fir import KeptKernels, downsample2d, filtered_leaky_relu, fir_filter, upfirdn2d, upsample2d
from frugan.nn.linear_maps import conv2d

WEIGHT_AND_BIAS = ("weight", "bias")


class EqualisedScaling(Scaling):
    """Divisors that depend on nothing but the size of a layer."""

    @classmethod
    def find(cls, weights: Sequence[ScaledWeight]) -> Self:
        """Ask each layer for its divisors."""
        return cls([cast(_Equalised, weight.layer).divisor(weight.name, weight.master) for weight in weights])


class _Equalised(Scaled):
    """A layer whose working weights are its masters, each divided by a constant."""

    scaling = EqualisedScaling

    def divisor(self, name: str, master: Tensor) -> float:
        """Divisor of a parameter."""
        raise NotImplementedError(f"{type(self).__name__} must define divisor")


class EqualisedLinear(_Equalised):
    """Fully connected layer, always in fp32.

    Args:
        inputs: input features.
        outputs: output features.
        activate: apply a leaky ReLU, whose gain is part of the working weights.
        rate: factor on the learning rate, by which masters are smaller.
        gain: multiplies the output.
        first_bias: initial value of the bias.
    """

    reparametrised = WEIGHT_AND_BIAS
    fp32_parameters = WEIGHT_AND_BIAS

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        activate: bool = False,
        rate: float = 1.0,
        gain: float = 1.0,
        first_bias: float = 0.0,
    ) -> None:
        super().__init__()
        self.activate, self.rate, self.first_bias = activate, rate, first_bias
        self.gain = gain * GAIN if activate else gain
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.full((outputs,), float(first_bias)))
        nn.init.normal_(self.weight, std=1 / rate)

    def initialise(self, generator: torch.Generator) -> None:
        """Draw normal weights of deviation 1/rate."""
        nn.init.normal_(self.weight, std=1 / self.rate, generator=generator)
        nn.init.constant_(self.bias, self.first_bias)

    def divisor(self, name: str, master: Tensor) -> float:
        """Divisor of `weight` or `bias`."""
        scale = self.rate * self.gain
        return 1 / scale if name == "bias" else math.sqrt(master.shape[1]) / scale

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs] -> [N, outputs]."""
        y = F.linear(x.to(self.weight.dtype), self.weight, self.bias)
        return F.leaky_relu(y, SLOPE) if self.activate else y


class EqualisedConv2d(_Equalised, UsesOps, Penalised):
    """Convolution, with a filter where it changes the side.

    Args:
        inputs: input channels.
        outputs: output channels.
        kernel: 1 or 3.
        resample: "up" (kernel 1) doubles the side, "down" halves it.
        activate: apply a bias and a leaky ReLU, whose gain is part of the working weights; False: neither.
        gain: multiplies the output, and the clamp.
        clamp: largest absolute value of the output at a gain of 1.
        half: it may run in half precision.
    """

    reparametrised = WEIGHT_AND_BIAS
    asks = ("leaky_relu", "filtered_leaky_relu", "fir")

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        resample: Literal["up", "down"] | None = None,
        activate: bool = True,
        gain: float = 1.0,
        clamp: float | None = None,
        half: bool = False,
    ) -> None:
        super().__init__()
        if resample == "up" and kernel != 1:
            raise ValueError(f"kernel {kernel}: a plain convolution upsamples with kernel 1 only")
        self.kernel, self.resample = kernel, resample
        self.clamp = None if clamp is None else clamp * gain
        self.gain = gain * GAIN if activate else gain
        self.fp32_parameters = () if half else WEIGHT_AND_BIAS
        self.weight = nn.Parameter(torch.empty(outputs, inputs, kernel, kernel))
        self.bias = nn.Parameter(torch.zeros(outputs)) if activate else None
        self.register_buffer("resample_filter", fir_filter())
        self.kernels = KeptKernels()
        nn.init.normal_(self.weight)

    def initialise(self, generator: torch.Generator) -> None:
        """Draw normal weights of deviation 1, and set the bias to 0."""
        nn.init.normal_(self.weight, generator=generator)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def divisor(self, name: str, master: Tensor) -> float:
        """Divisor of `weight` or `bias`."""
        return 1 / self.gain if name == "bias" else math.sqrt(master[0].numel()) / self.gain

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] -> [N, outputs, H', W']."""
        return self._finished(self._convolve(x.to(self.weight.dtype)))

    def after(self, first: "EqualisedConv2d", x: Tensor) -> Tensor:
        """Apply another layer and then this one: [N, inputs, H, W] -> [N, outputs, H', W'].

        Where a single pass activates and filters, the first layer's activation is left to this layer's filter.
        """
        left = self.ops.filters_activations and self.resample == "down" and self.kernel > 1
        if first.bias is None or not left:
            return cast(Tensor, self(first(x)))
        x = first._convolve(x.to(first.weight.dtype)).to(self.weight.dtype)
        return self._finished(self._downsample(x, (first.bias, first.clamp)))

    def _finished(self, x: Tensor) -> Tensor:
        if self.bias is None:
            return clamped(x, self.clamp)
        return self.ops.leaky_relu(x, self.bias, self.clamp)

    def _convolve(self, x: Tensor) -> Tensor:
        if self.resample == "up":
            x = conv2d(x, self.weight, penalised=self.penalised)
            return upsample2d(x, cast(Tensor, self.resample_filter), self.kernels, self.ops)
        if self.resample == "down":
            return self._downsample(x)
        return conv2d(x, self.weight, padding=self.kernel // 2, penalised=self.penalised)

    def _downsample(self, x: Tensor, activation: tuple[Tensor, float | None] | None = None) -> Tensor:
        return downsampling_conv2d(
            x,
            self.weight,
            cast(Tensor, self.resample_filter),
            self.kernels,
            activation=activation,
            ops=self.ops,
            penalised=self.penalised,
        )


def downsampling_conv2d(
    x: Tensor,
    weight: Tensor,
    fir: Tensor,
    kept: KeptKernels | None = None,
    *,
    activation: tuple[Tensor, float | None] | None = None,
    ops: Ops = PLAIN,
    penalised: bool = False,
) -> Tensor:
    """Filter, and convolve at every second position.

    Args:
        x: [N, I, H, W].
        weight: [O, I, k, k].
        fir: see `upfirdn2d`.
        kept: see `upfirdn2d`.
        activation: bias [I] and clamp of a leaky ReLU before the filter, for k above 1; None: there is none.
        ops: see `upfirdn2d`.
        penalised: see `conv2d`.

    Returns:
        [N, O, H/2, W/2].
    """
    kernel, taps = weight.shape[2], fir.shape[0]
    if kernel == 1:
        return conv2d(downsample2d(x, fir, kept, ops), weight, penalised=penalised)
    before, after = kernel // 2 + (taps - 1) // 2, kernel // 2 + (taps - 2) // 2
    padding = (before, after, before, after)
    if activation is None:
        x = upfirdn2d(x, fir, padding=padding, kept=kept, ops=ops)
    else:
        bias, clamp = activation
        x = filtered_leaky_relu(x, bias, fir, padding=padding, clamp=clamp, kept=kept, ops=ops)
    return conv2d(x, weight, stride=2, penalised=penalised)
