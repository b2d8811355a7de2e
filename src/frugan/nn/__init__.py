"""Layers that more than one family uses."""
