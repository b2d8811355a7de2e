"""Recipes, which say what to train: reading, checking, overriding, comparing and writing them."""
