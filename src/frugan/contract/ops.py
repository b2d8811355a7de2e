"""Operations of layers and losses in plain torch, which kernels override.

A layer holds an `Ops` as `ops` and calls its methods. The engine sets one that is made of kernels where they are used:
each kernel is a subclass that overrides some methods (`frugan.kernels`, or another package's, found by the entry point
group `frugan.ops`). What a layer calls is the same either way, and so is what it gets, up to rounding.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from frugan.contract import elementwise, resampling
from frugan.contract.dssim import dssim
from frugan.contract.resampling import Geometry, Padding, mean_pool2d

Kind = TypeVar("Kind")


class StyleLayer(NamedTuple):
    """A layer that a style scales: what makes its style, and what its demodulation needs."""

    weight: Tensor  # of the affine map that makes it [I, style]
    bias: Tensor  # of this map [I]
    place: int  # number of the style that it takes
    dtype: torch.dtype  # that the layer computes in
    squares: Callable[[], Tensor] | None  # gives the sums of its weight's squares [O, I]; None: it is not demodulated


class Ops:
    """Operations in plain torch, differentiable as often as one asks for unless they say otherwise.

    A kernel that overrides a method calls that of `super()` for whatever it is not made for.

    Attributes:
        filters_activations: `filtered_leaky_relu` is a single pass, so layers shall leave their activation to the
            filter of the next one.
    """

    filters_activations: bool = False

    # Activations.

    def leaky_relu(self, x: Tensor, bias: Tensor, clamp: float | None = None) -> Tensor:
        """clamp(leaky(x + bias)).

        Args:
            x: [N, C] or [N, C, H, W].
            bias: [C].
            clamp: largest absolute value; None: no limit.
        """
        return elementwise.leaky_relu(x, bias, clamp=clamp)

    def add_bias(self, x: Tensor, bias: Tensor, clamp: float | None) -> Tensor:
        """clamp(x + bias), of what has no activation.

        Args:
            x: [N, C] or [N, C, H, W].
            bias: [C], of x's dtype.
            clamp: largest absolute value; None: no limit.
        """
        return elementwise.clamped(x + bias.view(1, -1, *(1,) * (x.ndim - 2)), clamp)

    def styled_leaky_relu(
        self,
        x: Tensor,
        factors: Tensor,
        noise: Tensor | None,
        strength: Tensor,
        bias: Tensor,
        clamp: float | None = None,
    ) -> Tensor:
        """clamp(leaky(x·factors + noise·strength + bias)).

        Args:
            x: [N, C, H, W].
            factors: [N, C], of its dtype.
            noise: [N, 1, H, W] or [H, W]; None: there is none.
            strength: of the noise, a scalar; their product is rounded to x's dtype.
            bias: [C].
            clamp: largest absolute value; None: no limit.
        """
        factors = factors[:, :, None, None]
        added = None if noise is None else elementwise.scaled_noise(noise, strength, x.dtype)
        x = x * factors if added is None else elementwise.affine(x, factors, added)
        return self.leaky_relu(x, bias, clamp)

    # Modulation.

    def product_gradients(self, gradient: Tensor, x: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of x·factors: of x [N, C, H, W] and of the factors [N, C, 1, 1]."""
        return gradient * factors, (gradient * x).sum((2, 3), keepdim=True)

    def styles(self, ws: Tensor, layers: Sequence[StyleLayer], eps: float | None) -> tuple[list[Tensor], list[Tensor]]:
        """Styles of many layers, and what demodulation multiplies by where that is found together with them.

        Args:
            ws: [N, styles, style], fp32.
            layers: which take them.
            eps: added to the sums under demodulation's root; None: layers differ in it, and each demodulates by itself.

        Returns:
            A style [N, I] of each layer; and factors [N, O] of each that is demodulated, in order, or none at all:
            then each layer finds its own.
        """
        inputs = ws.unbind(1)
        return _linear_together([(each.weight, each.bias) for each in layers], [inputs[e.place] for e in layers]), []

    # Filters.

    def fir(self, x: Tensor, kernel: Tensor, geometry: Geometry) -> Tensor:
        """Filter a map, without a gradient: see `filter_map`."""
        return resampling.filter_map(x, kernel, geometry)

    def filtered_leaky_relu(
        self, x: Tensor, bias: Tensor, kernel: Tensor, other: Tensor, padding: Padding, clamp: float | None
    ) -> Tensor:
        """clamp(leaky(x + bias)), filtered.

        Args:
            x: [N, C, H, W].
            bias: [C].
            kernel, other: [T, T'], as torch's convolution and its adjoint's take them.
            padding: around what is filtered.
            clamp: largest absolute value; None: no limit.
        """
        activated = self.leaky_relu(x, bias, clamp)
        return resampling.upfirdn2d(activated, kernel, other, Geometry(1, 1, padding), self)

    # Losses of pictures.

    def dssim(self, a: Tensor, b: Tensor, sizes: Sequence[int], weight: float) -> Tensor:
        """A weight times the mean of (1 - SSIM) / 2 over samples, channels and Gaussian windows, in fp32 or more.

        Args:
            a, b: [B, C, H, W] in [0, 1].
            sizes: of windows, in pixels.
        """
        first, *others = (weight / len(sizes) * dssim(a, b, size).mean() for size in sizes)
        return sum(others, first)

    def mean_square(self, a: Tensor, b: Tensor) -> Tensor:
        """Mean of (a - b)²."""
        return (a - b).square().mean()

    def masked_error(self, x: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        """Mean of |(x - target)·mask|, all of shapes that can be broadcast."""
        return (target * mask - x * mask).abs().mean()

    # Normalisation.

    def batch_norm(
        self,
        x: Tensor,
        gain: Tensor,
        bias: Tensor,
        *,
        group: int,
        eps: float,
        biased: bool,
        relu: bool,
        room: Callable[[int], Tensor],
        observe: Callable[[Tensor, Tensor], None],
    ) -> Tensor:
        """gain·normalised + bias by each group's own statistics, through a ReLU if so wanted.

        Args:
            x: [B, C, H, W].
            gain, bias: [B, C], or [1, C] for all samples, of its dtype.
            group: samples of a group, which stand in a row; B is a multiple of it.
            eps: added to the variance.
            biased: the variance that is observed is over n samples, and not n - 1.
            room: gives so many zeros in fp32, which may be kept.
            observe: is given mean and variance of each group [C], in fp32.

        Returns:
            [B, C, H, W].
        """
        y = elementwise.affine(
            _normalised(x, group, eps, biased, room, observe), gain[:, :, None, None], bias[:, :, None, None]
        )
        return F.relu(y) if relu else y

    def spectral_scaling(self, kind: type[Kind]) -> type[Kind]:
        """The class that divides weights by their largest singular values: the one that is given, or a subclass."""
        return kind

    # Residual blocks that halve a map.

    def relu_and_means(self, x: Tensor) -> tuple[Tensor, Callable[[], Tensor], Tensor | None]:
        """ReLU of a map of even sides, a call that gives means of 2x2 of its pixels, and what a backward keeps of it.

        [N, C, H, W] -> [N, C, H, W], [N, C, H/2, W/2]; None: torch keeps what it needs.
        """
        return F.relu(x), partial(mean_pool2d, x), None

    def relu_and_itself(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """ReLU of a map, and the map for a skip: [N, C, H, W] twice."""
        return F.relu(x), x

    def means_plus(self, x: Tensor, skip: Callable[[], Tensor], kept: Tensor) -> Tensor:
        """Means of 2x2 pixels plus what a skip gives.

        Args:
            x: [N, C, H, W].
            skip: gives [N, C, H/2, W/2].
            kept: a tensor that a backward needs anyway. That of a kernel asks for it first, so that a block that is
                recomputed is so before there is a gradient as large as x.
        """
        return torch.add(mean_pool2d(x), skip())

    def relu_means(self, x: Tensor) -> Callable[[], Tensor]:
        """A call that gives means of 2x2 pixels of a map's ReLU: [N, C, H, W] -> [N, C, H/2, W/2]."""
        return partial(mean_pool2d, F.relu(x))


PLAIN = Ops()
"""Without kernels."""


def combined(kernels: Iterable[type[Ops]]) -> Ops:
    """Operations of several kernels together; where two override a method, the first one's is called first."""
    kinds = tuple(kernels)
    return type("Kernels", kinds, {})() if kinds else PLAIN


def overridden(kernel: type[Ops]) -> frozenset[str]:
    """Names of the operations that a kernel is for."""
    public = (name for name in vars(Ops) if not name.startswith("_"))
    return frozenset(name for name in public if getattr(kernel, name) is not getattr(Ops, name))


def _normalised(
    x: Tensor,
    group: int,
    eps: float,
    biased: bool,
    room: Callable[[int], Tensor],
    observe: Callable[[Tensor, Tensor], None],
) -> Tensor:
    """A map normalised group by group [B, C, H, W]; the arguments are those of `batch_norm`."""
    parts = list[Tensor]()
    for part in [x] if len(x) == group else x.split(group):
        # Throw-away running statistics at momentum 1 receive the group's mean and unbiased variance from the kernel
        # that normalises: no second pass over x, and fp32 whatever the dtype of x.
        mean, variance = room(2 * x.shape[1]).chunk(2)
        parts.append(F.batch_norm(part, mean, variance, training=True, momentum=1.0, eps=eps))
        if biased:
            samples = part.numel() // part.shape[1]
            variance *= (samples - 1) / samples
        observe(mean, variance)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _linear_together(layers: Sequence[tuple[Tensor, Tensor]], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Affine maps, each of an input of its own; those of one shape in one product.

    Args:
        layers: of each its weight [outputs, inputs] and bias [outputs].
        inputs: [N, inputs] each.

    Returns:
        [N, outputs] each.
    """
    outputs: dict[int, Tensor] = {}
    for shape in dict.fromkeys(weight.shape for weight, _ in layers):
        alike = [i for i, (weight, _) in enumerate(layers) if weight.shape == shape]
        weights = torch.stack([layers[i][0] for i in alike])  # [layers, outputs, inputs]
        biases = torch.stack([layers[i][1] for i in alike])[:, :, None]  # [layers, outputs, 1]
        stacked = torch.stack([inputs[i] for i in alike]).to(weights.dtype)  # [layers, N, inputs]
        # this way around the weights' gradients are laid out as they are, and need no copies
        products = torch.baddbmm(biases, weights, stacked.mT)  # [layers, outputs, N]
        outputs |= zip(alike, products.mT.contiguous().unbind(), strict=True)
    return [outputs[i] for i in range(len(layers))]
