"""Equality that looks at types too."""

import math
import pickletools
from typing import Any

import numpy as np


def same(one: Any, other: Any) -> bool:
    """Tell whether two values are of the same types and equal throughout, bit for bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray | np.generic):
        return bool(one.dtype == other.dtype) and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    return bool(one == other)


def opcodes(data: bytes) -> list[tuple[str, Any]]:
    """Return a pickle's opcodes and arguments; frames, which change nothing, are left out."""
    return [(opcode.name, argument) for opcode, argument, _ in pickletools.genops(data) if opcode.name != "FRAME"]
