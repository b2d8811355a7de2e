"""Spectral normalisation: weights divided by their largest singular value, found by power iteration.

Source: Miyato et al. 2018 (arXiv 1802.05957); buffer names, the order of the iteration and its behaviour in evaluation
follow the BigGAN release. `torch.nn.utils.spectral_norm` differs (it keeps v, normalises u at the start and runs
warm-up iterations), so its numbers and files would not match.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frugan.contract.layers import Scaled, ScaledWeight, Scaling, UsesOps
from frugan.nn.initialise import Embedding
from frugan.nn.linear_maps import Conv2d
from frugan.torch_internals import foreach_add_, foreach_norm

# Stacks of matrices of one width, one below the other, so that a kernel works on all of them at once.
#
# To multiply a vector for each matrix by that matrix, a single product takes a matrix that holds each vector at the
# place of its own matrix, and zeros elsewhere. It computes as many times as much as there are matrices, which are
# small, and saves a kernel for each.

SMALL_ELEMENTS = 1 << 18
"""Largest number of elements of a matrix that is worth stacking."""

FEWEST = 6
"""Smallest number of matrices that are worth stacking: a stack takes about as many kernels as four matrices alone."""


def stackable(weights: Sequence[Tensor]) -> list[list[int]]:
    """Positions of small weights that can be stacked: matrices of one width and dtype, where there are enough of them.

    Convolutions larger than 1x1 are left out, as each of these is laid out anew by itself.
    """
    alike: dict[tuple[int, torch.dtype], list[int]] = {}
    for i, weight in enumerate(weights):
        matrix = weight.flatten(1)
        if matrix.numel() <= SMALL_ELEMENTS and matrix.shape[1] == weight.shape[1]:
            alike.setdefault((matrix.shape[1], matrix.dtype), []).append(i)
    return [places for places in alike.values() if len(places) >= FEWEST]


class MatrixStack:
    """Some of many matrices, one below the other.

    Args:
        places: positions of the stacked matrices among all, in order.
        matrices: all matrices, [rows of it, width] each.

    Attributes:
        rows: number of rows of each stacked matrix.
        owners: 1 where a row belongs to a matrix, else 0 [stacked, all rows].
    """

    def __init__(self, places: Sequence[int], matrices: Sequence[Tensor]) -> None:
        self.places = tuple(places)
        self.rows = [len(matrices[i]) for i in places]
        self.owners = matrices[places[0]].new_zeros(len(places), sum(self.rows))
        foreach_add_(self._diagonal(self.owners), 1.0)

    def whole(self, matrices: Sequence[Tensor] | Mapping[int, Tensor]) -> Tensor:
        """Stack matrices [all rows, width]."""
        return torch.cat([matrices[i] for i in self.places])

    def parts(self, whole: Tensor) -> dict[int, Tensor]:
        """Split a stack into views of its matrices, by position."""
        return dict(zip(self.places, whole.split(self.rows), strict=True))

    def from_left(self, vectors: Sequence[Tensor], whole: Tensor) -> Tensor:
        """Multiply each stacked matrix by its vector from the left: [stacked, width].

        Args:
            vectors: [1, rows of it] for each of all matrices.
            whole: the stack.
        """
        return torch.mm(self._placed(vectors), whole)

    def from_right(self, vectors: Tensor, whole: Tensor) -> list[Tensor]:
        """Multiply vectors [stacked, width] by their transposed matrices: [1, rows of it] each."""
        return [row[None] for row in self._diagonal(torch.mm(vectors, whole.T))]

    def by_row(self, factors: Tensor) -> Tensor:
        """Repeat factors of all matrices [matrices] for each row of the stack [all rows, 1]."""
        by_matrix = factors.unbind()
        return torch.mv(self.owners.T, torch.stack([by_matrix[i] for i in self.places]))[:, None]

    def dots(self, a: Tensor, b: Tensor) -> Tensor:
        """Sum of elementwise products of two stacks, for each matrix [stacked]."""
        return torch.mv(self.owners, (a * b).sum(1))

    def subtract_outer(self, whole: Tensor, left: Mapping[int, Tensor], right: Sequence[Tensor]) -> None:
        """Subtract leftᵀ·right from each matrix of a stack in place.

        Args:
            whole: the stack.
            left: [1, rows of it] by position.
            right: [1, width] for each of all matrices.
        """
        whole.addmm_(self._placed(left).T, torch.cat([right[i] for i in self.places]), alpha=-1)

    def _placed(self, vectors: Sequence[Tensor] | Mapping[int, Tensor]) -> Tensor:
        """Put each stacked matrix's vector [1, rows of it] at the columns of its rows [stacked, all rows]."""
        return self.owners * torch.cat([vectors[i] for i in self.places], 1)

    def _diagonal(self, blocks: Tensor) -> list[Tensor]:
        """Pick each matrix's part out of its row of [stacked, all rows]: [rows of it] each."""
        firsts = accumulate(self.rows, initial=0)
        return [row[a : a + count] for row, a, count in zip(blocks.unbind(), firsts, self.rows, strict=False)]


