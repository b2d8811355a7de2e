"""Everything a user can get wrong: named, with what was expected and what to try, and nothing lost."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import frugan
from frugan.contract.family import GridRequest
from frugan.errors import BadInput
from frugan.sampling.requests import check_request
from frugan.sampling.sampling import sample
from frugan.training.run import TrainingOptions
from frugan.training.training import train
from training.pictures import RECIPE, write_pictures, write_recipe

CPU = TrainingOptions(device="cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run; whoever changes it changes a copy, `run`."""
    made = tmp_path_factory.mktemp("trained")
    recipe, pictures = write_recipe(made), write_pictures(made / "pictures")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRUGAN_BASE", str(made / "base"))
        return train(recipe, pictures, made / "run", options=CPU, overrides=["training.duration=1 step"]).run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_tf32_is_refused_on_a_processor_and_nothing_is_written(tmp_path: Path) -> None:
    recipe, pictures = write_recipe(tmp_path), write_pictures(tmp_path / "pictures")
    with pytest.raises(BadInput, match=r"training\.tf32=true: .*, which this processor is not; leave it out"):
        train(recipe, pictures, tmp_path / "run", options=CPU, overrides=["training.tf32=true"])
    assert not list((tmp_path / "run").glob("checkpoints/*"))


def test_unknown_recipe_and_keys_name_the_nearest() -> None:
    with pytest.raises(BadInput, match=r"did you mean biggan-cifar10-32\?"):
        frugan.load_recipe("biggan-cifar-32")
    with pytest.raises(BadInput, match=r"did you mean networks\.generator_channels\?"):
        frugan.load_recipe("biggan-cifar10-32", ["networks.generator_channel=4"])
    with pytest.raises(BadInput, match=r"did you mean optimizers\.D\.learning_rate\?"):
        frugan.load_recipe("biggan-cifar10-32", ["optimizers.D.learningrate=4"])
    with pytest.raises(BadInput, match=r"expected key\.sub=value"):
        frugan.load_recipe("biggan-cifar10-32", ["batch"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("resolution = 32", "resolution = 48"), "power of two"),
        (
            ("batch = 8", "batch = 6"),
            r"not a multiple of normalisation_batch 4; one that fits: training\.normalisation_batch=3$",
        ),
        (('duration = "4 steps"', 'duration = "4"'), "number with a unit"),
        (("[optimizers.G]", "[optimizers.H]"), r"family biggan has \['D', 'G'\]"),
        (("latent_size = 8", "latent_sise = 8"), r"did you mean networks\.latent_size\?"),
        (("shared_embedding = 4", 'shared_embedding = "none"'), "needs shared_embedding"),
        (('family = "biggan"', 'family = "bigan"'), "expected one of: amp, biggan"),
        (("batch = 8", "batch = eight"), "not valid TOML"),
        (("normalisation_batch = 4\n", ""), "normalisation_batch is missing"),
        (("generator_attention = [16]", "generator_attention = [12]"), "power of two"),
        (("generator_channels = 2", "generator_channels = 1"), "at least 8 channels"),
        (("generator_channels = 2", "generator_channels = 100_000_000"), "less than or equal to 4096"),
        (("latent_size = 8", "latent_size = 1_000_000_000"), "less than or equal to 65536"),
        (("\nbatch = 8", "\nbatch = 1_000_000_000"), "less than or equal to 1000000"),
        (('checkpoint_every = "2 steps"', 'checkpoint_every = "0 steps"'), "'0 steps': expected more than nothing"),
        (('snapshot_every = "4 steps"', 'snapshot_every = "0s"'), "'0s': expected more than nothing"),
        (('snapshot_every = "4 steps"', f'snapshot_every = "{10**300} steps"'), "expected at most 1e15"),
        (('duration = "4 steps"', 'duration = "0 images"'), "'0 images': expected more than nothing"),
        (
            ("learning_rate = 4e-4", "learning_rate = inf"),
            r"D\.learning_rate: inf: expected a finite number",
        ),
        (("learning_rate = 4e-4", "clip_norm = nan"), r"optimizers\.D\.clip_norm: nan: expected a finite number"),
        (("decay = 0.9", "decay = nan"), r"ema\.decay: nan: expected a finite number"),
        (("[networks]", "networks = 3\n[other]"), r"networks: expected a table \[networks\], not '3'"),
        (('family = "biggan"', "family = [1]"), "family: expected a name in quotes"),
        (('family = "biggan"', 'family = "biggan"\nstages = 3'), r"stages: expected tables \[\[stages\]\]"),
        (("[optimizers.D]", "[optimizers]\nD = 3\n[other]"), r"optimizers\.D: expected a table"),
    ],
)
def test_recipes_that_cannot_be(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    assert change[0] in RECIPE
    recipe = write_recipe(tmp_path, RECIPE.replace(*change))
    with pytest.raises(BadInput, match=message):
        train(recipe, write_pictures(tmp_path / "pictures"), tmp_path / "run", options=CPU)
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (RECIPE.encode("utf-16"), "not UTF-8 text, which TOML is"),
        (bytes(range(255, 0, -1)), "not UTF-8 text, which TOML is"),
        (b"\0" * 100, "not valid TOML"),
        (b" " * (2 << 20), "no TOML file of at most 1 MiB"),
    ],
    ids=["utf-16", "random", "zeros", "large"],
)
def test_files_that_are_no_recipe(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "r.toml").write_bytes(content)
    with pytest.raises(BadInput, match=message):
        frugan.load_recipe(str(tmp_path / "r.toml"))


