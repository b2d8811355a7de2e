"""Keyframes of a film: where they lie, how long the ways between them take, and what is no keyframe."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import frugan
from frugan.cli.application import application
from frugan.errors import BadInput
from frugan.progress import quiet
from frugan.sampling.explorer import explore
from frugan.sampling.loops import loops
from frugan.sampling.requests import DrawRequest
from sampling.generators import MODELS, write

NAMES = tuple(f"digit {number}" for number in range(10))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(MODELS["biggan"], tmp_path_factory.mktemp("generator") / "biggan.safetensors")


def keyframes(path: Path, *entries: object) -> Path:
    path.write_text(json.dumps({"keyframes": entries}), encoding="utf-8")
    return path


def test_a_film_comes_by_each_keyframe_at_its_time(weights: Path, tmp_path: Path) -> None:
    (tmp_path / "latents").mkdir()
    with explore(weights, device="cpu") as explorer:
        kept = explorer.seeds([9], classes=[4])
        explorer.write(kept, tmp_path / "latents" / "nine.safetensors")
        path = keyframes(
            tmp_path / "film.json",
            {"seed": 3, "class": "digit 2"},
            {"latents": "latents/nine.safetensors", "time": 2},
            {"seed": 5, "class": 7, "move": {"pca-1": 1.5}},
        )
        request = DrawRequest(keyframes=path, columns=8, directions="pca", moves={"pca-2": 0.5})
        (way,) = loops(explorer, request, NAMES, tmp_path, quiet)
        directions, layers = explorer.directions("pca"), explorer.space.layers
        shift = directions.shift({"pca-2": 0.5}, layers)
        first = explorer.seeds([3], classes=[2]).vectors[0]
        torch.testing.assert_close(way.vectors[0], first + shift)
        torch.testing.assert_close(way.vectors[2], kept.vectors[0] + shift)
        last = explorer.seeds([5], classes=[7]).vectors[0]
        torch.testing.assert_close(way.vectors[6], last + directions.shift({"pca-2": 0.5, "pca-1": 1.5}, layers))
        assert way.shares is not None
        assert way.shares[[0, 2, 6]].argmax(1).tolist() == [2, 4, 7]


def test_a_film_of_keyframes_by_the_command(weights: Path, tmp_path: Path) -> None:
    path = keyframes(tmp_path / "film.json", {"seed": 3, "class": 2}, {"seed": 3, "class": 8})
    words = ["sample", str(weights), "--keyframes", str(path), "--frames", "4", "--out", str(tmp_path)]
    refused = CliRunner().invoke(application(), words)
    assert refused.exit_code != 0
    assert isinstance(refused.exception, BadInput)
    assert "--animate loop.webp" in str(refused.exception)
    done = CliRunner().invoke(application(), [*words, "--device", "cpu", "--animate", "film.gif"])
    assert done.exit_code == 0, done.output
    with Image.open(tmp_path / "film.gif") as film:
        assert film.n_frames == 4  # type: ignore[attr-defined]
        assert f"--keyframes {path}" in film.info["comment"].decode()


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([{"seed": 3}], "no list of 2 to 1,000 keyframes"),
        ([{"seed": 3}, 7], "keyframe 2: '7' is no object"),
        ([{"seed": 3}, {"sed": 7}], r"keyframe 2: 'sed' \(did you mean seed\?\) is no field"),
        ([{"class": 3}, {"seed": 7}], "keyframe 1: needs a seed or latents"),
        ([{"seed": 3, "latents": "a"}, {"seed": 7}], "keyframe 1: needs a seed or latents"),
        ([{"seed": 3}, {"seed": "7"}], "keyframe 2: seed 7: expected a whole number"),
        ([{"seed": 3}, {"seed": 7, "class": 10}], "keyframe 2: class '10': expected a name or a number from 0 to 9"),
        ([{"seed": 3}, {"seed": 7, "class": "digit 22"}], r"class 'digit 22' \(did you mean digit 2\?\)"),
        ([{"seed": 3}, {"seed": 7, "time": 0}], "keyframe 2: time 0: expected a number from 0.01 to 100"),
        ([{"seed": 3}, {"seed": 7, "move": {"slant": 2}}], "keyframe 2: moves along a direction; add --directions"),
        ([{"seed": 3}, {"latents": "none.safetensors"}], "keyframe 2: .*none.safetensors"),
    ],
)
def test_what_is_no_keyframe(entries: list[object], message: str, weights: Path, tmp_path: Path) -> None:
    request = DrawRequest(keyframes=keyframes(tmp_path / "film.json", *entries))
    with explore(weights, device="cpu") as explorer, pytest.raises(BadInput, match=message):
        loops(explorer, request, NAMES, tmp_path, quiet)


def test_keyframes_go_with_no_other_way(weights: Path, tmp_path: Path) -> None:
    path = keyframes(tmp_path / "film.json", {"seed": 3}, {"seed": 7})
    for other in ({"seeds": (1, 2)}, {"latents": (path,)}, {"classes": (1,)}):
        with pytest.raises(BadInput, match=r"--keyframes .*not with --seeds"):
            frugan.animate(weights, tmp_path / "film.gif", DrawRequest(keyframes=path, **other), say=quiet)
    swinging = DrawRequest(keyframes=path, directions="pca", moves={"pca-1": (-1.0, 1.0)})
    with pytest.raises(BadInput, match="one number each"):
        frugan.animate(weights, tmp_path / "film.gif", swinging, device="cpu", say=quiet)
    with pytest.raises(BadInput, match="animate"):
        frugan.sample(weights, tmp_path, DrawRequest(keyframes=path), device="cpu", say=quiet)
    with pytest.raises(BadInput, match=r"no JSON|No such file"):
        frugan.animate(weights, tmp_path / "f.gif", DrawRequest(keyframes=tmp_path / "none.json"), say=quiet)
