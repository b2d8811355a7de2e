"""Tests that train draw small grids, and may have networks as narrow as the recordings'."""

from conversion.leras_models import narrow_faces
from training.small_grids import small_grids

__all__ = ["narrow_faces", "small_grids"]