def test_recipes_that_are_no_file_or_no_recipe_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(BadInput, match="a folder; expected a TOML file"):
        frugan.load_recipe(str(tmp_path / "folder.toml"))
    with pytest.raises(BadInput, match="'/dev/null' is unknown"):
        frugan.load_recipe("/dev/null")
    for content in ("[1]", "3", "null", "{"):
        (tmp_path / "recipe.json").write_text(content)
        with pytest.raises(BadInput, match="damaged"):
            frugan.load_recipe(str(tmp_path))


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_bytes(b"\xef\xbb\xbf" + RECIPE.encode())
    assert frugan.load_recipe(str(tmp_path / "r.toml")).family == "biggan"


def test_overrides_of_odd_types() -> None:
    for word in ("optimizers.D.kind=[1]", "stages=3", "stages=[3]", "training.batch=[]"):
        with pytest.raises(BadInput, match=word.partition(".")[0].partition("=")[0]):
            frugan.load_recipe("biggan-digits-32", [word])


def test_data_folders(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)

    def refused(data: object, message: str) -> None:
        with pytest.raises(BadInput, match=message):
            train(recipe, data, tmp_path / "run", options=CPU)  # type: ignore[arg-type]
        assert not (tmp_path / "run").exists()

    refused(tmp_path / "missing", "does not exist")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "no pictures")
    refused(write_pictures(tmp_path / "flat", classes=()), "one class .*the recipe has 2")
    refused(write_pictures(tmp_path / "three", classes=("a", "b", "c")), r"3 classes.*networks\.classes=3")
    refused(write_pictures(tmp_path / "small", side=20), "smaller than")
    refused({"faces": tmp_path / "small"}, "unknown name")
    refused({}, "no pictures given")
    refused("/dev/null", "neither a file nor a folder")
    (write_pictures(tmp_path / "gap") / "third").mkdir()
    refused(tmp_path / "gap", "this class folder has no pictures: third")
    pictures = write_pictures(tmp_path / "bad")
    for name in ("broken", "cut"):
        (pictures / "hell" / f"{name}.png").write_bytes(b"not a picture")
    refused(pictures, "broken.png")


def test_one_bad_picture_in_many_is_named_and_left_out(tmp_path: Path, said: list[str]) -> None:
    recipe, pictures = write_recipe(tmp_path), write_pictures(tmp_path / "pictures", each=60)
    (pictures / "hell" / "broken.png").write_bytes(b"not a picture")
    overrides = ["training.duration=1 step"]
    train(recipe, pictures, tmp_path / "run", options=CPU, overrides=overrides, say=said.append)
    assert any("broken.png" in line for line in said)
    assert any("120 pictures of 32 pixels" in line for line in said)


@pytest.mark.parametrize("micro_batch", [0, 3, 6, 12])
def test_micro_batches_that_change_the_result(tmp_path: Path, micro_batch: int) -> None:
    options = TrainingOptions(micro_batch=micro_batch, device="cpu")
    with pytest.raises(BadInput, match="a multiple of 4 from 4 to 8"):
        train(write_recipe(tmp_path), write_pictures(tmp_path / "p"), tmp_path / "run", options=options)


def test_weights_files(run: Path, tmp_path: Path) -> None:
    weights = next((run / "checkpoints").iterdir()) / "ema.safetensors"
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(BadInput, match="not a whole safetensors file"):
        frugan.load(cut)
    foreign = tmp_path / "foreign.safetensors"
    from safetensors.torch import save_file  # noqa: PLC0415
    from torch import ones  # noqa: PLC0415

    save_file({"weight": ones(2)}, foreign)
    with pytest.raises(BadInput, match="not written by frugan"):
        frugan.load(foreign)
    pickle = tmp_path / "pickle.pt"
    pickle.write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(BadInput, match="not a whole safetensors file"):
        frugan.load(pickle)
    with pytest.raises(BadInput, match="expected a run folder"):
        frugan.load(tmp_path / "nothing")
    other = {"format": "frugan", "recipe": '{"family": "stylegan9"}'}
    save_file({"weight": ones(2)}, foreign, other)
    with pytest.raises(BadInput, match="stylegan9"):
        frugan.load(foreign)


