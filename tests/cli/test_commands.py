"""The commands as a person or a program calls them: by exit code and output."""

import errno
import json
import os
import re
import shutil
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import pytest

from cli.calling import Frugan
from faults.small_runs import OUTSIDE, minigan_and_pictures
from frugan.cli.main import run
from frugan.engine.run.run_folder import RunFolder
from frugan.faces.data.faceset import find_facesets, open_faceset
from frugan.recipe.loading import load_recipe
from frugan.recipes import built_in
from frugan.training import training
from frugan.training.run import TrainingOptions, TrainingResult
from frugan.training.training import train
from frugan.version import __version__
from training.pictures import RECIPE, write_pictures, write_recipe

CPU = TrainingOptions(device="cpu")


def test_a_scheduler_is_told_by_75_to_come_back(
    frugan: Frugan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(OUTSIDE))
    recipe, pictures = minigan_and_pictures(tmp_path)
    words = ["train", recipe, "training.duration=3 steps", "--data", str(pictures), "--out", str(tmp_path / "run")]
    words += ["--device", "cpu", "--requeue"]
    assert frugan(*words, "--stop-after", "0.001s").returncode == 75
    assert frugan(*words).returncode == 0
    refused = frugan(*words, "--stop-after", "4 steps")
    assert refused.returncode == 2
    assert "--stop-after 4 steps: expected a time such as 15min" in refused.stderr


