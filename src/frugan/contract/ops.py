"""Operations of layers and losses in plain torch, which kernels override.

A layer holds an `Ops` as `ops` and calls its methods. Where kernels are used, the engine sets one that consists of
them: each kernel is a subclass that overrides some methods (`frugan.kernels`, or another package's, found by the entry
point group `frugan.ops`). A layer makes the same calls either way, and gets the same results up to rounding.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from frugan.contract import elementwise, filtered_nonlinearity, resampling
from frugan.contract.dssim import dssim
from frugan.contract.filtered_nonlinearity import Nonlinearity
from frugan.contract.resampling import Geometry, Padding, mean_pool2d

Kind = TypeVar("Kind")


class StyleLayer(NamedTuple):
    """A layer that is scaled by a style: its affine map from styles, and what demodulation needs."""

    weight: Tensor  # weight of the affine map [I, style]
    bias: Tensor  # bias of the affine map [I]
    place: int  # number of the style that the layer takes
    dtype: torch.dtype  # data type that the layer computes in
    squares: Callable[[], Tensor] | None  # gives the sums of its weight's squares [O, I]; None: it is not demodulated


class Ops:
    """Operations in plain torch, differentiable any number of times unless they say otherwise.

    A kernel that overrides a method calls that of `super()` for inputs that it is not made for.

    Attributes:
        filters_activations: `filtered_leaky_relu` is a single pass, so layers shall leave their activation to the
            filter of the next layer.
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
        """clamp(x + bias), for layers without an activation.

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
            factors: [N, C], of x's dtype.
            noise: [N, 1, H, W] or [H, W]; None: there is none.
            strength: scalar factor of the noise; their product is rounded to x's dtype.
            bias: [C].
            clamp: largest absolute value; None: no limit.
        """
        factors = factors[:, :, None, None]
        added = None if noise is None else elementwise.scaled_noise(noise, strength, x.dtype)
        x = x * factors if added is None else elementwise.affine(x, factors, added)
        return self.leaky_relu(x, bias, clamp)

    # Modulation.

    def product_gradients(self, gradient: Tensor, x: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of the product x·factors, in x [N, C, H, W] and in the factors [N, C, 1, 1]."""
        return gradient * factors, (gradient * x).sum((2, 3), keepdim=True)

    def styles(self, ws: Tensor, layers: Sequence[StyleLayer], eps: float | None) -> tuple[list[Tensor], list[Tensor]]:
        """Styles of many layers, and demodulation's factors where they are computed together with the styles.

        Args:
            ws: [N, styles, style], fp32.
            layers: layers that take the styles.
            eps: added to the sums under demodulation's root; None: layers differ in it, and each demodulates by itself.

        Returns:
            A style [N, I] for each layer; and factors [N, O] for each demodulated layer, in order, or an empty list:
            then each layer computes its own.
        """
        inputs = ws.unbind(1)
        maps = [(layer.weight, layer.bias) for layer in layers]
        return _linear_together(maps, [inputs[layer.place] for layer in layers]), []

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
            kernel: filter [T, T'] as torch's convolution takes it.
            other: the filter as the adjoint's convolution takes it [T, T'].
            padding: zeros around the filtered map.
            clamp: largest absolute value; None: no limit.
        """
        activated = self.leaky_relu(x, bias, clamp)
        return resampling.upfirdn2d(activated, kernel, other, Geometry(1, 1, padding), self)

    def filtered_nonlinearity(
        self, x: Tensor, bias: Tensor, up_taps: Tensor | None, down_taps: Tensor | None, of: Nonlinearity
    ) -> Tensor:
        """Add a bias, filter at a higher rate, clamp(leaky()), filter and keep fewer samples.

        Args:
            x: [N, C, H, W].
            bias: [C].
            up_taps: filter that the spread samples are convolved with, of x's dtype: [T, T'], or [T] in both
                directions, one after the other; None: samples are taken as they are, and the factor is 1.
            down_taps: filter, likewise, that correlates with what is activated.
        """
        ways = filtered_nonlinearity.IN_TORCH
        return filtered_nonlinearity.filtered_nonlinearity(x, bias, up_taps, down_taps, of, ways)

    # Losses of pictures.

    def dssim(self, a: Tensor, b: Tensor, sizes: Sequence[int], weight: float) -> Tensor:
        """A weight times the mean of (1 - SSIM) / 2 over samples, channels and Gaussian windows, in fp32 or more.

        Args:
            a, b: [B, C, H, W] in [0, 1].
            sizes: sides of the windows, in pixels.
        """
        first, *others = (weight / len(sizes) * dssim(a, b, size).mean() for size in sizes)
        return sum(others, first)

    def mean_square(self, a: Tensor, b: Tensor) -> Tensor:
        """Mean of (a - b)²."""
        return (a - b).square().mean()

    def masked_error(self, x: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        """Mean of |(x - target)·mask|; the shapes can be broadcast."""
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
        """gain·normalised + bias by each group's statistics, with a ReLU after it if `relu`.

        Args:
            x: [B, C, H, W].
            gain: [B, C], or [1, C] for all samples, of x's dtype.
            bias: likewise.
            group: samples of a group, which follow each other; B is a multiple of it.
            eps: added to the variance.
            relu: apply a ReLU to the result.
            biased: the observed variance is over n samples, and not n - 1.
            room: gives that many zeros in fp32, which may be kept.
            observe: is given mean and variance of each group [C], in fp32.

        Returns:
            [B, C, H, W].
        """
        y = elementwise.affine(
            _normalised(x, group, eps, biased, room, observe), gain[:, :, None, None], bias[:, :, None, None]
        )
        return F.relu(y) if relu else y

    def spectral_scaling(self, kind: type[Kind]) -> type[Kind]:
        """Choose the class that divides weights by their largest singular values: `kind`, or a subclass of it."""
        return kind

    # Residual blocks that halve a map.

    def relu_and_means(self, x: Tensor) -> tuple[Tensor, Callable[[], Tensor], Tensor | None]:
        """ReLU of a map of even sides, a function that gives means of 2x2 of the map's pixels, and a kept tensor.

        [N, C, H, W] -> [N, C, H, W], [N, C, H/2, W/2], and a tensor that the backward keeps; None: torch keeps it.
        """
        return F.relu(x), partial(mean_pool2d, x), None

    def relu_and_itself(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """ReLU of a map, and the map itself for a skip connection: [N, C, H, W] twice."""
        return F.relu(x), x

    def means_plus(self, x: Tensor, skip: Callable[[], Tensor], kept: Tensor) -> Tensor:
        """Means of 2x2 pixels plus a skip connection.

        Args:
            x: [N, C, H, W].
            skip: gives [N, C, H/2, W/2].
            kept: a tensor that the backward needs anyway. A kernel's backward asks for it first, so that a recomputed
                block is computed before there is a gradient as large as x.
        """
        return torch.add(mean_pool2d(x), skip())

    def relu_means(self, x: Tensor) -> Callable[[], Tensor]:
        """Return a function that gives means of 2x2 pixels of a map's ReLU: [N, C, H, W] -> [N, C, H/2, W/2]."""
        return partial(mean_pool2d, F.relu(x))


PLAIN = Ops()
"""Without kernels."""


def combined(kernels: Iterable[type[Ops]]) -> Ops:
    """Combine several kernels; where two override a method, the first one's is called first."""
    kinds = tuple(kernels)
    return type("Kernels", kinds, {})() if kinds else PLAIN


def overridden(kernel: type[Ops]) -> frozenset[str]:
    """Names of the operations that a kernel overrides."""
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
    """Apply affine maps to an input each, those of one shape in one product.

    Args:
        layers: weight [outputs, inputs] and bias [outputs] of each map.
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
        # In this order the weights' gradients come out in the layout of the weights, and need no copies.
        products = torch.baddbmm(biases, weights, stacked.mT)  # [layers, outputs, N]
        outputs |= zip(alike, products.mT.contiguous().unbind(), strict=True)
    return [outputs[i] for i in range(len(layers))]
