"""Tests that train draw small sheets; commands are called in this process."""

from api.small_sheets import small_sheets
from cli.calling import frugan

__all__ = ["frugan", "small_sheets"]
