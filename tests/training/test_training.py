"""From a folder of pictures to a run, its samples, and on again."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import frugan
from faults.small_runs import MINIGAN, OUTSIDE, minigan_and_pictures
from frugan.contract.family import GridRequest
from frugan.engine.run.events import read_events
from frugan.errors import BadInput
from frugan.reporting.grids import grid_width
from frugan.sampling.sampling import sample
from frugan.training.run import TrainingOptions
from frugan.training.training import train
from training.pictures import RECIPE, write_pictures, write_recipe

CPU = TrainingOptions(device="cpu")
TWO = ["training.duration=2 steps"]


@dataclass(frozen=True)
class Made:
    """What several tests begin with: to be copied by those that go on from it."""

    # recipe, pictures: as for `train`
    recipe: str
    pictures: Path
    begun: Path  # a run of two steps
    whole: Path  # one of four; `said`: what it said
    said: str


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    lines: list[str] = []
    recipe, pictures = write_recipe(folder), write_pictures(folder / "pictures")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRUGAN_BASE", str(folder / "base"))
        train(recipe, pictures, folder / "begun", options=CPU, overrides=TWO)
        train(recipe, pictures, folder / "whole", options=CPU, say=lines.append)
    return Made(recipe, pictures, folder / "begun", folder / "whole", "\n".join(lines))


@pytest.fixture
def begun(made: Made, tmp_path: Path) -> Path:
    """A run of two steps to go on from."""
    return Path(shutil.copytree(made.begun, tmp_path / "run"))


def _tensors(run: Path) -> dict[str, torch.Tensor]:
    newest = sorted((run / "checkpoints").iterdir())[-1]
    return {f"{f.name}/{k}": v for f in sorted(newest.glob("*.safetensors")) for k, v in load_file(f).items()}


def _assert_same(a: Path, b: Path) -> None:
    mine, other = _tensors(a), _tensors(b)
    assert mine.keys() == other.keys()
    assert [k for k in mine if not torch.equal(mine[k], other[k])] == []


def test_a_folder_of_runs_names_those_inside(made: Made, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"holds runs, of which one is to be named: .*begun, .*whole"):
        sample(made.whole.parent, tmp_path)


def test_pictures_to_run_to_samples(made: Made, tmp_path: Path) -> None:
    run = made.whole
    for automatic in (
        "device: cpu",
        "batch: 8, 4 at a time (override with --micro-batch; fewer would",
        "12 pictures of 32 pixels",
    ):
        assert automatic in made.said
    grids = sorted(p.name for p in (run / "samples").iterdir())
    kinds = ("interpolation", "samples")
    assert grids == [f"step-{step:09d}-{kind}.png" for step in (1, 4) for kind in kinds]  # the first, and the last
    (start,) = [e for e in read_events(run / "events.jsonl") if e["event"] == "start"]
    assert start["recipe"]["networks"]["resolution"] == 32
    steps = [e for e in read_events(run / "events.jsonl") if e["event"] == "step"]
    assert "G.blocks.0.0.conv1" in steps[0]["singular_values"]
    request = GridRequest(classes=(1, 0, 1), columns=5, truncation=0.5)
    (path,) = sample(run, tmp_path / "sheets", request, device="cpu", say=lambda _: None)
    with Image.open(path) as grid:
        margin = grid.width - grid_width(5, 32)
        assert 20 < margin < grid.width / 2
        assert grid.text["Rows"] == "hell\ndunkel ü\nhell"  # type: ignore[attr-defined]


def test_a_run_is_named_for_its_recipe_or_the_folder_that_it_came_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRUGAN_BASE", str(tmp_path / "base"))
    monkeypatch.syspath_prepend(str(OUTSIDE))
    (tmp_path / "flowers").mkdir()
    recipe, pictures = minigan_and_pictures(tmp_path)
    recipes = (recipe, write_recipe(tmp_path / "flowers", MINIGAN, name="recipe.toml"))
    one = ["training.duration=1 steps"]
    names = [train(recipe, pictures, overrides=one, options=CPU).run.name for recipe in recipes]
    assert names == ["tiny", "flowers"]


@pytest.mark.parametrize("interpolate", ["class", "latent", "both"])
def test_interpolations_end_at_their_ends(tmp_path: Path, interpolate: str) -> None:
    recipe = write_recipe(tmp_path)
    networks = frugan.build(recipe)
    kind = frugan.load_recipe(recipe).kind
    config = frugan.load_recipe(recipe).networks
    request = GridRequest(seed=4, interpolate=interpolate, classes=(0, 1), columns=4)  # type: ignore[arg-type]
    grid = kind.sample(config, networks, request)
    assert grid.shape == (2, 4, 3, 32, 32)
    moved = (grid[:, 0] - grid[:, -1]).abs().amax((1, 2, 3))
    assert bool((moved > 1e-4).all())
    if interpolate == "class":  # row 0 goes from class 0 to 1 with one latent, row 1 back with another
        generator = networks["G"]
        random = torch.Generator().manual_seed(4)
        z = torch.randn(2, 2, 8, generator=random)[0]
        with torch.no_grad():
            ends = generator(z, generator.embed(torch.tensor([1, 0])))  # type: ignore[operator]
        torch.testing.assert_close(grid[:, -1], ends, rtol=0, atol=1e-5)


def test_the_first_screen_has_one_line_of_the_plan_and_the_report_its_reasons(
    made: Made, tmp_path: Path, said: list[str]
) -> None:
    within = TrainingOptions(device="cpu", memory="2GiB")
    train(made.recipe, made.pictures, tmp_path / "run", overrides=TWO, options=within, say=said.append)
    (line,) = [line for line in said if line.startswith("plan: ")]
    assert line.startswith("plan: 8 of 8 at a time, ")
    assert "no memory savings needed" in line
    logged = [event["line"] for event in read_events(tmp_path / "run" / "events.jsonl") if event["event"] == "choice"]
    for reason in ("micro-batch: 8 at a time", "loss terms: ", "recompute: not needed", "card: "):
        assert not any(line.startswith(reason) for line in said)
        assert sum(line.startswith(reason) for line in logged) == 1


def test_a_finished_run_says_so_and_opens_nothing(
    made: Made, begun: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {path: path.stat().st_mtime_ns for path in begun.rglob("*.*")}
    opened: list[str] = []
    monkeypatch.setattr("frugan.training.training.open_pictures", lambda *args, **options: opened.append("pictures"))
    monkeypatch.setattr("frugan.training.training.refuse_early", lambda *args: opened.append("networks"))
    result = train(made.recipe, made.pictures, begun, overrides=TWO, options=CPU, say=said.append)
    assert (result.step, result.finished, result.seconds > 0, opened) == (2, True, True, [])
    longer = f"frugan train {begun} --data {made.pictures} --device cpu 'training.duration=4 steps'"
    assert said == [f"{begun} is finished: step 2 of 2. To train longer: {longer}"]
    assert {path: path.stat().st_mtime_ns for path in begun.rglob("*.*")} == files


@pytest.mark.parametrize("left", ["grids", "a damaged checkpoint", "pictures that are gone", "another setting"])
def test_a_run_that_is_at_its_end_but_not_done(made: Made, begun: Path, said: list[str], left: str) -> None:
    fields, pictures = TWO, made.pictures
    if left == "grids":
        for grid in (begun / "samples").iterdir():
            grid.unlink()
    elif left == "a damaged checkpoint":
        damaged = begun / "checkpoints" / "step-000000002"
        shutil.copytree(damaged, begun / "checkpoints" / "step-000000003")
        (begun / "checkpoints" / "step-000000003" / "networks.safetensors").write_bytes(b"")
    elif left == "another setting":
        fields = [*TWO, "saving.keep_checkpoints=1"]
    else:
        with pytest.raises(BadInput, match="nowhere"):
            train(made.recipe, begun / "nowhere", begun, overrides=TWO, options=CPU, say=said.append)
        return
    assert train(made.recipe, pictures, begun, overrides=fields, options=CPU, say=said.append).step == 2
    assert any(line.startswith("resuming") for line in said)
    assert any("is finished: step 2 of 2. To train longer: frugan train" in line for line in said)
    assert {step.name for step in (begun / "checkpoints").glob("step-?????????")} == {"step-000000002"}
    assert list((begun / "samples").glob("step-000000002-*"))


def test_run_resumes_bit_for_bit(made: Made, begun: Path, said: list[str]) -> None:
    result = train(made.recipe, made.pictures, begun, options=CPU)
    assert (result.step, result.finished) == (4, True)
    _assert_same(made.whole, begun)
    assert train(made.recipe, made.pictures, begun, options=CPU, say=said.append).finished
    assert any("is finished: step 4 of 4. To train longer" in line and "=8 steps" in line for line in said)
    with pytest.raises(BadInput, match=r"at step 4 already.*from the beginning: 'training\.duration=7 steps' trains 3"):
        train(made.recipe, made.pictures, begun, overrides=["training.duration=3 steps"], options=CPU)
    changed = [e for e in read_events(begun / "events.jsonl") if e["event"] == "changed"]
    assert [(e["step"], e["field"], e["before"], e["now"]) for e in changed] == [
        (2, "training.duration", "2 steps", "4 steps")
    ]


@pytest.mark.long
def test_two_identical_runs_write_identical_files(tmp_path: Path) -> None:
    recipe, pictures = write_recipe(tmp_path), write_pictures(tmp_path / "pictures")
    runs = tmp_path / "a", tmp_path / "b"
    for run in runs:
        train(recipe, pictures, run, options=CPU, overrides=["training.duration=1 step"])
    names = [sorted(p.relative_to(run).as_posix() for p in run.rglob("*") if p.is_file()) for run in runs]
    assert names[0] == names[1]
    timed = {"events.jsonl", "state.json", "MANIFEST.json"}  # the manifest has a digest of the state
    for name in (name for name in names[0] if Path(name).name not in timed):
        assert (runs[0] / name).read_bytes() == (runs[1] / name).read_bytes(), name
    states = [json.loads(next(run.rglob("state.json")).read_text("utf-8")) for run in runs]
    assert all(state.pop("seconds") > 0 for state in states)
    assert states[0] == states[1]


def test_fixed_fields_are_refused_at_resume(made: Made, begun: Path) -> None:
    before = _tensors(begun)
    with pytest.raises(BadInput, match=r"networks\.latent_size: 8 in the run, 12 now"):
        train(made.recipe, made.pictures, begun, options=CPU, overrides=["networks.latent_size=12"])
    counting = ["training.batch=16", "training.duration=9k images"]
    with pytest.raises(
        BadInput, match=r"training\.batch: 8 in .*, 16 now, and training\.duration counts images, which"
    ):
        train(made.recipe, made.pictures, begun, options=CPU, overrides=counting)
    after = _tensors(begun)
    assert all(torch.equal(before[k], after[k]) for k in before)


def test_in_python_choices_are_printed_unless_somebody_else_is_told(
    made: Made, begun: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(made.recipe, made.pictures, begun, overrides=["training.batch=4"], options=CPU)
    assert "changed from step 2 on: training.batch: 8 -> 4" in capsys.readouterr().out
    train(made.recipe, made.pictures, begun, options=CPU, say=lambda _: None)
    assert not capsys.readouterr().out


def test_another_batch_may_go_on_and_has_a_plan_of_its_own(made: Made, begun: Path, said: list[str]) -> None:
    images = [e["images"] for e in read_events(begun / "events.jsonl") if e["event"] == "step"][-1]
    result = train(made.recipe, made.pictures, begun, overrides=["training.batch=4"], options=CPU, say=said.append)
    assert (result.step, result.finished) == (4, True)
    assert "changed from step 2 on: training.batch: 8 -> 4" in said
    assert any(line.startswith("batch: 4, at once") for line in said)
    steps = [e["images"] for e in read_events(begun / "events.jsonl") if e["event"] == "step"]
    assert steps[-2:] == [images + 4, images + 8]
    train(
        made.recipe,
        made.pictures,
        begun,
        overrides=["training.batch=4", "training.duration=5 steps"],
        options=CPU,
        say=said.append,
    )
    assert any(line.startswith("plan: the one that this run has used") for line in said)


@pytest.mark.long
def test_other_fields_may_change_at_resume(made: Made, begun: Path) -> None:
    changeable = ["optimizers.G.learning_rate=1e-5", "data.flip=true", "saving.snapshot_every=1 step"]
    assert train(made.recipe, made.pictures, begun, options=CPU, overrides=changeable).step == 4


def test_learning_rate_changed_at_resume_is_used(made: Made, begun: Path) -> None:
    before = _tensors(begun)
    changed = ["optimizers.G.learning_rate=1e-12", "optimizers.D.learning_rate=4e-2"]
    train(made.recipe, made.pictures, begun, options=CPU, overrides=changed)
    after = _tensors(begun)
    key = "networks.safetensors/{}.linear.weight"
    assert float((after[key.format("G")] - before[key.format("G")]).abs().max()) < 1e-10
    assert float((after[key.format("D")] - before[key.format("D")]).abs().max()) > 1e-3


def test_init_starts_from_other_weights_and_says_what_it_loaded(made: Made, tmp_path: Path) -> None:
    recipe, pictures, lines = made.recipe, made.pictures, list[str]()
    overrides = ["optimizers.G.learning_rate=1e-12", "optimizers.D.learning_rate=1e-12", "training.duration=1 step"]
    train(
        recipe,
        pictures,
        tmp_path / "second",
        options=CPU,
        init=made.whole,
        overrides=overrides,
        say=lines.append,
    )
    first, second = _tensors(made.whole), _tensors(tmp_path / "second")
    for name in ("networks.safetensors/G.linear.weight", "networks.safetensors/D.linear.weight"):
        torch.testing.assert_close(first[name], second[name], rtol=0, atol=1e-6)
    assert any(line.startswith("init: all weights of G, D from ") for line in lines)
    other = write_recipe(tmp_path, RECIPE.replace("latent_size = 8", "latent_size = 12"), "other.toml")
    lines.clear()
    one = ["training.duration=1 step"]
    train(other, pictures, tmp_path / "third", options=CPU, init=made.whole, overrides=one, say=lines.append)
    assert any(line.startswith("init: networks G: ") and "; linear new; from" in line for line in lines)
    assert any("latent_size is 8 there and 12 here" in line for line in lines)


def test_built_and_loaded_networks_are_safe_to_call(tmp_path: Path) -> None:
    """The same pictures whether called as they are or prepared by the engine; nothing moves; gradients flow."""
    from frugan.engine.state.working_weights import prepared  # noqa: PLC0415

    recipe, pictures = write_recipe(tmp_path), write_pictures(tmp_path / "pictures")
    # Xavier: orthogonal weights have a singular value of 1 already, and raw weights would pass for prepared ones.
    words = ["networks.generator_initialisation=xavier", "training.duration=1 step"]
    train(recipe, pictures, tmp_path / "run", options=CPU, overrides=words)
    generator = frugan.load(tmp_path / "run")["G"]
    state = {k: v.clone() for k, v in generator.state_dict().items()}
    z, y = torch.randn(3, 8), torch.tensor([0, 1, 1])
    called = generator(z, generator.embed(y))  # type: ignore[operator]
    with prepared(generator), torch.no_grad():
        by_engine = generator(z, generator.embed(y))  # type: ignore[operator]
    torch.testing.assert_close(called.detach(), by_engine, rtol=0, atol=5e-6)  # divided alone, or with all others
    called.sum().backward()
    assert all(p.grad is not None for p in generator.parameters())
    assert all(torch.equal(v, state[k]) for k, v in generator.state_dict().items())
    raw = state["linear.weight"]
    assert not torch.allclose(raw, generator.linear.working_weight("weight", raw))  # type: ignore[operator, union-attr]


def test_run_without_its_pictures_changed_is_said(made: Made, begun: Path, tmp_path: Path, said: list[str]) -> None:
    others = write_pictures(tmp_path / "pictures", each=8)
    train(made.recipe, others, begun, options=CPU, overrides=["training.duration=3 steps"], say=said.append)
    assert any("not those the run was begun with" in line for line in said)


def test_precision_that_auto_chose_is_kept_at_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bf16_units: Callable[[bool], None], said: list[str]
) -> None:
    monkeypatch.syspath_prepend(str(OUTSIDE))
    _, pictures = minigan_and_pictures(tmp_path)
    recipe = write_recipe(tmp_path, MINIGAN.replace('precision = "fp32"', 'precision = "auto"'))
    bf16_units(False)
    train(recipe, pictures, tmp_path / "run", options=CPU, overrides=["training.duration=1 step"])
    bf16_units(True)
    train(recipe, pictures, tmp_path / "run", options=CPU, overrides=TWO, say=said.append)
    assert "precision: fp32 (as this run began)" in said
    saved = json.loads((sorted((tmp_path / "run" / "checkpoints").iterdir())[-1] / "state.json").read_text())
    assert saved["plan"]["precision"] == "fp32"


@pytest.mark.long
def test_micro_batch_and_recompute_do_not_change_the_result(tmp_path: Path) -> None:
    recipe, pictures = write_recipe(tmp_path), write_pictures(tmp_path / "pictures")
    train(recipe, pictures, tmp_path / "plain", options=CPU, overrides=TWO)
    options = TrainingOptions(recompute=True, ema_on_host=True, device="cpu")
    train(recipe, pictures, tmp_path / "saved", options=options, overrides=TWO)
    _assert_same(tmp_path / "plain", tmp_path / "saved")


def test_what_trackers_leave_of_a_refused_start_blocks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(OUTSIDE))
    (recipe, pictures), run = minigan_and_pictures(tmp_path), tmp_path / "run"
    run.mkdir()
    options = TrainingOptions(device="cpu", micro_batch=7, tensorboard=True)
    with pytest.raises(BadInput, match="micro-batch 7"):
        train(recipe, pictures, run, options=options)
    one = ["training.duration=1 step"]
    assert train(recipe, pictures, run, overrides=one, options=TrainingOptions(device="cpu", tensorboard=True)).finished
