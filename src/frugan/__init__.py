"""Train big image generators on the GPU you have.

What it offers is imported when it is first asked for: processes that make face samples import this package too, and
torch alone would take each of them 245 MiB.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from frugan.api import (
        BadInput,
        DrawRequest,
        Evaluation,
        EvaluationOptions,
        PlanOptions,
        PlanReport,
        TrainingFailed,
        TrainingOptions,
        TrainingResult,
        animate,
        build,
        draw,
        evaluate,
        from_leras,
        info,
        largest,
        load,
        load_recipe,
        plan,
        prepare,
        sample,
        save,
        to_dfm,
        to_leras,
        train,
        write_report,
    )

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


def __getattr__(name: str) -> Any:
    """Return what `frugan.api` offers under a name."""
    if name not in __all__:
        raise AttributeError(f"module 'frugan' has no attribute {name!r}")
    from frugan import api  # noqa: PLC0415  (see above)

    return getattr(api, name)


def __dir__() -> list[str]:
    """Return the names that there are, imported or not."""
    return sorted({*globals(), *__all__})
