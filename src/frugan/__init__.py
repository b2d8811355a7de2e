"""Train big image generators on the GPU you have."""

from frugan.api import (
    BadInput,
    TrainingFailed,
    TrainingOptions,
    TrainingResult,
    build,
    info,
    load,
    load_recipe,
    prepare,
    sample,
    save,
    train,
)

__all__ = [
    "BadInput",
    "TrainingFailed",
    "TrainingOptions",
    "TrainingResult",
    "build",
    "info",
    "load",
    "load_recipe",
    "prepare",
    "sample",
    "save",
    "train",
]
