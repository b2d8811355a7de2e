"""A run's weights with their card: what is said, and what others get."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
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
from frugan.cli.application import application
from frugan.conversion.export.about import AboutModel
from frugan.conversion.export.site import SITE
from frugan.conversion.model_card import FILES, CardFacts, Scored, card_text, write_card
from frugan.engine.run.events import EventLog
from frugan.engine.run.tensor_files import write_tensors
from frugan.errors import BadInput
from frugan.metrics.provenance import REAL, Provenance
from frugan.metrics.scores import proportion_half_width
from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe
from frugan.reporting.grids import ROWS_KEYWORD
from frugan.setup.networks import Weights, load, save, weights_metadata
from frugan.setup.recipe_setup import build_networks

RECIPE = load_recipe("biggan-digits-32", ["networks.generator_channels=2", "networks.discriminator_channels=2"])
FACES = load_recipe("saehd-demo-64")
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
FACTS = CardFacts(
    about=AboutModel("digits", "Made with frugan."),
    weights=Weights(Path("digits/checkpoints/step-000000400/ema.safetensors"), weights_metadata(RECIPE)),
    recipe_digest="0123456789abcdef",
    images=None,
    class_names=(),
    parameters={"G": 1000},
    scores=(),
    plan={},
    memory_bytes=None,
    device="cpu",
    versions="frugan 1, torch 2",
    data={},
    grid=None,
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
        data = {"images": {"digest": "f" * 64, "pictures": 1797}}
        log.write("start", step=0, frugan="0.1.0", torch="2.13.0", device="cpu", data=data, recipe={}, init="rocks.pt")
        log.write("start", step=200, frugan="0.1.0", torch="2.13.0", device="cpu", data=data, recipe={})
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


@pytest.mark.parametrize(
    ("began_from", "words"),
    [
        ("biggan-small-64", "weights of biggan-small-64 that ship with frugan, trained on pictures that programs drew"),
        ("/home/someone/flowers.safetensors", "other weights: flowers.safetensors"),
    ],
)
def test_a_card_says_what_the_training_started_from(began_from: str, words: str) -> None:
    assert f"| started from | {words}" in card_text(replace(FACTS, began_from=began_from), "cc-by-4.0")
    assert "started from" not in card_text(FACTS, "cc-by-4.0")


def test_scores_of_real_pictures_are_not_taken_for_the_weights() -> None:
    of = replace(PROVENANCE, scored=REAL, samples=449, real=450, data="digits", network="digits")
    text = card_text(replace(FACTS, scores=(Scored({"fid": 0.04}, of),)), "")
    row = (
        "| FID (0 at best) | 0.04 | - | 449 | 450 real pictures of digits (unseen) | the demo's classifier of digits | "
    )
    assert row + "- | - | none: real" in text


def test_a_card_has_the_last_score_of_each_kind_with_its_interval() -> None:
    pixels = replace(
        PROVENANCE, network="pixels", judge="500 pictures on either side; 1 network, 400 steps of 16, values"
    )
    scores = {
        "precision": 0.5,
        "f_score": 0.5,
        "two_sample": 0.8,
        "two_sample_half_width": 0.04,
        "two_sample_real": 0.5,
    }
    earlier = Scored(scores | {"precision": 0.25}, replace(pixels, step=100))
    text = card_text(replace(FACTS, scores=(earlier, Scored({"fid": 9.0}, PROVENANCE), Scored(scores, pixels))), "")
    rows = [
        line.split(" | ")[:4]
        for line in text.partition("## Scores")[2].partition("## ")[0].splitlines()
        if line.startswith("| ")
    ][1:]
    width = proportion_half_width(0.5, PROVENANCE.samples)
    assert [row[:3] for row in rows] == [
        ["| FID (0 at best)", "9", "400"],
        ["| precision (1 at best)", f"0.500 ± {width:.2g}", "400"],
        ["| two-sample (0.5 at best)", "0.800 ± 0.040 (real pictures 0.5)", "400"],
    ]
    by_inception = replace(pixels, network="inception", judge="800 pictures on either side; 3 networks, values")
    again = card_text(replace(FACTS, scores=(Scored(scores, pixels), Scored(scores, by_inception))), "")
    assert again.count("| two-sample (0.5 at best) |") == 1  # it looks at no features, whose network takes others
    assert "| grey copies of 16 by 16 pixels |" in text
    assert "| 1 network, 400 steps of 16 |" in text


def test_a_row_says_what_was_measured_for_its_score() -> None:
    of = replace(
        PROVENANCE,
        network="pixels",
        samples=400,
        real=234,
        data="tex64",
        split="held out",
        judge="116 pictures on either side; fixed features, leaving out each picture that is judged",
        control="two-sample sees a blur of 0.5 pixels; does not see colours off by 32 of 255 levels; pr sees a blur",
    )
    scores = {"precision": 0.5, "ppl": 40.0, "eqt": 30.0, "two_sample": 0.75}
    text = card_text(replace(FACTS, scores=(Scored(scores, of), Scored({"ppl": 41.0}, replace(of, samples=5000)))), "")
    table = [line.strip("| ").split(" | ") for line in text.splitlines() if " | averaged |" in line]
    by = "fixed features, leaving out each picture that is judged"
    sees = "sees a blur of 0.5 pixels; does not see colours off by 32 of 255 levels"
    assert {row[0].partition(" (")[0]: tuple(row[3:6]) for row in table} == {
        "precision": ("400", "234 real pictures of tex64 (held out)", "grey copies of 16 by 16 pixels; sees a blur"),
        "EQ-T in decibels": ("400", "the same samples, moved", "their pixels"),
        "two-sample": ("116", "116 of 234 real pictures of tex64 (held out)", f"{by}; {sees}"),
        "perceptual path length": ("1,000", "no pictures", "features of random convolutions"),
    }


def test_precision_of_pixels_says_little_where_pictures_are_told_from_real_ones() -> None:
    of = replace(PROVENANCE, network="pixels", samples=500, real=322, rows=322, neighbours=161)
    scores = {"recall": 0.61, "recall_real": 0.8, "two_sample": 0.97}
    text = card_text(replace(FACTS, scores=(Scored(scores, of),)), "")
    value = f"0.610 ± {proportion_half_width(0.61, 161):.3f} (real pictures 0.8; says little yet)"
    assert f"| recall (1 at best) | {value} | 400 | 161 | 161 of 322 real pictures of " in text
    sentence = "tells more than 80 in 100 pictures from real ones, precision and\nrecall of pixels say little yet"
    assert sentence in text
    later = card_text(replace(FACTS, scores=(Scored(scores | {"two_sample": 0.8}, of),)), "")
    assert "says little" not in later
    assert sentence not in later


def test_a_score_of_an_earlier_step_gives_way_to_that_of_the_weights(made: Path, tmp_path: Path) -> None:
    """It was taken from outside while training went on, and so is in the other file."""
    run = tmp_path / "run"
    shutil.copytree(made, run)
    line = json.dumps({"scores": {"fid": 99.0}, "provenance": replace(PROVENANCE, step=300).as_json()})
    (run / "scores.jsonl").write_text(line + "\n", "utf-8")
    text = (write_card(run, tmp_path / "card", licence="cc-by-4.0") / "README.md").read_text("utf-8")
    assert [line.split(" | ")[1:3] for line in text.splitlines() if line.startswith("| FID")] == [["12.35", "400"]]


def test_a_card_says_what_where_how_good_and_by_what_measure(made: Path, tmp_path: Path) -> None:
    folder = write_card(made, tmp_path / "card", licence="cc-by-4.0")
    assert sorted(file.name for file in folder.iterdir()) == sorted(FILES)
    text = (folder / "README.md").read_text("utf-8")
    front, _, rest = text.removeprefix("---\n").partition("---\n")
    assert "license: cc-by-4.0\n" in front
    assert '- "biggan"' in front
    made_of = "BigGAN generator at 32 pixels, trained for 400 steps on 1,797 pictures."
    assert rest.startswith(f"\n# my | digits\n\nMade with frugan: {made_of}\n")
    assert "![samples at step 400](samples.png)" in text
    assert "Rows, from the top: digit 0, digit 1." in text
    assert "| steps | 400 of 1000 steps |" in text
    assert f"`G` ({sum(p.numel() for p in build_networks(RECIPE)['G'].parameters()):,} parameters)" in text
    assert "| images seen | 19,200 |" in text
    assert "| started from | other weights: rocks.pt |" in text
    assert "| data: images | digest `ffffffffffffffff` |" in text
    assert "| FID (0 at best) | 12.35 | 400 | 5,000 | 898 real pictures of digits (unseen) | inception | 1 |" in text
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


@pytest.mark.parametrize(
    "recipe",
    [
        RECIPE,
        load_recipe("stylegan2-small-64", ["networks.channel_max=4", "networks.mapping_layers=1"]),
        load_recipe("biggan-small-32", ["networks.generator_channels=2", "networks.classes=1"]),
    ],
    ids=["classes", "styles", "no classes"],
)
def test_the_lines_of_python_on_a_card_draw_pictures(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save({"G": build_networks(recipe)["G"]}, recipe, tmp_path / "weights.safetensors")
    use = card_text(replace(FACTS, weights=Weights.open(tmp_path / "weights.safetensors")), "").partition("## Use")[2]
    assert "```\nfrugan sample weights.safetensors --out samples\n```" in use.partition("```python")[0]
    drawn: dict[str, Any] = {}
    exec(use.partition("```python\n")[2].partition("```")[0], drawn)
    assert drawn["pictures"].shape[2:] == (recipe.resolution, recipe.resolution)


def test_a_card_of_faces_says_how_their_networks_are_loaded() -> None:
    text = card_text(replace(FACTS, weights=Weights(Path("ema.safetensors"), weights_metadata(FACES))), "")
    assert 'networks = frugan.load("weights.safetensors")' in text


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
    said: list[str] = []
    folder = write_card(made, tmp_path / "card", licence=" ", say=said.append)
    assert [line for line in said if "expected with --licence what they may do" in line]
    assert "license: unknown" in (folder / "README.md").read_text("utf-8")
    assert "Nobody has said" in (folder / "README.md").read_text("utf-8")
    text = card_text(FACTS, "")
    assert "None were measured." in text
    assert "samples.png" not in text
    assert "predicted peak" not in text


def test_names_are_no_markup() -> None:
    facts = replace(FACTS, about=AboutModel("<script>\n# x", "<script>"), class_names=("a|b", "<img>"))
    text = card_text(facts, "for study | only\n---\nevil: true")
    assert "<script>" not in text
    assert "<img>" not in text
    assert "\nevil: true" not in text
    assert 'license: other\nlicense_name: "for study | only --- evil: true"' in text


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


def test_the_command(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "card"
    words = ["card", str(made), "--out", str(out), "--licence", "cc-by-4.0", "--json"]
    result = CliRunner().invoke(application(), [*words, "--title", "Ciphers", "--by", "Ada"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"folder": str(out)}
    assert "\n# Ciphers\n\nMade by Ada with frugan: BigGAN" in (out / "README.md").read_text("utf-8")


def test_a_card_is_written_again_as_it_was_asked_for(made: Path, tmp_path: Path) -> None:
    said: list[str] = []
    first = write_card(made, tmp_path / "card", licence="cc0-1.0", title="Flowers", by="Ada") / "README.md"
    before = first.read_text("utf-8")
    write_card(made, tmp_path / "card", say=said.append)
    assert first.read_text("utf-8") == before
    assert [line for line in said if '--title "Flowers", --by "Ada", --licence "cc0-1.0"' in line]
    write_card(made, tmp_path / "card", title="Roses")
    assert first.read_text("utf-8") == before.replace("# Flowers", "# Roses")


def test_a_card_elsewhere_is_as_the_one_in_the_run(made: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(made, run)
    first = write_card(run, licence="cc0-1.0", title="Flowers", by="Ada") / "README.md"
    said: list[str] = []
    other = write_card(run, tmp_path / "other", licence="cc-by-4.0", say=said.append) / "README.md"
    assert other.read_text("utf-8") == first.read_text("utf-8").replace("cc0-1.0", "cc-by-4.0")
    line = f'as on the card in {run / "card"}: --title "Flowers", --by "Ada"; give another to change it'
    assert line in said


def test_a_page_without_a_card_has_the_title_of_the_card_in_the_run(made: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(made, run)
    weights = Weights.open(run)
    assert AboutModel.of(weights).title == "run"
    write_card(run, title="Flowers", by="Ada")
    said: list[str] = []
    about = AboutModel.of(weights, say=said.append)
    assert (about.title, about.origin[:24]) == ("Flowers", "Made by Ada with frugan:")
    assert said == [f'as on the card in {run / "card"}: --title "Flowers", --by "Ada"; give another to change it']
    assert AboutModel.of(weights, title="Roses").title == "Roses"


@pytest.mark.parametrize("known", [True, False])
def test_a_card_that_somebody_edited_is_not_written_over(made: Path, tmp_path: Path, *, known: bool) -> None:
    folder = write_card(made, tmp_path / "card", licence="cc0-1.0", by="Ada")
    if known:
        (folder / "README.md").write_text("My own words.", "utf-8")
    else:  # as of an older frugan
        (folder / "weights.safetensors").unlink()
    there = {file.name: file.read_bytes() for file in folder.iterdir()}
    words = ["card", str(made), "--out", str(folder), "--title", "Roses"]
    refused = CliRunner().invoke(application(), words)
    assert isinstance(refused.exception, BadInput)
    assert "choose another --out, or add --replace (replace=True in Python)" in str(refused.exception)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == there
    replaced = CliRunner().invoke(application(), [*words, "--replace"])
    assert replaced.exit_code == 0, replaced.output
    assert f"# Roses\n\nMade {'by Ada ' if known else ''}with frugan" in (folder / "README.md").read_text("utf-8")


def test_a_space_has_a_page_beside_the_card(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def page(weights: Weights, folder: Path, *, runtime: object, say: object, **_: str) -> SimpleNamespace:
        asked.extend((weights.step, runtime))
        folder.mkdir()
        for name in SITE:
            (folder / name).write_text(name)
        return SimpleNamespace(path=folder)

    monkeypatch.setattr("frugan.conversion.model_card.export_site", page)
    out = tmp_path / "new" / "space"
    words = ["card", str(made), "--out", str(out), "--space", "--runtime", "ort.tgz"]
    for _ in range(2):  # the second time over what the first one wrote
        result = CliRunner().invoke(application(), words)
        assert result.exit_code == 0, result.output
    assert asked[:2] == [400, Path("ort.tgz")]
    assert {each.name for each in out.iterdir()} == {*FILES, *SITE}
    assert [each.name for each in out.parent.iterdir()] == ["space"]
    front = (out / "README.md").read_text("utf-8").split("---\n")[1]
    assert 'title: "my | digits"\nsdk: static\napp_file: index.html\n' in front
    with pytest.raises(BadInput, match=r"holds other files \(index.html, model.onnx"):
        write_card(made, out)
    monkeypatch.undo()
    with pytest.raises(BadInput, match=r"--runtime .*none: not there"):
        write_card(made, tmp_path / "other", space=True, runtime=tmp_path / "none")
    assert not (tmp_path / "other").exists()
    refused = CliRunner().invoke(application(), ["card", str(made), "--runtime", "ort.tgz"])
    assert isinstance(refused.exception, BadInput)
    assert "--runtime ort.tgz: goes with --space" in str(refused.exception)
