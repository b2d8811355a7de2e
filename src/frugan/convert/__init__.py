"""Trained networks in the file formats of other programs."""
