"""Triton's interpreter, made to run a kernel's programs from the last to the first."""

import importlib

import pytest


def in_another_order(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Turn the order around; gives how many programs the latest kernel has along each axis."""
    builder = importlib.import_module("triton.runtime.interpreter").interpreter_builder
    grid, place, dims = builder.set_grid_dim, builder.set_grid_idx, list[int]()
    monkeypatch.setattr(builder, "set_grid_dim", lambda *sizes: (dims.__setitem__(slice(None), sizes), grid(*sizes)))
    monkeypatch.setattr(
        builder, "set_grid_idx", lambda *at: place(*(size - 1 - i for size, i in zip(dims, at, strict=True)))
    )
    return dims
