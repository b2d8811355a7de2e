"""The packages of the optional extra `export`: asked for where models are written or tried out."""

from typing import Any

from frugan.errors import BadInput

CURE = "pip install 'frugan[export]'"


def onnx() -> Any:
    """Return the module `onnx`.

    Raises:
        BadInput: it is not installed.
    """
    try:
        import onnx as found  # noqa: PLC0415  (optional extra)
    except ImportError as error:
        raise BadInput(f"writing a DFM needs onnx: {CURE}") from error
    return found


def onnxruntime() -> Any:
    """Return the module `onnxruntime`.

    Raises:
        BadInput: it is not installed.
    """
    try:
        import onnxruntime as found  # noqa: PLC0415  (optional extra)
    except ImportError as error:
        raise BadInput(f"checking a DFM needs onnxruntime: {CURE}") from error
    return found
