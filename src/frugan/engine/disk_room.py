"""What a checkpoint takes on the disk, and what to do where there is no room for it."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torch import Tensor

from frugan.engine.checkpoint import checkpoint_name, checkpoint_tensors
from frugan.engine.state import TrainingState

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The disk is full, the user's share of it is, or files may not be as large."""
MARGIN = 1.01
"""For names, shapes and JSON beside the numbers."""


def no_room(error: OSError) -> bool:
    """Whether a write failed for lack of room."""
    return error.errno in NO_ROOM


def checkpoint_bytes(state: TrainingState) -> int:
    """What a checkpoint of a state takes on the disk."""
    return int(MARGIN * sum(map(_bytes, checkpoint_tensors(state))))


@contextmanager
def told_what_is_needed(folder: Path, state: TrainingState) -> Iterator[None]:
    """Say how much room a checkpoint needs where there is not enough for it.

    Raises:
        OSError: in place of the system's own, of the same number.
    """
    try:
        yield
    except OSError as error:
        if not no_room(error):
            raise
        free = "an unknown number of"
        with suppress(OSError):
            free = f"{shutil.disk_usage(folder).free:,}"
        raise OSError(
            error.errno,
            f"{error.strerror}: the checkpoint takes {checkpoint_bytes(state):,} bytes, the disk has {free} free",
            str(folder / checkpoint_name(state.step)),
        ) from error


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
