"""Notice quickly that a source has changed."""

import os
from hashlib import blake2b
from pathlib import Path

from frugan.data.background import WHITE
from frugan.data.fitting import Fitting
from frugan.data.picture_folder import is_picture_name, visible_files
from frugan.data.set_file import VERSION
from frugan.data.wording import shown
from frugan.errors import BadInput

DATA_SUFFIXES = frozenset({".json", ".npy", ".bin", ".tar"})
DATA_NAMES = frozenset({"batches.meta.txt", "fine_label_names.txt"})


def fingerprint(source: Path, fitting: Fitting) -> str:
    """Return a key under which the prepared form of a source can be kept: 32 hexadecimal digits.

    It depends on names, sizes and modification times of the files and on the settings; no file is opened.

    Args:
        source: the path that `prepare` would get.
        fitting: how its pictures are prepared.

    Raises:
        BadInput: the path does not exist.
    """
    settings = f"{VERSION} {fitting.resolution} {fitting.resample} {fitting.allow_upscale}"
    if fitting.background != WHITE:  # sets from before there was a choice are on white, and are kept
        settings += f" {fitting.background}"
    digest = blake2b(settings.encode(), digest_size=16)
    if source.is_dir():
        names = sorted(filter(_matters, visible_files(source)))
        paths = [source / name for name in names]
    elif source.is_file():
        names, paths = [source.name], [source]
    elif source.exists():
        raise BadInput(f"{shown(str(source))} is neither a file nor a folder. Give the folder that holds the pictures.")
    else:
        raise BadInput(f"{shown(str(source))} does not exist (looked from {shown(str(Path.cwd()))}). Check the path.")
    for name, path in zip(names, paths, strict=True):
        try:
            about = os.stat(path)
        except OSError as error:  # a broken link: prepare will name it
            digest.update(f"{error.errno} ".encode())
        else:
            digest.update(f"{about.st_size} {about.st_mtime_ns} ".encode())
        digest.update(os.fsencode(name) + b"\0")
    return digest.hexdigest()


def _matters(name: str) -> bool:
    return is_picture_name(name) or Path(name).suffix.lower() in DATA_SUFFIXES or Path(name).name in DATA_NAMES
