"""Constants of the package that are sized for real trainings, and no caller's to choose: tests reach them with little.

Where a constant lies is said here alone. Processes that a test starts call `change`; tests take the fixture `limit`.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

Limit = Callable[[str, object], None]
"""The fixture."""

LIMITS = {
    "bytes sent to the host": "frugan.accelerator.host_memory.SMALLEST_BYTES",
    "elements of a small gradient": "frugan.engine.state.working_weights.SMALL_ELEMENTS",
    "elements of a large average": "frugan.engine.state.ema.LARGE_ELEMENTS",
    "elements of a slice": "frugan.engine.state.gradients.SLICE_ELEMENTS",
    "room for observations": "frugan.contract.layers.ROOM",
    "skips in a row": "frugan.engine.run.step_log.MOST_SKIPS",
    "seconds of sheets at a stop": "frugan.engine.run.loop.QUICK_SECONDS",
    "elements shared out": "frugan.engine.state.optimizer_shards.SMALLEST_ELEMENTS",
    "alignment of shares": "frugan.engine.state.optimizer_shards.ALIGNED",
    "bytes of a bucket": "frugan.engine.state.optimizer_shards.BUCKET_BYTES",
    "seconds between signs of life": "frugan.engine.run.run_folder.BEAT_SECONDS",
    "seconds without a sign of life": "frugan.engine.run.run_folder.WATCH_SECONDS",
    "seconds that a helper saves": "frugan.planning.predictions.HELPFUL_SECONDS",
    "side of a measured product": "frugan.stepmemory.calibration._MATRIX",
    "bytes of a measured copy": "frugan.stepmemory.calibration._COPY_BYTES",
    "windows of a comparison": "frugan.training.precision_comparison.WINDOWS",
    "steps worth timing": "frugan.training.estimates.WORTH_TIMING",
    "steps worth an estimate": "frugan.training.estimates.WORTH_AN_ESTIMATE",
    "real pictures of a class": "frugan.training.observers.MOST_REAL",
    "bytes of real pictures": "frugan.training.observers.MOST_REAL_BYTES",
    "steps before a first look": "frugan.training.observers.FIRST_LOOK_STEPS",
    "images before a first look": "frugan.training.observers.FIRST_LOOK_IMAGES",
    "least variety": "frugan.reporting.signs.LEAST_VARIETY",
    "bytes of a DFM file": "frugan.faces.saehd.dfm.MOST_BYTES",
    "bytes of a file in a zip": "frugan.data.formats.archives.MOST_FILE_BYTES",
    "bytes of labels in a zip": "frugan.data.formats.archives.MOST_JSON_BYTES",
    "bytes of a block of pictures": "frugan.data.formats.set_file.BLOCK_BYTES",
    "rows of distances": "frugan.metrics.diversity._ROWS_AT_ONCE",
    "rows of a block": "frugan.metrics.scores.BLOCK_ROWS",
    "matrices in a stack": "frugan.nn.spectral_norm.FEWEST",
    "elements of a piece": "frugan.objectives.PIECE_ELEMENTS",
}


def place_of(name: str) -> tuple[Any, str]:
    """The module that holds a limit, and its name there."""
    module, _, constant = LIMITS[name].rpartition(".")
    import_module(module)
    assert hasattr(sys.modules[module], constant), LIMITS[name]
    return sys.modules[module], constant


def change(name: str, value: object) -> None:
    """Change a limit for the rest of a process."""
    setattr(*place_of(name), value)
