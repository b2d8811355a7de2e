"""OpenCV, an optional extra: asked for where faces are decoded, warped or measured."""

from typing import Any

from frugan.errors import BadInput


def opencv() -> Any:
    """Return the module `cv2`.

    Raises:
        BadInput: it is not installed.
    """
    try:
        import cv2  # noqa: PLC0415  (optional extra)
    except ImportError as error:
        raise BadInput("training on faces needs OpenCV: pip install 'frugan[face]'") from error
    return cv2
