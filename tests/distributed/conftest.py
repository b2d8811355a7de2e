"""Runs of these tests draw small grids; processes that are forked for them likewise."""

from training.small_grids import small_grids

__all__ = ["small_grids"]
