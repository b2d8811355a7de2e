"""Train big image generators on the GPU you have.

What it offers is imported when it is first asked for: processes that make face samples import this package too, and
torch alone would take each of them 245 MiB.
"""

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from frugan.api.card import write_card
    from frugan.api.convert.convert import (
        from_leras,
        from_r3gan_pickle,
        from_stylegan_pickle,
        to_dfm,
        to_leras,
        to_stylegan_safetensors,
    )
    from frugan.api.evaluate.evaluation import evaluate as evaluate
    from frugan.api.evaluate.real import evaluate_real
    from frugan.api.evaluate.scorer import Evaluation as Evaluation
    from frugan.api.evaluate.scorer import EvaluationOptions as EvaluationOptions
    from frugan.api.explore.explorer import Points as Points
    from frugan.api.explore.explorer import explore as explore
    from frugan.api.explore.projection import project as project
    from frugan.api.export.onnx import export as export
    from frugan.api.export.site import export_site as export_site
    from frugan.api.fetch import fetch as fetch
    from frugan.api.networks import build as build
    from frugan.api.networks import load as load
    from frugan.api.networks import save as save
    from frugan.api.own_loop.plan import ModuleReport as ModuleReport
    from frugan.api.own_loop.plan import plan_module as plan_module
    from frugan.api.own_loop.step import ModulePlan as ModulePlan
    from frugan.api.own_loop.step import ModuleStep as ModuleStep
    from frugan.api.own_loop.step import StepOutcome as StepOutcome
    from frugan.api.plan.network_costs import info as info
    from frugan.api.plan.plan_recipe import PlanOptions as PlanOptions
    from frugan.api.plan.plan_recipe import largest as largest
    from frugan.api.plan.plan_recipe import plan as plan
    from frugan.api.plan.report import PlanReport as PlanReport
    from frugan.api.report import write_report
    from frugan.api.sample.requests import DrawRequest as DrawRequest
    from frugan.api.sample.sampling import animate as animate
    from frugan.api.sample.sampling import draw as draw
    from frugan.api.sample.sampling import sample as sample
    from frugan.api.train.run import TrainingOptions, TrainingResult
    from frugan.api.train.training import train as train
    from frugan.data.prepare import prepare as prepare
    from frugan.ema_hook import EmaHook as EmaHook
    from frugan.engine.ema import EmaSettings as EmaSettings
    from frugan.errors import BadInput as BadInput
    from frugan.errors import TrainingFailed as TrainingFailed
    from frugan.recipe.loading import load_recipe as load_recipe

__all__ = [
    "BadInput",
    "DrawRequest",
    "EmaHook",
    "EmaSettings",
    "Evaluation",
    "EvaluationOptions",
    "ModulePlan",
    "ModuleReport",
    "ModuleStep",
    "PlanOptions",
    "PlanReport",
    "Points",
    "StepOutcome",
    "TrainingFailed",
    "TrainingOptions",
    "TrainingResult",
    "animate",
    "build",
    "draw",
    "evaluate",
    "evaluate_real",
    "explore",
    "export",
    "export_site",
    "fetch",
    "from_leras",
    "from_r3gan_pickle",
    "from_stylegan_pickle",
    "info",
    "largest",
    "load",
    "load_recipe",
    "plan",
    "plan_module",
    "prepare",
    "project",
    "sample",
    "save",
    "to_dfm",
    "to_leras",
    "to_stylegan_safetensors",
    "train",
    "write_card",
    "write_report",
]

_WHERE = MappingProxyType(
    {
        "BadInput": "frugan.errors",
        "DrawRequest": "frugan.api.sample.requests",
        "EmaHook": "frugan.ema_hook",
        "EmaSettings": "frugan.engine.ema",
        "Evaluation": "frugan.api.evaluate.scorer",
        "EvaluationOptions": "frugan.api.evaluate.scorer",
        "ModulePlan": "frugan.api.own_loop.step",
        "ModuleReport": "frugan.api.own_loop.plan",
        "ModuleStep": "frugan.api.own_loop.step",
        "PlanOptions": "frugan.api.plan.plan_recipe",
        "PlanReport": "frugan.api.plan.report",
        "Points": "frugan.api.explore.explorer",
        "StepOutcome": "frugan.api.own_loop.step",
        "TrainingFailed": "frugan.errors",
        "TrainingOptions": "frugan.api.train.run",
        "TrainingResult": "frugan.api.train.run",
        "animate": "frugan.api.sample.sampling",
        "build": "frugan.api.networks",
        "draw": "frugan.api.sample.sampling",
        "evaluate": "frugan.api.evaluate.evaluation",
        "evaluate_real": "frugan.api.evaluate.real",
        "export": "frugan.api.export.onnx",
        "export_site": "frugan.api.export.site",
        "explore": "frugan.api.explore.explorer",
        "fetch": "frugan.api.fetch",
        "from_leras": "frugan.api.convert.convert",
        "from_r3gan_pickle": "frugan.api.convert.convert",
        "from_stylegan_pickle": "frugan.api.convert.convert",
        "info": "frugan.api.plan.network_costs",
        "largest": "frugan.api.plan.plan_recipe",
        "load": "frugan.api.networks",
        "load_recipe": "frugan.recipe.loading",
        "plan": "frugan.api.plan.plan_recipe",
        "plan_module": "frugan.api.own_loop.plan",
        "prepare": "frugan.data.prepare",
        "project": "frugan.api.explore.projection",
        "sample": "frugan.api.sample.sampling",
        "save": "frugan.api.networks",
        "to_dfm": "frugan.api.convert.convert",
        "to_leras": "frugan.api.convert.convert",
        "to_stylegan_safetensors": "frugan.api.convert.convert",
        "train": "frugan.api.train.training",
        "write_card": "frugan.api.card",
        "write_report": "frugan.api.report",
    }
)
"""Name -> module that defines it."""


def __getattr__(name: str) -> Any:
    """Return what the package offers under a name."""
    if name not in _WHERE:
        raise AttributeError(f"module 'frugan' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    """Return the names that there are, imported or not."""
    return sorted({*globals(), *__all__})
