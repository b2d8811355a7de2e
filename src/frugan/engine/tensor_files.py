"""Writing and reading files so that what is there is whole: flushed, digested, renamed into place."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from frugan.errors import BadInput


def flush(path: Path) -> None:
    """Wait until a file is on the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def flush_folder(path: Path) -> None:
    """Wait until a folder's entries are on the disk (Windows knows no such thing and needs none)."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: Path, value: Any) -> None:
    """Write JSON in place of what was there, whole or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(json.dumps(value, indent=1, ensure_ascii=False), encoding="utf-8")
        flush(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file and wait until it is on the disk.

    Raises:
        OSError: the disk is full or the path cannot be written.
    """
    seen: set[int] = set()
    apart: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        host = tensor.detach().cpu().contiguous()
        # Tied weights are written twice: safetensors refuses aliases. Neighbours in one allocation are none.
        apart[name] = host.clone() if host.data_ptr() in seen else host
        seen.add(host.data_ptr())
    try:
        save_file(apart, path, dict(metadata))
    except SafetensorError as error:
        raise OSError(f"{path}: could not be written: {error}") from error
    flush(path)


def read_metadata(path: Path) -> dict[str, str]:
    """Read a safetensors file's metadata.

    Raises:
        BadInput: as `read_tensors`.
    """
    with _opened(path) as file:
        return dict(file.metadata() or {})


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a safetensors file: tensors and metadata.

    Raises:
        BadInput: not there, cut short, or another kind of file.
    """
    with _opened(path) as file:
        return {key: file.get_tensor(key) for key in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    if not path.is_file():
        raise BadInput(f"{path}: no such file")
    try:
        with safe_open(path, "pt") as file:
            yield file
    except SafetensorError as error:
        raise BadInput(f"{path}: not a whole safetensors file ({error}); copy it again from where it came") from error
