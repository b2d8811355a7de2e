"""NaN in a loss, in a gradient, in a weight: skipped, then gone back from, and at last the end, with the cause."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from faults.small_runs import OUTSIDE, minigan_and_pictures
from frugan.accelerator.base import Processor
from frugan.accelerator.precision import Precision
from frugan.engine.run.checkpoint import list_checkpoints
from frugan.engine.run.events import Event, read_events
from frugan.engine.run.loop import Loop
from frugan.engine.run.step_log import Diverged
from frugan.engine.run.tensor_files import read_tensors
from frugan.engine.state.state import TrainingState
from frugan.engine.step.step import Step
from frugan.engine.streams import derive_seed
from frugan.reporting.report import page_of
from frugan.training import recovery
from frugan.training.beginning import begin
from frugan.training.run import TrainingOptions
from frugan.training.training import train
from limits import Limit

CPU = TrainingOptions(device="cpu")
PERSISTS = 3
"""Skips in a row that count as persistent in these tests."""
BAD = 5
"""Steps done when the trouble begins. Nothing of a skipped update is in the checkpoint of step 6; a bad weight is."""

Inject = Callable[[TrainingState, dict[str, torch.Tensor]], None]


def bad_term(state: TrainingState, terms: dict[str, torch.Tensor]) -> None:
    name = next(iter(terms))
    terms[name] = terms[name] * torch.nan


def bad_gradient(state: TrainingState, terms: dict[str, torch.Tensor]) -> None:
    moved = next(p for p in state.networks["G"].parameters() if p.grad is not None)
    assert moved.grad is not None
    moved.grad.view(-1)[0] = torch.nan


def bad_weight(state: TrainingState, terms: dict[str, torch.Tensor]) -> None:
    """What a bit that flips in memory does: no update has brought it, and none will mend it."""
    with torch.no_grad():
        next(iter(state.networks["G"].parameters())).view(-1)[0] = torch.nan


def overflow_in_fp16(state: TrainingState, terms: dict[str, torch.Tensor]) -> None:
    """What no loss scale helps against: the least one is in force, and the gradient is not finite all the same."""
    if state.loss_scales["G"].dynamic:  # in fp16 alone
        state.loss_scales["G"].scale.fill_(1.0)
        bad_gradient(state, terms)


@pytest.fixture
def inject(monkeypatch: pytest.MonkeyPatch, limit: Limit) -> Callable[[Inject, Callable[[int, int], bool]], None]:
    """Put something bad into the updates of G, where `when(step, seed of the draws)` says so."""
    limit("skips in a row", PERSISTS)
    whole: Any = Step._backward

    def put(what: Inject, when: Callable[[int, int], bool]) -> None:
        def backward(self: Step, state: TrainingState, *rest: Any) -> Any:
            terms, shares = whole(self, state, *rest)
            if rest[1].phase.name == "G" and when(state.step, self.draws.seed):  # type: ignore[attr-defined]
                what(state, terms)
            return terms, shares

        monkeypatch.setattr(Step, "_backward", backward)

    return put


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    monkeypatch.syspath_prepend(str(OUTSIDE))
    return minigan_and_pictures(tmp_path)


def _events(run: Path, *kinds: str) -> list[Event]:
    return [event for event in read_events(run / "events.jsonl") if event["event"] in kinds]


def _finite(run: Path) -> bool:
    newest = list_checkpoints(run / "checkpoints")[-1]
    tensors = read_tensors(newest.path / "networks.safetensors")[0]
    return all(bool(torch.isfinite(each).all()) for each in tensors.values() if each.is_floating_point())


@pytest.mark.parametrize("what", [pytest.param(bad_term, marks=pytest.mark.long), bad_gradient])
def test_one_bad_update_is_skipped(
    tmp_path: Path, recipe: tuple[str, Path], inject: Callable[..., None], what: Inject
) -> None:
    inject(what, lambda step, seed: step == BAD)
    result = train(*recipe, tmp_path / "run", options=CPU)
    assert result.finished
    (skipped,) = _events(tmp_path / "run", "skipped")
    assert (skipped["step"], skipped["phase"], skipped["in_a_row"]) == (BAD + 1, "G", 1)
    assert _events(tmp_path / "run", "rollback") == []
    assert _finite(tmp_path / "run")


@pytest.mark.parametrize(
    ("what", "to"),
    [(bad_term, 6), *(pytest.param(*case, marks=pytest.mark.long) for case in ((bad_gradient, 6), (bad_weight, 2)))],
)
def test_what_persists_is_gone_back_from(
    tmp_path: Path, recipe: tuple[str, Path], inject: Callable[..., None], what: Inject, to: int
) -> None:
    inject(what, lambda step, seed: step >= BAD and seed == 0)  # the recipe's own order of data
    run = tmp_path / "run"
    assert train(*recipe, run, options=CPU).finished
    (back,) = _events(run, "rollback")
    assert (back["to"], back["number"], back["most"]) == (to, 1, 2)
    assert back["phase"] in ("D", "G")  # a bad weight of G spoils D's updates first
    assert [e["step"] for e in _events(run, "resume")] == [to]
    seen = [e["step"] for e in _events(run, "step")]
    assert seen[to - 12 :] == list(range(to + 1, 13))
    assert _finite(run)
    aside = sorted(path.name for path in (run / "checkpoints").glob("diverged-*"))
    assert aside[0] == f"diverged-step-{max(6, to + 2):09d}"  # renamed, not deleted
    page = page_of([run])
    assert f"back to step {to} and on in another order of data (1 of training.rollbacks=2)" in page
    # and a resumption keeps to the new order
    longer = train(recipe[0], recipe[1], run, overrides=["training.duration=14 steps"], options=CPU)
    assert (longer.step, len(_events(run, "rollback"))) == (14, 1)


def test_the_time_after_which_to_stop_does_not_begin_anew_where_a_run_goes_back(
    tmp_path: Path, recipe: tuple[str, Path], inject: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stops: list[float | None] = []

    def noted(*args: Any) -> Loop:
        loop = begin(*args)
        stops.append(loop.stop_at)
        return loop

    inject(bad_term, lambda step, seed: step >= BAD and seed == 0)
    monkeypatch.setattr("frugan.training.training.begin", noted)
    before = time.perf_counter()
    train(*recipe, tmp_path / "run", options=TrainingOptions(device="cpu", stop_after="1h"))
    first, again = stops
    assert first == again is not None
    assert before + 3600 <= again <= time.perf_counter() + 3600


def test_a_bad_weight_in_a_checkpoint_that_seems_sound(
    tmp_path: Path,
    recipe: tuple[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    limit: Limit,
) -> None:
    """It went bad after the last update before the checkpoint: only its values tell."""
    limit("skips in a row", PERSISTS)
    whole = Step.run

    def run_and_spoil(self: Step, state: TrainingState, *rest: Any, **more: Any) -> Any:
        done = whole(self, state, *rest, **more)
        if state.step == 6 and self.draws.seed == 0:  # type: ignore[attr-defined]
            bad_weight(state, {})
        return done

    monkeypatch.setattr(Step, "run", run_and_spoil)
    run = tmp_path / "run"
    assert train(recipe[0], recipe[1], run, overrides=["saving.backup_every=3 steps"], options=CPU).finished
    assert [e["to"] for e in _events(run, "rollback")] == [2]
    # backups from within the trouble were set aside as well, and sound ones of their steps took their places
    assert [c.step for c in list_checkpoints(run / "backups")] == [3, 6, 9, 12]
    assert {"diverged-step-000000003", "diverged-step-000000006"} <= {path.name for path in (run / "backups").iterdir()}
    assert (run / "checkpoints" / "diverged-step-000000006").is_dir()
    assert _finite(run)


@pytest.mark.parametrize("most", [pytest.param(0, marks=pytest.mark.long), 2])
def test_it_stops_with_the_cause_at_last(
    tmp_path: Path, recipe: tuple[str, Path], inject: Callable[..., None], most: int
) -> None:
    seeds: list[int] = []

    def always(step: int, seed: int) -> bool:
        if seed not in seeds:
            seeds.append(seed)
        return step >= BAD

    inject(bad_gradient, always)
    run = tmp_path / "run"
    with pytest.raises(Diverged, match=r"phase G: 3 updates.*first bad gradient: G\.\S+") as failed:
        train(recipe[0], recipe[1], run, overrides=[f"training.rollbacks={most}"], options=CPU)
    assert "step-000000006 is from before that" in str(failed.value)
    assert [e["number"] for e in _events(run, "rollback")] == list(range(1, most + 1))
    assert seeds == [0, *(derive_seed(0, "rollback", n) for n in range(1, most + 1))]  # each in an order of its own
    (end,) = _events(run, "diverged")
    assert (end["rollbacks"], end["phase"]) == (most, "G")
    assert "training stopped, as updates of phase G" in page_of([run])
    assert [c.step for c in list_checkpoints(run / "checkpoints")] == [2, 6]


def _in_fp16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let "auto" be fp16 here, as it is on cards of compute capability 7."""
    half = Precision("fp16", torch.float16, "this test says so")
    monkeypatch.setattr(recovery, "resolve_precision", lambda asked, device: half)
    monkeypatch.setattr(Processor, "has_bf16_units", False)