def _without(vector: Tensor, others: list[Tensor]) -> Tensor:
    """Subtract the projections of a row vector on the vectors found before it (Gram-Schmidt)."""
    for other in others:
        vector = vector - (vector @ other.T) / (other @ other.T) * other
    return vector


@torch.no_grad()
def power_iteration(matrix: Tensor, us: list[Tensor], eps: float) -> tuple[list[Tensor], list[Tensor]]:
    """Run one power iteration for each tracked singular value.

    Args:
        matrix: a weight [out, in].
        us: left vectors so far, [1, out] each, of any norm.
        eps: smallest norm to divide by.

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

    An iteration needs only two products for each weight; the rest is computed for all weights together. Vectors are
    scaled to unit norm at the end, as between the two products the scale changes nothing but rounding. Small weights of
    one width are iterated, divided and carried as one stack.

    Args:
        weights: masters.
        left: u of each weight [1, out], of any norm.
        eps: smallest norm to divide by.

    Attributes:
        left: u of each weight, of unit norm after an iteration.
    """

    right: list[Tensor]  # v of each weight [1, in], not normalised
    right_norms: Tensor  # norms of `right` [n]
    sigmas: Tensor  # largest singular values [n]

    def __init__(self, weights: Sequence[Tensor], left: list[Tensor], eps: float) -> None:
        self.left, self.eps = left, eps
        matrices = [weight.flatten(1) for weight in weights]  # [out, in] each
        self._stacks = [MatrixStack(places, matrices) for places in stackable(weights)]
        stacked = {place for stack in self._stacks for place in stack.places}
        self._alone = [i for i in range(len(matrices)) if i not in stacked]
        self._wholes = [stack.whole(matrices) for stack in self._stacks]

    @classmethod
    def find(cls, weights: Sequence[ScaledWeight]) -> Self:
        """Run the power iterations of layers with an equal `alike()`; see `SpectralNorm.working_weight`."""
        layers = [cast(SpectralNorm, weight.layer) for weight in weights]
        masters = [weight.master for weight in weights]
        first = layers[0]
        us = [layer.u0.to(master.dtype) for layer, master in zip(layers, masters, strict=True)]
        iterations = first.iterations if first.training else 1
        scaling = first.ops.spectral_scaling(cls).of(masters, us, first.eps, iterations)
        if first.training:
            for layer, master, u, sigma in zip(layers, masters, scaling.left, scaling.sigmas.unbind(), strict=True):
                layer.observe("u0", u)
                layer.observe("sv0", sigma.view(1))
                layer.observe_others(master.flatten(1))
        return scaling

    @classmethod
    def of(cls, weights: Sequence[Tensor], left: list[Tensor], eps: float, iterations: int = 1) -> Self:
        """Run power iterations; the other arguments are those of the class."""
        scaling = cls(weights, left, eps)
        for _ in range(iterations):
            scaling._iterate([weight.flatten(1) for weight in weights])
        # [1] each: scalars would not count when dtypes are promoted, and half gradients would stay half.
        scaling.divisors = scaling.sigmas.split(1)
        return scaling

    def _iterate(self, matrices: list[Tensor]) -> None:
        """Run one power iteration of all weights."""
        right, left = self._iterate_alone(matrices)
        for stack, whole in zip(self._stacks, self._wholes, strict=True):
            rows = stack.from_left(self.left, whole)
            right |= zip(stack.places, rows.split(1), strict=True)
            left |= zip(stack.places, stack.from_right(rows, whole), strict=True)
        order = range(len(matrices))
        self.right = [right[i] for i in order]
        self.right_norms = torch.stack(foreach_norm(self.right)).clamp_min(self.eps)
        norms = torch.stack(foreach_norm([left[i] for i in order])) / self.right_norms
        divisors = norms.clamp_min(self.eps)
        self.left = _scaled([left[i] for i in order], (self.right_norms * divisors).reciprocal())
        self.sigmas = norms.square() / divisors

    def _iterate_alone(self, matrices: list[Tensor]) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        """Unscaled v [1, in] and u [1, out] of the weights in no stack, by position."""
        right = {i: torch.mm(self.left[i], matrices[i]) for i in self._alone}
        return right, {i: torch.mm(right[i], matrices[i].T) for i in self._alone}

    def divided(self, masters: Sequence[Tensor], dtypes: Sequence[torch.dtype], *, last: bool) -> dict[int, Tensor]:
        """Divide the weights of each stack in one operation, and free the stacks."""
        working: dict[int, Tensor] = {}
        for stack, whole in zip(self._stacks, self._wholes, strict=True):
            wanted = {dtypes[i] for i in stack.places}
            if len(wanted) == 1:
                room = torch.empty_like(whole, dtype=wanted.pop())
                working |= stack.parts(torch.div(whole, stack.by_row(self.sigmas), out=room))
        self._wholes.clear()
        return working

    def carry(
        self, masters: Sequence[Tensor], gradients: Sequence[Tensor | None], inverse_scale: Tensor | None = None
    ) -> list[Tensor | None]:
        """Divide, and subtract <gradient, master>/sigma·u vᵀ, the gradient through sigma with u and v held constant."""
        divisors = self.sigmas if inverse_scale is None else self.sigmas / inverse_scale
        stacks = [stack for stack in self._stacks if all(gradients[i] is not None for i in stack.places)]
        stacked = {place for stack in stacks for place in stack.places}
        alone = {i: gradient for i, gradient in enumerate(gradients) if gradient is not None and i not in stacked}
        matrices = [master.flatten(1) for master in masters]
        carried, dots = self._dots_alone(alone, masters, inverse_scale, divisors)
        wholes, dots_of_stacks = self._divide_stacks(stacks, matrices, gradients, divisors)
        left = self._left_times(dots + dots_of_stacks, list(alone), stacks)
        self._subtract_alone(alone, left, carried, divisors)
        for stack, whole in zip(stacks, wholes, strict=True):
            stack.subtract_outer(whole, left, self.right)
            for i, part in stack.parts(whole).items():
                carried[i] = part.view(masters[i].shape)
        return carried

    def _dots_alone(
        self,
        gradients: Mapping[int, Tensor],
        masters: Sequence[Tensor],
        inverse_scale: Tensor | None,
        divisors: Tensor,
    ) -> tuple[list[Tensor | None], list[Tensor]]:
        """Divide the gradients in no stack, given by position.

        Returns:
            The divided gradients of all weights, None where there is none; and <divided gradient, master> [1] of each.
        """
        carried = super().carry(masters, [gradients.get(i) for i in range(len(masters))], inverse_scale)
        pairs = ((masters[i], cast(Tensor, carried[i])) for i in gradients)
        return carried, [torch.dot(master.view(-1), divided.view(-1)).view(1) for master, divided in pairs]

    def _subtract_alone(
        self,
        gradients: Mapping[int, Tensor],
        left: Mapping[int, Tensor],
        carried: list[Tensor | None],
        divisors: Tensor,
    ) -> None:
        """Subtract leftᵀ·v from the divided gradients in no stack."""
        for i in gradients:
            cast(Tensor, carried[i]).flatten(1).addcmul_(left[i].mT, self.right[i], value=-1)

    def _divide_stacks(
        self,
        stacks: Sequence[MatrixStack],
        matrices: Sequence[Tensor],
        gradients: Sequence[Tensor | None],
        divisors: Tensor,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Divide the gradients of stacks, of which none may be missing, by each matrix's divisor [matrices].

        Returns:
            For each stack, the divided gradients [all rows, width], and <divided gradient, master> [stacked].
        """
        stacked = {i: cast(Tensor, gradients[i]).flatten(1) for stack in stacks for i in stack.places}
        wholes: list[Tensor] = []
        dots: list[Tensor] = []
        for stack in stacks:
            whole = stack.whole(matrices)
            divided = torch.div(stack.whole(stacked), stack.by_row(divisors), out=torch.empty_like(whole))
            dots.append(stack.dots(whole, divided))
            wholes.append(divided)
        return wholes, dots

    def _left_times(self, dots: list[Tensor], alone: Sequence[int], stacks: Sequence[MatrixStack]) -> dict[int, Tensor]:
        """Multiply u of each weight by its dot over sigma and the norm of v: [1, out] by position.

        Args:
            dots: <divided gradient, master> of each weight in no stack [1], then of each stack [stacked].
            alone: positions of the weights in no stack.
            stacks: the stacks.
        """
        order = [*alone, *(place for stack in stacks for place in stack.places)]
        by_weight = (self.sigmas * self.right_norms).unbind()
        factors = torch.cat(dots) / torch.stack([by_weight[i] for i in order])
        return dict(zip(order, _scaled([self.left[i] for i in order], factors), strict=True))


def _scaled(rows: list[Tensor], factors: Tensor) -> list[Tensor]:
    """Multiply vectors [1, k], of any length each, by a factor each [n]; the results are views of one tensor."""
    sizes = [row.shape[1] for row in rows]
    by_element = torch.cat([factor.expand(size) for factor, size in zip(factors.unbind(), sizes, strict=True)])
    return [row[None] for row in (torch.cat(rows, 1)[0] * by_element).split(sizes)]


class SpectralNorm(Scaled, UsesOps):
    """Base of the layers with a spectrally normalised `weight`; buffers `u0..`, `sv0..` as in the BigGAN release."""

    scaling = SpectralScaling
    asks = ("spectral_scaling",)
    weight: Tensor
    u0: Tensor
    sv0: Tensor
    iterations: int
    singular_values: int
    eps: float

    def _track(self, outputs: int, iterations: int, singular_values: int, eps: float) -> None:
        """Register u (from a normal distribution, not normalised) and sv (1) for every tracked singular value."""
        self.iterations, self.singular_values, self.eps = iterations, singular_values, eps
        device = self.weight.device
        for i in range(singular_values):
            # on the host: without data ("meta") `randn` imports sympy, which takes half a second
            self.register_buffer(f"u{i}", torch.randn(1, outputs, device="cpu").to(device))
            self.register_buffer(f"sv{i}", torch.ones(1, device=device))

    def alike(self) -> tuple[object, ...]:
        """Key of the layers with equal settings."""
        return self.iterations, self.eps, self.training

    def working_weight(self, name: str, master: Tensor) -> Tensor:
        """Divide by the largest singular value; the gradient flows through it with u and v held constant.

        In training every iteration starts from the u of the last one, which is observed. In evaluation u does not move,
        so further iterations would only repeat the first and are left out.
        """
        with torch.no_grad():
            scaling = SpectralScaling.find([ScaledWeight(self, name, master.detach())])
        v = scaling.right[0] / scaling.right_norms[0]
        return torch.div(master, (v @ master.flatten(1).T @ scaling.left[0].T).reshape(()))

    def observe_others(self, matrix: Tensor) -> None:
        """Observe the singular values after the largest one, which no weight depends on."""
        if self.singular_values == 1:
            return
        left = [getattr(self, f"u{i}").to(matrix.dtype) for i in range(self.singular_values)]
        for _ in range(self.iterations):
            left, right = power_iteration(matrix, left, self.eps)
        for i in range(1, self.singular_values):
            self.observe(f"u{i}", left[i])
            self.observe(f"sv{i}", (right[i] @ matrix.T @ left[i].T).reshape(1))


class SNConv2d(SpectralNorm, Conv2d):
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
    """Largest singular value of every spectrally normalised layer, as last committed: name -> [1]."""
    return {name: module.sv0 for name, module in network.named_modules() if isinstance(module, SpectralNorm)}
