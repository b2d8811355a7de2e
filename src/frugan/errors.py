"""The two ways in which frugan refuses: the input is bad, or the work failed; and packages that may not be there."""

from importlib import import_module
from typing import Any


class BadInput(ValueError):
    """Something the user gave cannot be used; commands print it and exit 2.

    The message names the value, what was expected, and the next thing to try.
    """


class TrainingFailed(RuntimeError):
    """Training stopped by itself and cannot go on as it is; commands print it and exit 1."""


def optional_module(name: str, use: str, extra: str) -> Any:
    """A module that comes with one of frugan's extras.

    Args:
        use: what needs it, to begin a message with: "an HDF5 file needs h5py".
        extra: that has it.

    Raises:
        BadInput: it is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise BadInput(f"{use}: pip install 'frugan[{extra}]'") from error
