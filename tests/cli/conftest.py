"""Tests that train draw small grids; commands are called in this process."""

from cli.calling import frugan
from training.small_grids import small_grids

__all__ = ["frugan", "small_grids"]
