"""The binary versions of CIFAR-10 and CIFAR-100."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from frugan.data.classes import Classes
from frugan.data.source import Source
from frugan.data.wording import shown
from frugan.errors import BadInput

PIXELS_BYTES = 3 * 32 * 32


@dataclass(frozen=True)
class CifarFiles:
    """Where one of the two sets keeps what. A record is its label bytes, then red, green and blue planes of 32 x 32."""

    title: str
    files: tuple[str, ...]
    label_bytes: int
    class_count: int
    class_file: str
    python_files: tuple[str, ...]
    download: str

    @property
    def record_bytes(self) -> int:
        """Return the size of one picture with its labels."""
        return self.label_bytes + PIXELS_BYTES


CIFAR10 = CifarFiles(
    "CIFAR-10",
    tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    1,
    10,
    "batches.meta.txt",
    ("data_batch_1", "batches.meta"),
    "cifar-10-binary.tar.gz",
)
CIFAR100 = CifarFiles(  # coarse label, then fine label: the fine one counts
    "CIFAR-100", ("train.bin",), 2, 100, "fine_label_names.txt", ("train", "meta"), "cifar-100-binary.tar.gz"
)


def cifar_layout(folder: Path) -> CifarFiles | None:
    """Return which CIFAR set a folder holds, None if neither.

    Raises:
        BadInput: it holds the Python version, which is a pickle.
    """
    for layout in (CIFAR10, CIFAR100):
        if any((folder / name).is_file() for name in layout.files):
            return layout
        if all((folder / name).is_file() for name in layout.python_files):
            raise BadInput(
                f"{shown(str(folder))} holds the Python version of {layout.title}, which is a pickle and can run "
                f"programs: it is not read. Download the binary version, {layout.download}, and unpack it."
            )
    return None


def open_cifar(folder: Path, layout: CifarFiles) -> Source:
    """List the training pictures of a CIFAR folder (not the test set).

    Raises:
        BadInput: a file is missing, cut short, or holds a label that does not exist.
    """
    missing = [name for name in layout.files if not (folder / name).is_file()]
    if missing:
        raise BadInput(f"{shown(str(folder))} lacks {', '.join(missing)}; unpack {layout.download} again.")
    batches = [_records(folder / name, layout) for name in layout.files]
    starts = np.cumsum([0, *(len(batch) for batch in batches)])
    labels = np.concatenate([batch[:, layout.label_bytes - 1] for batch in batches]).astype(np.int64)
    if labels.max() >= layout.class_count:
        wrong = int(np.argmax(labels >= layout.class_count))
        name = layout.files[int(np.searchsorted(starts, wrong, "right")) - 1]
        raise BadInput(
            f"{shown(str(folder / name))} holds the label {labels[wrong]}; expected 0 to {layout.class_count - 1}. "
            f"Unpack {layout.download} again."
        )
    names = [f"{name}[{i}]" for name, batch in zip(layout.files, batches, strict=True) for i in range(len(batch))]

    def size(index: int) -> tuple[int, int]:
        return 32, 32

    def picture(index: int) -> Image.Image:
        at = int(np.searchsorted(starts, index, "right")) - 1
        planes = batches[at][index - starts[at], layout.label_bytes :].reshape(3, 32, 32)
        return Image.fromarray(np.ascontiguousarray(planes.transpose(1, 2, 0)))

    class_names, line = _class_names(folder, layout)
    lines = (line, f"the {len(labels):,} training pictures of {layout.title} are used, not its test pictures")
    return Source(
        f"{layout.title} binary files", folder, names, Classes(labels, class_names, True, lines), size, picture
    )


def _records(path: Path, layout: CifarFiles) -> NDArray[np.uint8]:
    """Map one file as [n, record_bytes]."""
    file_bytes = path.stat().st_size
    if file_bytes == 0 or file_bytes % layout.record_bytes:
        raise BadInput(
            f"{shown(str(path))} has {file_bytes:,} bytes; expected a multiple of {layout.record_bytes}, one record "
            f"per picture. It is damaged or not {layout.title}: unpack {layout.download} again."
        )
    return np.memmap(path, np.uint8, "r", shape=(file_bytes // layout.record_bytes, layout.record_bytes))


def _class_names(folder: Path, layout: CifarFiles) -> tuple[tuple[str, ...], str]:
    path = folder / layout.class_file
    text = path.read_bytes()[:10_000].decode("utf-8", "replace") if path.is_file() else ""
    names = tuple(line.strip() for line in text.splitlines() if line.strip())
    if len(names) == layout.class_count:
        return names, f"{layout.class_count} classes named by {layout.class_file}"
    numbers = tuple(str(number) for number in range(layout.class_count))
    return numbers, f"{layout.class_file} does not hold {layout.class_count} names: classes are called by their numbers"