def test_sample_grids_are_named_where_some_were_drawn(
    frugan: Frugan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, out = write_recipe(tmp_path), tmp_path / "run"
    out.mkdir()
    (out / "recipe.json").write_text(load_recipe(recipe).model_dump_json(), "utf-8")

    def stopped(*_: object, **__: object) -> TrainingResult:
        return TrainingResult(out, step=3, finished=False, seconds=5.0, threads=1)

    monkeypatch.setattr(training, "train", stopped)
    words = ["train", recipe, "--data", str(tmp_path), "--out", str(out)]
    assert f"the same command goes on\nNext: frugan sample {out} --out samples" in frugan(*words).stdout
    (out / "samples").mkdir()
    assert f"Sample grids: {out / 'samples'}. Next: frugan sample {out} --out samples" in frugan(*words).stdout


def test_after_masks_were_learnt_they_can_be_seen_and_put_into_faces(
    frugan: Frugan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    out.mkdir()

    def next_lines(*overrides: str) -> str:
        RunFolder(out).write_recipe(load_recipe("xseg-small", overrides).model_dump(mode="json"))
        return frugan("train", "xseg-small", "--data", str(tmp_path), "--out", str(out)).stdout

    done = TrainingResult(out, step=3, finished=True, seconds=5.0, threads=1)
    monkeypatch.setattr(training, "train", lambda *_, **__: done)
    told = next_lines()
    assert f"Next: frugan masks show {tmp_path} --out masks.png --with {out}\n" in told
    assert f"\n  frugan masks apply {tmp_path} {out} --out masked\n" in told
    assert "frugan sample" not in told
    faces = tmp_path / "data_dst" / "aligned"
    faces.mkdir(parents=True)
    assert f"Next: frugan masks show {faces} --out masks.png" in next_lines()
    # while it is pretrained it finds no masks yet
    assert f"Next: frugan sample {out} --data {tmp_path} --out samples" in next_lines("objective.pretrain=true")


@pytest.fixture
def uninstalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """No package index of this environment knows frugan: it is run from its tree."""
    installed = metadata.distribution

    def distribution(name: str) -> metadata.Distribution:
        if name == "frugan":
            raise metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(metadata, "distribution", distribution)


@pytest.mark.usefixtures("uninstalled")
def test_commands_run_from_a_tree_that_is_not_installed(
    frugan: Frugan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert frugan("--version").stdout.startswith(f"frugan {__version__}, torch ")
    assert f"frugan {__version__} (run from its tree, not installed)" in frugan("doctor", "--out", str(tmp_path)).stdout
    monkeypatch.syspath_prepend(str(OUTSIDE))
    recipe, pictures = minigan_and_pictures(tmp_path)
    run = tmp_path / "run"
    words = ["train", recipe, "training.duration=1 steps", "--data", str(pictures), "--out", str(run)]
    trained = frugan(*words, "--device", "cpu")
    assert trained.returncode == 0, trained.stderr
    events = map(json.loads, (run / "events.jsonl").read_text("utf-8").splitlines())
    assert [each["frugan"] for each in events if each["event"] == "start"] == [__version__]


def test_torchrun_starts_training_alone(frugan: Frugan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused = frugan("recipes")
    assert refused.returncode == 2
    assert "run `frugan recipes` without it" in refused.stderr


def test_recipes_as_json_and_table(frugan: Frugan) -> None:
    listed = json.loads(frugan("recipes", "--json").stdout)
    assert len(listed) == len(built_in())
    by_name = {row["name"]: row for row in listed}
    assert by_name["biggan-imagenet-128"]["parameters"] == 70_433_988 + 87_982_370
    assert by_name["biggan-imagenet-128"]["batch"] == 2048
    assert {row["trained"] for row in listed} == {"by us", "by its authors", "never"}
    table = frugan("recipes").stdout
    assert all(name in table for name in by_name)


def test_recipes_that_fit_a_card(frugan: Frugan) -> None:
    """A card of 6 GB is not offered what takes 8, and one without half-precision units has the other column's word."""
    listed = {row["name"]: row for row in json.loads(frugan("recipes", "--json").stdout)}
    for card, key in (("rtx-2060", "smallest_card_gib"), ("gtx-1060", "smallest_fp32_card_gib")):
        fitting = {row["name"] for row in json.loads(frugan("recipes", "--card", card, "--json").stdout)}
        assert fitting == {name for name, row in listed.items() if row[key] and row[key] <= 6}
        assert fitting < listed.keys()
    table = frugan("recipes", "--card", "RTX 2060").stdout
    assert "biggan-imagenet-256" in table
    assert "biggan-imagenet-512" not in table
    assert "frugan plan NAME --card 'RTX 2060'" in table
    assert "smaller than the cards in this list" in frugan("recipes", "--card", "gtx-1060-3").stdout
    assert "frugan recipes --card rtx-2060" in frugan("plan", "--card", "rtx-2060").stderr
    refused = frugan("recipes", "xseg", "--card", "rtx-2060")
    assert refused.returncode == 2
    assert "frugan plan xseg --card rtx-2060" in refused.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "biggan-cifar-10", "--data", "x", "--out", "y"], "did you mean biggan-cifar10-32"),
        (["train", "biggan-cifar10-32", "--data", "/does/not/exist", "--out", "y"], "does not exist"),
        (["train", "biggan-cifar10-32", "training.bach=3", "--data", "x"], "did you mean training.batch?"),
        (["train", "biggan-cifar10-32", "--data", "a=b", "--data", "c=d"], "unknown name"),
        (["sample", "/does/not/exist", "--out", "y"], "/does/not/exist does not exist (looked from"),
        (["sample", "/does/not/exist", "--out", "y", "--classes", "3-1"], "such as 0,3,7-9"),
        (["sample", "/does/not/exist", "--out", "y", "--nearest", "3"], "training pictures with --data PATH"),
        (["sample", "/does/not/exist", "--out", "y", "--animate", "y.avi"], "ends in .gif, .webp or .mp4"),
        (["sample", "x", "--out", "y", "--animate", "y.gif", "--npz", "3"], "one kind at a time"),
        (["sample", "x", "--out", "y", "--npz", "3", "--interpolate", "both"], "not with --random, --npz"),
        (["sample", "x", "--out", "y", "--animate", "z/y.gif"], "a name without folders"),
        (["sample", "x", "--out", "y", "--classes", "0-99999999"], "no network has so many classes"),
        (["train", "biggan-digits-32", "--data", "x", "--map-class", "dog"], "expected OLD=NEW"),
        (["train", "biggan-digits-32", "--data", "/dev/null", "--out", "y"], "neither a file nor a folder"),
        (["sample", "x", "--out", "y", "--spherical"], "goes with --interpolate"),
        (["sample", "x", "--out", "y", "--statistics", "batch"], "goes with --random"),
        (["sample", "x", "--out", "y", "--npz", "3", "--standing-size", "8"], "goes with --statistics standing"),
        (["sample", "x", "--out", "y", "--npz", "3", "--standing-batches", "8"], "goes with --statistics standing"),
        (["evaluate", "/does/not/exist", "--data", "x"], "expected a run folder"),
        (["evaluate", "/does/not/exist", "--data", "x", "--truncations", "1:0:0.1"], "such as 0.1:1.0:0.1"),
        (["evaluate", "/does/not/exist", "--data", "x", "--plot", "y.png"], "give at least two"),
        (["evaluate", "x", "--data", "x", "--truncations", "0.5,1", "--plot", "y.foo"], "expected a file that ends in"),
        (
            ["evaluate", "x", "--data", "x", "--metrics", "kid", "--truncations", "0.5,1", "--plot", "y.png"],
            "draws fid and is",
        ),
        (["evaluate", "/does/not/exist", "--data", "x", "--out", "."], "is a folder; expected a file"),
        (["report", "/does/not/exist"], "not a run folder"),
        (["report", "/does/not/exist", "--serve", "--out", "y.html"], "--serve writes no file"),
        (
            ["train", "biggan-cifar10-32", "--data", "x", "--compare-precision", "fp32"],
            "a folder for the two",
        ),
        (["plan", "biggan-digits-32", "--memory", "4GiB", "--price-per-hour", "nan"], "above 0"),
        (["plan", "biggan-digits-32", "--memory", "4GiB", "--price-per-hour", "1"], "for which card"),
        (["prepare", "/does/not/exist", "y", "--resolution", "32"], "does not exist"),
        (["prepare", "x", "y"], "--resolution is missing"),
        (["prepare", "x", "y.zip"], "--resolution is missing"),
        (["prepare", "/does/not/exist", "y.zip", "--resolution", "32"], "does not exist"),
        (["prepare", "x", "y", "--resolution", "32", "--background", "blak"], "background 'blak': no such colour"),
        (["prepare", "x", "y.pak", "--resolution", "64"], "packed as they are"),
        (["prepare", "x", "y.pak", "--format", "zip"], "--format has no effect on faces"),
        (["prepare", "drawn-faces", "y", "--allow-upscale"], "--allow-upscale has no effect on drawn-faces"),
        (["prepare", "x", "y.npz", "--reference", "--workers", "2"], "--workers has no effect with --reference"),
        (["prepare", "/does/not/exist", "y.pak"], "/does/not/exist"),
        (["prepare", "https://host/a.tar", "y", "--resolution", "32"], "fetch them first"),
        (["train", "biggan-cifar10-32", "--data", "s3://bucket/a.tar", "--device", "cpu"], "fetch them first"),
        (["train", "biggan-cifar10-32", "--data", "images=pipe:cat a.tar", "--device", "cpu"], "fetch them first"),
        (["prepare", "drawn-faces", "y.pak"], "the faces of two people need a folder"),
        (["prepare", "drawn-faces", "y", "--faces", "0"], "0 faces: the set has 120 of each"),
        (["prepare", "drawn-faces", "y", "--faces", "121"], "121 faces: the set has 120 of each"),
        (
            ["prepare", "drawn-faces", "y", "--resolution", "20"],
            "--resolution 20: the drawn faces have 128 x 128",
        ),
        (["prepare", "x", "y", "--faces", "3"], "only goes with drawn-faces"),
        (["train", "saehd-demo-64", "--data", "/does/not/exist", "--out", "y"], "DeepFaceLab workspace"),
        (["train", "biggan-digits-32", "--out", "x" * 300], "a longer name than the system takes"),
        (["info", "nothing"], "unknown"),
        (["train"], "no recipe and no pictures given"),
        (["nonsense"], "No such command"),
    ],
)
def test_bad_input_exits_2_with_words(
    words: list[str], message: str, tmp_path: Path, frugan: Frugan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = frugan(*words)
    assert result.returncode == 2, result
    assert message in result.stderr.replace("\n", " ")
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    "command", ["demo", "recipes", "info", "plan", "prepare", "train", "sample", "evaluate", "report", "convert"]
)
def test_every_command_has_help_with_an_example(command: str, frugan: Frugan) -> None:
    result = frugan(command, "--help")
    assert result.returncode == 0
    assert f"Example: frugan {command}" in result.stdout


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps, to be left as it is."""
    made = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRUGAN_BASE", str(made / "base"))
        recipe, pictures = write_recipe(made), write_pictures(made / "pictures")
        train(recipe, pictures, made / "run", overrides=["training.duration=2 steps"], options=CPU)
    return made / "run"


def test_prepare_and_train(tmp_path: Path, frugan: Frugan) -> None:
    recipe, pictures = write_recipe(tmp_path), write_pictures(tmp_path / "pictures")
    prepared, out = tmp_path / "prepared", tmp_path / "run"
    result = frugan("prepare", str(pictures), str(prepared), "--resolution", "32")
    assert (result.returncode, "12 pictures of 32 pixels, 2 classes" in result.stdout) == (0, True), result
    words = ["--data", f"images={prepared}", "--out", str(out), "--device", "cpu", "--json"]
    result = frugan("train", recipe, "training.duration=1 step", *words)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["step"] == 1
    assert "step 1 " in result.stderr


BOTH = ("--columns", "2", "--rows", "2")


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("--classes", "hell,0", *BOTH), ["samples.png"]),
        (("--npz", "3", "--random", *BOTH), ["samples.npz", "random.png"]),
        *(
            pytest.param(words, names, marks=pytest.mark.long)
            for words, names in (
                (BOTH, ["samples.png", "interpolation.png"]),
                (("--classes", "1", *BOTH), ["samples.png"]),
                (("--interpolate", "both", "--columns", "2"), ["interpolation-both.png"]),
                (("--animate", "film.gif", "--frames", "4", "--rows", "2"), ["film.gif"]),
            )
        ),
    ],
)
def test_sample(words: tuple[str, ...], names: list[str], run_folder: Path, tmp_path: Path, frugan: Frugan) -> None:
    result = frugan("sample", str(run_folder), "--out", str(tmp_path), "--device", "cpu", "--json", *words)
    assert result.returncode == 0, result.stderr
    written = [Path(path) for path in json.loads(result.stdout)]
    assert [path.name for path in written] == names
    assert all(path.parent == tmp_path and path.is_file() for path in written)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("--classes", "1", *BOTH), "samples.png"),
        (("--npz", "3"), "samples.npz"),
        (("--random", *BOTH), "random.png"),
        (("--seeds", "1,2"), "seed0002.png"),
        (("--animate", "film.gif", "--frames", "4"), "film.gif"),
        (("--nearest", "1", "--data", "pictures"), "nearest.png"),
        (("--project", "me.jpg"), "me.safetensors"),
    ],
)
def test_no_sample_is_lost_to_another_one(
    words: tuple[str, ...], name: str, run_folder: Path, tmp_path: Path, frugan: Frugan
) -> None:
    (tmp_path / name).write_text("mine", "utf-8")
    result = frugan("sample", str(run_folder), "--out", str(tmp_path), "--device", "cpu", *words)
    assert result.returncode == 2
    assert (
        f"{tmp_path / name}: is there already; choose another path, or add --replace (replace_files=True in Python)"
        in result.stderr
    )
    assert [(path.name, path.read_text("utf-8")) for path in tmp_path.iterdir()] == [(name, "mine")]


def test_long_latents_are_said_and_samples_replaced_on_demand(run_folder: Path, tmp_path: Path, frugan: Frugan) -> None:
    (tmp_path / "random.png").write_text("mine", "utf-8")
    words = ("--random", "--replace", "--device", "cpu", "--truncation", "7", *BOTH)
    result = frugan("sample", str(run_folder), "--out", str(tmp_path), *words)
    assert result.returncode == 0, result.stderr
    assert "--truncation 7: latents 7 times as long as in training" in result.stderr
    assert (tmp_path / "random.png").read_bytes().startswith(b"\x89PNG")


def test_a_curve_replaces_no_file(tmp_path: Path, frugan: Frugan) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "curve.png").write_text("mine", "utf-8")
    plot = ("--truncations", "0.5,1", "--plot", str(tmp_path / "curve.png"))
    result = frugan("evaluate", "/does/not/exist", "--data", "x", *plot)
    assert (result.returncode, "curve.png: is there already" in result.stderr) == (2, True)


def test_a_damaged_checkpoint_is_told_of(run_folder: Path, tmp_path: Path, frugan: Frugan) -> None:
    """The one before it is sampled from."""
    run = Path(shutil.copytree(run_folder, tmp_path / "run"))
    newest = sorted((run / "checkpoints").iterdir())[-1]
    shutil.copytree(newest, newest.with_name("step-000000001"))
    weights = newest / "ema.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    result = frugan("sample", str(run), "--out", str(tmp_path / "s"), "--device", "cpu", "--json", *BOTH)
    assert [line for line in result.stderr.splitlines() if line.startswith("damaged")] == [
        f"damaged checkpoint skipped: {weights}: its digest is not the manifest's"
    ]
    assert ".py" not in result.stderr


def test_a_number_that_is_none_is_refused_in_plain_words(frugan: Frugan) -> None:
    for words, message in (
        (("--subset", "0.5"), "'--subset': must be a whole number (got 0.5)"),
        (("--subset=0",), "'--subset': must be greater than or equal to 1 (got 0)"),
    ):
        ended = frugan("train", "biggan-small-32", "--data", "digits", *words)
        assert ended.returncode == 2
        assert message in " ".join(ended.stderr.replace("│", " ").split())


def test_evaluate_and_report(run_folder: Path, tmp_path: Path, frugan: Frugan, monkeypatch: pytest.MonkeyPatch) -> None:
    out = Path(shutil.copytree(run_folder, tmp_path / "run"))
    (tmp_path / "tests_network.py").write_text("def means(x):\n    return x.float().mean((2, 3))\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    words = ["--data", str(run_folder.parent / "pictures"), "--samples", "20", "--network", "tests_network:means"]
    scored = [*words, "--metrics", "fid,pr", "--out", str(tmp_path / "scores.jsonl"), "--device", "cpu"]
    result = frugan("evaluate", str(out), *scored, "--json")
    assert result.returncode == 0, result.stderr
    assert set(json.loads(result.stdout)["scores"]) == {"fid", "precision", "recall", "f_score"}
    assert len((tmp_path / "scores.jsonl").read_text("utf-8").splitlines()) == 1
    assert (out / "scores.jsonl").read_text("utf-8") == (tmp_path / "scores.jsonl").read_text("utf-8")
    assert "samples: " not in result.stderr  # it was said how many
    result = frugan("evaluate", str(out), "--metrics", "fid", "--reference", str(tmp_path / "none.npz"))
    assert (result.returncode, "samples: 50,000, as published scores have" in result.stderr) == (2, True)
    result = frugan("report", str(out))
    assert "Scores by frugan evaluate" in Path(result.stdout.strip()).read_text("utf-8")


@pytest.mark.long
def test_a_curve_over_truncations(
    run_folder: Path, tmp_path: Path, frugan: Frugan, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Path(shutil.copytree(run_folder, tmp_path / "run"))
    (tmp_path / "tests_network.py").write_text("def means(x):\n    return x.float().mean((2, 3))\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    words = ["--data", str(run_folder.parent / "pictures"), "--samples", "20", "--network", "tests_network:means"]
    words += ["--metrics", "fid", "--device", "cpu", "--truncations", "0.5:1:0.5"]
    result = frugan("evaluate", str(out), *words, "--plot", str(tmp_path / "curve.png"))
    assert "20 samples of seed 0" in result.stdout.replace("\n", " ")
    assert (tmp_path / "curve.png").is_file()
    assert len((out / "scores.jsonl").read_text("utf-8").splitlines()) == 2


def test_info_of_what_frugan_chooses(frugan: Frugan) -> None:
    """Whose discriminator has no buffers."""
    printed = json.loads(frugan("info", "biggan-small-32", "--device", "cpu", "--json", "--no-latency").stdout)
    assert printed["original_macs"]["D"] > printed["networks"]["D"]["macs"] > 0


@pytest.mark.long
def test_info(run_folder: Path, frugan: Frugan) -> None:
    """Of a smaller family in every run of the tests, in `families/test_outside.py`: counting takes seconds."""
    printed = json.loads(frugan("info", str(run_folder), "--device", "cpu", "--json").stdout)
    assert printed["networks"]["G"]["parameters"] > 0
    assert printed["networks"]["G"]["latency_seconds"] > 0
    assert "do not give latency" in printed["note"]


@pytest.mark.long
@pytest.mark.skipif(os.name == "nt", reason="Windows sends no SIGINT to a process of its own")
def test_interrupted_training_saves_and_goes_on(tmp_path: Path, frugan: Frugan) -> None:
    recipe = write_recipe(tmp_path, RECIPE.replace("4 steps", "100k steps"))
    pictures, out = write_pictures(tmp_path / "pictures"), tmp_path / "run"
    words = ["train", recipe, "--data", str(pictures), "--out", str(out), "--device", "cpu"]
    events = out / "events.jsonl"

    def interrupt() -> None:
        while not (events.exists() and '"step": 3,' in events.read_text("utf-8")):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    result = frugan(*words)
    assert result.returncode == 0, result.stderr
    assert "stopped and saved" in result.stdout
    last = [json.loads(line) for line in events.read_text().splitlines()]
    stopped = next(e for e in last if e["event"] == "stop")
    assert stopped["signal"] == "SIGINT"
    result = frugan(*words, f"training.duration={stopped['step'] + 1} steps")
    assert result.returncode == 0, result.stderr
    assert f"resuming {out} at step {stopped['step']:,}" in result.stderr.replace("\n", " ")


def test_faces_are_packed_into_a_file_that_reads_back(frugan: Frugan, tmp_path: Path) -> None:
    faces = Path(__file__).parents[1] / "golden" / "saehd" / "faceset" / "aligned"
    out = tmp_path / "new" / "faceset.pak"
    assert "8 faces" in frugan("prepare", str(faces), str(out)).stdout
    again = frugan("prepare", str(faces), str(out))
    assert again.returncode == 2
    assert "exists already" in again.stderr
    assert len(open_faceset(out)) == len(open_faceset(faces)) == 8


def test_drawn_faces_become_a_workspace(frugan: Frugan, tmp_path: Path) -> None:
    out = tmp_path / "new" / "workspace"
    words = ["prepare", "drawn-faces", str(out), "--faces", "2"]
    told = frugan(*words)
    assert told.returncode == 0, told.stderr
    assert "2 faces of each of two people" in told.stdout
    sets = {side: open_faceset(path) for side, path in find_facesets(out).items()}
    assert [(side, len(faceset), faceset.picture(1).shape) for side, faceset in sets.items()] == [
        ("src", 2, (128, 128, 3)),
        ("dst", 2, (128, 128, 3)),
    ]
    again = frugan(*words)
    assert again.returncode == 2
    assert "is there already" in again.stderr
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize(("before", "name"), [([], ""), (["biggan-cifar10-32"], ""), ([], "src=")])
def test_a_path_that_the_shell_has_split_is_named(before: list[str], name: str, tmp_path: Path, frugan: Frugan) -> None:
    (tmp_path / "my nice pictures").mkdir()
    refused = frugan("train", *before, "--data", f"{name}{tmp_path / 'my'}", "nice", "pictures")
    assert refused.returncode == 2
    assert f"needs quotation marks: --data '{name}{tmp_path / 'my nice pictures'}'" in refused.stderr


@pytest.mark.parametrize(
    ("lost", "words"),
    [((), "what was saved before, if anything, is"), (("2 steps must be done again",), "2 steps must be")],
)
def test_an_interrupt_is_told(
    lost: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second Ctrl-C, that is: the first one asks training to stop."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt(*lost)

    monkeypatch.setattr("frugan.training.training.train", interrupted)
    monkeypatch.setattr(sys, "argv", ["frugan", "train", "saehd-demo-64", "--data", "x"])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 130
    assert f"interrupted: stopped at once; {words}" in capsys.readouterr().err


def test_endings_fit_the_command(tmp_path: Path, frugan: Frugan, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("frugan.reporting.report.write_report", full)
    result = frugan("report", str(tmp_path))
    assert (result.returncode, "The disk is full" in result.stderr) == (1, True)
    assert "checkpoints" not in result.stderr
    monkeypatch.setattr("frugan.training.training.train", full)
    assert "Earlier checkpoints are untouched" in frugan("train", "biggan-digits-32", "--data", "x").stderr


@pytest.mark.parametrize(
    ("licence", "warned"),
    [
        ("cc-by-4", "did you mean cc-by-4.0?"),
        ("nonsense", "not a licence"),
        ("CC-BY-4.0", ""),
        ("ask me first", "your own words"),
        ("CC BY 4.0", "did you mean cc-by-4.0?"),
    ],
)
def test_a_licence_that_nobody_knows_is_pointed_out(licence: str, warned: str, tmp_path: Path, frugan: Frugan) -> None:
    ended = frugan("card", str(tmp_path / "none"), "--licence", licence)
    told = any(words in ended.stderr for words in ("licence: ", "--licence"))
    assert (ended.returncode, told) == (2, bool(warned))
    assert warned in ended.stderr


def test_fields_given_twice(frugan: Frugan) -> None:
    words = ["training.batch=64", "training.batch=32"]
    result = frugan("info", "biggan-small-32", *words, "networks.classes=2", "networks.classes=2", "--no-latency")
    assert (result.returncode, result.stderr.count("given twice")) == (0, 1)
    assert "training.batch: given twice, 64 and 32; the last one holds" in result.stderr


@pytest.mark.parametrize("word", ["~/x", "--data=~/x", "images=~/x"])
def test_the_home_folder_in_quotes_and_behind_a_sign(
    word: str, frugan: Frugan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/of/someone")
    words = [word] if word.startswith("--") else ["--data", word]
    result = frugan("train", "biggan-small-32", *words, "--out", "~/there")
    assert (result.returncode, "~" in result.stderr, "/of/someone/x" in result.stderr) == (2, False, True)


def test_a_queue_in_no_folder(tmp_path: Path, frugan: Frugan) -> None:
    result = frugan("page", str(tmp_path / "nothere"), "--work-off")
    assert (result.returncode, "no such folder (looked from" in result.stderr) == (2, True)


def test_a_port_that_is_taken_is_said_before_anything_is_loaded(
    tmp_path: Path, frugan: Frugan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that was asked for is refused, with a free one; in place of the usual one the next free is taken."""
    pytest.importorskip("starlette")
    served: list[int] = []

    @contextmanager
    def serve(_: Path, port: int) -> Iterator[tuple[str, threading.Thread]]:
        served.append(port)
        (thread := threading.Thread(target=lambda: None)).start()
        yield "the address", thread

    monkeypatch.setattr("frugan.page.server.served", serve)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = frugan("page", str(tmp_path), "--no-open", "--port", str(port))
        assert (result.returncode, served) == (2, [])
        free = re.search(rf"--port {port}: this port is taken .*already\. (\d+) is free", result.stderr)
        assert free is not None
        assert port < int(free[1]) <= port + 100
        monkeypatch.setattr("frugan.cli.page.PORT", port)
        result = frugan("page", str(tmp_path), "--no-open")
    assert result.returncode == 0, result.stderr
    assert port < served[0] <= port + 100
    assert f"port {port} is taken, perhaps by a page that is open already: {served[0]} instead" in result.stderr


@pytest.mark.filterwarnings("always")
def test_warnings_and_faults_in_threads_take_a_line_each(
    tmp_path: Path, frugan: Frugan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def report(*_: object, title: str, by: str) -> str:
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
        warnings.warn("careful [so]", stacklevel=2)
        return "page"

    monkeypatch.setattr("frugan.reporting.report.write_report", report)
    before = threading.excepthook
    result = frugan("report", str(tmp_path))
    assert threading.excepthook is before
    assert result.stderr.splitlines() == [
        "warning: a thread in the background ended: [Errno 28] No space left on device",
        "warning: careful [so]",
    ]
