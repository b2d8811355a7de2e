"""Times training steps of a recipe in several ways, side by side: python benchmarks/step.py [RECIPE] [KEY=VALUE ...]

Ways: fp32 as networks are written (NCHW), fp32 and half precision channels-last, and half precision with every block
recomputed. With `--against plain`: the recipe's way, everything on, against the same recipe run plainly, each in a
process of its own. They take turns, step by step, so that a busy machine slows all of them; quoted are each way's
least time and the ratio of neighbours. What the machine can do is measured beside them: half precision can gain no more
than a big matrix product does, and no step is faster than its own products one after the other.

Phases that are not due at every step are timed where they are and where they are not; quoted is the average step.
"""

import json
import math
import multiprocessing
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from frugan.accelerator.host_memory import keep_freed_memory
from frugan.accelerator.precision import resolve_precision
from frugan.contract.phase import Phase
from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe
from frugan.setup.devices import choose_device
from frugan.setup.recipe_setup import training_of
from frugan.stepmemory.calibration import measure_peaks
from machine import describe_machine
from plain import PLAINLY, in_nchw, plain_plan, plainly
from products_in_a_row import ProductList, seconds_in_a_row
from set_up import SetUp, set_up

ROUNDS, SECONDS = 6, 40.0
"""Rounds at least, and so long at least: short steps need many on a machine that others use."""

PLAIN, OURS = "plain", "frugan"


def make(recipe: Recipe, way: str, device: torch.device) -> SetUp:
    """A training set-up for one way."""
    precision = "fp32" if way.startswith("fp32") else recipe.training.precision
    if way == PLAIN:
        state, step, plan = set_up(recipe, device, precision, changed=partial(plain_plan, device=device))
        return (*plainly(state, step), plan)
    changed = in_nchw if way == "fp32 NCHW" else None
    return set_up(recipe, device, precision, recompute=way.endswith("recompute"), changed=changed)


def kinds_of_steps(phases: tuple[Phase, ...]) -> dict[int, float]:
    """A step at which other phases are due than at those before it -> its share of all steps."""
    cycle = math.lcm(*(phase.every for phase in phases))
    due = [tuple(phase.name for phase in phases if phase.due(step)) for step in range(cycle)]
    return {due.index(names): count / cycle for names, count in Counter(due).items()}


def timed(way: SetUp, device: torch.device, at: int) -> float:
    """Seconds of one step."""
    state, step, plan = way
    state.step = at
    began = time.perf_counter()
    step.run(state, plan)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def in_turn(ways: Mapping[str, Callable[[int], float]], kinds: Mapping[int, float]) -> dict[str, list[float]]:
    """Way -> seconds of an average step, in each of several rounds.

    Args:
        ways: run a step as at a number of steps, and give its seconds.
        kinds: such numbers -> share of all steps.
    """
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    began, warm = time.perf_counter(), False
    while not warm or len(next(iter(seconds.values()))) < ROUNDS or time.perf_counter() - began < SECONDS:
        sums = dict.fromkeys(ways, 0.0)
        for at, share in kinds.items():
            for name, run in ways.items():
                sums[name] += share * run(at)
        for name in ways if warm else ():
            seconds[name].append(sums[name])
        warm = True
    return seconds


@contextmanager
def in_its_own_process(recipe: Recipe, way: str, device: torch.device) -> Iterator[Callable[[int], float]]:
    """Runs the steps of a way, one at a time, with memory taken from the system as this way does."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(recipe, way, str(device), theirs))
    process.start()
    theirs.close()  # so that its end is noticed here

    def run(at: int) -> float:
        ours.send(at)
        seconds: float = ours.recv()
        return seconds

    try:
        yield run
    finally:
        ours.send(None)
        process.join()


def serve(recipe: Recipe, way: str, device_name: str, asked: Connection) -> None:
    """Run a step for each number that comes, and send its seconds, until None comes."""
    device = torch.device(device_name)
    with keep_freed_memory(device.type == "cpu" and way != PLAIN):
        made = make(recipe, way, device)
        while (at := asked.recv()) is not None:
            asked.send(timed(made, device, at))


def products(way: SetUp, kinds: dict[int, float], device: torch.device) -> tuple[float, float]:
    """FLOPs of an average step's products, and their seconds one after the other."""
    flops = seconds = 0.0
    for at, share in kinds.items():
        state, step, plan = way
        state.step = at
        with ProductList() as noted:
            step.run(state, plan)
        flops += share * noted.flops
        seconds += share * seconds_in_a_row(noted, device)
    return flops, seconds


