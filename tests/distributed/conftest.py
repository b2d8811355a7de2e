"""Runs of these tests draw small grids; processes that are forked for them likewise."""

from api.small_grids import small_grids

__all__ = ["small_grids"]
