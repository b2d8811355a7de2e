"""Kernels that a card compiles where frugan tries its own for the first time: python benchmarks/first_use.py RECORD

Every trial runs on a processor, by torch's operations; what it would start on a card is noted and not run. Triton
compiles a kernel anew for each dtype of its pointers, each constant, and numbers that are 1 or multiples of 16. Needs
Triton (pip install "frugan[kernels]"). Writes into the record of `own_kernels.py`.
"""

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from frugan.kernels.operation import Operation
from frugan.recipe.loading import load_recipe
from frugan.setup.ops import kernel_names
from frugan.setup.recipe_setup import training_of
from frugan.training import kernels as trials
from own_kernels import KERNELS, RECIPES, written

Started = set[tuple[Any, ...]]


class Noted:
    """A kernel that is noted where it would be started."""

    def __init__(self, kernel: Any, name: str, started: Started) -> None:
        self.parameters, self.name, self.started = kernel.params, name, started

    def __getitem__(self, _: object) -> Callable[..., None]:
        def start(*values: Any, **others: Any) -> None:
            known = {parameter.name: parameter for parameter in self.parameters}
            given = dict(zip(known, values, strict=False)) | others
            facts = {word: fact_of(known.get(word), value) for word, value in given.items()}
            self.started.add((self.name, *sorted(facts.items())))

        return start


def fact_of(parameter: Any, value: Any) -> str:
    """What a kernel is compiled for, of one of its arguments."""
    if parameter is None or parameter.is_constexpr or isinstance(value, bool):
        return str(value)
    if isinstance(value, torch.Tensor):
        return str(value.dtype)
    if isinstance(value, int) and not parameter.do_not_specialize:
        return "1" if value == 1 else "16" if value % 16 == 0 else "int"
    return type(value).__name__


def note_and_compute(operation: Operation[..., Any], *values: Any, **others: Any) -> Any:
    """Note what an operation would start, and compute it by torch's."""
    with torch.no_grad():
        operation.start(*values, **others)
        return operation.plain(*values, **others)


def main() -> None:
    """Count, print and write."""
    started: Started = set()
    for module in KERNELS:
        note_programs(f"frugan.kernels.programs.{module}", started)
    setattr(Operation, "__call__", note_and_compute)  # noqa: B010
    of_trial = {}
    setattr(trials, "QUEUED", 1)  # noqa: B010  (nobody asks for seconds here)
    for name in kernel_names():
        before = len(started)
        trials.judged(name, torch.device("cpu"))
        of_trial[name] = frozenset(started)
        print(name, len(started) - before, file=sys.stderr)
        started.clear()
    found = {}
    for recipe in RECIPES:
        wanted = trials.useful_to(training_of(load_recipe(recipe, [])))
        found[recipe] = len(set().union(*(of_trial[name] for name in wanted)))
    place = Path(sys.argv[1])
    record = json.loads(place.read_text("utf-8")) | {"first_use": found}
    place.write_text(written(record), "utf-8")
    print(json.dumps(found, indent=1))


def note_programs(name: str, started: Started) -> None:
    """Put a module in the place of one with programs, whose kernels are noted."""
    programs = vars(importlib.import_module(name)).items()
    kernels = {word: Noted(value, f"{name}.{word}", started) for word, value in programs if hasattr(value, "params")}
    sys.modules[name] = SimpleNamespace(**kernels)  # type: ignore[assignment]
    package, _, word = name.rpartition(".")
    setattr(importlib.import_module(package), word, sys.modules[name])


if __name__ == "__main__":
    main()
