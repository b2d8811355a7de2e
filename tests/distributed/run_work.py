"""Runs by the Python interface, for processes that train together."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import torch

from frugan.engine.run import loop, training
from frugan.engine.run.checkpoint import Checkpoint, save_checkpoint
from frugan.engine.state.state import TrainingState
from frugan.engine.step.step import Step
from frugan.recipe.loading import load_recipe
from frugan.training import beginning
from frugan.training.run import TrainingOptions
from frugan.training.training import train
from limits import change


def train_by_shares(folder: Path, run: str, shares: str, steps: str, optimizer: str, group: str) -> None:
    """A run by the Python interface."""
    change("elements shared out", 1)
    longer = [f"training.normalisation_batch={group}", f"training.duration={steps} steps"]
    said: list[str] = []
    options = TrainingOptions(device="cpu", shares=shares or None, shard_optimizer=optimizer == "shared out")
    recipe = str(folder / "tiny.toml")
    result = train(recipe, folder / "pictures", folder / run, overrides=longer, options=options, say=said.append)
    (folder / f"{run}-{steps}-{result.rank}.json").write_text(json.dumps(said))


def train_first(folder: Path) -> None:
    """A run by the Python interface, on the recipe and the pictures that lie in the folder."""
    os.environ["FRUGAN_BASE"] = str(folder / "base")
    os.environ["MASTER_PORT"], port = os.environ["OTHER_PORT"], os.environ["MASTER_PORT"]
    said: list[str] = []
    options = TrainingOptions(device="cpu")
    result = train(str(folder / "tiny.toml"), folder / "pictures", folder / "run", options=options, say=said.append)
    os.environ["MASTER_PORT"] = port
    told = {"said": said, "run": str(result.run), "step": result.step, "over": result.finished, "rank": result.rank}
    (folder / f"train-{result.rank}.json").write_text(json.dumps(told))


def chosen_kernels(folder: Path) -> None:
    """A run whose ranks would each choose other kernels; which their networks use."""
    seen: list[object] = []
    setattr(beginning, "kernels_for", lambda *_: frozenset({os.environ["RANK"]}))  # noqa: B010
    setattr(beginning, "kernels_beside", lambda first, *_: first)  # noqa: B010
    setattr(beginning, "ops_of", sorted)  # noqa: B010
    setattr(training, "use_ops", lambda _, ops: seen.extend(ops))  # noqa: B010
    words, cpu = ["training.duration=1 steps"], TrainingOptions(device="cpu")
    result = train(str(folder / "tiny.toml"), folder / "pictures", folder / "run", overrides=words, options=cpu)
    (folder / f"kernels-{result.rank}.json").write_text(json.dumps(list(dict.fromkeys(seen))))


def full_disk(folder: Path) -> None:
    """A run whose first rank has no room for what is due after two steps, and goes on as its recipe says."""

    def full(place: Path, state: TrainingState, *rest: Any) -> Checkpoint:
        if state.step == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return save_checkpoint(place, state, *rest)

    setattr(loop, "save_checkpoint", full)  # noqa: B010
    words = ["saving.when_full=go-on", "saving.backup_every=2 steps", "training.duration=4 steps"]
    recipe, cpu = str(folder / "tiny.toml"), TrainingOptions(device="cpu")
    result = train(recipe, folder / "pictures", folder / "run", overrides=words, options=cpu)
    (folder / f"full-{result.rank}.json").write_text(json.dumps({"step": result.step, "over": result.finished}))


def go_back(folder: Path) -> None:
    """A run whose updates stay not finite in the recipe's own order of data, and are sound in any other."""
    whole: Any = Step._backward
    seed = load_recipe(str(folder / "tiny.toml")).training.seed

    def backward(step: Step, state: TrainingState, *rest: Any) -> Any:
        terms, shares = whole(step, state, *rest)
        if state.step >= 3 and step.draws.seed == seed:  # type: ignore[attr-defined]
            name = next(iter(terms))
            terms[name] = terms[name] * torch.nan
        return terms, shares

    setattr(Step, "_backward", backward)  # noqa: B010  (mypy knows the method by its types)
    change("skips in a row", 2)
    recipe, cpu = str(folder / "tiny.toml"), TrainingOptions(device="cpu")
    result = train(recipe, folder / "pictures", folder / "run", overrides=["training.duration=6 steps"], options=cpu)
    told = {"step": result.step, "over": result.finished}
    (folder / f"back-{result.rank}.json").write_text(json.dumps(told))
