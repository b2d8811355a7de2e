"""StyleGAN3's generator, whose layers treat maps as samples of continuous signals; its discriminator is StyleGAN2's.

Source: Karras et al. 2021 (arXiv 2106.12423). Parameter names are those of the authors' release.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import cast

import torch
from torch import Tensor, nn

from frugan.contract.elementwise import GAIN, SLOPE
from frugan.contract.family import Noise
from frugan.contract.layers import Scaled, Stateful, SumsSquares, UsesOps
from frugan.contract.ops import StyleLayer
from frugan.families.stylegan2.mapping import StyledGenerator
from frugan.families.stylegan2.networks import LargestScaling
from frugan.families.stylegan3.config import LayerShape, Signal, StyleGAN3Networks
from frugan.families.stylegan3.filtered_nonlinearity import filtered_nonlinearity
from frugan.families.stylegan3.filters import layer_filters
from frugan.nn.equalised import EqualisedLinear
from frugan.nn.modulated import demodulated_conv2d, scaled_conv2d

EPS = 1e-12
"""Added to the sums under demodulation's root, only against 0.

The release adds 1e-8 after it has brought the mean squares of weights and, over all pictures of a micro-batch, of
styles to 1: to sums of thousands. Demodulation takes both factors back. So they are left out here, and no picture
depends on the others.
"""
OUTPUT_SCALE = 0.25
"""Factor of the colours, by which layers of unit variance make pictures that lie about in [-1, 1]."""


class TransformAffine(EqualisedLinear):
    """Affine layer from a style to the rotation (cosine and sine) and translation (x, y) of the first frequencies."""

    def __init__(self, style: int) -> None:
        super().__init__(style, 4)
        self.start()

    def initialise(self, _: torch.Generator) -> None:
        """Start without rotation or translation, whatever the style."""
        self.start()

    @torch.no_grad()
    def start(self) -> None:
        """Set the weight to 0, and the bias to a rotation by 0."""
        self.weight.zero_()
        self.bias.zero_()[0] = 1


class FourierInput(nn.Module):
    """First map: waves of fixed random frequencies, moved as the style says, mixed by a matrix; in fp32.

    Args:
        style: size of w.
        signal: sampling of the map.
    """

    fp32_parameters = ("weight",)
    freqs: Tensor
    phases: Tensor
    transform: Tensor

    def __init__(self, style: int, signal: Signal) -> None:
        super().__init__()
        self.signal = signal
        channels = signal.channels
        self.affine = TransformAffine(style)
        self.weight = nn.Parameter(torch.randn(channels, channels))
        self.register_buffer("freqs", torch.zeros(channels, 2))
        self.register_buffer("phases", torch.zeros(channels))
        # [3, 3], which maps places in the drawn picture to those in the one without it
        self.register_buffer("transform", torch.eye(3))

    def initialise(self, generator: torch.Generator) -> None:
        """Draw a normal matrix, frequencies uniformly in the disc up to the cut-off, and phases."""
        nn.init.normal_(self.weight, generator=generator)
        radius, angle = torch.rand(
            2, self.signal.channels, generator=generator, device=self.freqs.device, dtype=self.freqs.dtype
        )
        radius, angle = self.signal.cutoff * radius.sqrt(), 2 * math.pi * angle
        self.freqs.copy_(torch.stack([radius * angle.cos(), radius * angle.sin()], 1))
        nn.init.uniform_(self.phases, -0.5, 0.5, generator=generator)

    @torch.no_grad()
    def move(self, translate: tuple[float, float], rotate: float) -> None:
        """Set the transform that moves what is drawn.

        Args:
            translate: in picture widths to the right, and heights down.
            rotate: degrees counter-clockwise, before the translation.
        """
        angle = math.radians(rotate)
        cosine, sine = math.cos(angle), math.sin(angle)
        x, y = translate
        # Rows are counted downwards: a turn to the left takes (1, 0) to (cosine, -sine). A place of the moved picture
        # shows what was at the place that the inverse gives.
        moved = torch.tensor([[cosine, sine, x], [-sine, cosine, y], [0, 0, 1]], dtype=torch.float64)
        self.transform.copy_(torch.linalg.inv(moved))

    def forward(self, placed: Tensor) -> Tensor:
        """Output of the affine layer [N, 4] -> [N, C, size, size], fp32."""
        signal = self.signal
        freqs, phases = self._moved(placed)
        # waves beyond the band, to which no sampling rate belongs, fade out up to half of it
        beyond = freqs.norm(dim=2) - signal.cutoff
        fading = (1 - beyond / (signal.rate / 2 - signal.cutoff)).clamp(0, 1)  # [N, C]
        at = (torch.arange(signal.size, device=freqs.device, dtype=freqs.dtype) + 0.5 - signal.size / 2) / signal.rate
        along_x, along_y = (at[:, None] * freqs[:, None, :, axis] for axis in range(2))  # [N, size, C] each
        turns = along_x[:, None] + (along_y + phases[:, None])[:, :, None]  # [N, size, size, C]
        waves = torch.sin(turns * (2 * math.pi))
        # pictures keep their channels last, as this product does
        mixing = fading[:, None] * self.weight / math.sqrt(len(self.weight))  # [N, C', C]
        mixed: Tensor = waves.flatten(1, 2) @ mixing.transpose(1, 2)  # [N, size·size, C']
        return mixed.view(-1, signal.size, signal.size, mixed.shape[2]).permute(0, 3, 1, 2)

    def _moved(self, placed: Tensor) -> tuple[Tensor, Tensor]:
        """Frequencies [N, C, 2] and phases [N, C] after rotation, translation and the user's transform, in this order.

        Only the direction of the rotation's cosine and sine counts.
        """
        placed = placed / placed[:, :2].norm(dim=1, keepdim=True)
        cosine, sine, x, y = placed.unbind(1)
        nothing, one = torch.zeros_like(x), torch.ones_like(x)
        rows = ([cosine, -sine, nothing], [sine, cosine, nothing], [nothing, nothing, one])
        rotation = torch.stack([torch.stack(row, 1) for row in rows], 1)  # [N, 3, 3]
        rows = ([one, nothing, -x], [nothing, one, -y], [nothing, nothing, one])
        translation = torch.stack([torch.stack(row, 1) for row in rows], 1)
        moved = rotation @ translation @ self.transform
        phases = self.phases + (self.freqs @ moved[:, :2, 2:]).squeeze(2)
        return self.freqs @ moved[:, :2, :2], phases


class StyledLayer(Stateful):
    """A modulated convolution of an input that is brought to a mean square of 1.

    Args:
        shape: numbers of the layer.
        config: settings of the networks.
        gain: factor of the style.
    """

    weight: Tensor
    magnitude_ema: Tensor

    def __init__(self, shape: LayerShape, config: StyleGAN3Networks, *, gain: float = 1.0) -> None:
        super().__init__()
        self.shape, self.clamp = shape, config.convolution_clamp
        self.newest = 1 - config.magnitude_decay
        self.fp32_parameters = () if config.half_at_rate(shape.output.rate) else ("weight", "bias")
        inputs, outputs = shape.input.channels, shape.output.channels
        self.affine = EqualisedLinear(config.style_size, inputs, gain=gain, first_bias=1)
        self.weight = nn.Parameter(torch.randn(outputs, inputs, shape.kernel, shape.kernel))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.register_buffer("magnitude_ema", torch.ones(()))

    def initialise(self, generator: torch.Generator) -> None:
        """Draw normal weights, and set the bias to 0."""
        nn.init.normal_(self.weight, generator=generator)
        nn.init.zeros_(self.bias)

    def observe_magnitude(self, x: Tensor) -> None:
        """Observe the mean square of an input [N, I, H, W]."""
        norm = torch.linalg.vector_norm(x.detach(), dtype=torch.promote_types(x.dtype, torch.float32))
        self.observe("magnitude_ema", norm.square() / x.numel(), len(x))


class SynthesisLayer(StyledLayer, Scaled, SumsSquares, UsesOps):
    """A modulated convolution, and a nonlinearity between filters.

    The working weight is scaled as StyleGAN2's is, and the activation's gain is part of demodulation and of the bias.
    """

    reparametrised = ("weight", "bias")
    scaling = LargestScaling
    asks = ("product_gradients", "filtered_nonlinearity", "fir")
    up_filter: Tensor
    down_filter: Tensor

    def __init__(self, shape: LayerShape, config: StyleGAN3Networks) -> None:
        super().__init__(shape, config)
        self.gain = GAIN
        self.squares_factor = self.gain**-2
        up, down = layer_filters(shape, radial=config.equivariance == "rotation")
        self.register_buffer("up_filter", up)
        self.register_buffer("down_filter", down)

    def forward(self, x: Tensor, style: Tensor, norms: Tensor | None = None, observed: bool = False) -> Tensor:
        """Convolve with styled weights, and activate.

        Args:
            x: [N, I, size, size].
            style: output of the affine layer [N, I].
            norms: demodulation's factors [N, O]; None: they are computed here.
            observed: observe the magnitude of x.

        Returns:
            [N, O, size', size'].
        """
        if observed:
            self.observe_magnitude(x)
        x, padding = x.to(self.weight.dtype), self.shape.kernel - 1
        if norms is None:
            x, norms = demodulated_conv2d(
                x,
                self.weight,
                style,
                squares=self.summed_squares(),
                gain=self.gain,
                padding=padding,
                eps=EPS,
                ops=self.ops,
            )
        else:
            x = scaled_conv2d(x, self.weight, style, padding=padding, ops=self.ops)
        factors = (norms * self.magnitude_ema.rsqrt()).to(x.dtype)
        return filtered_nonlinearity(
            x * factors[:, :, None, None],
            self.bias,
            self.up_filter,
            self.down_filter,
            self.shape.up,
            self.shape.down,
            self.shape.padding,
            gain=1.0,
            slope=SLOPE,
            clamp=self.clamp,
            ops=self.ops,
        )


class ColourLayer(StyledLayer, UsesOps):
    """A modulated 1x1 convolution to the colours of a picture, without demodulation, nonlinearity or filters."""

    asks = ("product_gradients", "add_bias")

    def __init__(self, shape: LayerShape, config: StyleGAN3Networks) -> None:
        super().__init__(shape, config, gain=1 / math.sqrt(shape.input.channels))

    def forward(self, x: Tensor, style: Tensor, observed: bool = False) -> Tensor:
        """[N, I, R, R], output of the affine layer [N, I] -> [N, colours, R, R]."""
        if observed:
            self.observe_magnitude(x)
        styled = style * self.magnitude_ema.rsqrt().to(style.dtype)
        x = scaled_conv2d(x.to(self.weight.dtype), self.weight, styled, ops=self.ops)
        return self.ops.add_bias(x, self.bias, self.clamp)


class Synthesis(UsesOps):
    """The synthesis network: the first map, and all layers."""

    asks = ("styles",)

    def __init__(self, config: StyleGAN3Networks) -> None:
        super().__init__()
        self.input = FourierInput(config.style_size, config.first_signal)
        *shapes, colours = config.layer_shapes
        self.names = tuple(shape.name for shape in shapes)
        self.last = colours.name
        for shape in shapes:
            self.add_module(shape.name, SynthesisLayer(shape, config))
        self.add_module(colours.name, ColourLayer(colours, config))

    @property
    def layers(self) -> tuple[SynthesisLayer, ...]:
        """Layers in order, without the one of colours."""
        return tuple(cast(SynthesisLayer, self.get_submodule(name)) for name in self.names)

    @property
    def colours(self) -> ColourLayer:
        """The last layer."""
        return cast(ColourLayer, self.get_submodule(self.last))

    @property
    def affines(self) -> list[EqualisedLinear]:
        """Affine layers in the order of the styles that they take."""
        return [self.input.affine, *(layer.affine for layer in self.layers), self.colours.affine]

    def forward(self, ws: Tensor, *, observed: bool = False) -> Tensor:
        """Draw pictures.

        Args:
            ws: [N, styles, style].
            observed: in training, let layers observe the magnitudes of their inputs.

        Returns:
            Pictures [N, colours, R, R], about in [-1, 1], fp32.
        """
        layers = self.layers
        dtypes = [self.input.weight.dtype, *(layer.weight.dtype for layer in layers), self.colours.weight.dtype]
        squares = [None, *(layer.summed_squares for layer in layers), None]
        styled = [
            StyleLayer(affine.weight, affine.bias, place, dtype, sums)
            for place, (affine, dtype, sums) in enumerate(zip(self.affines, dtypes, squares, strict=True))
        ]
        (first, *styles, last), norms = self.ops.styles(ws, styled, EPS / GAIN**2)
        x = self.input(first)
        for layer, style, factors in zip(layers, styles, norms or repeat(None), strict=False):
            x = layer(x, style, factors, observed)
        return cast(Tensor, self.colours(x, last, observed)).to(ws.dtype) * OUTPUT_SCALE


class Generator(StyledGenerator):
    """StyleGAN3's generator: the mapping network and the synthesis network."""

    synthesis: Synthesis

    def __init__(self, config: StyleGAN3Networks) -> None:
        super().__init__(config)
        self.synthesis = Synthesis(config)

    @property
    def affines_by_style(self) -> Mapping[int, Sequence[EqualisedLinear]]:
        """Number of a style -> the affine layer that takes it."""
        return {place: [affine] for place, affine in enumerate(self.synthesis.affines)}

    def draw(self, ws: Tensor, noise: Noise, random: torch.Generator | None) -> Tensor:
        """Draw pictures; see `StyledGenerator.draw`. No layer adds noise."""
        return cast(Tensor, self.synthesis(ws))

    def forward(
        self, z: Tensor, classes: Tensor | None = None, *, psi: float = 1.0, cutoff: int | None = None
    ) -> Tensor:
        """Generate pictures.

        Args:
            z: latents [N, latent_size].
            classes: class numbers [N], or shares of the classes [N, classes], if the networks know classes.
            psi: see `broadcast`.
            cutoff: see `broadcast`.

        Returns:
            Pictures [N, colours, R, R], about in [-1, 1], fp32.
        """
        return cast(Tensor, self.synthesis(self.broadcast(self.mapping(z, classes), psi, cutoff)))
