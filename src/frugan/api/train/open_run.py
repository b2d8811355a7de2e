"""A run that is open for training: what is trained on what, where it goes, and whom to tell."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from frugan.api.progress import Say
from frugan.api.train.options import TrainingOptions
from frugan.contract.data import RunData
from frugan.data.run_data import class_names
from frugan.engine.events import EventLog
from frugan.engine.ranks.ranks import OneRank, Ranks
from frugan.engine.run_folder import RunFolder
from frugan.recipe.recipe import Recipe


@dataclass(frozen=True)
class OpenRun:
    """A locked run folder with its recipe and data.

    Attributes:
        recipe, name: what is trained; the name finds the predictions that ship.
        sources: opened data by source name.
        data: what checkpoints keep of them.
        folder, log: where things go.
        options: how it runs here.
        say: is given a line for every automatic choice.
        command: that goes on with the run, for messages; None: there is none.
        known: what the run was trained on before; empty for a new one.
        map_classes: as for `train`.
        ranks: the processes that train together.
    """

    recipe: Recipe
    name: str
    sources: Mapping[str, Any]
    data: Mapping[str, RunData]
    folder: RunFolder
    log: EventLog
    options: TrainingOptions
    say: Say
    command: str | None = None
    known: Mapping[str, RunData] = field(default_factory=dict)
    map_classes: Mapping[str, str] | None = None
    ranks: Ranks = field(default_factory=OneRank)

    @property
    def class_names(self) -> tuple[str, ...]:
        """What the labels mean; empty: there are none."""
        return class_names(self.data)

    def choose(self, line: str) -> None:
        """Say what was chosen, and keep it among the events."""
        self.say(line)
        self.log.write("choice", line=line)

    def warn(self, step: int, line: str) -> None:
        """Say what is wrong, and keep it among the events."""
        self.say(f"warning: {line}")
        self.log.write("warning", step=step, line=line)
