"""A preparation that does not come to its end leaves nothing half done."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from PIL import Image

from frugan.data.formats.picture_set import open_prepared
from frugan.data.prepare import PictureFile, prepare
from frugan.errors import BadInput

MakeFolder = Callable[[dict[str, Image.Image | bytes]], Path]
MakePicture = Callable[..., Image.Image]


@pytest.fixture
def source(folder: MakeFolder, picture: MakePicture) -> Path:
    """Make a folder of 60 pictures."""
    return folder({f"{i}.png": picture(i) for i in range(60)})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ZeroDivisionError])
def test_an_interruption_leaves_nothing_and_no_thread(source: Path, tmp_path: Path, error: type[BaseException]) -> None:
    def progress(done: int, total: int) -> None:
        if done == 30:
            raise error

    with pytest.raises(error):
        prepare(source, tmp_path / "out", resolution=16, progress=progress)
    assert names(tmp_path) == ["source"]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("frugan-pictures")]
    assert prepare(source, tmp_path / "out", resolution=16).pictures == 60


def test_what_a_killed_preparation_leaves_is_deleted_by_the_next(source: Path, tmp_path: Path) -> None:
    program = """
import os, signal, sys
from pathlib import Path
from frugan.data.prepare import prepare
kill = lambda done, total: os.kill(os.getpid(), signal.SIGKILL) if done == 30 else None
prepare(Path(sys.argv[1]), Path(sys.argv[2]), resolution=16, progress=kill)
"""
    done = subprocess.run([sys.executable, "-c", program, str(source), str(tmp_path / "out")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert any(name.startswith(".out.unfinished-") for name in names(tmp_path))
    assert not (tmp_path / "out").exists()
    prepare(source, tmp_path / "out", resolution=16)
    assert names(tmp_path) == ["out", "source"]
    open_prepared(tmp_path / "out", verify=True)


def test_two_preparations_of_the_same_folder(source: Path, tmp_path: Path) -> None:
    with (
        FileLock(tmp_path / ".out.lock"),
        pytest.raises(BadInput, match=r"another process is writing .*out"),
    ):
        prepare(source, tmp_path / "out", resolution=16)
    prepare(source, tmp_path / "out", resolution=16)


def test_a_disk_that_fills_up(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append = PictureFile.append
    written: list[int] = []

    def full(self: PictureFile, picture: Any) -> None:
        if len(written) == 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(1)
        append(self, picture)

    monkeypatch.setattr(PictureFile, "append", full)
    with pytest.raises(BadInput, match=r"cannot write .*out: No space left on device.*Nothing was left"):
        prepare(source, tmp_path / "out", resolution=16)
    assert names(tmp_path) == ["source"]


def test_a_disk_that_is_too_small_is_noticed_first(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**6, 10**6, 1000))
    with pytest.raises(BadInput, match=r"needs at least 0.1 MiB for 60 pictures of 16 pixels.*smaller resolution"):
        prepare(source, tmp_path / "out", resolution=16)
    assert names(tmp_path) == ["source"]


def test_a_folder_that_cannot_be_made(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"file: is a file, and a folder is wanted there; .*FRUGAN_PREPARED"):
        prepare(source, tmp_path / "file" / "out", resolution=16)
