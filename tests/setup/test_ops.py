"""Kernels are loaded where they are used, and nowhere else."""

import subprocess
import sys

import pytest

STEP = """
import sys
import torch
from frugan.accelerator.precision import resolve_precision
from frugan.engine.plan import Plan
from frugan.engine.run.threads import rehearse
from frugan.engine.streams import Streams
from frugan.planning.prediction import BlankPictures
from frugan.recipe.loading import load_recipe
from frugan.setup.recipe_setup import training_of
from frugan.training.kernels import kernels_for

cpu = torch.device("cpu")
recipe = load_recipe(sys.argv[1], sys.argv[2:])
training = training_of(recipe)
assert not kernels_for(recipe, training, cpu, print)
plan = Plan(training.batch, resolve_precision("fp32", cpu))
state, stage = training.state(plan, cpu), training.stages[0]
rehearse(training.step(BlankPictures(stage.sources), Streams(0), stage=stage), state, plan)
print(sorted(name for name in sys.modules if name.startswith("frugan.kernels")))
"""


OVERRIDES = ("training.batch=4", "training.precision=fp32")
DIGITS = ("biggan-digits-32", *OVERRIDES, "training.normalisation_batch=4")


@pytest.mark.parametrize(
    "recipe", [("stylegan2-digits-32", *OVERRIDES), pytest.param(DIGITS, marks=pytest.mark.long)], ids=lambda of: of[0]
)
def test_a_step_on_a_processor_loads_no_kernel(recipe: tuple[str, ...]) -> None:
    words = [sys.executable, "-c", STEP, *recipe]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
