"""Tests that train draw small grids; those of scores share a run."""

from evaluation.scored import opened, scored
from training.small_grids import small_grids

__all__ = ["opened", "scored", "small_grids"]
