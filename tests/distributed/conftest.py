"""Runs of these tests draw small sheets; processes that are forked for them likewise."""

from api.small_sheets import small_sheets

__all__ = ["small_sheets"]