def against_plain(recipe: Recipe, device: torch.device) -> dict[str, object]:
    """The recipe's way against the plain one, and both against the machine."""
    precision = resolve_precision(recipe.training.precision, device)
    kinds = kinds_of_steps(training_of(recipe).stages[0].phases)
    with ExitStack() as opened:
        ways = {name: opened.enter_context(in_its_own_process(recipe, name, device)) for name in (PLAIN, OURS)}
        seconds = in_turn(ways, kinds)
    ratios = sorted(a / b for a, b in zip(seconds[PLAIN], seconds[OURS], strict=True))
    least = min(seconds[OURS])
    ours = make(recipe, OURS, device)
    with keep_freed_memory(device.type == "cpu"):
        flops, in_a_row = products(ours, kinds, device)
    peak_flops = 2 * measure_peaks(device, precision.dtype).macs_per_s
    return {
        "plain": PLAINLY,
        "precision": precision.name,
        "micro_batch": ours[2].micro_batch,
        "times_as_fast": round(min(seconds[PLAIN]) / least, 2),
        "ratios_of_neighbours": {
            "least": round(ratios[0], 2),
            "median": round(statistics.median(ratios), 2),
            "largest": round(ratios[-1], 2),
        },
        "gflop_per_second": round(flops / least / 1e9, 1),
        "share_of_matrix_peak": round(flops / least / peak_flops, 3),
        "products_in_a_row_share_of_step": round(in_a_row / least, 3),
        **quoted(recipe, seconds),
    }


def quoted(recipe: Recipe, seconds: dict[str, list[float]]) -> dict[str, object]:
    """Least times."""
    return {
        "least_seconds_per_step": {way: round(min(times), 4) for way, times in seconds.items()},
        "images_per_second": {way: round(recipe.training.batch / min(times), 1) for way, times in seconds.items()},
    }


def several_ways(recipe: Recipe, device: torch.device) -> dict[str, object]:
    """Precisions, layouts and recompute side by side."""
    automatic = resolve_precision("auto", device)
    half = automatic.name
    ways = ["fp32 NCHW", "fp32 channels-last"]
    if half != "fp32":
        ways += [f"{half} channels-last", f"{half} recompute"]
    else:
        ways += ["fp32 recompute"]
    dtypes = {"fp32": torch.float32, half: automatic.dtype}
    peaks = {precision: measure_peaks(device, dtype).macs_per_s for precision, dtype in dtypes.items()}
    made = {way: partial(timed, make(recipe, way, device), device) for way in ways}
    seconds = in_turn(made, kinds_of_steps(training_of(recipe).stages[0].phases))
    return {
        **quoted(recipe, seconds),
        "matrix_product_gmacs_per_second": {precision: round(peak / 1e9) for precision, peak in peaks.items()},
    }


def main() -> None:
    """Time the ways in turn and print JSON."""
    words = sys.argv[1:]
    plain = "--against" in words
    if plain:
        at = words.index("--against")
        if words[at + 1 : at + 2] != [PLAIN]:
            sys.exit(f"--against {' '.join(words[at + 1 : at + 2])}: expected --against {PLAIN}")
        del words[at : at + 2]
    targets = [word for word in words if word.endswith(".json")]
    words = [word for word in words if word not in targets]
    name, overrides = (words[0], words[1:]) if words else ("biggan-digits-32", [])
    recipe = load_recipe(name, overrides).at_step(0)
    device, _ = choose_device()
    results = against_plain(recipe, device) if plain else several_ways(recipe, device)
    text = json.dumps({"recipe": [name, *overrides], **results, "machine": describe_machine()}, indent=1)
    print(text)
    for target in targets:
        Path(target).write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
