"""Pictures in the HDF5 files of BigGAN-PyTorch's preparation. Untrusted."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from frugan.data.classes import numbered
from frugan.data.decoding import MOST_PIXELS
from frugan.data.source import Source, Unreadable, closed_on_failure, translated
from frugan.data.wording import shown
from frugan.errors import BadInput

FORM = "datasets `imgs` uint8 [N, 3, S, S] and `labels` int64 [N]"
# Holds two chunks of 500 pictures of 256 pixels: read in order, each is unpacked once.
CACHE_BYTES = 512 << 20
DAMAGED = (OSError, RuntimeError, LookupError, ValueError, TypeError, OverflowError, UnicodeError)
"""What h5py raises on damaged files, wherever it meets the damage."""
MOST_PICTURES = 100_000_000  # their labels alone take 0.8 GB


def open_hdf5(path: Path) -> Source:
    """List the pictures of an HDF5 file; they are read one by one.

    Raises:
        BadInput: h5py is missing, or the file does not hold what BigGAN-PyTorch's `make_hdf5.py` writes.
    """
    try:
        import h5py  # noqa: PLC0415  (optional extra)
    except ImportError as error:
        raise BadInput(f"{shown(str(path))} is an HDF5 file, which needs h5py: pip install 'frugan[data]'") from error
    where = shown(str(path))
    with translated(DAMAGED, lambda e: BadInput(f"{where} cannot be opened as HDF5 ({e}). Copy or make it again.")):
        file = h5py.File(path, "r", rdcc_nbytes=CACHE_BYTES)
    with (
        translated(DAMAGED, lambda e: BadInput(f"{where} is a damaged HDF5 file ({e}). Copy or make it again.")),
        closed_on_failure(file.close),
    ):
        return _list(h5py, file, path, where)


def _list(h5py: Any, file: Any, path: Path, where: str) -> Source:
    imgs, labels = (_dataset(h5py, file, name, where) for name in ("imgs", "labels"))
    fits = imgs.ndim == 4 and imgs.shape[1] == 3 and imgs.dtype == np.uint8 and imgs.size > 0
    if not (fits and labels.shape == imgs.shape[:1] and labels.dtype.kind in "iu"):
        raise BadInput(
            f"{where} holds imgs {imgs.dtype} {list(imgs.shape)} and labels {labels.dtype} {list(labels.shape)}; "
            f"expected {FORM}. Prepare from the original pictures instead."
        )
    height, width = imgs.shape[2:]
    if len(imgs) > MOST_PICTURES or height * width > MOST_PIXELS:
        raise BadInput(
            f"{where} claims {len(imgs):,} pictures of {width:,} x {height:,} pixels; expected at most "
            f"{MOST_PICTURES:,} pictures and {MOST_PIXELS:,} pixels each. It is damaged: copy or make it again."
        )
    chunk_bytes = int(np.prod(imgs.chunks or (0,), dtype=object))
    if imgs.compression and chunk_bytes > CACHE_BYTES:
        raise BadInput(
            f"{where} is packed in chunks of {chunk_bytes >> 20:,} MiB; expected at most {CACHE_BYTES >> 20}. "
            "Rewrite it with fewer pictures per chunk (h5repack)."
        )
    classes = numbered(np.asarray(labels[:], np.int64), f"labels of {where}")

    def size(index: int) -> tuple[int, int]:
        return width, height

    def picture(index: int) -> Image.Image:
        with translated(DAMAGED, lambda e: Unreadable(str(e))):
            pixels: NDArray[np.uint8] = imgs[index]  # [3, S, S]
        return Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))

    names = [f"imgs[{index}]" for index in range(len(imgs))]
    return Source("HDF5 file", path, names, classes, size, picture, file.close)


def _dataset(h5py: Any, file: Any, name: str, where: str) -> Any:
    """Return a dataset whose values lie in the file itself: HDF5 can also point at other files."""
    found = file.get(name) if isinstance(file.get(name, getlink=True), h5py.HardLink) else None
    if not isinstance(found, h5py.Dataset):
        raise BadInput(f"{where} has no dataset `{name}`; expected {FORM}, as make_hdf5.py writes them.")
    if found.external or found.is_virtual:
        raise BadInput(f"{where}: `{name}` points at other files; expected the values themselves. Run h5repack on it.")
    return found
