"""Progress callbacks, and defaults that help texts show."""

from collections.abc import Callable

Say = Callable[[str], None]
"""Is given a line for every automatic choice."""

Progress = Callable[[int, int], None]
"""Is given (done, all)."""


def quiet(_: object) -> None:
    """Say or show nothing."""


METRICS = ("fid", "is", "kid", "pr", "intra-fid", "cmmd", "two-sample")
USUAL_METRICS = ("fid", "is", "kid", "pr")
STANDING_BATCHES = 16
"""Batches from which standing statistics are gathered, as in the BigGAN release."""
PROJECTION_STEPS = 300
"""Steps of the search for a given picture."""
COMPARED_STEPS = 200
"""For which a recipe is trained in two precisions, side by side."""
FACES = 120
"""Drawn of each person for the demo."""
SIDE_PIXELS = 128
"""Side of drawn faces."""
