"""A run's weights with their card: what is said, and what others get."""

import hashlib
import json
import os
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import frugan
from frugan.api.model_card.card_facts import Scored
from frugan.api.model_card.card_folder import FILES, write_card
from frugan.api.model_card.card_text import card_text
from frugan.api.model_card.hub import HubFailed, LibraryHub, pull, push
from frugan.api.networks import build_networks, load, save
from frugan.api.weights import Weights
from frugan.cli.application import application
from frugan.cli.main import run as run_command
from frugan.engine.events import EventLog
from frugan.engine.tensor_files import write_tensors
from frugan.errors import BadInput
from frugan.metrics.provenance import Provenance
from frugan.recipe.loading import load_recipe
from frugan.report.sheets import ROWS_KEYWORD

RECIPE = load_recipe("biggan-digits-32", ["networks.generator_channels=2", "networks.discriminator_channels=2"])
PROVENANCE = Provenance(
    network="inception",
    network_digest="0123456789abcdef",
    resizer="pil",
    samples=5000,
    data="/home/someone/pictures/digits",
    data_digest="d",
    real=898,
    rows=898,
    classes="all",
    split="unseen",
    seed=0,
    ema=True,
    truncation=1.0,
    statistics="running",
    precision="fp32",
    weights="/home/someone/runs/x",
    step=400,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder by hand, with a checkpoint's weights."""
    path = tmp_path_factory.mktemp("runs") / "my | digits"
    checkpoint = path / "checkpoints" / "step-000000400"
    checkpoint.mkdir(parents=True)
    networks = build_networks(RECIPE)
    names = [f"digit {i}" for i in range(10)]
    save({"G": networks["G"]}, RECIPE, checkpoint / "ema.safetensors", names)
    save(networks, RECIPE, checkpoint / "networks.safetensors", names)
    write_tensors(checkpoint / "optimizers.safetensors", {"G.0.first": torch.zeros(1)}, {})
    data: dict[str, Any] = {
        "images": {"digest": "f" * 64, "first_digest": "f" * 64, "class_names": [], "mapping": None}
    }
    state = {"format": 1, "step": 400, "images": 19_200, "data": data, "card": None}
    (checkpoint / "state.json").write_text(json.dumps(state), "utf-8")
    files = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in checkpoint.iterdir()}
    (checkpoint / "MANIFEST.json").write_text(json.dumps(files), "utf-8")
    (path / "recipe.json").write_text(json.dumps(RECIPE.model_dump(mode="json")), "utf-8")
    plan = {"micro_batch": 32, "precision": "fp32", "savers": ["recompute"], "peak_bytes": 2**30}
    (path / "plan.json").write_text(json.dumps(plan), "utf-8")
    with EventLog(path / "events.jsonl") as log:
        log.write("start", step=0, frugan="0.1.0", torch="2.13.0", device="cpu", data={}, recipe={})
        log.write("step", step=1, memory_bytes=3 * 2**29)
        log.write("metrics", step=400, scores={"fid": 12.345}, provenance=PROVENANCE.as_json())
        log.write("metrics", step=500, scores={"fid": 1.0}, provenance={"network": "of another version"})
    (path / "scores.jsonl").write_text(
        json.dumps({"scores": {"kid": 0.01}, "provenance": PROVENANCE.as_json()}) + "\nnot JSON\n", "utf-8"
    )
    (path / "samples").mkdir()
    about = PngInfo()
    about.add_text(ROWS_KEYWORD, "digit 0\ndigit 1")
    grey = Image.fromarray(np.zeros((4, 4), np.uint8))
    for name in ("step-000000300-samples.png", "step-000000400-samples.png", "step-000000400-interpolation.png"):
        grey.save(path / "samples" / name, pnginfo=about)
    return path


def test_a_card_says_what_where_how_good_and_by_what_measure(made: Path, tmp_path: Path) -> None:
    folder = write_card(made, tmp_path / "card", licence="cc-by-4.0")
    assert sorted(file.name for file in folder.iterdir()) == sorted(FILES)
    text = (folder / "README.md").read_text("utf-8")
    front, _, rest = text.removeprefix("---\n").partition("---\n")
    assert "license: cc-by-4.0\n" in front
    assert '- "biggan"' in front
    assert rest.startswith("\n# my | digits\n")
    assert "![samples at step 400](samples.png)" in text
    assert "Rows, from the top: digit 0, digit 1." in text
    assert "| steps | 400 of 1000 steps |" in text
    assert f"`G` ({sum(p.numel() for p in build_networks(RECIPE)['G'].parameters()):,} parameters)" in text
    assert "| images seen | 19,200 |" in text
    assert "| data: images | digest `ffffffffffffffff` |" in text
    assert "| fid | 12.35 | 400 | 5,000 | 898 real pictures of digits (unseen) | inception `01234567` | 1 |" in text
    assert "| kid | 0.01 |" in text
    assert "of another version" not in text
    assert "| predicted peak | 1.00 GiB |" in text
    assert "| most taken on cpu | 1.50 GiB |" in text
    assert "Of the weights: cc-by-4.0." in text
    assert "someone" not in text  # paths are nobody's business


