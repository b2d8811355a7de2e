"""Tests that train draw small grids; commands are called in this process."""

from api.small_grids import small_grids
from cli.calling import frugan

__all__ = ["frugan", "small_grids"]
