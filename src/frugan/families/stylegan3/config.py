"""Sections `networks` and `objective` of a StyleGAN3 recipe, and the sizes and rates of the generator's layers."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import model_validator

from frugan.contract.resampling import Padding
from frugan.contract.settings import CHANGEABLE, setting
from frugan.families.stylegan2.config import MOST_CHANNELS, StyledNetworks, StyledObjective

FIRST_CUTOFF = 2.0
"""Cut-off of the first layer; this and all other frequencies are in cycles per picture."""
FIRST_STOPBAND = 2**2.1
"""Lowest frequency that the first layer's filters take away."""
LAST_STOPBAND = 2**0.3
"""The last layer's, as a multiple of half the resolution."""
CRITICAL_LAYERS = 2
"""Layers at the end, colours not counted, whose cut-off is half their sampling rate."""
MARGIN = 10
"""Pixels that maps reach beyond each edge of the picture, so that what moves into it was there before."""
TAPS = 6
"""Taps of a filter for each sample that it puts in or takes away."""


@dataclass(frozen=True)
class Signal:
    """Sampling of a map."""

    cutoff: float  # highest frequency that it is meant to hold
    half_width: float  # half the width of the transition around the cut-off
    rate: int  # samples per picture
    size: int  # samples on each side, with those beyond the picture's edges
    channels: int

    @property
    def critical(self) -> bool:
        """Whether it holds frequencies up to half its sampling rate."""
        return 2 * self.cutoff == self.rate


@dataclass(frozen=True)
class LayerShape:
    """Numbers of one layer, all of which follow from its input and its output."""

    index: int
    input: Signal
    output: Signal
    kernel: int  # taps of the convolution
    colours: bool  # it is the last one, which makes colours and has no filters

    @property
    def name(self) -> str:
        """Name among the parts of the synthesis network, as the authors give it."""
        return f"L{self.index}_{self.output.size}_{self.output.channels}"

    @property
    def rate(self) -> int:
        """Sampling rate of the nonlinearity."""
        return max(self.input.rate, self.output.rate) * (1 if self.colours else 2)

    @property
    def up(self) -> int:
        """Factor from the input's rate to the nonlinearity's."""
        return self.rate // self.input.rate

    @property
    def down(self) -> int:
        """Factor from the nonlinearity's rate to the output's."""
        return self.rate // self.output.rate

    @property
    def up_taps(self) -> int:
        """Taps of the filter before the nonlinearity; 1: there is none."""
        return 1 if self.colours else TAPS * self.up

    @property
    def down_taps(self) -> int:
        """Taps of the filter after the nonlinearity; 1: there is none."""
        return 1 if self.colours else TAPS * self.down

    @property
    def padding(self) -> Padding:
        """Samples to add around the upsampled map, or to cut off, so that both filters leave the output's size.

        The convolution pads by kernel - 1. What is odd goes before the map where upsampling would move it.
        """
        convolved = self.input.size + self.kernel - 1
        needed = (self.output.size - 1) * self.down + 1 + self.up_taps + self.down_taps - 2
        total = needed - convolved * self.up
        before = (total + self.up) // 2
        return before, total - before, before, total - before


class StyleGAN3Networks(StyledNetworks):
    """Generator and discriminator of StyleGAN3."""

    equivariance: Literal["translation", "rotation"] = setting(
        "translation",
        "what a picture's details follow: translation (the authors' T), or rotation too (R), by 1x1 convolutions and "
        "radial filters",
    )
    mapping_layers: int = setting(2, "layers of the mapping network, from z to w", ge=1, le=64)
    mean_style_decay: float = setting(
        0.998, "weight of the mean style so far, when an update moves it (0 to 1)", ge=0, le=1
    )
    layers: int = setting(14, "layers of the generator before the one of colours", ge=CRITICAL_LAYERS + 1, le=64)
    generator_channel_base: int = setting(
        32768, "a layer with cut-off f has at most this divided by 2f channels", ge=8, le=MOST_CHANNELS * 1024
    )
    generator_channel_max: int = setting(512, "most channels of any layer of the generator", ge=1, le=MOST_CHANNELS)
    magnitude_decay: float = setting(
        0.999,
        "weight of a layer's mean square input so far, when an update moves it; the authors': 0.5^(batch/20000)",
        ge=0,
        le=1,
    )

    @model_validator(mode="after")
    def _has_channels(self) -> Self:
        if self.generator_channel_base < self.resolution:
            raise ValueError(
                f"generator_channel_base {self.generator_channel_base}: leaves no channel at {self.resolution} pixels; "
                f"expected at least {self.resolution}"
            )
        return self

    @property
    def styles(self) -> int:
        """Number of layers that take a style: the first frequencies, all layers, and the colours."""
        return self.layers + 2

    @property
    def kernel(self) -> int:
        """Taps of the generator's convolutions."""
        return 1 if self.equivariance == "rotation" else 3

    def half_at_rate(self, rate: int) -> bool:
        """Whether a layer of the generator runs in half precision where the plan has it."""
        return rate << self.half_resolutions > self.resolution

    @property
    def first_signal(self) -> Signal:
        """Signal that the generator begins with."""
        return self._signal(0)

    @property
    def layer_shapes(self) -> tuple[LayerShape, ...]:
        """Numbers of all layers in order; the last one makes colours."""
        return tuple(self._layer_shapes())

    def _layer_shapes(self) -> Iterator[LayerShape]:
        before = self._signal(0)
        for index in range(self.layers + 1):
            after = self._signal(index)
            colours = index == self.layers
            yield LayerShape(index, before, after, 1 if colours else self.kernel, colours)
            before = after

    def _signal(self, index: int) -> Signal:
        """Output of a layer.

        Source: Karras et al. 2021 (arXiv 2106.12423), section 3.2: cut-off and stop band grow exponentially.
        """
        nyquist = self.resolution / 2
        share = min(index / (self.layers - CRITICAL_LAYERS), 1)
        cutoff = FIRST_CUTOFF * (nyquist / FIRST_CUTOFF) ** share
        stopband = FIRST_STOPBAND * (nyquist * LAST_STOPBAND / FIRST_STOPBAND) ** share
        rate = 2 ** math.ceil(math.log2(min(2 * stopband, self.resolution)))
        whole = index >= self.layers - 1  # of the picture's own size
        channels = round(min(self.generator_channel_base / 2 / cutoff, self.generator_channel_max))  # halves to even
        return Signal(
            cutoff,
            max(stopband, rate / 2) - cutoff,
            rate,
            self.resolution if whole else rate + 2 * MARGIN,
            self.channels if index == self.layers else channels,
        )


class StyleGAN3Objective(StyledObjective):
    """Losses and regularisers of StyleGAN3 training."""

    blur: float = setting(
        0.0,
        "deviation in pixels of a blur of all that the discriminator sees, which fades; the authors': 10 for rotation",
        CHANGEABLE,
        ge=0,
        le=100,
    )
    blur_images: int = setting(200_000, "training images until the blur has faded", CHANGEABLE, ge=1)
