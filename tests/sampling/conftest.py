"""Tests that train draw small grids."""

from training.small_grids import small_grids

__all__ = ["small_grids"]
