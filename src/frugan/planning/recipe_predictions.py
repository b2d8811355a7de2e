"""Predictions of a recipe's plans: where they are kept, and a second process that runs plans beside this one.

The work is Python's, and threads cannot share it. `python -m frugan.planning.recipe_predictions` reads what is trained
from its first line, then a job from each line, and writes a line of JSON for each.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from frugan.accelerator.precision import resolve_precision
from frugan.engine.plan import Plan
from frugan.engine.run.training import Training
from frugan.families import family_code
from frugan.files import Folders
from frugan.planning.prediction import HOST, Target
from frugan.planning.predictions import Job, Predictions, prediction_version, torch_of, versions_of
from frugan.recipe.loading import parse_recipe
from frugan.recipe.recipe import Recipe
from frugan.setup.recipe_setup import training_of


@dataclass
class PredictionHelper:
    """The process, started with the first job."""

    recipe: Recipe  # what is trained
    training: Training  # what this card does of it
    target: Target  # what is predicted for
    _process: "subprocess.Popen[str] | None" = field(default=None, repr=False)

    def submit(self, job: Job) -> None:
        """Queue a job."""
        plan, stage, rough = job
        self._write({"plan": plan.as_json(), "stage": stage.name, "rough": rough})

    def take(self) -> dict[str, Any] | None:
        """The next outcome, in the order of the jobs; None: the process is gone."""
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            return dict(json.loads(self._process.stdout.readline()))
        except ValueError:
            return None

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _write(self, values: dict[str, Any]) -> None:
        if self._process is None:
            command = [sys.executable, "-m", "frugan.planning.recipe_predictions"]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1"}
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
                env=environment,
            )
            training = self.training
            about = {
                "gpus": training.ranks,
                "share": training.batch,
                "target": self.target,
                "in_parts": training.in_parts,
            }
            self._write({"recipe": self.recipe.model_dump(mode="json"), **about})
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(values) + "\n")
            self._process.stdin.flush()
        except OSError:
            return  # it is gone; `take` will say so


def subject(recipe: Recipe) -> dict[str, Any]:
    """The fields of a recipe that a step's memory and work depend on."""
    values = recipe.model_dump(mode="json", include={"family", "networks", "objective", "stages", "ema"})
    for section in ("networks", "objective", "ema"):
        for name in _added_and_at_default(getattr(recipe, section)):
            del values[section][name]
    optimizers = {name: type(o).__name__ for name, o in recipe.optimizer_settings().items()}
    batch = {"batch": recipe.training.batch, "normalisation_batch": recipe.training.normalisation_batch}
    code = family_code(recipe.kind)  # shipped families have a version that a person raises
    more: dict[str, Any] = {"kernels": "triton"} if recipe.training.kernels == "triton" else {}
    more |= {"code": code} if code is not None else {}
    exact = {network: list(blocks) for network, blocks in recipe.fp32_blocks.items()}
    kept = {"fp32_blocks": exact} if exact else {}
    return values | {"optimizers": optimizers, "training": batch} | more | kept


def _added_and_at_default(settings: BaseModel) -> Iterator[str]:
    """Fields that earlier versions did not have, and whose value leaves a step as it was then."""
    for name, setting in type(settings).model_fields.items():
        extra = setting.json_schema_extra
        if isinstance(extra, dict) and extra.get("added") and getattr(settings, name) == setting.default:
            yield name


def shipped_predictions(name: str) -> Path | None:
    """Predictions that came with the package for a built-in recipe; None if there are none."""
    file = resources.files("frugan") / "predictions" / f"{name}.json"
    return Path(str(file)) if file.is_file() else None


def made_for_others(name: str) -> str | None:
    """A line that says so where the predictions that ship for a recipe hold for other versions of torch than this."""
    file = shipped_predictions(name)
    if file is None or prediction_version() in (versions := versions_of(file)):
        return None
    *others, this = (torch_of(version) for version in (*versions, prediction_version()))
    return (
        f"predictions: made here and kept, for this is torch {this}; those that ship were found to hold for "
        f"{', '.join(others)}"
    )


SECONDS_PER_MODULE = 0.007
"""Of one run of a step without data: 0.006 to 0.008 over the recipes that ship, on one core of an AMD EPYC."""


def predictions_of(
    recipe: Recipe, training: Training, name: str, target: Target, tell: Callable[[int], None]
) -> Predictions:
    """Predictions of a card's plans: those that ship, those made here before, and new ones.

    Args:
        training: what the card does of what the recipe trains.
        name: of the recipe: finds what ships.
        tell: is told how many steps were run without data so far.
    """
    fields = subject(recipe)
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]
    cached = Folders.from_environment().cache / "predictions" / f"{recipe.family}-{digest}.json"
    shipped = shipped_predictions(name)
    about = fields | {"gpus": training.ranks} | ({"in_parts": True} if training.in_parts else {})
    if training.batch * training.ranks != recipe.training.batch:
        about |= {"share": training.batch}

    def expected_seconds() -> float:
        built = recipe.kind.build(recipe.networks, "meta").values()
        return SECONDS_PER_MODULE * sum(1 for network in built for _ in network.modules())

    return Predictions(
        training,
        target,
        about,
        prediction_version(),
        (shipped, cached) if shipped else (cached,),
        tell,
        PredictionHelper(recipe, training, target) if (os.cpu_count() or 1) > 1 else None,
        expected_seconds,
    )


def main() -> None:
    """Serve one parent until it closes the pipe."""
    first = json.loads(sys.stdin.readline())
    training = training_of(parse_recipe(first["recipe"], "recipe of the parent process"))
    training = replace(training.shared_by(first["gpus"], first["share"]), in_parts=first["in_parts"])
    stages = {stage.name: stage for stage in training.stages}
    predictions = Predictions(training, first["target"], {}, prediction_version())
    for line in sys.stdin:
        job = json.loads(line)
        plan = Plan.from_json(job["plan"], resolve_precision(job["plan"]["precision"], HOST))
        predicted = predictions.outcome((plan, stages[job["stage"]], job["rough"]))
        print(json.dumps(predicted), flush=True)


if __name__ == "__main__":
    try:
        main()
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(1)
