"""Programs of the docs run, and a type checker takes them."""

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

import frugan
from frugan.engine.run.events import read_events
from page_package import DOCS, importable, python_blocks, write_module
from training.pictures import write_pictures

ROOT = DOCS.parent
SMALL = ["networks.generator_channels=2", "networks.discriminator_channels=2", "training.batch=4"]
SHORT = [*SMALL, "training.normalisation_batch=4", "training.duration=2 steps"]


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    write_pictures(tmp_path / "pictures", classes=("a", "b"), each=8, side=32)
    return tmp_path / "pictures"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Path]:
    """A folder for packages."""
    folder = tmp_path / "site"
    folder.mkdir()
    with importable(folder):
        yield folder


def losses(run: Path) -> set[str]:
    """Names of the terms that a run tells of."""
    steps = [event for event in read_events(run / "events.jsonl") if event["event"] == "step"]
    return {name for event in steps for phase in event["phases"].values() for name in phase["terms"]}


def test_a_loss_of_ones_own_trains(site: Path, pictures: Path, tmp_path: Path) -> None:
    write_module("adding-a-loss.md", site)
    overrides = ["family=biggan-least-squares", "networks.classes=2", *SHORT]
    frugan.train("biggan-small-32", data=pictures, out=tmp_path / "run", overrides=overrides)
    generator = frugan.load_generator(tmp_path / "run")
    assert generator.class_names == ("a", "b")
    assert generator(torch.randn(2, generator.latent_size), torch.tensor([0, 1])).shape == (2, 3, 32, 32)


def test_a_loss_that_is_no_scalar_is_refused_by_its_name(site: Path, pictures: Path, tmp_path: Path) -> None:
    write_module("adding-a-loss.md", site)
    (module,) = site.glob("least_squares.py")
    module.write_text(module.read_text("utf-8").replace("float().square().mean()", "float().square()"), "utf-8")
    overrides = ["family=biggan-least-squares", "networks.classes=2", *SHORT]
    with pytest.raises(frugan.BadInput, match=r"phase D: loss `fake` has the shape \[\d+, 1\]; expected a scalar"):
        frugan.train("biggan-small-32", data=pictures, out=tmp_path / "run", overrides=overrides)


def test_a_loss_of_ones_own_is_what_the_discriminator_learns(site: Path, tmp_path: Path) -> None:
    write_module("adding-a-loss.md", site)
    recipe = frugan.load_recipe("biggan-small-32", ["family=biggan-least-squares"])
    discriminator = recipe.kind.phases(recipe.networks, recipe.objective)[0]
    assert len(discriminator.parts) == 2
    assert discriminator.parts[0].__self__.loss.real(torch.ones(3, 1)) == 0  # type: ignore[attr-defined]


def test_a_regulariser_of_ones_own_trains(site: Path, pictures: Path, tmp_path: Path) -> None:
    write_module("adding-a-regulariser.md", site)
    overrides = ["family=biggan-consistent", "objective.consistency=20", "networks.classes=2", *SHORT]
    frugan.train("biggan-small-32", data=pictures, out=tmp_path / "run", overrides=overrides)
    assert any("consistency" in name for name in losses(tmp_path / "run"))


def test_a_data_set_of_ones_own_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train, large, torchs = python_blocks("adding-a-data-set.md")
    scope: dict[str, object] = {}
    exec(train.replace('["networks.classes=2"]', f'["networks.classes=2", *{SHORT}]'), scope)
    assert scope["result"].step == 2  # type: ignore[attr-defined]
    exec(large, scope)
    assert len(scope["mine"]) == 1000  # type: ignore[arg-type]
    exec(torchs, scope)
    assert scope["mine"].class_names == ("0", "1")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("array", "labels", "names", "words"),
    [
        (np.zeros((2, 32, 32, 3), np.uint8), None, (), r"\[2, 32, 32, 3\]; expected uint8 \[N, 3, R, R\]"),
        (np.zeros((2, 3, 8, 8), np.float32), None, (), "float32"),
        (np.zeros((0, 3, 8, 8), np.uint8), None, (), "at least one"),
        (np.zeros((2, 3, 8, 8), np.uint8), np.zeros(3, np.int64), (), r"labels: int64 \[3\]"),
        (np.zeros((2, 3, 8, 8), np.uint8), np.array([0, 2]), ("a", "b"), "from 0 to 2; expected 0 to 1"),
        (
            np.zeros((2, 3, 8, 8), np.uint8),
            np.array([1, 2]),
            (),
            "no picture has the label 0; number the classes from 0",
        ),
        (np.zeros((2, 3, 8, 8), np.uint8), np.array([0, 10**15]), (), "no picture has the label 1;"),
        (np.zeros((2, 3, 8, 8), np.uint8), np.array([-1, 0]), (), r"from -1 to 0; number the classes from 0"),
        (np.zeros((2, 3, 8, 8), np.uint8), np.array([0, 1]), ("a", "a"), "'a' is there twice"),
    ],
)
def test_arrays_that_are_no_pictures_are_refused(array: np.ndarray, labels: object, names: object, words: str) -> None:
    with pytest.raises(frugan.BadInput, match=words):
        frugan.PictureSet.from_arrays(array, labels, names)  # type: ignore[arg-type]


def test_the_reference_lists_every_public_name() -> None:
    listed = re.findall(r"^::: (.*)$", (DOCS / "api.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(name.rpartition(".")[2] for name in listed) == sorted(frugan.__all__)
    for name in listed:
        module, _, public = name.rpartition(".")
        assert getattr(import_module(module), public) is getattr(frugan, public)


def test_a_strict_type_checker_takes_the_programs(tmp_path: Path) -> None:
    """Of README, and of pages on what a user writes in Python."""
    programs = {page: "\n".join(python_blocks(f"../{page}.md")) for page in ("README", "README.zh")}
    programs = {name.replace(".", "_"): program for name, program in programs.items()}
    for page in ("api", "adding-a-loss", "adding-a-regulariser", "adding-a-data-set"):
        programs[page.replace("-", "_")] = "\n".join(python_blocks(f"{page}.md"))
    for name, program in programs.items():
        (tmp_path / f"{name}.py").write_text(program, "utf-8")
    # the configuration is strict too, and `make test` has checked what the programs import a moment before
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml"]
    command += [str(tmp_path / f"{name}.py") for name in programs]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