def test_the_weights_beside_it_need_nothing_else(made: Path, tmp_path: Path) -> None:
    file = write_card(made, tmp_path / "card", licence="cc-by-4.0") / "weights.safetensors"
    weights = Weights.open(file)
    assert (weights.licence, weights.step, weights.class_names[3]) == ("cc-by-4.0", 400, "digit 3")
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    assert metadata["family"] == "biggan"
    assert metadata["recipe_digest"] == hashlib.sha256(metadata["recipe"].encode()).hexdigest()
    generator = load(file)["G"]
    z = torch.randn(2, 256)
    assert generator(z, generator.embed(torch.tensor([0, 1]))).shape == (2, 3, 32, 32)  # type: ignore[operator]
    assert frugan.load_recipe(str(tmp_path / "card" / "recipe.toml")) == RECIPE


def test_a_recipe_that_was_changed_is_refused(made: Path, tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    save({"G": build_networks(RECIPE)["G"]}, RECIPE, file)
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    save_file(load_file(file), file, metadata | {"recipe": metadata["recipe"].replace('"seed": 0', '"seed": 1')})
    with pytest.raises(BadInput, match="not the one of its digest"):
        _ = Weights.open(file).recipe
    del metadata["recipe_digest"]  # of an older frugan
    save_file(load_file(file), file, metadata)
    assert Weights.open(file).recipe == RECIPE


@pytest.mark.parametrize(("told", "step"), [("12", 12), ("-3", 0), ("nine", 0), ("9" * 40, 0)])
def test_steps_that_a_file_tells_are_read_with_care(told: str, step: int, tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    save_file({"G.a": torch.zeros(1)}, file, {"step": told})
    assert Weights.open(file).step == step


def test_a_card_without_licence_scores_or_samples_says_so(made: Path, tmp_path: Path) -> None:
    folder = write_card(made, tmp_path / "card")
    assert "license: unknown" in (folder / "README.md").read_text("utf-8")
    assert "Nobody has said" in (folder / "README.md").read_text("utf-8")
    facts = _facts(made)
    text = card_text(replace(facts, scores=(), grid=None, plan={}, memory_bytes=None, class_names=()), "")
    assert "None were measured." in text
    assert "samples.png" not in text
    assert "predicted peak" not in text


def test_names_are_no_markup(made: Path) -> None:
    facts = replace(_facts(made), name="<script>\n# x", class_names=("a|b", "<img>"))
    text = card_text(facts, "for study | only\n---\nevil: true")
    assert "<script>" not in text
    assert "<img>" not in text
    assert "\nevil: true" not in text
    assert 'license: other\nlicense_name: "for study | only --- evil: true"' in text


def _facts(run: Path) -> Any:
    from frugan.api.model_card.card_folder import _facts as facts_of  # noqa: PLC0415
    from frugan.engine.run_folder import RunFolder  # noqa: PLC0415

    facts = facts_of(RunFolder(run), Weights.open(run))
    assert all(isinstance(each, Scored) for each in facts.scores)
    return facts


def test_what_no_card_can_be_made_of_is_refused(made: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        write_card(tmp_path / "nowhere")
    alone = tmp_path / "weights.safetensors"
    save({"G": build_networks(RECIPE)["G"]}, RECIPE, alone)
    with pytest.raises(BadInput, match="belongs to no run folder"):
        write_card(alone)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(BadInput, match=r"holds other files \(thesis.txt\)"):
        write_card(made, tmp_path / "mine")


# the hub: a folder


class FolderHub:
    """A hub in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def publish(self, name: str, folder: Path, *, private: bool) -> str:
        there = self.folder / name
        there.mkdir(parents=True)
        for file in FILES:
            (there / file).write_bytes((folder / file).read_bytes())
        return str(there)

    def fetch(self, name: str, into: Path) -> None:
        if not (self.folder / name).is_dir():
            raise HubFailed(f"{name} cannot be fetched: not found")
        into.mkdir(parents=True, exist_ok=True)
        for file in (self.folder / name).iterdir():
            (into / file.name).write_bytes(file.read_bytes())


def test_what_is_pushed_is_pulled_and_loads(made: Path, tmp_path: Path) -> None:
    hub = FolderHub(tmp_path / "hub")
    folder = write_card(made, tmp_path / "card", licence="cc-by-4.0")
    push(folder, "me/digits", hub=hub)
    file = pull("me/digits", tmp_path / "fetched", hub=hub)
    before, after = Weights.open(folder / "weights.safetensors"), Weights.open(file)
    assert after.recipe == before.recipe
    assert all(torch.equal(before.tensors[key], after.tensors[key]) for key in before.tensors)


def test_what_must_not_be_published_or_overwritten_is_refused(made: Path, tmp_path: Path) -> None:
    hub = FolderHub(tmp_path / "hub")
    with pytest.raises(BadInput, match="--licence"):
        push(write_card(made, tmp_path / "card"), "me/digits", hub=hub)
    with pytest.raises(BadInput, match=r"has no README.md and no weights"):
        push(tmp_path, "me/digits", hub=hub)
    for name in ("digits", "a/b/c", "me/ digits", "/digits"):
        with pytest.raises(BadInput, match="OWNER/NAME"):
            pull(name, tmp_path / "x", hub=hub)
    with pytest.raises(BadInput, match="is there already"):
        pull("me/digits", tmp_path / "card", hub=hub)
    (tmp_path / "hub" / "other" / "model").mkdir(parents=True)
    (tmp_path / "hub" / "other" / "model" / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(BadInput, match="no model that frugan has published"):
        pull("other/model", tmp_path / "y", hub=hub)
    (tmp_path / "hub" / "other" / "model" / "weights.safetensors").write_bytes(b"not one")
    with pytest.raises(BadInput, match=r"weights\.safetensors"):
        pull("other/model", tmp_path / "z", hub=hub)


class Interface:
    """Stands in for the library's, and notes what is asked of it."""

    asked: list[tuple[str, dict[str, Any]]] = []  # noqa: RUF012

    def create_repo(self, name: str, **options: Any) -> None:
        self.asked.append((name, options))

    def upload_folder(self, **options: Any) -> str:
        self.asked.append(("upload", options))
        return "there"


def _library(monkeypatch: pytest.MonkeyPatch, fault: Exception | None = None) -> None:
    module = types.ModuleType("huggingface_hub")

    def fetch(name: str, **options: Any) -> None:
        if fault is not None:
            raise fault

    def interface() -> Interface:
        if fault is not None:
            raise fault
        return Interface()

    module.HfApi, module.snapshot_download = interface, fetch  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)


def test_only_the_four_files_go_to_the_hub(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _library(monkeypatch)
    Interface.asked.clear()
    assert push(write_card(made, tmp_path / "card", licence="cc0-1.0"), "me/digits", private=True) == "there"
    assert Interface.asked[0] == ("me/digits", {"exist_ok": True, "private": True})
    assert Interface.asked[1][1]["allow_patterns"] == list(FILES)


def test_without_a_network_there_is_a_sentence_and_no_stack_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class ConnectError(Exception):
        """As the library's own HTTP client raises it: derived from nothing else."""

    _library(monkeypatch, ConnectError("[Errno -3] Temporary failure in name resolution\nmore\nlines"))
    monkeypatch.setattr(sys, "argv", ["frugan", "pull", "me/digits", str(tmp_path / "x")])
    with pytest.raises(SystemExit) as ended:
        run_command()
    assert ended.value.code == 1
    told = capsys.readouterr().err
    assert "me/digits cannot be fetched: [Errno -3] Temporary failure in name resolution (ConnectError)" in told
    assert "Traceback" not in told


def test_without_the_package_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(BadInput, match=r"pip install 'frugan\[hub\]'"):
        LibraryHub()


def test_the_package_itself_without_a_network(tmp_path: Path) -> None:
    """In a process of its own, with nobody at the other end."""
    pytest.importorskip("huggingface_hub")
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "home")}
    call = [sys.executable, "-m", "frugan", "pull", "me/digits", str(tmp_path / "x")]
    done = subprocess.run(call, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1, done.stderr
    assert "cannot be fetched" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _library(monkeypatch)
    out = tmp_path / "card"
    words = ["card", str(made), "--out", str(out), "--licence", "cc-by-4.0", "--push", "me/digits", "--json"]
    result = CliRunner().invoke(application(), words)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"folder": str(out), "published": "there"}
    result = CliRunner().invoke(application(), ["card", str(made), "--private"])
    assert isinstance(result.exception, BadInput)
