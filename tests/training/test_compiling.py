"""A run whose recipe asks for compiled phases: what it says, what it does without a compiler, what a plan says."""

import json
import os
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from faults.small_runs import MINIGAN, OUTSIDE
from frugan.accelerator.precision import resolve_precision
from frugan.cli.main import run
from frugan.engine import compiled_phases
from frugan.engine.compiled_phases import CompiledPhases
from frugan.engine.run.events import read_events
from frugan.engine.step.update import forward_and_backward
from frugan.planning.plan_recipe import PlanOptions, plan
from frugan.planning.plan_report import COMPILED
from frugan.planning.prediction_store import subject
from frugan.recipe.loading import load_recipe
from frugan.training.run import TrainingOptions
from frugan.training.training import train
from frugan.wording import show_size
from planning.planners import training_planner
from training.pictures import write_pictures, write_recipe

CPU = TrainingOptions(device="cpu")
PLAIN = MINIGAN.replace('"12 steps"', '"1 step"')


@pytest.fixture(autouse=True)
def _minigan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest family: to trace another's phases takes seconds."""
    monkeypatch.syspath_prepend(str(OUTSIDE))


def _train(folder: Path, name: str, *overrides: str) -> tuple[list[str], dict[str, torch.Tensor]]:
    """What was said, and the networks at the end."""
    said: list[str] = []
    out = folder / name
    train(write_recipe(folder, PLAIN), folder / "pictures", out, overrides=overrides, options=CPU, say=said.append)
    (weights,) = (out / "checkpoints").glob("*1/networks.safetensors")
    return said, load_file(weights)


def test_a_compiled_run_trains_alike_and_says_what_it_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_phases, "BACKEND", "eager")  # all but the minutes of a compiler
    monkeypatch.setattr(compiled_phases, "missing_compiler", lambda _: None)
    write_pictures(tmp_path / "pictures", classes=())
    quiet, written = _train(tmp_path, "written")
    said, compiled = _train(tmp_path, "compiled", "training.compile=true")
    assert written.keys() == compiled.keys()
    for name, value in written.items():
        # Adam makes whole steps of rounding where a gradient is nearly zero
        assert float((value - compiled[name]).abs().max()) <= 2 * 1e-3, name
    assert not [line for line in quiet if line.startswith("compil")]
    for phase in ("D", "G"):
        assert [line for line in said if line.startswith(f"compiled phase {phase}: ")]
    events = list(read_events(tmp_path / "compiled" / "events.jsonl"))
    assert [e for e in events if e["event"] == "choice" and e["line"] == "compiling phase D ..."]
    assert json.loads((tmp_path / "compiled" / "recipe.json").read_text())["training"]["compile"] is True


def test_without_a_compiler_it_trains_as_written_and_says_so_once(tmp_path: Path) -> None:
    from torch._inductor import config as inductor  # noqa: PLC0415  (most of a second of every collection)

    write_pictures(tmp_path / "pictures", classes=())
    with inductor.patch({"cpp.cxx": ("no-such-compiler",)}):
        said, _ = _train(tmp_path, "run", "training.compile=true")
    (line,) = [line for line in said if line.startswith("warning: training.compile")]
    assert line.startswith("warning: training.compile is ignored, steps run without it: torch.compile")
    assert "C++ compiler" in line
    events = read_events(tmp_path / "run" / "events.jsonl")
    assert [e["line"] for e in events if e["event"] == "warning"].count(line.removeprefix("warning: ")) == 1


def test_a_card_needs_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.utils._triton.has_triton_package", lambda: False)
    assert "Triton" in (compiled_phases.missing_compiler(torch.device("cuda", 0)) or "")


