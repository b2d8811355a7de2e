"""What the commands and Python users call: the wiring of recipe, engine, data and report."""

from frugan.api.costs import info
from frugan.api.drawing import animate, draw
from frugan.api.evaluation import evaluate
from frugan.api.export_dfm import to_dfm
from frugan.api.export_leras import to_leras
from frugan.api.generation import DrawRequest
from frugan.api.import_leras import from_leras
from frugan.api.networks import build, load, save
from frugan.api.plan_report import PlanReport
from frugan.api.planning import PlanOptions, largest, plan
from frugan.api.run_report import report as write_report
from frugan.api.sampling import sample
from frugan.api.scorer import Evaluation, EvaluationOptions
from frugan.api.session import TrainingResult
from frugan.api.training import train
from frugan.api.training_options import TrainingOptions
from frugan.data.prepare import prepare
from frugan.errors import BadInput, TrainingFailed
from frugan.recipe import load_recipe

__all__ = [
    "BadInput",
    "DrawRequest",
    "Evaluation",
    "EvaluationOptions",
    "PlanOptions",
    "PlanReport",
    "TrainingFailed",
    "TrainingOptions",
    "TrainingResult",
    "animate",
    "build",
    "draw",
    "evaluate",
    "from_leras",
    "info",
    "largest",
    "load",
    "load_recipe",
    "plan",
    "prepare",
    "sample",
    "save",
    "to_dfm",
    "to_leras",
    "train",
    "write_report",
]
