"""Tests that train draw small grids; some draw from the run that scores are tested with."""

from evaluation.scored import opened, scored
from training.small_grids import small_grids

__all__ = ["opened", "scored", "small_grids"]
