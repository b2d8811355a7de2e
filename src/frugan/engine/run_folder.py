"""A run: a directory with recipe, events, checkpoints and samples, written by one process at a time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from frugan.engine.run_lock import LOCK, OWNER, owned

RUN_RECIPE = "recipe.json"
"""Where a run keeps its recipe."""


@dataclass(frozen=True)
class RunFolder:
    """The paths in a run.

    Attributes:
        path: the directory; made on first use.
    """

    path: Path

    @property
    def recipe(self) -> Path:
        """The resolved recipe, JSON."""
        return self.path / RUN_RECIPE

    @property
    def plan(self) -> Path:
        """The plan that it was begun or resumed with, and what was predicted of it, JSON."""
        return self.path / "plan.json"

    @property
    def events(self) -> Path:
        """The event file, one JSON object a line: the truth about the run."""
        return self.path / "events.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Newest checkpoints."""
        return self.path / "checkpoints"

    @property
    def backups(self) -> Path:
        """Checkpoints that are kept for good."""
        return self.path / "backups"

    @property
    def best(self) -> Path:
        """Checkpoints that are kept for their score."""
        return self.path / "best"

    @property
    def samples(self) -> Path:
        """Sheets of every snapshot."""
        return self.path / "samples"

    @property
    def scores(self) -> Path:
        """What `frugan evaluate` found of this run, a line of JSON each."""
        return self.path / "scores.jsonl"

    @property
    def requests(self) -> Path:
        """Empty files named save, preview or stop ask a running training for that."""
        return self.path / "requests"

    @property
    def wandb_id(self) -> Path:
        """What the run is called at Weights & Biases, whenever it goes on."""
        return self.path / "wandb-id"

    @property
    def first_files(self) -> frozenset[str]:
        """Names that a run may have left before it had its recipe (it was refused, or killed at once)."""
        followed = {"tensorboard", "wandb", self.wandb_id.name}
        return frozenset({LOCK, OWNER, self.plan.name, self.events.name, self.requests.name}) | followed

    @property
    def exists(self) -> bool:
        """Whether a run was begun here."""
        return self.recipe.is_file()

    @classmethod
    def holding(cls, path: Path) -> Self | None:
        """The run that a file of one of its checkpoints belongs to; None: it is no run's."""
        return next((run for run in map(cls, path.resolve().parents[:3]) if run.exists), None)

    @contextmanager
    def locked(self, say: Callable[[str], None] = lambda _: None) -> Iterator[None]:
        """Be the only writer; the lock goes with the process, however it ends.

        Args:
            say: is told of a lock that somebody left behind.

        Raises:
            BadInput: another process trains in this folder, here or on another machine.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with owned(self.path, say):
            yield
