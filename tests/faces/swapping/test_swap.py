"""`frugan swap` from a run and frames to swapped frames: masks, resumption, and what is refused."""

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import ExifTags, Image
from torch import Tensor

from cli.calling import Frugan, frugan
from faces.swapping.drawn_frames import background, draw_film
from frugan.errors import BadInput
from frugan.faces.data.dfl_jpeg import write_face_jpeg
from frugan.faces.data.face import FaceType, FaceTypeOption
from frugan.faces.data.faceset import open_faceset, pack_faceset
from frugan.faces.data.swap import FaceSwap
from frugan.faces.swapping.composing import Look, MaskMode, compose
from frugan.faces.swapping.frames import SUFFIXES, Frame, find_frames, likeness, write_frame
from frugan.faces.swapping.swap import MaskNetwork, Swapper, swap_frames
from frugan.progress import Say
from frugan.recipe.loading import load_recipe
from frugan.setup.networks import build, save
from frugan.training.run import TrainingOptions
from frugan.training.training import train

__all__ = ["frugan"]
FACES, EMPTY = 3, 2
NARROW = ("networks.e_dims=16", "networks.d_dims=16", "networks.ae_dims=32")
TINY = (*NARROW, "training.batch=2", "saving.snapshot_every=100 steps")
CPU = torch.device("cpu")
Pixels = NDArray[np.uint8]


