"""Interfaces by which families, kinds of data, kernels and the engine meet without knowing each other."""