@pytest.mark.long
def test_an_overflow_storm_is_weathered(
    tmp_path: Path, recipe: tuple[str, Path], inject: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two overflows: the scale falls by four, the updates are skipped, and training goes on in fp16."""
    _in_fp16(monkeypatch)
    inject(bad_gradient, lambda step, seed: step in (5, 6))
    run = tmp_path / "run"
    assert train(recipe[0], recipe[1], run, overrides=["training.precision=auto"], options=CPU).finished
    scales = {e["step"]: e["phases"]["G"]["loss_scale"] for e in _events(run, "step")}
    assert scales[8] == scales[5] / 4 == scales[12]
    assert _events(run, "rollback", "precision") == []


@pytest.mark.long
def test_a_floor_that_is_not_left_leads_to_a_wider_precision(
    tmp_path: Path, recipe: tuple[str, Path], inject: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    _in_fp16(monkeypatch)
    run = tmp_path / "run"

    inject(overflow_in_fp16, lambda step, seed: step >= BAD)
    assert train(recipe[0], recipe[1], run, overrides=["training.precision=auto"], options=CPU).finished
    (change,) = _events(run, "precision")
    assert (change["before"], change["now"], change["to"]) == ("fp16", "fp32", 6)
    assert "G." in change["reason"]  # which layer
    assert _events(run, "rollback") == []
    assert "the run goes on in fp32 from step 6" in page_of([run])


def test_fp16_that_never_works_is_left_before_the_first_checkpoint(
    tmp_path: Path, recipe: tuple[str, Path], inject: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    _in_fp16(monkeypatch)
    run = tmp_path / "run"

    inject(overflow_in_fp16, lambda step, seed: True)
    words = ["training.precision=auto", "saving.checkpoint_every=12 steps"]
    assert train(recipe[0], recipe[1], run, overrides=words, options=CPU).finished
    (change,) = _events(run, "precision")
    assert (change["before"], change["now"], change["to"]) == ("fp16", "fp32", 0)
    assert [e["step"] for e in _events(run, "step")][-12:] == list(range(1, 13))
    assert _finite(run)


def test_fp16_that_was_asked_for_is_not_left(
    tmp_path: Path, recipe: tuple[str, Path], inject: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    _in_fp16(monkeypatch)

    def overflow(state: TrainingState, terms: dict[str, torch.Tensor]) -> None:
        state.loss_scales["G"].scale.fill_(1.0)
        bad_gradient(state, terms)

    inject(overflow, lambda step, seed: step >= BAD)
    words = ["training.precision=fp16", "training.rollbacks=0"]
    with pytest.raises(Diverged, match=r"(?s)fp16 has not the range for it.*training\.precision=fp32"):
        train(recipe[0], recipe[1], tmp_path / "run", overrides=words, options=CPU)
