"""Recipes: what to train; how they are read, checked, overridden, compared and written."""
