"""Batches of face samples: what they hold, and that neither cutting nor processes change them."""

import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch

from faces.data.golden_faces import GOLDEN
from frugan.errors import BadInput, TrainingFailed
from frugan.faces.data import sample_processes
from frugan.faces.data.batches import FaceBatches, FaceOrder
from frugan.faces.data.face import FaceType, SampleSettings
from frugan.faces.data.faceset import Faceset, open_faceset, pack_faceset
from frugan.faces.data.sample import SampleMaker, make_sample
from frugan.faces.data.sample_processes import (
    LEFT_TO_THE_TRAINER,
    MakerPickler,
    SampleBlock,
    SampleProcesses,
    SharedRecords,
)

FACES = open_faceset(GOLDEN / "faceset" / "aligned")
SETTINGS = SampleSettings(64, FaceType.FULL, random_warp=True, random_flip=True, hsv_power=0.1, colour_transfer="rct")
PLAIN = SampleSettings(64, FaceType.FULL, random_warp=True, random_flip=False, eyes_mouth=False)


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for part, tensor in one.items():
        assert torch.equal(tensor, other[part]), part


def in_this_process(**changes: object) -> FaceBatches:
    return FaceBatches(FACES, replace(SETTINGS, **changes), seed=5, name="src", references=FACES)  # type: ignore[arg-type]


def test_what_a_batch_holds() -> None:
    batch = in_this_process().take(3, 4)
    shapes = {part: tuple(tensor.shape) for part, tensor in batch.items()}
    assert shapes == {
        "warped": (4, 3, 64, 64),
        "target": (4, 3, 64, 64),
        "mask": (4, 1, 64, 64),
        "eyes_mouth": (4, 1, 64, 64),
    }
    for tensor in batch.values():
        assert tensor.dtype == torch.float32
        assert tensor.is_contiguous()
    order = FaceOrder(len(FACES), seed=5, name="src")
    (faces, seeds), partners = order.places(3, 4), order.partners(3, 4, len(FACES))
    for place, (face, seed, partner) in enumerate(zip(faces, seeds.tolist(), partners, strict=True)):
        sample = make_sample(FACES.faces[face], FACES.picture(face), SETTINGS, seed, FACES.picture(partner))
        for part, tensor in batch.items():
            np.testing.assert_array_equal(tensor[place].numpy(), getattr(sample, part).transpose(2, 0, 1))


def test_parts_that_are_not_asked_for() -> None:
    batch = in_this_process(eyes_mouth=False, colour_transfer="none").take(0, 2)
    assert list(batch) == ["warped", "target", "mask"]
    assert batch["mask"].shape == (2, 1, 64, 64)


def test_an_empty_batch() -> None:
    assert in_this_process().take(7, 0)["warped"].shape == (0, 3, 64, 64)


def test_any_cutting_gives_the_same_samples() -> None:
    batches = in_this_process()
    whole, parts = batches.take(5, 6), [batches.take(position, 2) for position in (9, 5, 7)]
    for part, tensor in whole.items():
        assert torch.equal(tensor, torch.cat([parts[place][part] for place in (1, 2, 0)]))
    assert_same(in_this_process().take(5, 6), whole)


def test_uniform_yaw_takes_the_faces_of_its_stream() -> None:
    plain = replace(SETTINGS, colour_transfer="none")
    batch = FaceBatches(FACES, plain, seed=5, name="src", uniform_yaw=True).take(0, 8)
    faces, seeds = FaceOrder(8, seed=5, name="src", yaws=FACES.yaws).places(0, 8)
    for place in (0, 7):
        face = int(faces[place])
        sample = make_sample(FACES.faces[face], FACES.picture(face), plain, int(seeds[place]))
        np.testing.assert_array_equal(batch["target"][place].numpy(), sample.target.transpose(2, 0, 1))


def test_colours_need_references() -> None:
    with pytest.raises(ValueError, match="'rct' without references"):
        FaceBatches(FACES, SETTINGS, seed=1, name="src")


