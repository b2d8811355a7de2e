"""Train big image generators on the GPU you have."""

from frugan.api import (
    BadInput,
    TrainingFailed,
    TrainingOptions,
    TrainingResult,
    build,
    from_leras,
    info,
    load,
    load_recipe,
    prepare,
    sample,
    save,
    to_dfm,
    to_leras,
    train,
)

__all__ = [
    "BadInput",
    "TrainingFailed",
    "TrainingOptions",
    "TrainingResult",
    "build",
    "from_leras",
    "info",
    "load",
    "load_recipe",
    "prepare",
    "sample",
    "save",
    "to_dfm",
    "to_leras",
    "train",
]
