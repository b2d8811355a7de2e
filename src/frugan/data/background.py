"""The colour that transparent pictures are laid on."""

from typing import NewType

Background = NewType("Background", str)
"""A colour as "#rrggbb"."""
WHITE, GREY = Background("#ffffff"), Background("#808080")
