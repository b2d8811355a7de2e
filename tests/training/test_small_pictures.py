"""What is said of pictures that are too small works as it stands."""

import re
import shlex
from pathlib import Path

import pytest
from PIL import Image

from frugan.data.formats.set_file import is_prepared
from frugan.data.prepare import prepare
from frugan.errors import BadInput
from frugan.recipe.loading import load_recipe
from frugan.recipe.relatives import of_resolution, picture_resolutions
from frugan.setup.run_data_sources import open_sources
from frugan.setup.small_pictures import small_for_preparing
from training.pictures import write_pictures, write_recipe


def test_training_is_told_what_to_type_and_that_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRUGAN_PREPARED", str(tmp_path / "prepared"))
    name, source = write_recipe(tmp_path), write_pictures(tmp_path / "my pictures", side=20)
    with pytest.raises(BadInput, match="smaller than 32 x 32") as refused:
        open_sources(load_recipe(name), source, lambda _: None, None)
    for folder in {path.parent for path in source.rglob("*.png")}:
        Image.new("RGB", (40, 40)).save(folder / "large.png")
    told = re.findall(r"add (\S+) to frugan train \(or frugan prepare (.*), and then", str(refused.value))
    expected = (["--leave-out-small"], ["--allow-upscale"], ["--fit", "pad"])
    for (field, words), option in zip(told, expected, strict=True):
        opened = open_sources(load_recipe(name, [field]), source, lambda _: None, None)
        assert len(opened["images"].labels) == (2 if "leave-out" in field else 14)
        assert shlex.split(words) == [str(source), "OUT", "--resolution", "32", *option]


def test_smaller_resolutions_are_those_that_the_family_has() -> None:
    overrides = ["networks.generator_attention=[16]", "networks.discriminator_attention=[16]"]
    recipe = load_recipe("biggan-imagenet-128", overrides)
    for side, words in ((100, ("networks.resolution=64",)), (63, ("networks.resolution=32",)), (31, ())):
        assert of_resolution(recipe, side) == words
        load_recipe("biggan-imagenet-128", [*overrides, *words])
    assert picture_resolutions() == [8, 16, 32, 64, 128, 256, 512, 1024]


def test_preparing_is_told_commands_that_work(tmp_path: Path) -> None:
    source, out = write_pictures(tmp_path / "my pictures", side=70), tmp_path / "an out"
    with pytest.raises(BadInput) as refused, small_for_preparing(source, out, 100, "lanczos"):
        prepare(source, out, resolution=100, resample="lanczos")
    leave_out, enlarge, pad, smaller = (line.split(": ", 1)[1] for line in str(refused.value).splitlines()[1:])
    words = ["frugan", "prepare", str(source), str(out), "--resample", "lanczos", "--resolution"]
    assert shlex.split(leave_out) == [*words, "100", "--leave-out-small"]
    assert shlex.split(enlarge) == [*words, "100", "--allow-upscale"]
    assert shlex.split(pad) == [*words, "100", "--fit", "pad"]
    assert shlex.split(smaller) == [*words, "64"]
    prepare(source, out, resolution=64, resample="lanczos")
    assert is_prepared(out)
