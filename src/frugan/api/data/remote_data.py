"""Where data lie that were given: a path, or an address of shards, which a folder on this machine stands for."""

import os
from pathlib import Path

from frugan.api.progress import Say
from frugan.data.remote_shards import stage
from frugan.data.shard_urls import is_address
from frugan.errors import BadInput
from frugan.folders import Folders
from frugan.memory.sizes import parse_size

MOST = "FRUGAN_SHARDS_MOST"
USUAL_MOST = "200GiB"
"""For shards on this machine, where nobody has said how much."""


def local_path(given: str | Path, say: Say) -> Path:
    """The path that data are read from.

    Raises:
        BadInput: an address that is none, or whose server does not answer.
    """
    text = str(given)
    if isinstance(given, Path) or not is_address(text):
        return Path(given)
    asked = os.environ.get(MOST) or USUAL_MOST
    try:
        most_bytes = parse_size(asked)
    except BadInput as error:
        raise BadInput(f"{MOST}: {error}") from error
    return stage(text, Folders.from_environment().shards, most_bytes, say)
