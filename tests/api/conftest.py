"""Tests that train draw small sheets."""

from api.small_sheets import small_sheets

__all__ = ["small_sheets"]
