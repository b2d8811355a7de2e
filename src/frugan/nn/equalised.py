"""Layers with an equalised learning rate: masters of unit variance, scaled to what the layer needs.

Source: Karras et al. 2017 (arXiv 1710.10196), section 4.1. The scaled weight is the working weight: made once per phase
in fp32, then cast.
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

BOTH = ("weight", "bias")


class EqualisedScaling(Scaling):
    """Divisors that depend on nothing but a layer's size."""

    @classmethod
    def find(cls, weights: Sequence[ScaledWeight]) -> Self:
        """Ask the layers."""
        return cls([cast(_Equalised, weight.layer).divisor(weight.name, weight.master) for weight in weights])


class _Equalised(Scaled):
    """A layer whose working weights are its masters divided by a constant each."""

    scaling = EqualisedScaling

    def divisor(self, name: str, master: Tensor) -> float:
        """Of one of its weights."""
        raise NotImplementedError(f"{type(self).__name__} must define divisor")


class EqualisedLinear(_Equalised):
    """Fully connected, always fp32.

    Args:
        inputs, outputs: features.
        activate: leaky ReLU after it, whose gain the working weights have in them.
        rate: how much slower or faster than others it learns: masters are as much larger or smaller.
        gain: multiplies what it gives.
        first_bias: what its bias starts as.
    """

    reparametrised = BOTH
    fp32_parameters = BOTH

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
        """Normal weights of deviation 1/rate."""
        nn.init.normal_(self.weight, std=1 / self.rate, generator=generator)
        nn.init.constant_(self.bias, self.first_bias)

    def divisor(self, name: str, master: Tensor) -> float:
        """Of the weight and of the bias."""
        scale = self.rate * self.gain
        return 1 / scale if name == "bias" else math.sqrt(master.shape[1]) / scale

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs] -> [N, outputs]."""
        made = F.linear(x.to(self.weight.dtype), self.weight, self.bias)
        return F.leaky_relu(made, SLOPE) if self.activate else made


class EqualisedConv2d(_Equalised, UsesOps, Penalised):
    """Convolution, filtered where it changes the side.

    Args:
        inputs, outputs: channels.
        kernel: 1 or 3.
        resample: "up" (kernel 1) doubles the side, "down" halves it.
        activate: bias and leaky ReLU after it, whose gain the working weights have in them; False: neither.
        gain: multiplies what it gives, and the clamp.
        clamp: largest absolute value that it gives at a gain of 1.
        half: may run in half precision.
    """

    reparametrised = BOTH
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
        self.fp32_parameters = () if half else BOTH
        self.weight = nn.Parameter(torch.empty(outputs, inputs, kernel, kernel))
        self.bias = nn.Parameter(torch.zeros(outputs)) if activate else None
        self.register_buffer("resample_filter", fir_filter())
        self.kernels = KeptKernels()
        nn.init.normal_(self.weight)

    def initialise(self, generator: torch.Generator) -> None:
        """Normal weights of deviation 1, no bias."""
        nn.init.normal_(self.weight, generator=generator)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def divisor(self, name: str, master: Tensor) -> float:
        """Of the weight and of the bias."""
        return 1 / self.gain if name == "bias" else math.sqrt(master[0].numel()) / self.gain

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] -> [N, outputs, H', W']."""
        return self._finished(self._convolve(x.to(self.weight.dtype)))

    def after(self, first: "EqualisedConv2d", x: Tensor) -> Tensor:
        """This layer on what another one gives, [N, inputs, H, W] -> [N, outputs, H/2, W/2].

        Where one pass does both, that one's activation is left to this one's filter.
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
    """Filter, and convolve every second place.

    Args:
        x: [N, I, H, W].
        weight: [O, I, k, k].
        fir, kept, ops: see `upfirdn2d`.
        activation: bias [I] and clamp of a leaky ReLU before the filter, for k above 1; None: there is none.
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
