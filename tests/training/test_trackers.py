"""TensorBoard and Weights & Biases get what the events say."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from frugan.errors import BadInput
from frugan.training.observers import following, has_tensorboard, scalars

PHASES = {"D": {"terms": {"real": 0.5, "fake": "nan"}, "gradient_norm": 2.0, "loss_scale": 1.0, "skipped": 0}}
STEP: dict[str, Any] = {"event": "step", "step": 7, "phases": PHASES, "images_per_second": 3.0, "memory_bytes": None}
SCORES: dict[str, Any] = {"event": "metrics", "step": 7, "scores": {"fid": 4.0}}


def snapshot(run: Path) -> dict[str, Any]:
    (run / "samples").mkdir(parents=True)
    Image.new("RGB", (8, 4)).save(run / "samples" / "step-000000007-samples.png")
    return {"event": "snapshot", "step": 7, "paths": ["samples/step-000000007-samples.png"]}


def test_numbers_of_events() -> None:
    assert scalars(STEP) == {
        "D/real": 0.5,
        "D/gradient_norm": 2.0,
        "D/loss_scale": 1.0,
        "D/skipped": 0.0,
        "images_per_second": 3.0,
    }
    assert scalars(SCORES) == {"scores/fid": 4.0}
    judged = {"event": "metrics", "scores": {"fid": 4.0, "two_sample": 0.7}, "provenance": {"network": "digits"}}
    assert scalars(judged) == {"scores/fid (digits)": 4.0, "scores/two_sample": 0.7}
    variety = {"event": "variety", "step": 7, "mean": {"a": 0.5, "b": 0.7}, "nearest": {"a": 0.25, "b": 0.75}}
    assert scalars(variety) == {"variety/mean": 0.6, "variety/nearest": 0.5}
    assert scalars({"event": "choice"}) == {}


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    assert has_tensorboard()
    with following(tmp_path, tensorboard=True, wandb_project=None) as follow:
        for event in (STEP, SCORES, snapshot(tmp_path), {"event": "choice", "line": "x"}):
            follow(event)
    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    assert [(e.step, e.value) for e in read.Scalars("D/real")] == [(7, 0.5)]
    assert [e.value for e in read.Scalars("scores/fid")] == [4.0]
    assert [e.step for e in read.Images("samples")] == [7]


def test_weights_and_biases_gets_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[dict[str, Any]] = []
    config: dict[str, Any] = {}
    session = SimpleNamespace(
        config=SimpleNamespace(update=lambda values, **_: config.update(values)),
        log=logged.append,
        finish=lambda: logged.append({"finished": True}),
    )
    begun: list[dict[str, Any]] = []

    def init(**how: Any) -> SimpleNamespace:
        begun.append(how)
        return session

    fake = SimpleNamespace(init=init, Image=lambda path: f"image {Path(path).name}")
    monkeypatch.setitem(sys.modules, "wandb", fake)
    with following(tmp_path, tensorboard=False, wandb_project="mine") as follow:
        for event in ({"event": "start", "recipe": {"family": "biggan"}}, STEP, snapshot(tmp_path), {"event": "stop"}):
            follow(event)
    assert config == {"family": "biggan"}
    assert [entry.get("D/real") for entry in logged] == [0.5, None, None]
    assert logged[1]["samples"] == "image step-000000007-samples.png"
    assert logged[-1] == {"finished": True}
    with following(tmp_path, tensorboard=False, wandb_project="mine"):
        pass
    assert begun[0] == begun[1], "a run that goes on is the same one there"
    (tmp_path / "other").mkdir()
    with following(tmp_path / "other", tensorboard=False, wandb_project="mine"):
        pass
    assert begun[2]["id"] != begun[0]["id"]


@pytest.mark.parametrize(
    ("module", "asked", "message"),
    [
        ("torch.utils.tensorboard", {"tensorboard": True, "wandb_project": None}, "TensorBoard is not installed"),
        ("wandb", {"tensorboard": False, "wandb_project": "mine"}, "--wandb mine: .* pip install wandb"),
    ],
)
def test_what_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, asked: dict[str, Any], message: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BadInput, match=message), following(tmp_path, **asked):
        pass
