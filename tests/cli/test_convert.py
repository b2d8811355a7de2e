"""`frugan convert` as a person or a program calls it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.calling import Frugan, Result
from conversion.hub_modules import make_module
from conversion.leras_models import allow_narrow, assert_same_model, model_of, write
from families.snapshots import SCRUBBED
from frugan.faces.saehd.leras_files import read_model
from frugan.recipe.loading import load_recipe
from parity.saehd.golden import FOLDER
from tf_checkpoint.written import write_bundle

FACES = FOLDER / "faceset" / "aligned"


Convert = Callable[..., Result]


@pytest.fixture
def convert(monkeypatch: pytest.MonkeyPatch, frugan: Frugan) -> Convert:
    """`frugan convert` with such words; narrow models are read too."""
    allow_narrow(monkeypatch)
    return lambda *words: frugan("convert", *map(str, words))


@pytest.mark.parametrize("command", ["convert", "export", "masks export"])
def test_out_is_a_place_and_no_option(frugan: Frugan, command: str) -> None:
    for words in (("--out", "there"), ("--out=there",)):
        result = frugan(*command.split(), "runs/first", *words)
        assert result.returncode == 2
        assert "--out: OUT is given by its place, without --out: frugan " + command in result.stderr


def test_there_and_back_in_words_and_json(tmp_path: Path, convert: Convert) -> None:
    folder, out = write(tmp_path / "model", model_of()), tmp_path / "run"
    result = convert(folder, out, "--from", "leras", "training.seed=3")
    assert result.returncode == 0, result
    assert f"{out}: model 'my face' at iteration 1,234" in result.stdout
    assert f"Next: frugan train {out / 'recipe.toml'} --data WORKSPACE --out {out}" in result.stdout
    assert "seed = 3" in (out / "recipe.toml").read_text("utf-8")
    assert "patch_discriminator: not used at present" in result.stderr

    words = (out, folder, "--to", "leras", "--data", f"src={FACES}", "--data", f"dst={FACES}")
    result = convert(*words)
    assert (result.returncode, result.stdout) == (2, "")
    assert "add --replace" in result.stderr
    result = convert(*words, "--replace", "--json")
    assert result.returncode == 0, result
    told = json.loads(result.stdout)
    assert (told["name"], told["iteration"]) == ("my face", 1234)
    assert_same_model(read_model(folder), read_model(Path(told["replaced"])))
    assert "eyebrow" in result.stderr
    result = convert(out, tmp_path / "other", "--to", "leras", "--name", "new_name")
    assert result.stdout == f"{tmp_path / 'other'}: model 'new name' at iteration 1,234\n"

    result = convert(out, tmp_path / "x.dfm", "--to", "dfm", "--json")
    assert json.loads(result.stdout)["difference"] < 1e-5
    result = convert(out, tmp_path / "half.dfm", "--to", "dfm", "--half")
    assert f"{tmp_path / 'half.dfm'}: iteration 1,234; at most " in result.stdout
    result = convert(folder, tmp_path / "again", "--from", "leras", "--json")
    told = json.loads(result.stdout)
    again = tmp_path / "again"
    assert told == {"run": str(again), "recipe": str(again / "recipe.toml"), "name": "my face", "iteration": 1234}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "b"], "neither --from nor --to: expected one of --from biggan-pytorch (a checkpoint of BigGAN-PyTorch)"),
        (["a", "b", "--from", "dfm"], "--from dfm: a file for DeepFaceLive can only be written (--to)"),
        (["a", "b", "--from", "leras", "--to", "dfm"], "a: no such folder; expected the folder of a DeepFaceLab model"),
        (
            ["a", "b", "--from", "dfm", "--to", "leras"],
            "--from dfm: a file for DeepFaceLive can only be written (--to)",
        ),
        (["a", "b", "--from", "leras", "--to", "dfm", "--raw"], "--raw is for "),
        (["a", "b", "--from", "stylegan-pickle", "--to", "dfm"], "becomes no run, which --to dfm is made of"),
        (["a", "b", "--from", "leras", "--half"], "--half is for --to dfm"),
        (["a", "b", "--from", "leras", "--data", "c"], "--data is for --to dfm"),
        (["a", "b", "--to", "leras", "--half"], "--half is for --to dfm"),
        (
            ["a", "b", "training.seed=1", "--to", "leras"],
            "training.seed=1 is for --from biggan-pytorch and --from leras",
        ),
        (
            ["a", "b.dfm", "--to", "dfm", "--name", "x"],
            "--name is for --from biggan-pytorch and --from leras",
        ),
        (["a", "b", "--from", "leras"], "a: no such folder; expected the folder of a DeepFaceLab model"),
        (["a", "b", "--to", "leras"], "a: expected a run folder"),
        (
            ["a", "b", "--from", "keras"],
            "format 'keras' is unknown; expected one of: frugan, biggan-pytorch,",
        ),
        (["a"], "Missing argument"),
    ],
)
def test_bad_input_exits_2_with_words(
    words: list[str], message: str, tmp_path: Path, convert: Convert, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = convert(*words)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr.replace("\n", " ")
    assert "Value error" not in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_full_disk_exits_1_and_help_has_an_example(
    tmp_path: Path, convert: Convert, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Example: frugan convert workspace/model runs/swap --from leras" in convert("--help").stdout
    folder = write(tmp_path / "model", model_of(discriminators=False))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    result = convert(folder, tmp_path / "run", "--from", "leras")
    assert (result.returncode, "No space left" in result.stderr) == (1, True)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.long
def test_snapshots_in_words_and_json(tmp_path: Path, convert: Convert) -> None:
    one, folder, states = tmp_path / "one.safetensors", tmp_path / "folder", tmp_path / "states.safetensors"
    result = convert(SCRUBBED, one, "--from", "stylegan-pickle", "--json")
    assert json.loads(result.stdout) == {"path": str(one), "resolution": 16, "networks": ["G", "D", "G_ema"]}
    result = convert(SCRUBBED, folder, "--from", "stylegan-pickle")
    assert f"Or: frugan train {folder / 'recipe.toml'} --init {folder} --data PICTURES --out RUN" in result.stdout
    result = convert(folder, states, "--to", "stylegan-safetensors")
    assert f"{states}: D, G, G_ema under the authors' names" in result.stdout
    for words, message in (
        ((SCRUBBED, one, "--from", "stylegan-pickle"), "is there already"),
        ((folder, states, "--to", "stylegan-safetensors"), "is there already"),
        ((folder, tmp_path / "s.pkl", "--to", "stylegan-pickle"), "can only be read"),
        ((states, tmp_path / "new", "--from", "stylegan-safetensors"), "can only be written"),
        ((SCRUBBED, tmp_path / "new", "--from", "stylegan-pickle", "--half"), "leave it out"),
        ((states, tmp_path / "new", "--from", "stylegan-pickle"), "damaged or made by something else"),
    ):
        result = convert(*words)
        assert result.returncode == 2
        assert message in result.stderr


@pytest.mark.long
def test_biggans_files_from_the_command(tmp_path: Path, convert: Convert) -> None:
    source, run = FOLDER.parent / "biggan" / "checkpoint", tmp_path / "run"
    result = convert(source, run, "--from", "biggan-pytorch", "--verify", "training.duration=9 steps")
    assert result.returncode == 0, result
    assert f"{run}: BigGAN at 32 pixels, imported, iteration 4" in result.stdout
    assert "verified: G, D ran, all values finite; the source brings no outputs.npz to compare with" in result.stdout
    assert f"Next: frugan train {run / 'recipe.toml'} --data PICTURES --out {run}" in result.stdout
    result = convert(run, tmp_path / "back", "--to", "biggan-pytorch", "--json")
    told = json.loads(result.stdout)
    assert (told["step"], len(told["files"])) == (4, 6)
    result = convert(run, tmp_path / "back", "--to", "biggan-pytorch")
    assert result.returncode == 2
    assert "add --replace" in result.stderr
    result = convert(source, tmp_path / "one.safetensors", "--from", "biggan-pytorch", "--raw")
    assert "Or: frugan train biggan-finetune-128 networks.classes=N networks.resolution=32" in result.stdout
    hub = write_bundle(tmp_path / "biggan-128", make_module().variables)
    result = convert(hub, tmp_path / "hub", "--from", "biggan-tfhub", "--verify", "--json")
    facts = json.loads(result.stdout)
    assert facts == {"path": str(tmp_path / "hub"), "resolution": 128, "averaged": True, "difference": None}
    assert load_recipe(str(tmp_path / "hub" / "recipe.toml"), ["networks.classes=3"]).networks


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "b", "--from", "biggan-pytorch"], "a: no such folder; expected the folder of an experiment below"),
        (["a", "b", "--from", "biggan-tfhub"], "a: no such file or folder"),
        (["a", "b", "--to", "biggan-tfhub"], "--to biggan-tfhub: a generator of TensorFlow Hub can only be read"),
        (["a", "b", "--to", "biggan-pytorch", "--raw"], "--raw is for --from biggan-pytorch and --from biggan-tfhub"),
        (["a", "b", "--from", "leras", "--verify"], "--verify is for --from biggan-pytorch and --from biggan-tfhub"),
        (["a", "b", "--to", "biggan-pytorch"], "a does not exist"),
    ],
)
def test_biggans_bad_input_exits_2(
    words: list[str], message: str, tmp_path: Path, convert: Convert, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = convert(*words)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr.replace("\n", " ")
    assert not list(tmp_path.iterdir())
