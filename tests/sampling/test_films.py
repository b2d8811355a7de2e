"""Films of loops: closed and smooth, the same twice, in cells, and with the command that makes them again."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import frugan
from frugan.cli.application import application
from frugan.errors import BadInput
from frugan.progress import quiet
from frugan.sampling.explorer import Points, explore
from frugan.sampling.films import GAP, closed_loop, write_loops
from frugan.sampling.requests import DrawRequest
from sampling.generators import MODELS, write


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("generators")
    return {name: write(MODELS[name], folder / f"{name}.safetensors") for name in ("stylegan2", "biggan")}


@pytest.mark.parametrize("keep_lengths", [False, True])
def test_a_loop_meets_its_stations_and_closes_without_a_jerk(keep_lengths: bool) -> None:
    random = torch.Generator().manual_seed(0)
    stations = Points(torch.randn(3, 1, 64, generator=random), torch.eye(3))
    loop = closed_loop(stations, 300, keep_lengths=keep_lengths)
    torch.testing.assert_close(loop.vectors[::100], stations.vectors)
    steps = loop.vectors.roll(-1, 0) - loop.vectors
    changes = (steps.roll(-1, 0) - steps).flatten(1).norm(dim=1)
    assert changes.max() < 0.1 * steps.flatten(1).norm(dim=1).max()  # the last frame's way to the first one included
    assert loop.shares is not None
    torch.testing.assert_close(loop.shares.sum(1), torch.ones(300))
    assert loop.shares.min() >= 0


def test_latents_stay_on_their_sphere_and_styles_need_not() -> None:
    """Opposite-ish unit vectors: the straight middle would be at 0.71."""
    stations = Points(torch.eye(2)[:, None])
    assert closed_loop(stations, 8, keep_lengths=True).vectors.norm(dim=-1).min() == pytest.approx(1)
    assert closed_loop(stations, 8, keep_lengths=False).vectors.norm(dim=-1).min() == pytest.approx(math.sqrt(0.5))


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


def test_a_loop_is_no_grid(files: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="animate"):
        frugan.sample(files["biggan"], tmp_path, DrawRequest(seeds=(1, 2), loop=(1, 1)), device="cpu", say=quiet)
    words = ["sample", str(files["biggan"]), "--out", str(tmp_path), "--seeds", "1-2", "--loop", "1x1"]
    done = CliRunner().invoke(application(), words)
    assert done.exit_code != 0
