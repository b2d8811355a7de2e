"""From facesets to a run: stages, changed options, parked discriminators, pretraining, previews."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import frugan
from faces.face_runs import CPU, DATA, FACES, SMALL, of_network, same_tensors, tensors_of, train_faces
from frugan.contract.family import GridRequest
from frugan.engine.run.events import EventLog, read_events
from frugan.engine.step.step import Step
from frugan.errors import BadInput
from frugan.faces.data.batches import FaceBatches
from frugan.faces.data.face import FaceType, SampleSettings
from frugan.faces.data.faceset import open_faceset
from frugan.faces.data.sample import aligned_picture
from frugan.faces.saehd.family import SAEHDFamily
from frugan.reporting.loss_history import LossHistory
from frugan.sampling.sampling import sample, transform
from frugan.training.training import train
from tools.draw_faces.drawn_faceset import draw_faceset

pytestmark = pytest.mark.usefixtures("narrow_faces", "no_previews")
STAGED = """
family = "saehd"
[networks]
archi = "liae-ud"
resolution = 64
face_type = "f"
ae_dims = 16
e_dims = 4
d_dims = 4
d_mask_dims = 2
gan_dims = 4
[training]
batch = 2
duration = "4 steps"
precision = "fp32"
[optimizers.default]
kind = "adabelief"
[[stages]]
at = "2 steps"
set = { "objective.random_warp" = false, "optimizers.default.dropout" = 0.3, "optimizers.default.period" = 10 }
[[stages]]
at = "3 steps"
set = { "objective.gan_power" = 0.1 }
"""


def test_stages_take_effect_and_a_stopped_run_is_the_same_run(tmp_path: Path) -> None:
    recipe = tmp_path / "staged.toml"
    recipe.write_text(STAGED, "utf-8")

    def run(name: str, *parts: int) -> tuple[Path, str]:
        lines: list[str] = []
        for steps in parts:
            words = [f"training.duration={steps} steps"]
            train(str(recipe), DATA, tmp_path / name, overrides=words, options=CPU, say=lines.append)
        return tmp_path / name, "\n".join(lines)

    whole, said = run("whole", 4)
    assert "stage from step 2 on: objective.random_warp = False" in said
    assert "stage from step 3 on: objective.gan_power = 0.1" in said
    phases = [set(e["phases"]) for e in read_events(whole / "events.jsonl") if e["event"] == "step"]
    assert phases == [{"autoencoder"}] * 3 + [{"autoencoder", "patch_discriminator"}]
    pieces, _ = run("pieces", 1, 2)
    early = tensors_of(pieces)
    run("pieces", 3)
    late = tensors_of(pieces)
    assert not same_tensors(of_network(early, "inter_B"), of_network(late, "inter_B"))
    assert same_tensors(of_network(early, "inter_AB"), of_network(late, "inter_AB"))  # rests without random warp
    run("pieces", 4)
    for file in ("networks", "optimizers"):
        a, b = tensors_of(whole, file), tensors_of(pieces, file)
        assert a.keys() == b.keys()
        assert [k for k in a if not torch.equal(a[k], b[k])] == []


@pytest.mark.long
def test_a_discriminator_that_is_off_is_kept(tmp_path: Path) -> None:
    run = tmp_path / "run"
    _, said = train_faces(run, steps=1)
    assert not any(key.startswith("patch_discriminator") for key in tensors_of(run))
    _, said = train_faces(run, "objective.gan_power=0.1", steps=3)
    assert "patch_discriminator: starts with fresh weights" in said
    trained = (
        of_network(tensors_of(run), "patch_discriminator"),
        of_network(tensors_of(run, "optimizers"), "patch_discriminator"),
    )
    _, said = train_faces(run, steps=4)
    assert "patch_discriminator: not used at present; kept as it is" in said
    kept = (
        of_network(tensors_of(run), "patch_discriminator"),
        of_network(tensors_of(run, "optimizers"), "patch_discriminator"),
    )
    assert same_tensors(trained[0], kept[0])
    assert same_tensors(trained[1], kept[1])
    _, said = train_faces(run, "objective.gan_power=0.1", "networks.gan_dims=8", steps=5)
    assert "patch_discriminator: starts with fresh weights" in said


@pytest.mark.long
def test_a_discriminator_of_another_shape_while_it_is_off_begins_anew(tmp_path: Path) -> None:
    """The old weights must not come back."""
    run = tmp_path / "run"
    train_faces(run, "objective.gan_power=0.1", steps=5)
    train_faces(run, "networks.gan_dims=8", steps=6)
    train_faces(run, "networks.gan_dims=4", steps=7)
    _, said = train_faces(run, "networks.gan_dims=4", "objective.gan_power=0.1", steps=8)
    assert "patch_discriminator: starts with fresh weights" in said


@pytest.mark.long
def test_a_run_that_dies_after_a_change_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """recipe.json has the change then, the checkpoint has not: what counts is the checkpoint."""
    run, on = tmp_path / "run", "objective.gan_power=0.1"
    train_faces(run, on, steps=2)
    before = of_network(tensors_of(run), "patch_discriminator")
    with monkeypatch.context() as dying:
        dying.setattr(Step, "run", lambda *_, **__: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            train_faces(run, on, "networks.gan_dims=8", steps=3)
    train_faces(run, on, steps=2)
    assert same_tensors(before, of_network(tensors_of(run), "patch_discriminator"))
    _, said = train_faces(run, on, "networks.gan_dims=8", steps=3)
    assert "patch_discriminator: starts with fresh weights" in said


@pytest.mark.long
def test_damaged_checkpoints_make_room_for_whole_ones(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = (
        "saving.checkpoint_every=1 steps",
        "saving.keep_checkpoints=1",
        "optimizers.default.final_learning_rate=none",
    )
    train_faces(run, *words, "saving.keep_checkpoints=3", steps=3)
    whole = [tensor.clone() for tensor in tensors_of(run).values()]  # apart from the file, which is cut next
    folder = run / "checkpoints"
    (folder / "step-000000003" / "networks.safetensors").write_bytes(b"cut")
    (folder / "step-000000002" / "MANIFEST.json").write_bytes(b"cut")
    _, said = train_faces(run, *words, steps=2)
    assert said.count("set aside as") == 2
    # one is kept, and beside it the first, until there is one from long before the end
    kept = sorted(p.name for p in folder.iterdir() if p.name.startswith("step-"))
    assert kept == ["step-000000001", "step-000000002"]
    train_faces(run, *words, steps=3)
    assert same_tensors(whole, list(tensors_of(run).values()))


def test_losses_of_steps_that_were_lost_do_not_count(tmp_path: Path) -> None:
    """Killed before its first checkpoint, a run begins again, and so does its history."""
    with EventLog(tmp_path / "events.jsonl") as log:
        for began, ended in ((0, 5), (0, 4), (2, 6)):
            if began:
                log.write("resume", step=began)
            log.write("start", step=began)
            for step in range(began + 1, ended + 1):
                log.write("step", step=step, phases={"autoencoder": {"terms": {"src/mse": float(step + 10 * ended)}}})
    history = LossHistory.of(tmp_path / "events.jsonl")
    assert list(history.curves["src"]) == [41, 42, 63, 64, 65, 66]
    assert list(history.steps["src"]) == [1, 2, 3, 4, 5, 6]


@pytest.mark.long
def test_each_sample_is_made_once_whatever_the_number_of_phases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[int, int]] = []
    take = FaceBatches.take
    monkeypatch.setattr(FaceBatches, "take", lambda self, *asked: made.append(asked) or take(self, *asked))  # type: ignore[func-returns-value]
    train_faces(tmp_path / "run", "objective.gan_power=0.1", "objective.true_face_power=0.01", steps=6)
    training = [asked for asked in made if asked[1] == 2]
    assert sorted(asked[0] for asked in training) == sorted(2 * list(range(0, 2 * len(training) // 2, 2)))
    assert len(training) <= 2 * (6 + 2)  # read ahead by two


@pytest.mark.long
def test_other_weights_but_for_a_network_of_another_size(tmp_path: Path) -> None:
    train_faces(tmp_path / "first", "objective.gan_power=0.1", steps=1)
    words = ("objective.gan_power=0.1", "networks.gan_dims=8")
    _, said = train_faces(tmp_path / "second", *words, steps=1, init=tmp_path / "first")
    assert "fresh: patch_discriminator" in said


def test_a_preview_that_is_not_finite_is_told_and_ends_nothing(
    tmp_path: Path, previews: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample_grid = SAEHDFamily.sample
    monkeypatch.setattr(SAEHDFamily, "sample", lambda *asked: sample_grid(*asked) * float("nan"))
    result, said = train_faces(tmp_path / "run", steps=1)
    assert result.finished
    assert "step-000000001-preview.png: 20 of 20 pictures hold values that are not finite" in said


@pytest.mark.long
def test_faces_of_a_type_that_models_do_not_have(tmp_path: Path) -> None:
    draw_faceset(tmp_path / "faces", 0, 2, seed=0, size=64, face_type=FaceType.FULL_NO_ALIGN)
    data = dict.fromkeys(("src", "dst"), tmp_path / "faces")
    words = [*SMALL, "networks.face_type=wf"]
    with pytest.raises(BadInput, match=r"extracted as full_face_no_align, .* again as whole_face$"):
        train("saehd-demo-64", data, tmp_path / "run", overrides=words, options=CPU)


def test_a_run_is_its_own_recipe(tmp_path: Path, said: list[str]) -> None:
    run = tmp_path / "run"
    train_faces(run, "objective.gan_power=0.1", "optimizers.default.kind=rmsprop", steps=1)
    result = train(str(run), DATA, overrides=["training.duration=2 steps"], options=CPU, say=said.append)
    assert (result.run, result.step) == (run, 2)
    told = [line.replace(str(FACES), "").replace(str(tmp_path), "") for line in said]  # a path may say so too
    assert [line for line in told if "changed" in line or "fresh" in line] == [
        "changed from step 1 on: training.duration: 1 steps -> 2 steps"
    ]


@pytest.mark.long
def test_swapped_sides_and_other_mistakes_leave_everything_as_it_was(tmp_path: Path) -> None:
    sides = {side: tmp_path / side for side in ("src", "dst")}
    for person, folder in enumerate(sides.values()):
        draw_faceset(folder, person, 2, seed=0, size=64)
    words = [*SMALL, "networks.face_type=wf", "training.duration=1 steps"]
    train("saehd-demo-64", sides, tmp_path / "run", overrides=words, options=CPU)
    swapped = {"src": sides["dst"], "dst": sides["src"]}
    with pytest.raises(BadInput, match=r"--data dst=... and --data src=... are swapped"):
        train(str(tmp_path / "run"), swapped, overrides=["training.duration=2 steps"], options=CPU)
    with pytest.raises(BadInput, match=r"expected a run folder, a checkpoint or a \.safetensors file"):
        train("saehd-demo-64", sides, tmp_path / "new", init=tmp_path / "nonsense", overrides=words, options=CPU)
    with pytest.raises(BadInput, match="micro-batch 99"):
        train("saehd-demo-64", sides, tmp_path / "new", overrides=words, options=replace(CPU, micro_batch=99))
    assert not (tmp_path / "new").exists()


@pytest.mark.long
def test_another_optimizer_starts_with_fresh_state(tmp_path: Path) -> None:
    train_faces(tmp_path / "run", steps=1)
    _, said = train_faces(tmp_path / "run", "optimizers.default.kind=rmsprop", steps=2)
    assert "optimizer autoencoder: another kind than before (ms, vs); its state is fresh" in said
    assert {key.rsplit("/", 1)[1] for key in tensors_of(tmp_path / "run", "optimizers")} == {"acc", "updates"}


@pytest.mark.long
def test_previews_show_faces_losses_and_where_they_come_from(tmp_path: Path, previews: None) -> None:
    run = tmp_path / "run"
    train_faces(run, steps=3)
    paths = sorted((run / "samples").iterdir())
    kinds = ("preview-masked", "preview")
    assert [p.name for p in paths] == [f"step-{step:09d}-{kind}.png" for step in (1, 3) for kind in kinds]
    with Image.open(paths[-1]) as preview:
        assert "synthetic" in preview.text["Description"]  # type: ignore[attr-defined]
        assert preview.width == 5 * 66 + 2
        assert preview.height > 4 * 66 + 100
    (shown,) = {p.name for p in sample(run, tmp_path / "more", data=DATA, device="cpu", say=print)} - {
        "preview-masked.png"
    }
    assert shown == "preview.png"
    with pytest.raises(BadInput, match="add --data PATH, or --data src=PATH --data dst=PATH"):
        sample(run, tmp_path / "more", device="cpu", say=print)
    with pytest.raises(BadInput, match="--classes: for families that draw from random inputs"):
        sample(run, tmp_path / "more", GridRequest(classes=(1,)), data=DATA, device="cpu", say=print)


def test_swapped_faces_as_single_files(tmp_path: Path) -> None:
    """As the networks make them of the faces as they are, under their names."""
    run = train_faces(tmp_path / "run", steps=1)[0].run
    paths = transform(run, tmp_path / "out", 3, data=DATA, micro_batch=2, device="cpu", say=print)
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == [f"out/pngs/{n:05}_0.png" for n in range(3)]
    faceset = open_faceset(FACES)
    networks = frugan.load(run)
    settings = SampleSettings(64, FaceType.FULL, random_warp=False, random_flip=False)
    face = aligned_picture(faceset.faces[2], faceset.picture(2), settings)
    code = networks["inter"](networks["encoder"](torch.from_numpy(face).permute(2, 0, 1)[None]))
    swapped = networks["decoder_src"](code)[0][0].detach().flip(0).clamp(0, 1) * 255
    with Image.open(paths[2]) as picture:
        shown = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
        assert "synthetic" in picture.text["Description"]  # type: ignore[attr-defined]
    assert float((shown - swapped).abs().max()) <= 1
    with pytest.raises(BadInput, match="holds something already"):
        transform(run, tmp_path / "out", 3, data=DATA, device="cpu", say=print)
    odd = replace(faceset, faces=tuple(replace(face, person="../../x") for face in faceset.faces))
    paths = transform(run, tmp_path / "odd", 1, data={"src": odd, "dst": odd}, device="cpu", say=print)
    assert [path.name for path in paths] == [".._.._x-00000_0.png"]


def test_networks_from_a_run_can_be_called(tmp_path: Path) -> None:
    train_faces(tmp_path / "run", steps=1)
    networks = frugan.load(tmp_path / "run")
    vectors = networks["encoder"](torch.rand(2, 3, 64, 64))
    face, mask = networks["decoder_src"](networks["inter"](vectors))
    assert face.shape == (2, 3, 64, 64)
    assert mask.shape == (2, 1, 64, 64)


@pytest.mark.long
def test_the_number_of_workers_does_not_matter(tmp_path: Path) -> None:
    train_faces(tmp_path / "none", steps=2)
    words = [*SMALL, "training.duration=2 steps"]
    train("saehd-demo-64", DATA, tmp_path / "two", overrides=words, options=replace(CPU, workers=2))
    assert same_tensors(list(tensors_of(tmp_path / "none").values()), list(tensors_of(tmp_path / "two").values()))


@pytest.mark.parametrize(
    ("data", "overrides", "message"),
    [
        (None, (), "data: expected str or Path or"),
        ({}, (), "no pictures given for 'dst'"),
        ({"src": FACES}, (), "no pictures given for 'dst'"),
        ({"src": FACES, "dst": FACES, "more": FACES}, (), "unknown name"),
        ("/does/not/exist", (), "is no folder; expected a DeepFaceLab workspace"),
        ({"src": "/does/not/exist", "dst": FACES}, (), "/does/not/exist"),
        (DATA, ("networks.face_type=head",), "extracted as"),
    ],
)
def test_data_that_cannot_be_used(tmp_path: Path, data: object, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        train("saehd-demo-64", data, tmp_path / "run", overrides=[*SMALL, *overrides], options=CPU)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_faces_of_different_types_need_consent(tmp_path: Path) -> None:
    for side, face_type in (("src", FaceType.WHOLE_FACE), ("dst", FaceType.HEAD)):
        draw_faceset(tmp_path / side, 0, 2, seed=0, size=64, face_type=face_type)
    data = {side: tmp_path / side for side in ("src", "dst")}
    words = [*SMALL, "networks.face_type=wf", "training.duration=1 steps"]
    with pytest.raises(BadInput, match=r"src was extracted as whole_face; dst .* as head: .*mixed_face_types=true"):
        train("saehd-demo-64", data, tmp_path / "run", overrides=words, options=CPU)
    assert not (tmp_path / "run").exists()
    train("saehd-demo-64", data, tmp_path / "run", overrides=[*words, "objective.mixed_face_types=true"], options=CPU)
