"""Spectral normalisation: weights divided by their largest singular value, found by power iteration.

Source: Miyato et al. 2018 (arXiv 1802.05957); buffer names, the order of the iteration and its behaviour in evaluation
follow the BigGAN release. `torch.nn.utils.spectral_norm` differs (it keeps v, normalises u at the start and runs
warm-up iterations), so its numbers and its files would not match.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frugan.contract.layers import Reparametrised
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


class SpectralNorm(Reparametrised):
    """Base of the layers with a spectrally normalised `weight`; buffers `u0..`, `sv0..` as in the BigGAN release."""

    weight: Tensor
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

    def working_weight(self, name: str, master: Tensor) -> Tensor:
        """Divide by the largest singular value; the gradient flows through it with u and v held constant.

        In training every iteration starts from the last one's u, which is observed. In evaluation u does not move, so
        further iterations would repeat the first and are left out.
        """
        matrix = master.flatten(1)  # [out, in]
        left = [getattr(self, f"u{i}").to(master.dtype) for i in range(self.singular_values)]
        right: list[Tensor] = []
        for _ in range(self.iterations if self.training else 1):
            left, right = power_iteration(matrix.detach(), left, self.eps)
        sigmas = [(v @ matrix.T @ u.T).reshape(()) for u, v in zip(left, right, strict=True)]
        if self.training:
            for i, (u, sigma) in enumerate(zip(left, sigmas, strict=True)):
                self.observe(f"u{i}", u)
                self.observe(f"sv{i}", sigma.reshape(1))
        return torch.div(master, sigmas[0])


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