def _quiet(line: str) -> None:
    del line


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return draw_film(tmp_path_factory.mktemp("film"), FACES, EMPTY)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of Quick96 that were never trained."""
    path = tmp_path_factory.mktemp("weights") / "quick96.safetensors"
    save(build("quick96", NARROW), load_recipe("quick96", NARROW), path)
    return path


def frames_of(folder: Path, aligned: Path, say: Say = _quiet) -> list[Frame]:
    return find_frames(folder, open_faceset(aligned), say)


@pytest.fixture(scope="module")
def run(film: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A step of Quick96 on the film's faces and those of another person."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    words, options = [*TINY, "training.duration=1 step"], TrainingOptions(device="cpu", workers=0)
    train("quick96", film[1].parents[1], folder, overrides=words, options=options, say=_quiet)
    return folder


def stamps(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_frames_are_swapped_copied_and_kept(
    frugan: Frugan, film: tuple[Path, Path], weights: Path, tmp_path: Path
) -> None:
    frames, aligned = film
    words = ["swap", str(weights), str(frames), str(aligned), str(tmp_path / "out"), "--blur", "2", "--device", "cpu"]
    first = frugan(*words)
    assert first.returncode == 0, first.stderr
    assert first.stdout.endswith(f"out: {FACES} swapped, {EMPTY} copied, 0 there already\n")
    names = sorted(path.name for path in frames.iterdir())
    assert sorted(stamps(tmp_path / "out")) == sorted([*names, "swap.json"])
    for name in names:
        same = (tmp_path / "out" / name).read_bytes() == (frames / name).read_bytes()
        assert same == name.startswith("9"), "frames without faces, and they alone, are copied"
    before = stamps(tmp_path / "out")
    whole = (tmp_path / "out" / names[1]).read_bytes()
    (tmp_path / "out" / names[1]).unlink()
    again = frugan(*words, "--json")
    assert '{"swapped": 1, "copied": 0, "kept": 4, "faces": 1, "anew": 0, "damaged": {}}' in again.stdout
    assert (tmp_path / "out" / names[1]).read_bytes() == whole
    after = stamps(tmp_path / "out")
    assert {name for name in before if before[name] != after[name]} == {names[1]}
    other = frugan(*words[:-4], "--blur", "3", "--device", "cpu")
    assert other.returncode == 2
    assert "its frames were made with blur 2, now it is 3" in " ".join(other.stderr.split())
    assert stamps(tmp_path / "out") == after


def test_frames_whose_faces_or_pictures_changed_are_made_anew(
    frugan: Frugan, film: tuple[Path, Path], weights: Path, tmp_path: Path
) -> None:
    frames, aligned = (Path(shutil.copytree(folder, tmp_path / folder.name)) for folder in film)
    out = tmp_path / "out"
    words = ["swap", str(weights), str(frames), str(aligned), str(out), "--device", "cpu"]
    assert frugan(*words).returncode == 0
    names = sorted(path.name for path in frames.iterdir())
    before = stamps(out)

    sorted(aligned.iterdir())[0].unlink()  # who shall stay as they are
    (frames / names[1]).write_bytes((film[0] / names[2]).read_bytes())
    again = frugan(*words)
    assert again.returncode == 0, again.stderr
    told = "1 swapped, 1 copied, 3 there already; 2 anew, as picture, faces, model or settings have changed\n"
    assert again.stdout.endswith(told)
    assert (out / names[0]).read_bytes() == (frames / names[0]).read_bytes()
    after = stamps(out)
    assert {name for name in names if before[name] != after[name]} == {*names[:2]}
    assert frugan(*words).stdout.endswith("0 swapped, 0 copied, 5 there already\n")
    assert stamps(out) == after

    # a folder that does not say what its frames are of
    settings = json.loads((out / "swap.json").read_text("utf-8"))
    del settings["frames"]
    (out / "swap.json").write_text(json.dumps(settings), "utf-8")
    assert "0 there already; 5 anew" in frugan(*words).stdout
    settings["frames"] = 3
    (out / "swap.json").write_text(json.dumps(settings), "utf-8")
    assert "is damaged; name a new folder" in " ".join(frugan(*words).stderr.split())


def test_a_change_that_is_taken_back_before_it_came_to_a_frame_costs_nothing(
    film: tuple[Path, Path], weights: Path, tmp_path: Path
) -> None:
    """Frames are replaced one by one, and none is deleted before."""
    frames, out = film[0], tmp_path / "out"
    _swap(weights, *film, out)
    before = stamps(out)
    faces = [path for path in sorted(film[1].iterdir()) if path.is_file()]
    fewer = tmp_path / "fewer"
    fewer.mkdir()
    shutil.copy(faces[-1], fewer)

    def stop(done: int, of: int) -> None:
        assert (done, of) == (1, 2)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        swap_frames(weights, frames, fewer, out, device="cpu", say=_quiet, progress=stop)
    told: list[str] = []
    result = swap_frames(weights, *film, out, device="cpu", say=told.append)
    assert (result.swapped, result.kept, result.anew) == (1, 4, 1)
    assert "1 frame there made anew: picture, faces, model or settings have changed" in told
    after = stamps(out)
    assert len([name for name in after if before[name] != after[name]]) == 2  # one, and swap.json


def test_after_more_training_frames_are_made_anew_where_that_is_asked_for(
    frugan: Frugan, film: tuple[Path, Path], run: Path, tmp_path: Path
) -> None:
    trained, out = Path(shutil.copytree(run, tmp_path / "run")), tmp_path / "out"
    words = ["swap", str(trained), *map(str, film), str(out), "--device", "cpu"]
    assert frugan(*words).returncode == 0
    before = stamps(out)
    data, options = film[1].parents[1], TrainingOptions(device="cpu", workers=0)
    train("quick96", data, trained, overrides=[*TINY, "training.duration=2 steps"], options=options, say=_quiet)
    refused = frugan(*words)
    assert refused.returncode == 2
    told = " ".join(refused.stderr.split())
    assert "its frames were made at step 1, now it is 2; name a new folder, add --replace to make them all anew" in told
    kept = trained / "checkpoints" / "step-000000001"
    assert ("or give RUN/checkpoints/step-000000001 as it was" in told) == kept.exists()
    assert str(trained) not in told.partition("bad input")[2]
    assert stamps(out) == before

    assert "0 there already; 5 anew, as picture" in frugan(*words, "--replace").stdout
    after = stamps(out)
    assert all(before[name] != after[name] for name in before)
    assert "at step 2" in json.loads((out / "swap.json").read_text("utf-8"))["model"]
    assert frugan(*words, "--replace").stdout.endswith("0 swapped, 0 copied, 5 there already\n")
    assert stamps(out) == after


def test_frames_that_are_to_be_replaced_are_so_one_by_one(
    film: tuple[Path, Path], weights: Path, tmp_path: Path
) -> None:
    """What is done when it is stopped stays, and the same command goes on from there."""
    out = tmp_path / "out"
    _swap(weights, *film, out)
    before = stamps(out)

    def stop(done: int, of: int) -> None:
        assert (done, of) == (1, FACES + EMPTY)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _swap(weights, *film, out, Look(blur=3), replace_files=True, progress=stop)
    assert len([name for name, stamp in stamps(out).items() if stamp != before[name]]) == 2  # one, and swap.json
    told: list[str] = []
    result = swap_frames(weights, *film, out, Look(blur=3), device="cpu", say=told.append)
    assert (result.kept, result.anew) == (1, FACES + EMPTY - 1)


def test_ctrl_c_says_what_is_done_and_that_the_same_command_goes_on(
    film: tuple[Path, Path], weights: Path, tmp_path: Path
) -> None:
    told: list[str] = []

    def stop(done: int, of: int) -> None:
        assert of == FACES + EMPTY
        if done == EMPTY + 1:  # as the others are written meanwhile, which it has not been told of yet
            while len(list((tmp_path / "out").glob("*.png"))) < FACES + EMPTY:
                time.sleep(0.01)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        swap_frames(weights, *film, tmp_path / "out", device="cpu", workers=1, say=told.append, progress=stop)
    assert told[-1] == f"{tmp_path / 'out'}: 5 of 5 frames done; the same command goes on"
    _swap(weights, *film, tmp_path / "out")
    assert len(stamps(tmp_path / "out")) == FACES + EMPTY + 1


def test_swapped_frames_say_that_they_are_synthetic(film: tuple[Path, Path], weights: Path, tmp_path: Path) -> None:
    _swap(weights, *film, tmp_path / "out")
    for path in (tmp_path / "out").glob("*.png"):
        with Image.open(path) as picture:
            says = str(picture.info.get("Description", ""))
        expected = "" if path.name.startswith("9") else "synthetic: made by a quick96 network at step 0"
        assert says == expected, path.name


@pytest.mark.parametrize("suffix", [suffix for suffix in SUFFIXES if suffix != ".png"])
def test_frames_of_every_kind_carry_texts_and_their_pixels(tmp_path: Path, suffix: str) -> None:
    pixels = background(0)
    for name in (f"frame{suffix}", f"FRAME{suffix.upper()}"):
        path = tmp_path / name
        write_frame(path, pixels, {"Software": "frugan", "Description": "synthetic"})
        with Image.open(path) as picture:
            says = picture.getexif().get(ExifTags.Base.ImageDescription)
        assert says == (None if suffix == ".bmp" else "Software: frugan\nDescription: synthetic")
        read = cv2.imread(str(path))
        assert read is not None
        far = np.abs(read.astype(int) - pixels).max()
        assert far <= (8 if suffix in (".jpg", ".jpeg") else 0)


def _red(faces: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    ones = torch.ones_like(faces[:, :1])
    return torch.zeros_like(faces), 0.5 * ones, 0.8 * ones


SWAP = FaceSwap(96, "f", _red)
XSEG = MaskNetwork(64, FaceType.WHOLE_FACE, lambda faces: 0.25 + 0.5 * (faces[:, :1] > 0))
"""Of a swapped face, which is black, it says 0.25, of what is in a frame 0.75."""


@pytest.mark.parametrize(
    ("mode", "face_type", "expected"),
    [
        ("learned-prd", "f", 0.5),
        ("learned-dst", "f", 0.8),
        ("learned", "f", 0.4),
        ("learned", "head", 0.5),
        ("xseg-prd", "f", 0.25),
        ("xseg-dst", "f", 0.75),
        ("xseg", "f", 0.1875),
        ("all", "f", 0.075),
    ],
)
def test_masks_that_count(film: tuple[Path, Path], mode: MaskMode, face_type: FaceTypeOption, expected: float) -> None:
    frame = frames_of(*film)[0]
    swapper = Swapper(replace(SWAP, face_type=face_type), XSEG if mode[0] in "xa" else None, Look(mode), CPU)
    (face,) = swapper.faces(swapper.cut(frame))
    assert np.prod(np.stack(face.masks), axis=0)[40:56, 40:56].mean() == pytest.approx(expected, abs=1e-5)


def test_traces_of_xseg_count_as_none(film: tuple[Path, Path]) -> None:
    faint = replace(XSEG, call=lambda faces: torch.full_like(faces[:, :1], 0.09))
    swapper = Swapper(SWAP, faint, Look("xseg"), CPU)
    (face,) = swapper.faces(swapper.cut(frames_of(*film)[0]))
    assert not any(mask.any() for mask in face.masks)


def test_a_mask_of_another_square_lies_where_it_was_found(film: tuple[Path, Path]) -> None:
    """XSeg sees more of the head, in another size: what it finds comes to where the frame has it."""
    blue = MaskNetwork(192, FaceType.WHOLE_FACE, lambda faces: faces[:, :1])
    swapper = Swapper(SWAP, blue, Look("xseg-dst"), CPU)
    cut = swapper.cut(frames_of(*film)[0])
    (face,) = swapper.faces(cut)
    seen = cut.squares[0][..., 0]
    difference = np.abs(face.masks[0] - np.where(seen < 0.1, 0, seen))[4:-4, 4:-4]
    assert difference.mean() < 0.02


def test_what_swaps_nothing_changes_nothing(film: tuple[Path, Path]) -> None:
    """The face itself, laid where it was: what differs is what two interpolations smooth."""
    swap = FaceSwap(256, "f", lambda faces: (faces, torch.ones_like(faces[:, :1]), torch.ones_like(faces[:, :1])))
    frame = frames_of(*film)[1]
    swapper = Swapper(swap, None, Look(), CPU)
    cut = swapper.cut(frame)
    ours = compose(cut.pixels, swapper.faces(cut), Look(), 0)
    assert np.abs(ours.astype(int) - cut.pixels).mean() < 0.5
    corner = frame.matrices(256, FaceType.FULL)[0] @ [0, 0, 1]
    assert corner.min() < 0, "outside the face's square"
    assert np.array_equal(ours[0, 0], cut.pixels[0, 0])


def test_a_frame_of_another_kind_of_file_keeps_its_faces(film: tuple[Path, Path], tmp_path: Path) -> None:
    frames, aligned = film
    for path in frames.iterdir():
        picture = cv2.imread(str(path))
        assert picture is not None
        cv2.imwrite(str(tmp_path / f"{path.stem}.jpg"), picture)
    found = frames_of(tmp_path, aligned)
    assert [len(frame.faces) for frame in found] == [1] * FACES + [0] * EMPTY


def test_frames_come_in_the_order_of_their_numbers(film: tuple[Path, Path], tmp_path: Path) -> None:
    frames, aligned = film
    for number in (10, 9, 100):
        (tmp_path / f"{number}.png").write_bytes((frames / "90000.png").read_bytes())
    (tmp_path / "00000.png").write_bytes((frames / "00000.png").read_bytes())
    names = [int(frame.path.stem) for frame in frames_of(tmp_path, aligned)]
    assert all(a < b for a, b in pairwise(names))


def _swap(weights: Path, frames: Path, aligned: Path, out: Path, look: Look | None = None, **more: object) -> None:
    swap_frames(weights, frames, aligned, out, look, device="cpu", say=_quiet, **more)  # type: ignore[arg-type]


def test_faces_of_the_wrong_side_are_told_of(film: tuple[Path, Path], run: Path, weights: Path, tmp_path: Path) -> None:
    source = film[1].parents[1] / "data_src"
    sides = {"src": (source, source / "aligned"), "dst": film}
    for model, side, told_of in ((run, "src", True), (run, "dst", False), (weights, "src", False)):
        told: list[str] = []
        swap_frames(model, *sides[side], tmp_path / f"{model.stem}-{side}", device="cpu", say=told.append)
        warned = [line for line in told if line.startswith(f"warning: {sides[side][1]}: the very faces")]
        assert len(warned) == told_of, (model, side, told)


def test_what_is_refused(film: tuple[Path, Path], weights: Path, tmp_path: Path) -> None:
    frames, aligned = film
    out, empty = tmp_path / "out", tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(BadInput, match="holds no frames"):
        _swap(weights, empty, aligned, out)
    with pytest.raises(BadInput, match="no such folder; expected the frames"):
        _swap(weights, tmp_path / "nowhere", aligned, out)
    with pytest.raises(BadInput, match="no faces in"):
        _swap(weights, frames, empty, out)
    with pytest.raises(BadInput, match="needs a network of XSeg: add --xseg RUN"):
        _swap(weights, frames, aligned, out, Look("xseg"))
    with pytest.raises(BadInput, match="asks for none: leave out --xseg"):
        _swap(weights, frames, aligned, out, xseg=weights)
    with pytest.raises(BadInput, match="expected a trained network of XSeg"):
        _swap(weights, frames, aligned, out, Look("xseg"), xseg=weights)
    with pytest.raises(BadInput, match="holds the frames themselves"):
        _swap(weights, frames, aligned, frames)
    with pytest.raises(BadInput, match="expected a run folder"):
        _swap(empty, frames, aligned, out)
    assert not out.exists()
    (empty / "holiday.png").write_bytes(b"mine")
    with pytest.raises(BadInput, match=r"holds holiday\.png, which `frugan swap` did not write"):
        _swap(weights, frames, aligned, empty)
    assert [path.name for path in empty.iterdir()] == ["holiday.png"]


def test_a_file_that_is_no_frame_is_refused_in_a_folder_that_was_begun(
    film: tuple[Path, Path], weights: Path, tmp_path: Path
) -> None:
    _swap(weights, *film, tmp_path / "out")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(BadInput, match=r"holds notes\.txt, which is none of the frames"):
        _swap(weights, *film, tmp_path / "out")


def test_faces_of_a_pak_are_laid_where_their_own_files_say(film: tuple[Path, Path], tmp_path: Path) -> None:
    frames, aligned = film
    pack_faceset(open_faceset(aligned), tmp_path / "faceset.pak")
    loose, packed = frames_of(frames, aligned), frames_of(frames, tmp_path)
    for one, other in zip(loose, packed, strict=True):
        assert len(one.faces) == len(other.faces)
        for a, b in zip(one.matrices(96, FaceType.FULL), other.matrices(96, FaceType.FULL), strict=True):
            assert np.array_equal(a, b)


def test_faces_that_do_not_say_where_they_were(film: tuple[Path, Path], tmp_path: Path) -> None:
    frames, aligned = film
    faceset, lines = open_faceset(aligned), list[str]()
    for at, face in enumerate(faceset.faces):
        kept = face if at == 1 else replace(face, source_landmarks=None)
        (tmp_path / face.name).write_bytes(write_face_jpeg(faceset.encoded(at), kept))
    assert [len(frame.faces) for frame in frames_of(frames, tmp_path, lines.append)] == [0, 1, 0, 0, 0]
    assert "aligned: 2 faces without source landmarks left out: nobody can say where they belong" in lines
    (tmp_path / faceset.faces[1].name).unlink()
    with pytest.raises(BadInput, match="none of its 2 faces says where it was cut from"):
        frames_of(frames, tmp_path)


def test_faces_of_other_frames_are_refused(film: tuple[Path, Path], tmp_path: Path) -> None:
    frames, aligned = film
    (tmp_path / "other.png").write_bytes((frames / "90000.png").read_bytes())
    with pytest.raises(BadInput, match=r"its faces are of 00000\.png.*none of these is in"):
        frames_of(tmp_path, aligned)


def test_faces_of_another_film_with_the_same_names_are_refused(
    film: tuple[Path, Path], weights: Path, tmp_path: Path
) -> None:
    aligned = film[1].parents[1] / "data_src" / "aligned"
    told = r"these faces were not cut from these frames, .*: of 3 faces looked at in .*aligned, 0 look .*frames shows"
    with pytest.raises(BadInput, match=told):
        _swap(weights, film[0], aligned, tmp_path / "out")
    assert not (tmp_path / "out").exists()


EDITS: Mapping[str, Callable[[Pixels], Pixels]] = {
    "as it is": lambda face: face,
    "recoloured": lambda face: np.clip(face * np.array([0.6, 1.0, 1.3]) + [40, 0, -20], 0, 255).astype(np.uint8),
    "darkened": lambda face: (255 * (face / 255.0) ** 2).astype(np.uint8),
    "enlarged": lambda face: cv2.resize(face, None, fx=2, fy=2, interpolation=cv2.INTER_CUBIC).astype(np.uint8),
    "sharpened": lambda face: cv2.addWeighted(face, 2, cv2.GaussianBlur(face, (0, 0), 3), -1, 0).astype(np.uint8),
}


@pytest.mark.parametrize("edit", EDITS)
def test_faces_that_were_edited_are_known_by_their_frames(film: tuple[Path, Path], edit: str) -> None:
    source = film[1].parents[1] / "data_src"
    for aligned, frames, alike in (
        (film[1], film[0], True),
        (film[1], source, False),
        (source / "aligned", source, True),
        (source / "aligned", film[0], False),
    ):
        faceset = open_faceset(aligned)
        for at, face in enumerate(faceset.faces):
            picture = EDITS[edit](faceset.picture(at))
            size = len(picture) / face.height  # landmarks are read in pixels of the picture
            pixels = cv2.imread(str(frames / str(face.source_filename)))
            assert pixels is not None
            value = likeness(
                pixels.astype(np.uint8), replace(face, landmarks=face.landmarks * np.float32(size)), picture
            )
            assert value is not None
            assert value > 0.9 if alike else value < 0.5


def test_where_nothing_shows_nobody_can_say(film: tuple[Path, Path]) -> None:
    faceset = open_faceset(film[1])
    grey = np.full((256, 256, 3), 128, np.uint8)
    assert likeness(grey, faceset.faces[0], faceset.picture(0)) is None


def test_a_damaged_frame_is_named_at_the_end_and_tried_again(
    film: tuple[Path, Path], weights: Path, tmp_path: Path, frugan: Frugan
) -> None:
    frames, aligned = film
    mine, out = tmp_path / "frames", tmp_path / "out"
    mine.mkdir()
    for path in frames.iterdir():
        content = path.read_bytes()
        (mine / path.name).write_bytes(content[:40] if path.name == "00001.png" else content)
    words = ["swap", str(weights), str(mine), str(aligned), str(out), "--device", "cpu", "--workers", "1"]
    for kept, swapped, copied in ((0, FACES - 1, EMPTY), (FACES + EMPTY - 1, 0, 0)):
        ended = frugan(*words)
        assert ended.returncode == 2
        assert f"{swapped} swapped, {copied} copied, {kept} there already" in ended.stdout
        said = " ".join(ended.stderr.split())
        assert "1 frame not made, all others are: 00001.png; once mended, the same command makes them" in said
        assert "00001.png cannot be decoded" in said
        assert len(stamps(out)) == FACES + EMPTY  # with what says how they were made
    (mine / "00001.png").write_bytes((frames / "00001.png").read_bytes())
    result = swap_frames(weights, mine, aligned, out, device="cpu", say=_quiet)
    assert (result.swapped, result.kept, result.damaged) == (1, FACES + EMPTY - 1, {})
    assert len(stamps(out)) == FACES + EMPTY + 1


@pytest.mark.parametrize("lost", [1, 2])
def test_a_jpeg_frame_without_its_last_bytes_is_damaged(tmp_path: Path, lost: int) -> None:
    content = cv2.imencode(".jpg", np.zeros((64, 64, 3), np.uint8))[1].tobytes()
    path = tmp_path / "00001.jpg"
    path.write_bytes(content[:-lost])
    with pytest.raises(BadInput, match=r"00001\.jpg is cut off"):
        Frame(0, path, ()).picture()
    path.write_bytes(content + b"what a camera adds")
    assert Frame(0, path, ()).picture().shape == (64, 64, 3)
