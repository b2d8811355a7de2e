"""Pictures that were there when training began, and cannot be read any more: skipped, counted, up to a limit."""

from collections.abc import Mapping

from frugan.data.wording import count
from frugan.errors import BadInput

MOST_LOST = 0.1
"""Share of the pictures that may be lost: more is a disk that fails, or a folder that was taken away."""


def refuse_many_lost(lost: Mapping[str, str], number: int) -> None:
    """Refuse to go on with what is left.

    Args:
        lost: picture -> why it cannot be read.
        number: of pictures there were.

    Raises:
        BadInput: more than MOST_LOST of them are lost, and more than one.
    """
    if len(lost) > max(1, MOST_LOST * number):
        raise BadInput(
            f"{count(len(lost), 'picture')} of {number:,} cannot be read any more; the last: {list(lost.values())[-1]} "
            "Is the disk still there? The run goes on from its last checkpoint once they are back"
        )
