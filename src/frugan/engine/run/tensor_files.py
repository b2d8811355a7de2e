"""Writing and reading files so that what is there is whole: flushed, digested, renamed into place."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from frugan.errors import BadInput
from frugan.files import atomic_file

DTYPES: Mapping[torch.dtype, str] = MappingProxyType(
    {
        torch.float64: "F64",
        torch.float32: "F32",
        torch.float16: "F16",
        torch.bfloat16: "BF16",
        torch.int64: "I64",
        torch.int32: "I32",
        torch.int16: "I16",
        torch.int8: "I8",
        torch.uint8: "U8",
        torch.bool: "BOOL",
    }
)
"""Names of types in safetensors files."""
ALIGNMENT_BYTES = 8
"""Alignment of the first tensor in a safetensors file."""


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
    with atomic_file(path) as beside:
        beside.write_text(json.dumps(value, indent=1, ensure_ascii=False), encoding="utf-8")
        flush(beside)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file and wait until it is on the disk; equal contents make equal files.

    By hand: the library's writer puts metadata in an order that differs from process to process, and leaves files that
    nobody but their owner can read, whatever the umask says.

    Args:
        tensors: of the types in `DTYPES`; aliases (tied weights) are written twice.

    Raises:
        OSError: the disk is full or the path cannot be written.
    """
    # Wide types first, as the library does: then every tensor lies at a multiple of its own width.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    end = 0
    for name in names:
        begin, end = end, end + tensors[name].numel() * tensors[name].element_size()
        shape = list(tensors[name].shape)
        header[name] = {"dtype": DTYPES[tensors[name].dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT_BYTES)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            host = tensors[name].detach().cpu().contiguous()
            file.write(host.reshape(-1).view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())


def read_metadata(path: Path) -> dict[str, str]:
    """Read a safetensors file's metadata.

    Raises:
        BadInput: as `read_tensors`.
    """
    with _opened(path) as file:
        return dict(file.metadata() or {})


def read_names(path: Path) -> list[str]:
    """Read the names of a safetensors file's tensors.

    Raises:
        BadInput: as `read_tensors`.
    """
    with _opened(path) as file:
        return list(file.keys())


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
