"""Pictures that vanish or turn bad while training goes on are skipped and counted; cut-off ones are found before."""

import shutil
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from faces.data.golden_faces import GOLDEN
from faults.processes import CPU, events
from faults.small_runs import OUTSIDE, minigan_and_pictures
from frugan.data.formats.source import refuse_many_lost
from frugan.engine.run.checkpoint import list_checkpoints
from frugan.engine.run.events import Event
from frugan.errors import BadInput
from frugan.faces.data import geometry, sample
from frugan.faces.data.batches import FaceBatches, FaceOrder
from frugan.faces.data.face import FaceType, SampleSettings
from frugan.faces.data.faceset import Faceset, open_faceset, pack_faceset
from frugan.faces.data.relabel import relabel
from frugan.faces.data.sample_processes import SampleProcesses
from frugan.reporting.report import page_of
from frugan.training.training import train
from limits import Limit

ALIGNED = GOLDEN / "faceset" / "aligned"
SETTINGS = SampleSettings(resolution=64, face_type=FaceType.HALF, random_warp=False, random_flip=False)
COPIES = 13
FACES = 8 * COPIES


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where pictures are prepared."""
    monkeypatch.setenv("FRUGAN_PREPARED", str(tmp_path / "prepared"))
    return tmp_path / "prepared"


@pytest.fixture
def faces(tmp_path: Path) -> Path:
    """So many times the same 8."""
    folder = tmp_path / "aligned"
    folder.mkdir()
    for path in ALIGNED.glob("*.jpg"):
        for copy in range(COPIES):
            shutil.copy(path, folder / f"{copy:02d}-{path.name}")
    return folder


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-600])


@contextmanager
def _batches(faceset: Faceset, workers: int) -> Iterator[FaceBatches]:
    processes = SampleProcesses(workers) if workers else None
    batches = FaceBatches(faceset, SETTINGS, seed=0, name="src", processes=processes)
    try:
        yield batches
    finally:
        batches.close()
        if processes is not None:
            processes.close()


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.long)])
def test_faces_that_vanish_or_turn_bad_give_way_to_others(faces: Path, workers: int) -> None:
    faceset = open_faceset(faces)
    with _batches(faceset, workers) as batches:
        before = batches.take(0, FACES)
        assert batches.passed_over == {}
        names = [Path(place[0]).name for place in faceset.places]
        (faces / names[3]).unlink()
        _cut(faces / names[20])
        after = batches.take(0, FACES)
        assert sorted(lost.split(": ")[1] for lost in batches.passed_over) == sorted([names[3], names[20]])
        pairs = zip(before["target"], after["target"], strict=True)
        changed = [place for place, (one, other) in enumerate(pairs) if not one.equal(other)]
        assert set(changed) <= set(_places(faceset, {3, 20}))  # copies of a face may stand in for it unseen
        again = batches.take(0, FACES)
        assert after["target"].equal(again["target"])  # and which takes its place is no accident
        assert len(batches.passed_over) == 2


def _with_broken_masks(faceset: Faceset, places: Collection[int]) -> Faceset:
    """Their header is that of a PNG, and nothing follows."""
    mask = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 64, 64) + bytes(9)
    return replace(
        faceset,
        faces=tuple(replace(f, xseg_mask=mask) if at in places else f for at, f in enumerate(faceset.faces)),
    )


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.long)])
def test_a_mask_that_cannot_be_decoded_lets_another_face_stand_in(faces: Path, workers: int) -> None:
    faceset = open_faceset(faces)
    with _batches(_with_broken_masks(faceset, range(7, 9)), workers) as batches, _batches(faceset, 0) as whole:
        taken = batches.take(0, FACES)
        pairs = zip(taken["mask"], whole.take(0, FACES)["mask"], strict=True)
        assert {place for place, (one, other) in enumerate(pairs) if not one.equal(other)} <= set(
            _places(faceset, {7, 8})
        )
        for at, (place, reason) in zip((7, 8), sorted(batches.passed_over.items()), strict=True):
            assert place.endswith(f": {faceset.faces[at].name}")
            assert reason.startswith(f"{faces}: {faceset.faces[at].name}: its XSeg mask cannot be decoded")


def test_broken_faces_in_a_row_name_their_side(faces: Path) -> None:
    why = rf"^data src: \d+ pictures of {FACES} cannot be read or used; the last: {faces}: .*: its XSeg mask cannot be"
    with _batches(_with_broken_masks(open_faceset(faces), range(FACES)), 0) as batches:  # noqa: SIM117
        with pytest.raises(BadInput, match=why):
            batches.take(0, 1)


def test_a_tenth_may_be_lost_in_a_row(faces: Path) -> None:
    faceset = open_faceset(faces)
    order, _ = FaceOrder(FACES, seed=0, name="src").places(0, 1)
    broken = [(int(order[0]) + offset) % FACES for offset in range(FACES // 10)]
    with _batches(_with_broken_masks(faceset, broken), 0) as batches:
        batches.take(0, 1)
        assert len(batches.passed_over) == FACES // 10


@pytest.mark.parametrize("packed", [False, True])
def test_faces_that_are_written_anew_are_read_again(faces: Path, tmp_path: Path, packed: bool) -> None:
    """As by `frugan masks apply --in-place` while a training reads them."""
    where = pack_faceset(open_faceset(faces), tmp_path / "faceset.pak") if packed else faces
    faceset = open_faceset(where)
    with _batches(faceset, 0) as batches, _batches(faceset, 0) as whole:
        before = whole.take(0, FACES)
        assert batches.rewritten == 0
        mask = cv2.imencode(".png", np.full((256, 256), 255, np.uint8))[1].tobytes()
        masked = ((at, replace(face, xseg_mask=mask)) for at, face in enumerate(faceset.faces) if at < 10)
        relabel(faceset, "xseg_mask", masked, None, None)
        assert open_faceset(where).digest != faceset.digest
        after = batches.take(0, FACES)
        assert batches.passed_over == {}
        assert all(before[part].equal(after[part]) for part in before)
        assert batches.rewritten == (FACES if packed else 10)


def test_what_opencv_cannot_do_lets_another_face_stand_in(faces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faceset, real = open_faceset(faces), geometry.eyes_mouth_mask

    def failing(landmarks: object, *size: int) -> object:
        if landmarks is faceset.faces[5].landmarks:
            raise cv2.error("overflow")
        return real(landmarks, *size)  # type: ignore[arg-type]

    monkeypatch.setattr(sample, "eyes_mouth_mask", failing)
    with _batches(faceset, 0) as batches:
        batches.take(0, FACES)
        (reason,) = batches.passed_over.values()
        assert reason == f"{faces}: {faceset.faces[5].name}: no sample can be made of it (overflow); take it out"


def _places(faceset: Faceset, lost: set[int]) -> list[int]:
    """Where in the first epoch these faces stand."""
    order, _ = FaceOrder(len(faceset), seed=0, name="src").places(0, len(faceset))
    return [place for place, face in enumerate(order.tolist()) if face in lost]


def test_a_folder_that_is_gone_stops_training(faces: Path) -> None:
    faceset = open_faceset(faces)
    shutil.rmtree(faces)
    with _batches(faceset, 0) as batches, pytest.raises(BadInput, match="cannot be read any more"):
        batches.take(0, 4)


def test_a_tenth_may_be_lost() -> None:
    refuse_many_lost({str(n): "gone." for n in range(12)}, 120)
    refuse_many_lost({"1": "gone."}, 3)
    with pytest.raises(BadInput, match=r"13 pictures of 120 cannot be read or used; the last: gone\."):
        refuse_many_lost({str(n): "gone." for n in range(13)}, 120)


@pytest.mark.parametrize("packed", [False, True])
def test_a_face_that_is_cut_off_is_found_before_training(faces: Path, tmp_path: Path, packed: bool) -> None:
    whole = sorted(faces.glob("*.jpg"))
    source = open_faceset(faces)
    victim = source.faces[7].name
    if packed:
        pak = pack_faceset(source, tmp_path / "faceset.pak")
        end = open_faceset(pak).places[7][2]
        with pak.open("r+b") as file:
            file.seek(end - 600)
            file.write(bytes(600))
        faceset = open_faceset(pak)
    else:
        _cut(faces / victim)
        faceset = open_faceset(faces)
    assert (len(faceset), faceset.passed_over) == (len(whole) - 1, (victim,))
    for path in whole[: FACES // 10 + 1]:
        _cut(path)
    with pytest.raises(BadInput, match=rf"no usable face in 1[12] of {FACES} pictures.*is cut off"):
        open_faceset(faces)


def test_a_prepared_picture_that_turns_bad_is_skipped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: Limit, prepared: Path
) -> None:
    monkeypatch.syspath_prepend(str(OUTSIDE))
    limit("bytes of a block of pictures", 1)  # a block is a picture
    recipe, pictures = minigan_and_pictures(tmp_path)

    def spoil(event: Event) -> None:
        if event["event"] == "start":
            shutil.rmtree(pictures)  # so that it cannot be made again
            (file,) = prepared.rglob("pictures.npy")
            with file.open("r+b") as opened:
                opened.seek(-10, 2)
                opened.write(bytes(reversed(range(100, 110))))

    run = tmp_path / "run"
    assert train(recipe, pictures, run, options=CPU, show=spoil).finished
    (lost,) = events(run, "picture_skipped")
    assert (lost["source"], lost["picture"], lost["count"]) == ("images", "picture 5", 1)
    assert "Another picture takes its place (1 so far)" in page_of([run])


def test_a_set_that_is_cut_short_ends_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepared: Path
) -> None:
    """To read a map beyond its file's end would be SIGBUS."""
    monkeypatch.syspath_prepend(str(OUTSIDE))
    recipe, pictures = minigan_and_pictures(tmp_path)

    def cut(event: Event) -> None:
        if event["event"] == "step" and event["step"] == 2:
            (file,) = prepared.rglob("pictures.npy")
            with file.open("r+b") as opened:
                opened.truncate(200)

    with pytest.raises(BadInput, match="cut short while it was in use"):
        train(recipe, pictures, tmp_path / "run", options=CPU, show=cut)
    trained = [event["step"] for event in events(tmp_path / "run", "step")]
    assert list_checkpoints(tmp_path / "run" / "checkpoints")[-1].step == trained[-1]
