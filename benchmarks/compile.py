"""Compares a recipe's step as written with the compiled one: python benchmarks/compile.py RECIPE [KEY=VALUE ...] [JSON]

Prints what it takes to compile each phase, how far the gradients and the weights after a step are apart, and the ratio
of the times of steps, which take turns so that a busy machine slows both. Fewer or more rounds: --rounds N; the graph's
operations one by one, without kernels of their own: --backend aot_eager.
"""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from frugan.engine.compiled_phases import INDUCTOR, CompiledPhases
from frugan.engine.plan import Plan
from frugan.engine.state.state import TrainingState
from frugan.engine.step.step import Step
from frugan.engine.step.update import PhaseResult, forward_and_backward
from frugan.recipe.loading import load_recipe
from frugan.setup.devices import choose_device
from machine import describe_machine
from set_up import set_up

ROUNDS = 8


def gradients_apart(one: list[PhaseResult], other: list[PhaseResult]) -> dict[str, float]:
    """Phase -> largest difference between the norms of a parameter's gradients, as a share of the phase's norm."""
    return {
        a.phase: float((a.gradients.norms - b.gradients.norms).abs().max() / a.gradients.norm)
        for a, b in zip(one, other, strict=True)
    }


def weights_apart(one: TrainingState, other: TrainingState) -> float:
    """Largest difference between masters, as a share of the largest of their tensor."""
    largest = 0.0
    for name, network in one.networks.items():
        for a, b in zip(network.parameters(), other.networks[name].parameters(), strict=True):
            largest = max(largest, float(((a - b).abs().max() / a.abs().max().clamp_min(1e-12)).detach()))
    return largest


def run(made: tuple[TrainingState, Step, Plan]) -> tuple[float, list[PhaseResult]]:
    """One step: its seconds, once the device is done, and what it did."""
    state, step, plan = made
    began = time.perf_counter()
    results = step.run(state, plan)
    if state.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began, results


def _option(words: list[str], name: str, default: str) -> str:
    """Take an option and its value out of the words."""
    if name not in words:
        return default
    place = words.index(name)
    value = words[place + 1]
    del words[place : place + 2]
    return value


def main() -> None:
    """Measure, and print JSON."""
    words = list(sys.argv[1:])
    rounds = int(_option(words, "--rounds", str(ROUNDS)))
    backend = _option(words, "--backend", INDUCTOR)
    name, *overrides = [word for word in words if not word.endswith(".json")] or ["biggan-digits-32"]
    recipe = load_recipe(name, overrides).at_step(0)
    device, _ = choose_device()
    lines: list[str] = []

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)
        lines.append(line)

    with tempfile.TemporaryDirectory() as cache:
        compiled = CompiledPhases(say, say, Path(cache), backend)
        ways = {
            "as written": set_up(recipe, device, "fp32", backward=forward_and_backward),
            "compiled": set_up(recipe, device, "fp32", backward=compiled),
        }
        began = time.perf_counter()
        (_, before), (_, after) = (run(made) for made in ways.values())
        first_seconds = time.perf_counter() - began
        apart, states = gradients_apart(before, after), [state for state, _, _ in ways.values()]
        weights = weights_apart(*states)
        # lazy phases are not due in every step: a round is as many steps as bring all of them once
        every = max(phase.every for phase in ways["compiled"][1].phases)
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, made in ways.items():
                seconds[way].append(run(made)[0])
        graphs = {phase.name: compiled.graphs(phase.name) for phase in ways["compiled"][1].phases}
    median = {way: statistics.median(times) for way, times in seconds.items()}
    ratios = sorted(a / b for a, b in zip(seconds["as written"], seconds["compiled"], strict=True))
    result = {
        "recipe": [name, *overrides],
        "backend": backend,
        "compile": lines,
        "first_steps_seconds": round(first_seconds, 1),
        "operations": {phase: [graph.operations for graph in made] for phase, made in graphs.items()},
        "gradients_apart": apart,
        "weights_apart_after_a_step": weights,
        "steps_timed": rounds,
        "longest_interval_of_a_phase": every,
        "median_seconds_per_step": {way: round(value, 4) for way, value in median.items()},
        "times_as_fast": {
            "median": round(statistics.median(ratios), 3),
            "least": round(ratios[0], 3),
            "most": round(ratios[-1], 3),
        },
        "machine": describe_machine(),
    }
    text = json.dumps(result, indent=1)
    print(text)
    for target in (word for word in sys.argv[1:] if word.endswith(".json")):
        Path(target).write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
