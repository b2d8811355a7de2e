"""Colours as people write them: by name, or "#rrggbb"."""

from PIL import ImageColor

from frugan.data.background import Background
from frugan.data.wording import shown
from frugan.errors import BadInput


def background(text: str) -> Background:
    """Read the name of a colour, or "#rrggbb".

    Raises:
        BadInput: no such colour.
    """
    try:
        red, green, blue = ImageColor.getrgb(text)[:3]
    except ValueError as error:
        raise BadInput(
            f"background {shown(text)!r}: no such colour; expected a name such as black, or #rrggbb such as #808080"
        ) from error
    return Background(f"#{red:02x}{green:02x}{blue:02x}")
