"""Spectral normalisation: weights divided by their largest singular value, found by power iteration.

Source: Miyato et al. 2018 (arXiv 1802.05957); buffer names, the order of the iteration and its behaviour in evaluation
follow the BigGAN release. `torch.nn.utils.spectral_norm` differs (it keeps v, normalises u at the start and runs
warm-up iterations), so its numbers and its files would not match.
"""

from collections.abc import Sequence
from typing import Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frugan.contract.scaled import Scaled, ScaledWeight, Scaling
from frugan.nn.embedding import Embedding


def _without(vector: Tensor, found: list[Tensor]) -> Tensor:
    """Subtract from a row vector its projections on the vectors already found (Gram-Schmidt)."""
    for other in found:
        vector = vector - (vector @ other.T) / (other @ other.T) * other
    return vector


@torch.no_grad()
def power_iteration(matrix: Tensor, us: list[Tensor], eps: float) -> tuple[list[Tensor], list[Tensor]]:
    """Run one power iteration for each tracked singular value.

    Args:
        matrix: weight as [out, in].
        us: left vectors so far, [1, out] each, of any length.
        eps: smallest norm that is divided by.

    Returns:
        Left vectors [1, out] and right vectors [1, in], of unit norm.
    """
    left: list[Tensor] = []
    right: list[Tensor] = []
    for u in us:
        v = F.normalize(_without(u @ matrix, right), eps=eps)  # [1, in]
        right.append(v)
        left.append(F.normalize(_without(v @ matrix.T, left), eps=eps))  # [1, out]
    return left, right


