"""Matrices of one width, one below the other, so that a kernel works on all of them at once.

A vector for each matrix, times that matrix: all in one product, of a matrix that holds each vector where its matrix
stands and zeros elsewhere. That is as many products more as there are matrices, of small ones, and a kernel less for
each.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor

SMALL_ELEMENTS = 1 << 18
"""Of matrices that are worth it."""

FEWEST = 6
"""That are worth it: a stack takes about as many kernels as four by themselves."""


def stackable(weights: Sequence[Tensor]) -> list[list[int]]:
    """Places of small weights that are matrices of one width and dtype, where there are enough of them.

    Not of kernels of more than one place: these are laid out anew, each by itself.
    """
    alike: dict[tuple[int, torch.dtype], list[int]] = {}
    for i, weight in enumerate(weights):
        matrix = weight.flatten(1)
        if matrix.numel() <= SMALL_ELEMENTS and matrix.shape[1] == weight.shape[1]:
            alike.setdefault((matrix.shape[1], matrix.dtype), []).append(i)
    return [places for places in alike.values() if len(places) >= FEWEST]


class MatrixStack:
    """How some of many matrices stand, one below the other.

    Args:
        places: which of the matrices, in order.
        matrices: all of them, [rows of it, width] each.

    Attributes:
        rows: of each that stands here.
        owners: 1 where a row belongs to a matrix [stacked, all rows].
    """

    def __init__(self, places: Sequence[int], matrices: Sequence[Tensor]) -> None:
        self.places = tuple(places)
        self.rows = [len(matrices[i]) for i in places]
        self.owners = matrices[places[0]].new_zeros(len(places), sum(self.rows))
        torch._foreach_add_(self._diagonal(self.owners), 1.0)

    def whole(self, matrices: Sequence[Tensor] | Mapping[int, Tensor]) -> Tensor:
        """Those that stand here, one below the other [all rows, width]."""
        return torch.cat([matrices[i] for i in self.places])

    def parts(self, whole: Tensor) -> dict[int, Tensor]:
        """Each by itself, as a view, by its place."""
        return dict(zip(self.places, whole.split(self.rows), strict=True))

    def from_left(self, vectors: Sequence[Tensor], whole: Tensor) -> Tensor:
        """Rows [1, rows of it] of all matrices, those that stand here each times its own: [stacked, width]."""
        return torch.mm(self._placed(vectors), whole)

    def from_right(self, vectors: Tensor, whole: Tensor) -> list[Tensor]:
        """Rows [stacked, width], each times its matrix turned: [1, rows of it] each."""
        return [row[None] for row in self._diagonal(torch.mm(vectors, whole.T))]

    def by_row(self, factors: Tensor) -> Tensor:
        """A number for each of all matrices [matrices] -> one for each row here [all rows, 1]."""
        each = factors.unbind()
        return torch.mv(self.owners.T, torch.stack([each[i] for i in self.places]))[:, None]

    def dots(self, a: Tensor, b: Tensor) -> Tensor:
        """Sums of products of two stacks, for each matrix [stacked]."""
        return torch.mv(self.owners, (a * b).sum(1))

    def subtract_outer(self, whole: Tensor, left: Mapping[int, Tensor], right: Sequence[Tensor]) -> None:
        """Subtract from each matrix here its leftᵀ·right, in place: [1, rows of it], [1, width] of all matrices."""
        whole.addmm_(self._placed(left).T, torch.cat([right[i] for i in self.places]), alpha=-1)

    def _placed(self, vectors: Sequence[Tensor] | Mapping[int, Tensor]) -> Tensor:
        """Rows [1, rows of it] of all matrices, those that stand here each where its own does [stacked, all rows]."""
        return self.owners * torch.cat([vectors[i] for i in self.places], 1)

    def _diagonal(self, blocks: Tensor) -> list[Tensor]:
        """Of each row of [stacked, all rows], what stands where its matrix does: [rows of it] each."""
        firsts = accumulate(self.rows, initial=0)
        return [row[a : a + count] for row, a, count in zip(blocks.unbind(), firsts, self.rows, strict=False)]
