"""Errors for bad input and for failed training, and imports of optional packages."""

from importlib import import_module
from typing import Any


class BadInput(ValueError):
    """The user's input cannot be used; commands print the message and exit 2.

    The message names the value, what was expected, and the next thing to try.
    """


class TrainingFailed(RuntimeError):
    """Training cannot go on as it is; commands print the message and exit 1."""


def optional_module(name: str, use: str, extra: str) -> Any:
    """Import a module that comes with one of frugan's extras.

    Args:
        name: name of the module.
        use: beginning of the message, which says what needs it: "an HDF5 file needs h5py".
        extra: extra that has it.

    Raises:
        BadInput: it is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise BadInput(f"{use}: pip install 'frugan[{extra}]'") from error
