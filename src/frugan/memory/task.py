"""What is trained, as plain values: all that a prediction needs to know of a recipe and its family."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import nn

from frugan.engine.ema import EmaSettings
from frugan.engine.optimizers import OptimizerSettings
from frugan.memory.blank_pictures import BlankPictures
from frugan.phase import BufferRule, Needs, Networks, Phase

MakeSheets = Callable[[Networks, int, BlankPictures], object]
"""(prepared networks, micro-batch, where given pictures come from) -> sheets of samples."""


@dataclass(frozen=True)
class Stage:
    """A part of training in which the same phases run.

    Attributes:
        name: for people: "from step 700,000 on".
        phases: in order.
        settings: optimizer settings by name.
        needs: what its data sources give.
        share: of all steps of training.
    """

    name: str
    phases: tuple[Phase, ...]
    settings: Mapping[str, OptimizerSettings]
    needs: Mapping[str, Needs]
    share: float = 1.0


@dataclass(frozen=True)
class Task:
    """What is trained.

    Attributes:
        build: every network that training may use; called under a fake mode, so it takes no memory.
        phases: every phase that training may come to run, over all stages.
        stages: at least one.
        averaged, ema: what EMA follows, and how.
        batch: samples per update.
        group: samples that stand together in a forward: the normalisation batch, or 1.
        normalisation_batch: as the recipe gives it.
        recomputable: networks -> blocks that may be recomputed.
        make_sheets: makes the sheets of a snapshot; None: there are none.
    """

    build: Callable[[], dict[str, nn.Module]]
    phases: tuple[Phase, ...]
    stages: tuple[Stage, ...]
    averaged: Mapping[str, BufferRule]
    ema: EmaSettings
    batch: int
    group: int
    normalisation_batch: int | None
    recomputable: Callable[[Networks], dict[str, tuple[str, ...]]]
    make_sheets: MakeSheets | None = None
