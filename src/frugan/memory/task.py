"""What is trained, as plain values: all that a prediction needs to know of a recipe and its family."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import nn

from frugan.contract.data import SourceSpec
from frugan.contract.phase import Networks, Phase
from frugan.engine.setup import TrainingSetup
from frugan.memory.blank_pictures import BlankPictures

MakeSheets = Callable[[Networks, int, BlankPictures], object]
"""(prepared networks, micro-batch, where given pictures come from) -> sheets of samples."""


@dataclass(frozen=True)
class Stage:
    """A part of training in which the same phases run.

    Attributes:
        name: for people: "from step 700,000 on".
        setup: what is trained then.
        needs: what its data sources give.
        share: of all steps of training.
    """

    name: str
    setup: TrainingSetup
    needs: Mapping[str, SourceSpec]
    share: float = 1.0


@dataclass(frozen=True)
class Task:
    """What is trained.

    Attributes:
        build: every network that training may use, on a device or without data ("meta").
        stages: at least one; of the same batch and averages.
        group: samples that stand together in a forward: the normalisation batch, or 1.
        recomputable: networks -> blocks that may be recomputed.
        make_sheets: makes the sheets of a snapshot; None: there are none.
        ranks: that train together, each a batch of this size; they may share out the optimizers' state.
        in_parts: its groups of samples are parts of groups that ranks share.
        compiled: its phases are, where a plan allows.
    """

    build: Callable[[str], dict[str, nn.Module]]
    stages: tuple[Stage, ...]
    group: int
    recomputable: Callable[[Networks], dict[str, tuple[str, ...]]]
    make_sheets: MakeSheets | None = None
    ranks: int = 1
    in_parts: bool = False
    compiled: bool = False

    @property
    def batch(self) -> int:
        """Samples per update."""
        return self.stages[0].setup.batch

    @property
    def averages(self) -> bool:
        """Whether EMA follows any network."""
        return bool(self.stages[0].setup.averaged)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Every phase that training may come to run, over all stages."""
        return self.stages[0].setup.every_phase

    def shared_by(self, ranks: int, samples: int) -> "Task":
        """What one of so many ranks does of it that sees so many samples of a batch.

        Of each phase it runs its part, in whole groups. A phase that sees few samples may have fewer groups than there
        are ranks; each runs one then.
        """
        if ranks == 1:
            return self

        def shared(phase: Phase) -> Phase:
            seen, group = phase.samples(self.batch), phase.group(self.group)
            groups = math.ceil(math.ceil(seen / group) * samples / self.batch)  # of this phase, for this rank
            own = min(groups * group, samples, seen)
            return phase if own == phase.samples(samples) else replace(phase, fraction=own / samples)

        def of(setup: TrainingSetup) -> TrainingSetup:
            later = setup.later_phases
            return replace(
                setup,
                batch=samples,
                phases=tuple(map(shared, setup.phases)),
                later_phases=None if later is None else tuple(map(shared, later)),
            )

        return replace(self, ranks=ranks, stages=tuple(replace(each, setup=of(each.setup)) for each in self.stages))

    @property
    def shards(self) -> bool:
        """Whether there are ranks that can share out the optimizers' state."""
        return self.ranks > 1

    def with_batch(self, batch: int) -> "Task":
        """The same with another batch."""
        stages = (replace(each, setup=replace(each.setup, batch=batch)) for each in self.stages)
        return replace(self, stages=tuple(stages))
