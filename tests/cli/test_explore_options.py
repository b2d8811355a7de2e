"""Words of `frugan sample` that look around in a generator, and what does not go together."""

import json
from pathlib import Path

import pytest
from PIL import Image

from cli.calling import Frugan
from frugan.cli.options import parse_moves
from frugan.errors import BadInput
from sampling.generators import MODELS, write


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(MODELS["stylegan2"], tmp_path_factory.mktemp("weights") / "style.safetensors")


def test_moves() -> None:
    assert parse_moves(["smile=2", "age=-3..3", "a=b=-1.5"]) == {"smile": 2.0, "age": (-3.0, 3.0), "a=b": -1.5}


@pytest.mark.parametrize("word", ["smile", "=2", "smile=", "smile=x", "smile=1..", "smile=..2", "smile=1..x"])
def test_moves_that_are_none(word: str) -> None:
    with pytest.raises(BadInput, match=r"expected a direction and standard deviations: smile=2, or smile=-3\.\.3"):
        parse_moves([word])


def test_a_move_that_is_given_twice() -> None:
    with pytest.raises(BadInput, match="--move smile: is given twice"):
        parse_moves(["smile=1", "smile=-2..2"])


def test_a_picture_is_projected_and_changed(frugan: Frugan, weights: Path, tmp_path: Path) -> None:
    Image.new("RGB", (40, 32), "grey").save(tmp_path / "me.png")
    words = ["--out", str(tmp_path / "mine"), "--project", str(tmp_path / "me.png"), "--steps", "3", "--space", "w+"]
    found = frugan("sample", str(weights), *words, "--device", "cpu", "--json")
    assert found.returncode == 0, found.stderr
    assert "; features: small), in w+ after 3 steps" in found.stderr
    sheet, latents = json.loads(found.stdout)
    assert Path(sheet).is_file()
    words = ["--out", str(tmp_path / "moved"), "--latents", latents, "--directions", "sefa", "--move", "sefa-1=-2"]
    moved = frugan("sample", str(weights), *words, "--device", "cpu")
    assert moved.returncode == 0, moved.stderr
    assert [Path(line).name for line in moved.stdout.splitlines()] == ["latents.png", "latents-me.png"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--move", "a=1"], "--move: goes with --directions"),
        (["--space", "w"], "--space w: goes with --project"),
        (["--steps", "5"], "--steps 5: goes with --project"),
        (["--features", "inception"], "--features inception: goes with --project"),
        (["--project", "a.png", "--seeds", "3"], "--project: writes the latents of given pictures"),
        (["--project", "a.png", "--psi", "0.5"], "--project: writes the latents of given pictures"),
        (["--latents", "a", "--psi", "0.5"], "--psi: says where pictures of --seeds lie"),
        (["--latents", "a/x.safetensors", "--latents", "b/x.safetensors"], "--latents: two files are called x"),
        (["--project", "a.png", "--npz", "3"], "--project and --random, --npz, --pngs: one kind at a time"),
        (["--project", "none.png"], "none.png: cannot be read: No such file"),
        (["--latents", "none"], "none: no such file"),
        (["--latents", "a", "--pngs", "3"], "--latents: goes with --seeds"),
        (["--directions", "pac"], "--directions pac: no such file; expected sefa, pca, or a file"),
        (["--directions", "sefa", "--npz", "3"], "--directions sefa: goes with pictures of --seeds"),
    ],
)
def test_what_does_not_go_together(
    words: list[str], message: str, frugan: Frugan, weights: Path, tmp_path: Path
) -> None:
    result = frugan("sample", str(weights), "--out", str(tmp_path / "out"), *words, "--device", "cpu")
    assert result.returncode == 2
    assert message in result.stderr
    assert not list(tmp_path.rglob("*.png"))