class Rig(NamedTuple):
    """Batches of faces in a file that a test may damage, and others of the same faces, made by two processes."""

    batches: FaceBatches
    other: FaceBatches
    pak: Path
    processes: list[BaseProcess]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    faces = open_faceset(pack_faceset(FACES, tmp_path_factory.mktemp("packed")))
    before = active_children()
    shared = SampleProcesses(2)
    batches = FaceBatches(faces, SETTINGS, seed=5, name="src", references=faces, processes=shared)
    other = FaceBatches(faces, PLAIN, seed=5, name="dst", processes=shared)
    yield Rig(batches, other, faces.path, [process for process in active_children() if process not in before])
    batches.close()
    other.close()
    shared.close()


def test_processes_do_not_change_the_samples(rig: Rig) -> None:
    for position, count in ((0, 5), (5, 5), (2, 1), (0, 0), (0, 3)):
        batch = rig.batches.take(position, count)
        assert_same(batch, in_this_process().take(position, count))
        assert all(tensor.is_contiguous() for tensor in batch.values())
    earlier = {part: tensor.clone() for part, tensor in batch.items()}
    rig.batches.take(3, 3)
    assert_same(batch, earlier)  # no batch lies in memory that the next one is written into


def test_sources_that_share_processes_get_their_own_samples(rig: Rig) -> None:
    assert len(rig.processes) == 2
    plain = FaceBatches(FACES, PLAIN, seed=5, name="dst")
    with ThreadPoolExecutor(2) as threads:  # as training reads ahead: one for each source
        for _ in range(3):
            batches = threads.submit(rig.batches.take, 2, 5), threads.submit(rig.other.take, 1, 7)
            assert_same(batches[0].result(), in_this_process().take(2, 5))
            assert_same(batches[1].result(), plain.take(1, 7))


def test_processes_leave_signals_to_the_trainer(rig: Rig, capfd: pytest.CaptureFixture[str]) -> None:
    """Terminals send them to the whole group, batch systems too; the trainer still has a step to end."""
    assert len(rig.processes) == 2
    for process in rig.processes:
        assert process.pid is not None
        for number in LEFT_TO_THE_TRAINER:
            os.kill(process.pid, number)
    assert_same(rig.batches.take(0, 4), in_this_process().take(0, 4))
    assert capfd.readouterr().err == ""


def test_a_face_that_cannot_be_read_gives_way_and_is_named(rig: Rig) -> None:
    data = rig.pak.read_bytes()
    rig.pak.write_bytes(data[:-9])
    rig.batches.take(0, 8)
    (reason,) = rig.batches.passed_over.values()
    assert "faceset.pak has changed while it was in use" in reason
    rig.pak.write_bytes(b"")
    with pytest.raises(BadInput, match=r"faceset\.pak has changed while it was in use"):
        rig.batches.take(0, 8)
    rig.pak.write_bytes(data)
    assert_same(rig.batches.take(0, 4), in_this_process().take(0, 4))


def test_a_lost_process_is_reported(rig: Rig) -> None:
    """The last test with these processes."""
    rig.processes[0].kill()
    with pytest.raises(TrainingFailed, match="a process that makes face samples has ended by itself"):
        rig.batches.take(0, 4)
    with pytest.raises(TrainingFailed, match="a process that makes face samples has ended by itself"):
        rig.other.take(0, 4)  # and not that they are closed


def test_closed_processes_make_nothing() -> None:
    closed = SampleProcesses(1)
    closed.close()
    with pytest.raises(RuntimeError, match="are closed"):
        FaceBatches(FACES, PLAIN, seed=1, name="src", processes=closed).take(0, 4)


KILLED_TRAINER = """
import os, signal, sys
from pathlib import Path

if __name__ == "__main__":
    from frugan.faces.data.batches import FaceBatches
    from frugan.faces.data.face import FaceType, SampleSettings
    from frugan.faces.data.faceset import open_faceset
    from frugan.faces.data.sample_processes import SampleProcesses

    settings = SampleSettings(64, FaceType.FULL, random_warp=True, random_flip=True)
    faces, processes = open_faceset(Path(sys.argv[1])), SampleProcesses(1)
    batches = FaceBatches(faces, settings, seed=1, name="src", processes=processes)
    print(len(batches.take(0, 2)["mask"]), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def ended(script: Path, content: str) -> subprocess.CompletedProcess[str]:
    """What became of a script that is given the faces, once everyone has closed the pipes, orphans included."""
    script.write_text(content)
    command = [sys.executable, str(script), str(FACES.path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.long
def test_processes_end_with_a_killed_trainer(tmp_path: Path) -> None:
    process = ended(tmp_path / "train.py", KILLED_TRAINER)
    assert process.stdout == "2\n", process.stderr
    assert process.returncode == -signal.SIGKILL


WATCHED = """
import sys
from pathlib import Path

