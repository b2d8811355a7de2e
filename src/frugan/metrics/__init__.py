"""Measures of generated pictures, and the feature networks that they use."""
