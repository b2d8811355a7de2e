"""`demo stylegan2`: the digits by StyleGAN2, and a grid of their styles mixed."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from frugan.api.demo.digits_demo import DemoResult, demo
from frugan.api.demo.stopped_demo import StoppedDemo
from frugan.api.sample.sampling import sample
from frugan.contract.family import SheetRequest, StyleMixing
from frugan.engine.events import Event

RECIPE = "stylegan2-digits-32"
MIXED_CLASS = 3
MIXING = StyleMixing(rows=(1, 2, 3, 4), columns=(5, 6, 7, 8), layers=(0, 1, 2))
"""Layers up to 8 pixels: the shape is the columns', the stroke the rows'."""


@dataclass(frozen=True)
class StyleDemoResult:
    """What the demo found.

    Attributes:
        digits: the scores and sample grids.
        style_mixing: a grid of one digit's styles.
    """

    digits: DemoResult
    style_mixing: Path


def demo_stylegan2(
    out: Path, *, say: Callable[[str], None], show: Callable[[Event], None]
) -> StyleDemoResult | StoppedDemo:
    """Train `stylegan2-digits-32` on half of the digits, judge it by the other half, and mix styles.

    Args:
        out: run folder; an interrupted demo goes on.
        say: is given a line for every automatic choice.
        show: is given every event.

    Returns:
        What it found; or where it was stopped, not judged.
    """
    found = demo(out, recipe_name=RECIPE, say=say, show=show)
    if isinstance(found, StoppedDemo):
        return found
    request = SheetRequest(classes=(MIXED_CLASS,), mixing=MIXING)
    (mixed,) = sample(found.run, found.run / "style-mixing", request, device="cpu", say=lambda line: None)
    return StyleDemoResult(found, mixed)