import frugan  # as scripts that train do
from frugan.cli.main import run  # as the installed command does: each process reads its top again
from frugan.faces.data.sample import SampleMaker, Wanted
from frugan.errors import BadInput

class Watched(SampleMaker):
    def make(self, wanted, into, place):
        lost = super().make(wanted, into, place)
        heavy = {"torch", "pydantic", "typer"} & sys.modules.keys()
        if __name__ != "__mp_main__" or heavy:
            raise BadInput(f"{__name__} has {sorted(heavy)}")
        return lost

if __name__ == "__main__":
    from frugan.faces.data.face import FaceType, SampleSettings
    from frugan.faces.data.faceset import open_faceset
    from frugan.faces.data.sample_processes import SampleBlock
    from frugan.faces.data.sample_processes import SampleProcesses

    faces = open_faceset(Path(sys.argv[1]))
    settings = SampleSettings(64, FaceType.FULL, random_warp=True, random_flip=True, colour_transfer="rct")
    maker, processes = Watched(faces, settings, faces), SampleProcesses(1)
    block = SampleBlock(maker.shapes(1))
    processes.fill(processes.add(maker), block, [Wanted(0, 1, 2)])
    print(f"{block.arrays['mask'].max():.0f}")
    block.close()
    processes.close()
"""


def test_processes_do_without_torch(tmp_path: Path) -> None:
    """It takes 245 MiB in each of them, and more where it comes with CUDA's libraries."""
    process = ended(tmp_path / "train.py", WATCHED)
    assert (process.stdout, process.returncode) == ("1\n", 0), process.stderr


def test_blocks_are_shared_by_name_and_given_back() -> None:
    shapes = {"a": (2, 3), "b": (4,)}
    made = SampleBlock(shapes)
    opened = SampleBlock(shapes, made.name)
    opened.arrays["a"][:] = 1
    opened.arrays["b"][:] = 2
    assert made.arrays["a"].tolist() == [[1, 1, 1], [1, 1, 1]]
    assert made.arrays["b"].tolist() == [2, 2, 2, 2]
    opened.close()
    made.close()
    with pytest.raises(FileNotFoundError):
        SampleBlock(shapes, made.name)


def test_no_room_for_a_block(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sample_processes, "SYSTEM_FOLDER", tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=64 << 20))
    with pytest.raises(BadInput, match=r"has room for 64\.0 MiB .* takes 64\.1 MiB\. In a container, .*--shm-size"):
        SampleBlock({"a": (64 << 18,), "b": (1 << 15,)})


def test_facesets_are_shared_and_not_copied() -> None:
    """What is sent to each process does not grow with the faces, and the memory is given back."""
    sizes, names = [], set[str]()
    for number in (8, 80):
        many = replace(FACES, faces=tuple(FACES.faces) * (number // 8), places=tuple(FACES.places) * (number // 8))
        sets: dict[int, tuple[Faceset, Faceset]] = {}
        file = BytesIO()
        maker = SampleMaker(many, SETTINGS, many)
        MakerPickler(file, sets).dump(maker)
        sizes.append(len(file.getvalue()))
        assert len(sets) == 1, "both sides of one set share it"
        again = pickle.loads(file.getvalue())
        assert again.faceset is again.references
        assert len(again.faceset.faces) == number
        assert again.faceset.faces[-1].name == many.faces[-1].name
        assert [face.name for face in again.faceset.faces[6:9]] == [face.name for face in many.faces[6:9]]
        np.testing.assert_array_equal(again.faceset.picture(number - 1), many.picture(number - 1))
        for records in (again.faceset.faces, again.faceset.places):
            records.close()
        for records in (sets[id(many)][1].faces, sets[id(many)][1].places):
            assert isinstance(records, SharedRecords)
            names.add(records.name)
            records.close()
    assert abs(sizes[0] - sizes[1]) <= 8  # the number's own digits
    assert sizes[1] < 4096
    for name in names:
        with pytest.raises(FileNotFoundError):
            SharedMemory(name)
