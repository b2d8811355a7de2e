"""Types of callbacks that report progress, and defaults that help texts show."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

Say = Callable[[str], None]
"""A function that is given a line for every automatic choice."""

Progress = Callable[[int, int], None]
"""A function that is given (done, all)."""


def quiet(_: object) -> None:
    """Ignore a line."""


LINE_SECONDS = 10.0
"""Seconds between two lines that tell how far something is, where there is no terminal for a line that moves."""
METRICS = ("fid", "is", "kid", "pr", "dc", "intra-fid", "cmmd", "ppl", "eqt", "eqt-frac", "eqr", "two-sample")
METRIC_OF: Mapping[str, str] = MappingProxyType(
    {
        "precision": "pr",
        "recall": "pr",
        "density": "dc",
        "coverage": "dc",
        "inception": "is",
        "two_sample": "two-sample",
    }
)
"""Name of a score -> the metric that takes it, where somebody may take one for the other."""
USUAL_METRICS = ("fid", "is", "kid", "pr")
STANDING_BATCHES = 16
"""Number of batches for standing statistics, as in the BigGAN release."""
PROJECTION_STEPS = 300
"""Steps of the search for a given picture."""
COMPARED_STEPS = 200
"""Steps of a comparison of two precisions."""
FACES = 120
"""Number of faces drawn of each person for the demo."""
SIDE_PIXELS = 128
"""Side of drawn faces."""
