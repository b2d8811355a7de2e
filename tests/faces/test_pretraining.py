"""Pretraining: said where it is met, on faces of its own, and ended by one word on resuming."""

from pathlib import Path

import pytest
import torch

from faces.face_runs import CPU, SMALL, same_tensors, tensors_of, train_faces
from frugan.engine.run.run_folder import RunFolder
from frugan.errors import BadInput
from frugan.recipe.loading import load_recipe, parse_recipe, stages_overridden
from frugan.reporting.loss_history import LossHistory
from frugan.reporting.report import RunReader
from frugan.sampling.generators import provenance
from frugan.training.training import train
from tools.draw_faces.drawn_faceset import draw_faceset

pytestmark = pytest.mark.usefixtures("narrow_faces", "no_previews")
ON, OFF = "objective.pretrain=true", "objective.pretrain=false"


def test_the_start_says_what_is_in_force_and_reads_faces_of_its_own(tmp_path: Path, said: list[str]) -> None:
    draw_faceset(tmp_path / "many", 0, 3, seed=0, size=64)
    words = [*SMALL, "networks.face_type=wf", ON, "objective.random_warp=true", f"data.pretrain={tmp_path / 'many'}"]
    train(
        "saehd-demo-64",
        {},
        tmp_path / "run",
        overrides=[*words, "training.duration=1 steps"],
        options=CPU,
        say=said.append,
    )
    told = "\n".join(said)
    for side in ("src", "dst"):
        assert f"data {side}: 3 faces in {tmp_path / 'many'}" in told
    assert "pretraining: in force whatever else is set: random_warp=false, random_src_flip=true" in told
    assert "pretraining ends by objective.pretrain=false on resuming" in told
    assert "holds throughout" not in told
    reader = RunReader(RunFolder(tmp_path / "run"), "run")
    reader.read(to_the_end=True)
    assert reader.view().tiles["not yet the usual training"] == "pretraining"


def test_what_pretraining_overrules_is_not_said_to_hold() -> None:
    words = ["objective.random_warp=true"]
    assert len(stages_overridden("saehd-demo-64", words)) == 1
    assert stages_overridden("saehd-demo-64", [*words, ON]) == []


def test_pictures_say_that_they_are_of_pretraining() -> None:
    before, after = (load_recipe("saehd-demo-64", [word]) for word in (ON, OFF))
    assert provenance(before, 4)["Description"].endswith("network at step 4 of pretraining")
    assert provenance(after, 4)["Description"].endswith("network at step 4")


@pytest.mark.parametrize("before", [True, False])
def test_no_stage_begins_or_ends_pretraining(before: bool) -> None:
    values = load_recipe("saehd-demo-64", [f"objective.pretrain={str(before).lower()}"]).model_dump(mode="json")
    values["stages"] = [{"at": "5 steps", "set": {"objective.pretrain": not before}}]
    with pytest.raises(BadInput, match=r"stages, at 5 steps: networks would start anew, which only a resumption does"):
        parse_recipe(values, "here")


def test_sets_of_pictures_have_no_faces_to_pretrain_on() -> None:
    with pytest.raises(BadInput, match=r"data\.pretrain=many: for faces alone; leave it out"):
        load_recipe("biggan-digits-32", ["data.pretrain=many"])


def test_one_word_on_resuming_ends_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train_faces(run, ON, steps=2)
    before, before_slots = tensors_of(run), tensors_of(run, "optimizers")
    (run / "samples").mkdir(exist_ok=True)
    (run / "samples" / "step-000000002-preview.png").touch()
    steps = "saving.checkpoint_every=1 steps", "training.batch=3"
    _, told = train_faces(run, OFF, *steps, steps=1)
    assert "pretraining is over at its step 2" in told
    assert "inter: starts with fresh weights" in told
    assert "changed from step 0 on: training.batch: 2 -> 3" in told
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["step-000000000", "step-000000001"]
    assert [p.name for p in (run / "pretraining" / "checkpoints").iterdir()] == ["step-000000002"]
    assert (run / "pretraining" / "samples" / "step-000000002-preview.png").exists()
    assert [*LossHistory.of(run / "events.jsonl").steps["src"]] == [1]

    (run / "checkpoints" / "step-000000001").rename(tmp_path / "later")
    began, began_slots = tensors_of(run), tensors_of(run, "optimizers")
    kept = {key for key in before if torch.equal(before[key], began[key])}
    assert {key for key in before if not key.startswith("inter.")} <= kept
    assert "inter.dense1.weight" not in kept
    assert same_tensors([*before_slots.values()], [began_slots[key] for key in before_slots])  # the bottleneck's too

    (tmp_path / "later").rename(run / "checkpoints" / "step-000000001")
    _, told = train_faces(run, OFF, *steps, steps=2)
    assert f"resuming {run} at step 1" in told
    assert "not those the run was begun with" not in told


def test_it_does_not_begin_again_in_the_midst_of_the_swap(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train_faces(run, ON, steps=1)
    train_faces(run, OFF, steps=2)
    with pytest.raises(BadInput, match="is past its pretraining, which comes first"):
        train_faces(run, ON, steps=3)
    assert (run / "checkpoints" / "step-000000002").is_dir()


@pytest.mark.long
def test_killed_while_it_ends_it_ends_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise MemoryError

    run = tmp_path / "run"
    train_faces(run, ON, steps=2)
    with monkeypatch.context() as dying:
        dying.setattr(RunFolder, "leave_behind", killed)
        with pytest.raises(MemoryError):
            train_faces(run, OFF, steps=1)
    _, told = train_faces(run, OFF, steps=1)
    assert "pretraining is over at its step 2" in told
    assert [p.name for p in (run / "pretraining" / "checkpoints").iterdir()] == ["step-000000002"]


@pytest.mark.long
def test_a_new_run_from_a_pretrained_one_has_a_fresh_bottleneck(tmp_path: Path) -> None:
    train_faces(tmp_path / "many", "objective.pretrain=true", steps=2)
    _, said = train_faces(tmp_path / "one", steps=1, init=tmp_path / "many")
    assert "fresh: inter" in said
    _, said = train_faces(tmp_path / "two", "training.seed=1", steps=1, init=tmp_path / "many")
    assert "optimizer state is taken over" in said
    before, after = tensors_of(tmp_path / "many"), tensors_of(tmp_path / "two")
    encoder, inter = "encoder.down1.downs.1.conv1.weight", "inter.dense1.weight"
    assert float((before[encoder] - after[encoder]).abs().max()) < 5e-3  # one step of at most 3.5 times the rate
    assert float((before[inter] - after[inter]).abs().max()) > 0.02
    slots = tensors_of(tmp_path / "two", "optimizers")
    assert int(slots["autoencoder/updates"]) == 3
