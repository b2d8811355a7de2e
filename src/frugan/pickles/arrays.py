"""What stands for NumPy's names while a pickle is read: real arrays, made only from bytes that are there."""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from frugan.errors import BadInput

KINDS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
DTYPE_STATE = (None, None, None, -1, -1, 0)  # no fields, no sub-array, no flags
MOST_DIMENSIONS = 32  # NumPy's own limit before version 2
CURE = "No such file holds anything like it, so it is damaged or made by something else: copy or make it again."


class Arrays:
    """Makes the arrays, scalars and dtypes of one pickle.

    Args:
        size_bytes: of the pickle. Every value stands in it once, and takes at most twice its room there (protocol 2:
            text becomes bytes, then an array); what wants more uses the same bytes again and again.

    Attributes:
        stand_ins: (module, name) to what is called in its place.
    """

    def __init__(self, size_bytes: int) -> None:
        self._left_bytes = 2 * size_bytes
        self.stand_ins: Mapping[tuple[str, str], Callable[..., Any]] = {
            ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
            ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
            ("numpy.core.multiarray", "scalar"): _scalar,
            ("numpy._core.multiarray", "scalar"): _scalar,
            ("numpy", "dtype"): _dtype,
            ("numpy", "ndarray"): _ndarray,
            ("_codecs", "encode"): self._encode,
            ("__builtin__", "bytes"): _no_bytes,
        }

    def build(self, made: Any, state: Any) -> None:
        """Give an array or a dtype its content, as BUILD asks.

        Raises:
            BadInput: another object, or a content that does not fit.
        """
        if isinstance(made, np.dtype):
            _build_dtype(made, state)
        elif type(made) is np.ndarray:
            self._build_array(made, state)
        else:
            raise BadInput(f"changes the insides of a {type(made).__name__}; expected NumPy arrays only. {CURE}")

    def _build_array(self, array: np.ndarray, state: Any) -> None:
        if array.size or type(state) is not tuple or len(state) != 5:
            raise BadInput(f"holds a NumPy array filled twice or in an unknown way. {CURE}")
        _, shape, dtype, by_columns, raw = state
        if not isinstance(dtype, np.dtype) or type(raw) is not bytes:
            raise BadInput(f"holds a NumPy array of other things than numbers ({type(raw).__name__}). {CURE}")
        if (
            type(shape) is not tuple
            or len(shape) > MOST_DIMENSIONS
            or not all(type(n) is int and n >= 0 for n in shape)
        ):
            raise BadInput(f"holds a NumPy array without a proper shape. {CURE}")
        needed = prod(shape) * dtype.itemsize
        if needed != len(raw):
            raise BadInput(
                f"holds a NumPy array {list(shape)} of {dtype}, which takes {needed:,} bytes, with {len(raw):,}. {CURE}"
            )
        self._spend(needed)
        array.__setstate__((1, shape, dtype, by_columns is True, raw))  # type: ignore[arg-type]  # takes a bool

    def _encode(self, text: Any, encoding: Any) -> bytes:
        """Stand for `_codecs.encode`, with which protocol 2 spells bytes."""
        if type(text) is not str or type(encoding) is not str or encoding != "latin1":
            raise BadInput(f"calls `_codecs.encode` for something else than bytes. {CURE}")
        self._spend(len(text))
        return text.encode("latin1")

    def _spend(self, count_bytes: int) -> None:
        self._left_bytes -= count_bytes
        if self._left_bytes < 0:
            raise BadInput(f"uses the same bytes for several arrays, which take more than the whole file. {CURE}")


def _reconstruct(kind: Any, shape: Any, code: Any) -> np.ndarray:
    """Stand for NumPy's `_reconstruct`: its pickles ask for an empty array, which BUILD then fills."""
    if type(shape) is not tuple or shape != (0,):
        raise BadInput(f"holds a NumPy array that does not begin empty. {CURE}")
    return np.empty(0, np.int8)


def _scalar(dtype: Any, raw: Any) -> Any:
    """Stand for NumPy's `scalar`."""
    if not isinstance(dtype, np.dtype) or type(raw) is not bytes or len(raw) != dtype.itemsize:
        raise BadInput(f"holds a NumPy scalar whose bytes do not fit its dtype. {CURE}")
    return np.frombuffer(raw, dtype)[0]


def _dtype(code: Any, align: Any = False, copy: Any = True) -> np.dtype:
    """Stand for `numpy.dtype`."""
    if type(code) is not str or code not in KINDS:
        raise BadInput(f"holds NumPy values that are no plain numbers; expected dtypes {', '.join(KINDS)}. {CURE}")
    # a copy, because BUILD changes its byte order
    return np.dtype(code, align=False, copy=True)


def _build_dtype(dtype: np.dtype, state: Any) -> None:
    order = state[1] if type(state) is tuple and len(state) == 8 and state[2:] == DTYPE_STATE else None
    if type(order) is not str or order not in ("<", ">", "|") or (order == "|") != (dtype.itemsize == 1):
        raise BadInput(f"holds a NumPy dtype with fields, flags or no byte order. {CURE}")
    dtype.__setstate__((3, order, *DTYPE_STATE))  # type: ignore[attr-defined]


def _no_bytes() -> bytes:
    """Stand for `bytes()`, with which protocol 2 spells b""."""
    return b""


def _ndarray(*arguments: Any) -> Any:
    raise BadInput(f"calls `numpy.ndarray`, expected as an argument only. {CURE}")