def test_run_folders(run: Path, tmp_path: Path) -> None:
    recipe, pictures = write_recipe(tmp_path), write_pictures(tmp_path / "pictures")
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(BadInput, match="no checkpoint yet"):
        sample(run, tmp_path / "sheets", device="cpu", say=lambda _: None)
    with pytest.raises(BadInput, match="something else than a run"):
        train(recipe, pictures, pictures, options=CPU)
    before = (run / "events.jsonl").read_bytes()
    with pytest.raises(BadInput, match=r"wrote checkpoints up to step 1, and .*checkpoints has none to go on from"):
        train(recipe, pictures, run, options=CPU)
    assert (run / "events.jsonl").read_bytes() == before
    (run / "recipe.json").write_text("{")
    with pytest.raises(BadInput, match="damaged"):
        train(recipe, pictures, run, options=CPU)


def test_a_checkpoint_without_its_manifest_can_be_named_itself(run: Path, tmp_path: Path) -> None:
    checkpoint = run / "checkpoints" / "step-000000001"
    (checkpoint / "MANIFEST.json").unlink()
    with pytest.raises(BadInput, match=r"MANIFEST\.json: No such file.*\n.*step-000000001: without its MANIFEST\.json"):
        sample(run, tmp_path / "sheets", device="cpu", say=lambda _: None)
    sample(checkpoint, tmp_path / "sheets", device="cpu", say=lambda _: None)


def test_no_data(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="data: an empty path"):
        train(write_recipe(tmp_path), "", tmp_path / "run", options=CPU)
    assert not (tmp_path / "run").exists()


def test_another_family_is_told_in_one_line(run: Path, tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures")
    with pytest.raises(BadInput) as refused:
        train(
            "r3gan-digits-32", pictures, run, options=CPU, overrides=["networks.classes=2", "data.allow_upscale=true"]
        )
    begun, line, _ = str(refused.value).splitlines()
    assert "fields that cannot change" in begun
    assert line.strip() == "family: biggan in the run, r3gan now"


def test_a_run_without_its_optimizers(run: Path, tmp_path: Path) -> None:
    recipe, pictures = write_recipe(tmp_path), write_pictures(tmp_path / "pictures")
    (run / "checkpoints" / "step-000000001" / "optimizers.safetensors").unlink()
    with pytest.raises(BadInput, match=r"the networks of .*step-000000001 are whole: --init .*step-000000001 with"):
        train(recipe, pictures, run, options=CPU)
    sample(run, tmp_path / "sheets", device="cpu", say=lambda _: None)
    begun = train(recipe, pictures, tmp_path / "new", init=run, options=CPU, overrides=["training.duration=1 step"])
    assert begun.finished
    (run / "checkpoints" / "step-000000001" / "ema.safetensors").unlink()
    with pytest.raises(BadInput, match=r"ema\.safetensors: missing"):
        sample(run, tmp_path / "sheets", device="cpu", say=lambda _: None)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (GridRequest(classes=(2,)), "expected 0 to 1"),
        (GridRequest(columns=0), "at least 1"),
        (GridRequest(truncation=0), "above 0"),
        (GridRequest(interpolate="both", columns=1), "2 ends"),
    ],
)
def test_samples_that_cannot_be_drawn(trained: Path, tmp_path: Path, request_: GridRequest, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        sample(trained, tmp_path / "sheets", request_, device="cpu", say=lambda _: None)
    assert not (tmp_path / "sheets").exists()


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (GridRequest(truncation=float("nan")), "--truncation nan: expected a number above 0 and at most 10"),
        (GridRequest(truncation=float("inf")), "--truncation inf"),
        (GridRequest(truncation=-1.0), "--truncation -1"),
        (GridRequest(columns=100_000), "10 x 100,000 pictures .*expected at most 10,000 together at 32 pixels"),
        (GridRequest(rows=10**12, interpolate="both"), "expected at most 10,000"),
        (GridRequest(seed=-1), "--seed -1: expected a whole number"),
        (GridRequest(seed=2**64), "--seed"),
    ],
)
def test_requests_that_cannot_be(tmp_path: Path, request_: GridRequest, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        check_request(request_, frugan.load_recipe(write_recipe(tmp_path)))


def test_devices(tmp_path: Path) -> None:
    for device, message in (
        ("tpu", "expected auto"),
        ("cuda:77", "CUDA|CPU build"),
        ("meta", "expected auto"),
    ):
        with pytest.raises(BadInput, match=message):
            train(
                write_recipe(tmp_path),
                write_pictures(tmp_path / "p"),
                tmp_path / "run",
                options=TrainingOptions(device=device),
            )


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"psi": 0.5}, "--psi: "),
        ({"psi_layers": 3}, "--psi-layers: "),
        ({"truncation": 0.7, "seed": 2}, "--truncation and --seed: "),
        ({"interpolate": "latent", "spherical": True}, "--interpolate and --spherical: "),
        ({"classes": (0,), "columns": 5}, "--classes and --columns: "),
    ],
)
def test_what_is_of_random_inputs_is_refused_of_a_face_model(given: dict[str, Any], named: str) -> None:
    recipe = frugan.load_recipe("saehd-demo-64")
    with pytest.raises(BadInput, match=f"^{named}for families that draw from random inputs; saehd shows"):
        check_request(GridRequest(**given), recipe)
    check_request(GridRequest(rows=3, micro_batch=2), recipe)
