"""CIFAR's binary records."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from frugan.data.formats.detect import open_source
from frugan.errors import BadInput

MakeCifar = Callable[..., np.ndarray]
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@pytest.fixture
def cifar10(tmp_path: Path) -> MakeCifar:
    """Write five batches of four records each, and a test batch; return the records [20, 3073]."""

    def make() -> np.ndarray:
        records = np.random.default_rng(0).integers(0, 256, (24, 3073), dtype=np.uint8)
        records[:, 0] = np.arange(24) % 10
        for number in range(5):
            (tmp_path / f"data_batch_{number + 1}.bin").write_bytes(records[4 * number : 4 * number + 4].tobytes())
        (tmp_path / "test_batch.bin").write_bytes(records[20:].tobytes())
        (tmp_path / "batches.meta.txt").write_text("\n".join(CLASSES) + "\n\n")
        return records[:20]

    return make


def test_cifar10_training_set(tmp_path: Path, cifar10: MakeCifar) -> None:
    records = cifar10()
    source = open_source(tmp_path)
    assert len(source) == 20
    assert source.classes.labels.tolist() == records[:, 0].tolist()
    assert source.classes.names == tuple(CLASSES)
    assert source.size(0) == (32, 32)
    assert source.names[6] == "data_batch_2.bin[2]"
    for index in (0, 6, 19):
        expected = records[index, 1:].reshape(3, 32, 32).transpose(1, 2, 0)
        np.testing.assert_array_equal(np.asarray(source.picture(index)), expected)


def test_classes_without_names_are_numbers(tmp_path: Path, cifar10: MakeCifar) -> None:
    cifar10()
    (tmp_path / "batches.meta.txt").unlink()
    source = open_source(tmp_path)
    assert source.classes.names[9] == "9"
    assert any("called by their numbers" in line for line in source.classes.lines)


def test_cifar100_fine_labels(tmp_path: Path) -> None:
    records = np.random.default_rng(0).integers(0, 256, (6, 3074), dtype=np.uint8)
    records[:, :2] = [[19, 99 - number] for number in range(6)]
    (tmp_path / "train.bin").write_bytes(records.tobytes())
    (tmp_path / "fine_label_names.txt").write_text("".join(f"name {number}\n" for number in range(100)))
    source = open_source(tmp_path)
    assert source.classes.labels.tolist() == [99, 98, 97, 96, 95, 94]
    assert source.classes.names[99] == "name 99"
    np.testing.assert_array_equal(np.asarray(source.picture(5)), records[5, 2:].reshape(3, 32, 32).transpose(1, 2, 0))


def test_missing_batch(tmp_path: Path, cifar10: MakeCifar) -> None:
    cifar10()
    (tmp_path / "data_batch_3.bin").unlink()
    with pytest.raises(BadInput, match=r"lacks data_batch_3.bin; unpack cifar-10-binary.tar.gz"):
        open_source(tmp_path)


@pytest.mark.parametrize("size", [0, 3072, 3073 * 2 + 1])
def test_cut_batch(tmp_path: Path, cifar10: MakeCifar, size: int) -> None:
    cifar10()
    (tmp_path / "data_batch_3.bin").write_bytes(bytes(size))
    with pytest.raises(BadInput, match=r"data_batch_3.bin has .* bytes; expected a multiple of 3073"):
        open_source(tmp_path)


def test_label_out_of_range(tmp_path: Path, cifar10: MakeCifar) -> None:
    records = cifar10()
    records[5, 0] = 10
    (tmp_path / "data_batch_2.bin").write_bytes(records[4:8].tobytes())
    with pytest.raises(BadInput, match=r"data_batch_2.bin holds the label 10; expected 0 to 9"):
        open_source(tmp_path)


@pytest.mark.parametrize(
    ("names", "download"),
    [(("data_batch_1", "batches.meta"), "cifar-10-binary"), (("train", "test", "meta"), "cifar-100-binary")],
)
def test_python_version_is_a_pickle_and_refused(tmp_path: Path, names: tuple[str, ...], download: str) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"\x80\x02}")
    with pytest.raises(BadInput, match=f"pickle.*{download}.tar.gz"):
        open_source(tmp_path)
