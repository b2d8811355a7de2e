"""Train big image generators on the GPU you have.

Public names are imported on first use: processes that make face samples import this package too, and torch alone would
take each of them 245 MiB.
"""

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from frugan.conversion.convert import from_leras as from_leras
    from frugan.conversion.convert import from_r3gan_pickle as from_r3gan_pickle
    from frugan.conversion.convert import from_stylegan_pickle as from_stylegan_pickle
    from frugan.conversion.convert import to_dfm as to_dfm
    from frugan.conversion.convert import to_leras as to_leras
    from frugan.conversion.convert import to_stylegan_safetensors as to_stylegan_safetensors
    from frugan.conversion.export.onnx import export as export
    from frugan.conversion.export.site import export_site as export_site
    from frugan.conversion.fetch import fetch as fetch
    from frugan.conversion.model_card import write_card as write_card
    from frugan.data.formats.picture_set import PictureSet as PictureSet
    from frugan.data.prepare import prepare as prepare
    from frugan.engine.state.ema import EmaSettings as EmaSettings
    from frugan.errors import BadInput as BadInput
    from frugan.errors import TrainingFailed as TrainingFailed
    from frugan.evaluation.evaluation import evaluate as evaluate
    from frugan.evaluation.real_scores import evaluate_real as evaluate_real
    from frugan.evaluation.scorer import Evaluation as Evaluation
    from frugan.evaluation.scorer import EvaluationOptions as EvaluationOptions
    from frugan.planning.network_costs import info as info
    from frugan.planning.plan_recipe import PlanOptions as PlanOptions
    from frugan.planning.plan_recipe import largest as largest
    from frugan.planning.plan_recipe import plan as plan
    from frugan.planning.plan_report import PlanReport as PlanReport
    from frugan.recipe.loading import load_recipe as load_recipe
    from frugan.reporting.report import write_report as write_report
    from frugan.sampling.explorer import Points as Points
    from frugan.sampling.explorer import explore as explore
    from frugan.sampling.projection import project as project
    from frugan.sampling.requests import DrawRequest as DrawRequest
    from frugan.sampling.sampling import animate as animate
    from frugan.sampling.sampling import draw as draw
    from frugan.sampling.sampling import sample as sample
    from frugan.setup.generator import Generator as Generator
    from frugan.setup.generator import load_generator as load_generator
    from frugan.setup.networks import build as build
    from frugan.setup.networks import load as load
    from frugan.setup.networks import save as save
    from frugan.training.own_loop.batch_loss import BatchLoss as BatchLoss
    from frugan.training.own_loop.ema_hook import EmaHook as EmaHook
    from frugan.training.own_loop.module_plan import fits as fits
    from frugan.training.own_loop.module_plan import plan_module as plan_module
    from frugan.training.own_loop.module_report import ModuleReport as ModuleReport
    from frugan.training.own_loop.module_step import ModulePlan as ModulePlan
    from frugan.training.own_loop.module_step import ModuleStep as ModuleStep
    from frugan.training.own_loop.module_step import StepOutcome as StepOutcome
    from frugan.training.run import TrainingOptions as TrainingOptions
    from frugan.training.run import TrainingResult as TrainingResult
    from frugan.training.training import train as train

_WHERE = MappingProxyType(
    {
        "BadInput": "frugan.errors",
        "BatchLoss": "frugan.training.own_loop.batch_loss",
        "DrawRequest": "frugan.sampling.requests",
        "EmaHook": "frugan.training.own_loop.ema_hook",
        "EmaSettings": "frugan.engine.state.ema",
        "Evaluation": "frugan.evaluation.scorer",
        "EvaluationOptions": "frugan.evaluation.scorer",
        "Generator": "frugan.setup.generator",
        "ModulePlan": "frugan.training.own_loop.module_step",
        "ModuleReport": "frugan.training.own_loop.module_report",
        "ModuleStep": "frugan.training.own_loop.module_step",
        "PictureSet": "frugan.data.formats.picture_set",
        "PlanOptions": "frugan.planning.plan_recipe",
        "PlanReport": "frugan.planning.plan_report",
        "Points": "frugan.sampling.explorer",
        "StepOutcome": "frugan.training.own_loop.module_step",
        "TrainingFailed": "frugan.errors",
        "TrainingOptions": "frugan.training.run",
        "TrainingResult": "frugan.training.run",
        "animate": "frugan.sampling.sampling",
        "build": "frugan.setup.networks",
        "draw": "frugan.sampling.sampling",
        "evaluate": "frugan.evaluation.evaluation",
        "evaluate_real": "frugan.evaluation.real_scores",
        "export": "frugan.conversion.export.onnx",
        "export_site": "frugan.conversion.export.site",
        "explore": "frugan.sampling.explorer",
        "fetch": "frugan.conversion.fetch",
        "fits": "frugan.training.own_loop.module_plan",
        "from_leras": "frugan.conversion.convert",
        "from_r3gan_pickle": "frugan.conversion.convert",
        "from_stylegan_pickle": "frugan.conversion.convert",
        "info": "frugan.planning.network_costs",
        "largest": "frugan.planning.plan_recipe",
        "load": "frugan.setup.networks",
        "load_generator": "frugan.setup.generator",
        "load_recipe": "frugan.recipe.loading",
        "plan": "frugan.planning.plan_recipe",
        "plan_module": "frugan.training.own_loop.module_plan",
        "prepare": "frugan.data.prepare",
        "project": "frugan.sampling.projection",
        "sample": "frugan.sampling.sampling",
        "save": "frugan.setup.networks",
        "to_dfm": "frugan.conversion.convert",
        "to_leras": "frugan.conversion.convert",
        "to_stylegan_safetensors": "frugan.conversion.convert",
        "train": "frugan.training.training",
        "write_card": "frugan.conversion.model_card",
        "write_report": "frugan.reporting.report",
    }
)
"""Public name -> module that defines it."""

__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    """Import a public name."""
    if name not in _WHERE:
        raise AttributeError(f"module 'frugan' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    """List all names, imported or not."""
    return sorted({*globals(), *__all__})
