"""Every kind of picture carries the command and the Python lines that make it again: both are run."""

import shlex
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

import frugan
from frugan.cli.application import application
from frugan.contract.family import GridRequest, StyleMixing
from frugan.progress import quiet
from frugan.sampling.provenance import numbers, retold
from frugan.sampling.requests import DrawRequest
from sampling.generators import MODELS, write


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(MODELS["stylegan2"], tmp_path_factory.mktemp("weights") / "my weights.safetensors")


def texts(path: Path) -> dict[str, str]:
    with Image.open(path) as opened:
        if path.suffix == ".gif":
            before, _, python = opened.info["comment"].decode().partition("\nPython: ")
            return {"Command": before.partition("\nCommand: ")[2], "Python": python}
        return {name: str(opened.info[name]) for name in ("Command", "Python")}


def content(path: Path) -> bytes:
    with Image.open(path) as opened:
        return opened.tobytes()


def check_both(path: Path, out: Path) -> None:
    """Make a picture again by its command and by its lines, in the same place."""
    told, before = texts(path), content(path)
    _empty(out)
    result = CliRunner().invoke(application(), shlex.split(told["Command"], comments=True)[1:])
    assert result.exit_code == 0, result.output
    assert content(path) == before
    _empty(out)
    exec(told["Python"], {})
    assert content(path) == before


def _empty(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()


@pytest.mark.parametrize(
    "request_",
    [
        DrawRequest(seeds=(3, 4, 5, 9), classes=(2, 1), psi=-0.5, psi_layers=3, noise="none"),
        DrawRequest(mixing=StyleMixing((1,), (2, 3), (0, 1)), classes=(3,)),
        DrawRequest(interpolate="latent", classes=(0, 1), columns=3, spherical=True, seed=8),
        DrawRequest(classes=(0, 1, 2), columns=2, rows_per_sheet=2),
        GridRequest(seeds=(1, 7), interpolate="latent", columns=4, classes=(0,)),
    ],
)
def test_grids(request_: GridRequest, weights: Path, tmp_path: Path) -> None:
    out = tmp_path / "some pictures"
    path = frugan.sample(weights, out, request_, device="cpu", say=quiet)[0]
    check_both(path, out)


def test_random_pictures(weights: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    frugan.draw(weights, out, DrawRequest(classes=(1, 2), seed=3), pngs=2, sheet=(2, 3), device="cpu", say=quiet)
    single = next((out / "pngs").rglob("*.png"))
    assert texts(single) == texts(out / "random.png")
    told = texts(single)["Command"]
    assert told.endswith("--classes 1-2 --pngs 2 --random --rows 2 --columns 3  # step 1,234")
    (out / "random.png").rename(tmp_path / "before.png")
    _empty(out)
    exec(texts(tmp_path / "before.png")["Python"], {})
    assert content(out / "random.png") == content(tmp_path / "before.png")


def test_animations(weights: Path, tmp_path: Path) -> None:
    out = tmp_path / "films"
    request = DrawRequest(seeds=(1, 2), classes=(0,), columns=3, psi=0.5)
    film = frugan.animate(weights, out / "walk.gif", request, device="cpu", say=quiet)
    check_both(film, out)


def test_words() -> None:
    assert numbers((1, 2, 3, 7, 9, 10, 3)) == "1-3,7,9-10,3"
    told = retold("it's", "a b", DrawRequest(psi=-0.25), 0)
    assert shlex.split(told["Command"]) == ["frugan", "sample", "it's", "--out", "a b", "--psi=-0.25"]
    assert told["Python"].splitlines()[-1] == """frugan.sample("it's", 'a b', frugan.DrawRequest(psi=-0.25))"""
