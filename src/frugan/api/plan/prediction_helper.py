"""A second process that runs plans without data beside this one: the work is Python's, and threads cannot share it.

`python -m frugan.api.plan.prediction_helper` reads what is trained from its first line, then a job from each line, and
writes a line of JSON for each.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from typing import Any

from frugan.api.setup import training_of
from frugan.engine.plan import Plan
from frugan.engine.precision import resolve_precision
from frugan.memory.dataless import Dataless
from frugan.memory.prediction import HOST, Job, Target, outcome
from frugan.recipe.loading import parse_recipe
from frugan.recipe.recipe import Recipe


@dataclass
class PredictionHelper:
    """The process, started with the first job."""

    # recipe, gpus, share, target: what is trained, by how many cards, how many samples of a batch this one sees, and
    # what is predicted for
    recipe: Recipe
    gpus: int
    share: int
    target: Target
    in_parts: bool = False  # as `Planner` has it
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
            command = [sys.executable, "-m", "frugan.api.plan.prediction_helper"]
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
            about = {"gpus": self.gpus, "share": self.share, "target": self.target, "in_parts": self.in_parts}
            self._write({"recipe": self.recipe.model_dump(mode="json"), **about})
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(values) + "\n")
            self._process.stdin.flush()
        except OSError:
            return  # it is gone; `take` will say so


def main() -> None:
    """Serve one parent until it closes the pipe."""
    first = json.loads(sys.stdin.readline())
    training = training_of(parse_recipe(first["recipe"], "recipe of the parent process"))
    training = replace(training.shared_by(first["gpus"], first["share"]), in_parts=first["in_parts"])
    stages = {stage.name: stage for stage in training.stages}
    dataless = Dataless()
    for line in sys.stdin:
        job = json.loads(line)
        plan = Plan.from_json(job["plan"], resolve_precision(job["plan"]["precision"], HOST))
        predicted = outcome(
            training, plan, first["target"], stages[job["stage"]], rough=job["rough"], dataless=dataless
        )
        print(json.dumps(predicted), flush=True)


if __name__ == "__main__":
    try:
        main()
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(1)
