"""A run that is open for training: what is trained on what, where it goes, and whom to tell."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from frugan.api.progress import Say
from frugan.api.train.options import TrainingOptions
from frugan.api.train.starting_weights import Start
from frugan.contract.data import RunData
from frugan.data.run_data import class_names
from frugan.engine.events import EventLog
from frugan.engine.interrupt import StopRequest
from frugan.engine.ranks.ranks import OneRank, Ranks
from frugan.engine.requests import Requests
from frugan.engine.run_folder import RunFolder
from frugan.recipe.recipe import Recipe


@dataclass(frozen=True)
class TrainRun:
    """A run with its recipe and data, on any of the ranks that train it; its folder is the first one's alone.

    Attributes:
        recipe, name: what is trained; the name finds the predictions that ship.
        sources: opened data by source name.
        data: what checkpoints keep of them.
        folder, log: where things go.
        options: how it runs here.
        say: is given a line for every automatic choice.
        stop, requests: what is asked for while training goes on.
        start: weights that a new run starts from; None: first weights.
        command: that goes on with the run, for messages; None: there is none.
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
    stop: StopRequest = field(default_factory=StopRequest)
    requests: Requests = field(default_factory=Requests)
    start: Start | None = None
    command: str | None = None
    ranks: Ranks = field(default_factory=OneRank)

    @property
    def class_names(self) -> tuple[str, ...]:
        """What the labels mean; empty: there are none."""
        return class_names(self.data)

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes, and says what holds for all."""
        return self.ranks.rank == 0

    def choose(self, line: str) -> None:
        """Say what was chosen for all ranks, and keep it among the events."""
        if self.is_first:
            self.say(line)
            self.log.write("choice", line=line)

    def choose_here(self, line: str) -> None:
        """Say what was chosen for this rank."""
        if self.is_first:
            self.choose(line)
        else:
            self.say(line)

    def warn(self, step: int, line: str) -> None:
        """Say what is wrong, and keep it among the events."""
        if self.is_first:
            self.say(f"warning: {line}")
            self.log.write("warning", step=step, line=line)

    def warn_here(self, step: int, line: str) -> None:
        """Say what is wrong on this rank."""
        if self.is_first:
            self.warn(step, line)
        else:
            self.say(line)
