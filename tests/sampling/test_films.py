"""Films of loops: closed and smooth, the same twice, in cells, and with the command that makes them again."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence
from typer.testing import CliRunner

import frugan
from frugan.cli.application import application
from frugan.errors import BadInput
from frugan.progress import quiet
from frugan.sampling.explorer import Points, explore
from frugan.sampling.films import GAP, write_loops
from frugan.sampling.loops import closed_loop, loops
from frugan.sampling.requests import DrawRequest
from frugan.sampling.sheets import sheets
from sampling.generators import MODELS, write


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("generators")
    return {name: write(MODELS[name], folder / f"{name}.safetensors") for name in ("stylegan2", "biggan")}


@pytest.mark.parametrize("keep_lengths", [False, True])
def test_a_loop_meets_its_stations_and_closes_without_a_jerk(keep_lengths: bool) -> None:
    random = torch.Generator().manual_seed(0)
    stations = Points(torch.randn(3, 1, 64, generator=random), torch.eye(3))
    loop = closed_loop(stations, [100.0] * 3, keep_lengths)
    torch.testing.assert_close(loop.vectors[::100], stations.vectors)
    steps = loop.vectors.roll(-1, 0) - loop.vectors
    changes = (steps.roll(-1, 0) - steps).flatten(1).norm(dim=1)
    assert changes.max() < 0.1 * steps.flatten(1).norm(dim=1).max()  # the last frame's way to the first one included
    assert loop.shares is not None
    torch.testing.assert_close(loop.shares.sum(1), torch.ones(300))
    assert loop.shares.min() >= 0


def test_a_way_that_takes_longer_closes_without_a_jerk_too() -> None:
    stations = Points(torch.randn(3, 1, 64, generator=torch.Generator().manual_seed(0)))
    loop = closed_loop(stations, [50.0, 150.0, 100.0], keep_lengths=False)
    torch.testing.assert_close(loop.vectors[[0, 50, 200]], stations.vectors)
    steps = loop.vectors.roll(-1, 0) - loop.vectors
    changes = (steps.roll(-1, 0) - steps).flatten(1).norm(dim=1)
    assert changes.max() < 0.1 * steps.flatten(1).norm(dim=1).max()


def test_frames_that_stations_do_not_divide_are_spread_evenly() -> None:
    stations = Points(torch.eye(3)[:, None])
    loop = closed_loop(stations, [10 / 3] * 3, keep_lengths=False)
    assert len(loop) == 10
    torch.testing.assert_close(loop.vectors[0], stations.vectors[0])


def test_latents_stay_on_their_sphere_and_styles_need_not() -> None:
    """Opposite-ish unit vectors: the straight middle would be at 0.71."""
    stations = Points(torch.eye(2)[:, None])
    assert closed_loop(stations, [4.0, 4.0], keep_lengths=True).vectors.norm(dim=-1).min() == pytest.approx(1)
    assert closed_loop(stations, [4.0, 4.0], keep_lengths=False).vectors.norm(dim=-1).min() == pytest.approx(
        math.sqrt(0.5)
    )


@pytest.mark.parametrize("model", ["stylegan2", "biggan"])
@pytest.mark.parametrize(
    ("seeds", "classes", "stations"),
    [
        ((3, 7), (2, 5), [(3, 2), (7, 5)]),
        ((3, 7, 9), (2,), [(3, 2), (7, 2), (9, 2)]),
        ((3,), (2, 5, 2), [(3, 2), (3, 5), (3, 2)]),
        ((3, 7), None, [(3, 0), (7, 0)]),
    ],
)
def test_a_walk_goes_from_class_to_class(
    files: dict[str, Path],
    tmp_path: Path,
    model: str,
    seeds: tuple[int, ...],
    classes: tuple[int, ...] | None,
    stations: list[tuple[int, int]],
) -> None:
    columns = 2 * len(stations) - 1
    request = DrawRequest(seeds=seeds, classes=classes, interpolate="both", columns=columns)
    with explore(files[model], device="cpu") as explorer:
        (sheet,) = sheets(explorer, request, (), tmp_path, quiet).values()
        assert (sheet.rows, sheet.columns, len(sheet.points)) == (1, columns, columns)
        there = Points.joined([explorer.seeds([seed], [chosen]) for seed, chosen in stations])
        torch.testing.assert_close(sheet.points.vectors[::2], there.vectors)
        torch.testing.assert_close(sheet.points.vectors[1], there.vectors[:2].mean(0))
        if there.shares is not None:
            assert sheet.points.shares is not None
            torch.testing.assert_close(sheet.points.shares[::2], there.shares)
            torch.testing.assert_close(sheet.points.shares[1], there.shares[:2].mean(0))


@pytest.mark.parametrize("model", ["stylegan2", "biggan"])
def test_a_film_of_seeds_and_classes_goes_by_both(files: dict[str, Path], tmp_path: Path, model: str) -> None:
    """By the command alone; with --interpolate latent each class has a row."""
    words = ["sample", str(files[model]), "--out", str(tmp_path), "--frames", "3", "--seeds", "3,7", "--device", "cpu"]
    films = {"pairs.gif": ("2,5",), "rows.gif": ("2,5", "--interpolate", "latent"), "last.gif": ("5",)}
    for name, more in films.items():
        done = CliRunner().invoke(application(), [*words, "--animate", name, "--classes", *more])
        assert done.exit_code == 0, done.output
    frames = {name: frames_of(tmp_path / name) for name in films}
    assert [frame.size for frame in frames["pairs.gif"]] == [(32 * 8, 32 * 8)] * 4
    assert frames["rows.gif"][0].size != frames["pairs.gif"][0].size
    ends = [np.asarray(frames[name][2]) for name in ("pairs.gif", "last.gif")]
    assert np.abs(ends[0].astype(int) - ends[1]).max() <= 2  # seed 7 of class 5; a GIF's colours depend on its others
    with Image.open(tmp_path / "pairs.gif") as film:
        assert "--interpolate both" in film.info["comment"].decode()
    refused = CliRunner().invoke(application(), [*words, "--animate", "none.gif", "--classes", "2,5,7"])
    assert isinstance(refused.exception, BadInput)
    assert not (tmp_path / "none.gif").exists()


def frames_of(path: Path) -> list[Image.Image]:
    with Image.open(path) as film:
        return [frame.convert("RGB") for frame in ImageSequence.Iterator(film)]


@pytest.mark.parametrize("model", ["stylegan2", "biggan"])
@pytest.mark.parametrize("kind", ["gif", "webp"])
def test_a_grid_of_loops_by_the_command(files: dict[str, Path], tmp_path: Path, model: str, kind: str) -> None:
    words = ["sample", str(files[model]), "--animate", f"loop.{kind}", "--frames", "4", "--loop", "2x1"]
    words += ["--seeds", "1-3,8", "--classes", "2,5", "--device", "cpu", "--out"]
    for out in ("once", "twice"):
        done = CliRunner().invoke(application(), [*words, str(tmp_path / out)])
        assert done.exit_code == 0, done.output
    film, again = (Image.open(tmp_path / out / f"loop.{kind}") for out in ("once", "twice"))
    with film, again:
        assert film.n_frames == 4  # type: ignore[attr-defined]
        assert film.size == ((2 * 32 + GAP) * 8, 32 * 8)
        for number in range(4):
            film.seek(number)
            again.seek(number)
            assert np.array_equal(np.asarray(film.convert("RGB")), np.asarray(again.convert("RGB")))
        told = film.info["comment"].decode() if kind == "gif" else film.getexif()[270]
    assert "--loop 2x1" in told
    assert "--seeds 1-3,8" in told
    assert "loop=(2, 1)" in told


def test_frames_are_drawn_one_by_one(files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    with explore(files["stylegan2"], device="cpu") as explorer:
        draw = explorer.draw

        def counted(points: Points, *rest: object) -> torch.Tensor:
            counts.append(len(points))
            return draw(points, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(explorer, "draw", counted)
        write_loops(explorer, [explorer.seeds([1, 2])], tmp_path / "loop.webp", frames=5)
    assert counts == [1] * 5


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (DrawRequest(seeds=(1,), loop=(1, 1)), "--loop 1x1: 1 pictures"),
        (DrawRequest(seeds=(1, 2, 3), loop=(1, 2)), "multiple of 2"),
        (DrawRequest(seeds=(1, 2), loop=(0, 1)), "at least 1x1"),
        (DrawRequest(loop=(1, 1)), "goes with --seeds or --latents"),
        (DrawRequest(seeds=(1, 2), loop=(1, 1), columns=1), "1 frames"),
    ],
)
def test_loops_that_go_nowhere(request_: DrawRequest, message: str, files: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=message):
        frugan.animate(files["biggan"], tmp_path / "loop.gif", request_, device="cpu", say=quiet)
    assert not list(tmp_path.iterdir())


def test_latents_of_files_are_stations_before_those_of_seeds(files: dict[str, Path], tmp_path: Path) -> None:
    with explore(files["biggan"], device="cpu") as explorer:
        kept = explorer.seeds([8, 9], classes=[4])
        for number in range(2):
            explorer.write(kept[[number]], tmp_path / f"{number}.safetensors")
        latents = tuple(tmp_path / f"{number}.safetensors" for number in (1, 0))
        request = DrawRequest(latents=latents, seeds=(3, 5), classes=(2,), loop=(2, 1), columns=6)
        first, second = loops(explorer, request, (), tmp_path, quiet)
        torch.testing.assert_close(first.vectors[::3], kept.vectors[[1, 0]])
        assert first.shares is not None
        torch.testing.assert_close(first.shares[::3], kept.shares)
        torch.testing.assert_close(second.vectors[::3], explorer.seeds([3, 5], classes=[2]).vectors)


@pytest.mark.long
def test_a_loop_along_directions_swings_from_end_to_end(files: dict[str, Path], tmp_path: Path) -> None:
    request = DrawRequest(seeds=(3, 5), classes=(2, 7), directions="pca", loop=(2, 1), columns=8)
    with explore(files["biggan"], device="cpu") as explorer:
        directions = explorer.directions("pca", (2, 7))
        seen = DrawRequest(**{**vars(request), "moves": {"pca-2": (-1.0, 3.0), "pca-1": 2.0}})
        ways = loops(explorer, seen, (), tmp_path, quiet)
        for way, seed, chosen in zip(ways, (3, 5), (2, 7), strict=True):
            still = explorer.seeds([seed], classes=[chosen]).vectors[0]
            for frame, amount in ((0, -1.0), (2, 1.0), (4, 3.0), (6, 1.0)):
                moved = still + directions.shift({"pca-2": amount, "pca-1": 2.0}, explorer.space.layers)
                torch.testing.assert_close(way.vectors[frame], moved)
        first, *others = loops(explorer, DrawRequest(**{**vars(request), "loop": (2, 3)}), (), tmp_path, quiet)
        still = explorer.seeds([3], classes=[2]).vectors[0]
        torch.testing.assert_close(first.vectors[4], still + directions.shift({"pca-1": 3.0}, explorer.space.layers))
        assert len(others) == 5
        with pytest.raises(BadInput, match=r"--loop 3x1: 3 cells for 1 directions of 2 pictures.* --loop 2x1"):
            loops(explorer, DrawRequest(**{**vars(request), "loop": (3, 1)}), (), tmp_path, quiet)


def test_a_loop_is_no_grid(files: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="animate"):
        frugan.sample(files["biggan"], tmp_path, DrawRequest(seeds=(1, 2), loop=(1, 1)), device="cpu", say=quiet)
    words = ["sample", str(files["biggan"]), "--out", str(tmp_path), "--seeds", "1-2", "--loop", "1x1"]
    done = CliRunner().invoke(application(), words)
    assert done.exit_code != 0