@pytest.mark.skipif(os.name == "nt", reason="there Triton brings its own")
def test_a_card_needs_a_c_compiler_and_pythons_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton starts its kernels by programs in C, which fails at the first one: too late for the plan."""
    monkeypatch.setattr("torch.utils._triton.has_triton_package", lambda: True)
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "no-such-compiler" in (compiled_phases.missing_compiler(torch.device("cuda", 0)) or "")
    monkeypatch.setenv("CC", sys.executable)  # any program that is there
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    assert "Python.h" in (compiled_phases.missing_compiler(torch.device("cuda", 0)) or "")
    (tmp_path / "Python.h").touch()
    assert compiled_phases.missing_compiler(torch.device("cuda", 0)) is None


def test_off_by_default(tmp_path: Path) -> None:
    recipe = load_recipe(write_recipe(tmp_path, PLAIN))
    assert not recipe.training.compile
    assert compiled_phases.backward_of(False, torch.device("cpu"), print, print) is forward_and_backward
    asked = load_recipe(write_recipe(tmp_path, PLAIN), ["training.compile=true"])
    backward = compiled_phases.backward_of(asked.training.compile, torch.device("cpu"), print, print)
    assert isinstance(backward, CompiledPhases) or compiled_phases.missing_compiler(torch.device("cpu")) is not None


def test_a_plan_prices_the_compiled_step_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRUGAN_CACHE", str(tmp_path / "cache"))
    path = write_recipe(tmp_path, PLAIN)
    written, compiled = (
        plan(load_recipe(path, [f"training.compile={on}"]), "2GiB", options=PlanOptions(micro_batch=4))
        for on in ("false", "true")
    )
    assert compiled.choice.work.operations < 0.5 * written.choice.work.operations
    assert compiled.choice.plan.cuda_graphs
    assert not written.choice.plan.cuda_graphs
    assert [line for line in compiled.decisions if line.startswith("CUDA graphs: ")]
    assert COMPILED in compiled.decisions
    (line,) = [line for line in compiled.decisions if line.startswith("training.compile: ") and line != COMPILED]
    launches = [f"{report.choice.work.operations:,.0f}" for report in (compiled, written)]
    assert f" {launches[0]} launches in an average step instead of {launches[1]}," in line
    assert f" peak {show_size(compiled.peak_bytes)} instead of {show_size(written.peak_bytes)}, about " in line
    assert COMPILED not in written.decisions


@pytest.mark.long
def test_a_plan_says_which_phases_stay_as_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRUGAN_CACHE", str(tmp_path / "cache"))
    path = write_recipe(tmp_path)
    offloaded = plan(load_recipe(path, ["training.compile=true"]), "2GiB", options=PlanOptions(use=("offload",)))
    (line,) = [line for line in offloaded.decisions if "priced without compiling" in line]
    assert line.startswith("phases D, G: ")
    assert not offloaded.choice.plan.cuda_graphs


def test_predictions_of_compiled_steps_have_keys_of_their_own(tmp_path: Path) -> None:
    """Those of written ones have theirs as they had them before there were others."""
    path = write_recipe(tmp_path)
    written, compiled = (subject(load_recipe(path, [f"training.compile={on}"])) for on in ("false", "true"))
    assert compiled == written | {"compiled": True}


def test_without_a_compiler_the_written_step_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe(write_recipe(tmp_path), ["training.compile=true"])
    for missing, compiled in (("there is none", False), (None, True)):
        monkeypatch.setattr(compiled_phases, "missing_compiler", lambda _, missing=missing: missing)
        device = torch.device("cpu")
        planner = training_planner(recipe, CPU, device, resolve_precision("fp32", device), print)
        assert planner.planner.training.compiled == compiled


def test_the_switch_of_the_command_is_the_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_phases, "missing_compiler", lambda _: "there is no compiler")
    write_pictures(tmp_path / "pictures", classes=())
    recipe = write_recipe(tmp_path, PLAIN)
    words = ["train", recipe, "--data", str(tmp_path / "pictures"), "--out", str(tmp_path / "run"), "--compile"]
    monkeypatch.setattr("sys.argv", ["frugan", *words, "--device", "cpu"])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code in (0, None)
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["training"]["compile"] is True