class SpectralScaling(Scaling):
    """Largest singular values of many weights.

    An iteration needs only two products for each weight; all that follows from them is found for all weights together.
    Vectors are scaled to unit norm at the end: between the two products the scale changes nothing but rounding.

    Args:
        left: u of each weight [1, out], of unit norm.
        right: v of each weight [1, in], not scaled.
        right_norms: of these [n].
        sigmas: largest singular values [n].
    """

    def __init__(self, left: list[Tensor], right: list[Tensor], right_norms: Tensor, sigmas: Tensor) -> None:
        # [1] each: without a dimension they would not count when dtypes are promoted, and half gradients stay half.
        super().__init__(sigmas.split(1))
        self.left, self.right, self.right_norms, self.sigmas = left, right, right_norms, sigmas

    @classmethod
    def find(cls, weights: Sequence[ScaledWeight]) -> Self:
        """Run the power iterations; see `SpectralNorm.working_weight`. Layers must be alike."""
        layers = [cast(SpectralNorm, weight.layer) for weight in weights]
        matrices = [weight.master.flatten(1) for weight in weights]  # [out, in] each
        first = layers[0]
        left = [layer.u0.to(matrix.dtype) for layer, matrix in zip(layers, matrices, strict=True)]
        for _ in range(first.iterations if first.training else 1):
            right, right_norms, left, sigmas = _power_iterations(matrices, left, first.eps)
        if first.training:
            for layer, matrix, u, sigma in zip(layers, matrices, left, sigmas.unbind(), strict=True):
                layer.observe("u0", u)
                layer.observe("sv0", sigma.view(1))
                layer.observe_others(matrix)
        return cls(left, right, right_norms, sigmas)

    def carry(self, masters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        """Subtract <gradient, master>/sigma·u vᵀ: what flows through the singular value, with u and v held constant."""
        live = [i for i, gradient in enumerate(gradients) if gradient is not None]
        found = [(masters[i].flatten(1), cast(Tensor, gradients[i]).flatten(1)) for i in live]
        dots = torch.stack([torch.dot(matrix.view(-1), gradient.view(-1)) for matrix, gradient in found])
        divisors = self.sigmas * self.right_norms
        if len(live) < len(gradients):
            divisors = torch.stack([each for i, each in enumerate(divisors.unbind()) if gradients[i] is not None])
        left = _scaled([self.left[i] for i in live], dots / divisors)
        for i, (_, gradient), u in zip(live, found, left, strict=True):
            gradient.addcmul_(u.mT, self.right[i], value=-1)


def _power_iterations(
    matrices: list[Tensor], left: list[Tensor], eps: float
) -> tuple[list[Tensor], Tensor, list[Tensor], Tensor]:
    """One iteration of each matrix [out, in].

    Returns:
        v [1, in] each, not scaled; their norms [n], at least eps; u [1, out] each, of unit norm; v·Wᵀ·uᵀ [n].
    """
    right = [torch.mm(u, matrix) for u, matrix in zip(left, matrices, strict=True)]
    right_norms = torch.stack(torch._foreach_norm(right)).clamp_min(eps)
    left = [torch.mm(v, matrix.T) for v, matrix in zip(right, matrices, strict=True)]
    norms = torch.stack(torch._foreach_norm(left)) / right_norms
    divisors = norms.clamp_min(eps)
    return right, right_norms, _scaled(left, (right_norms * divisors).reciprocal()), norms.square() / divisors


def _scaled(rows: list[Tensor], factors: Tensor) -> list[Tensor]:
    """Rows [1, k], of any length each, times a factor each [n]; in the same memory all together."""
    sizes = [row.shape[1] for row in rows]
    each = torch.cat([factor.expand(size) for factor, size in zip(factors.unbind(), sizes, strict=True)])
    return [row[None] for row in (torch.cat(rows, 1)[0] * each).split(sizes)]


class SpectralNorm(Scaled):
    """Base of the layers with a spectrally normalised `weight`; buffers `u0..`, `sv0..` as in the BigGAN release."""

    scaling = SpectralScaling
    weight: Tensor
    u0: Tensor
    sv0: Tensor
    iterations: int
    singular_values: int
    eps: float

    def _track(self, outputs: int, iterations: int, singular_values: int, eps: float) -> None:
        """Register u (normal, not normalised) and sv (1) for every tracked singular value."""
        self.iterations, self.singular_values, self.eps = iterations, singular_values, eps
        device = self.weight.device
        for i in range(singular_values):
            # drawn on the host: without data ("meta") `randn` imports sympy, half a second
            self.register_buffer(f"u{i}", torch.randn(1, outputs, device="cpu").to(device))
            self.register_buffer(f"sv{i}", torch.ones(1, device=device))

    def alike(self) -> tuple[object, ...]:
        """Layers of equal settings."""
        return self.iterations, self.eps, self.training

    def working_weight(self, name: str, master: Tensor) -> Tensor:
        """Divide by the largest singular value; the gradient flows through it with u and v held constant.

        In training every iteration starts from the last one's u, which is observed. In evaluation u does not move, so
        further iterations would repeat the first and are left out.
        """
        with torch.no_grad():
            found = SpectralScaling.find([ScaledWeight(self, name, master.detach())])
        v = found.right[0] / found.right_norms[0]
        return torch.div(master, (v @ master.flatten(1).T @ found.left[0].T).reshape(()))

    def observe_others(self, matrix: Tensor) -> None:
        """Follow the singular values after the largest, which no weight depends on."""
        if self.singular_values == 1:
            return
        left = [getattr(self, f"u{i}").to(matrix.dtype) for i in range(self.singular_values)]
        for _ in range(self.iterations):
            left, right = power_iteration(matrix, left, self.eps)
        for i in range(1, self.singular_values):
            self.observe(f"u{i}", left[i])
            self.observe(f"sv{i}", (right[i] @ matrix.T @ left[i].T).reshape(1))


class SNConv2d(SpectralNorm, nn.Conv2d):
    """Convolution with a spectrally normalised weight."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        padding: int = 0,
        bias: bool = True,
        iterations: int = 1,
        singular_values: int = 1,
        eps: float = 1e-12,
    ) -> None:
        nn.Conv2d.__init__(self, inputs, outputs, kernel, padding=padding, bias=bias)
        self._track(outputs, iterations, singular_values, eps)


class SNLinear(SpectralNorm, nn.Linear):
    """Linear layer with a spectrally normalised weight."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        bias: bool = True,
        iterations: int = 1,
        singular_values: int = 1,
        eps: float = 1e-12,
    ) -> None:
        nn.Linear.__init__(self, inputs, outputs, bias=bias)
        self._track(outputs, iterations, singular_values, eps)


class SNEmbedding(SpectralNorm, Embedding):
    """Embedding table with a spectrally normalised weight; its matrix is [classes, features]."""

    def __init__(
        self, classes: int, features: int, *, iterations: int = 1, singular_values: int = 1, eps: float = 1e-12
    ) -> None:
        Embedding.__init__(self, classes, features)
        self._track(classes, iterations, singular_values, eps)


def top_singular_values(network: nn.Module) -> dict[str, Tensor]:
    """The largest singular value of every spectrally normalised layer, as last committed: name -> [1]."""
    return {name: module.sv0 for name, module in network.named_modules() if isinstance(module, SpectralNorm)}
