"""Title and origin of a generator that is given away: for its page, and for its model card."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from frugan.engine.run.events import read_events
from frugan.engine.run.run_folder import RunFolder
from frugan.progress import quiet
from frugan.setup.networks import Weights
from frugan.wording import count, family_name, made_by


@dataclass(frozen=True)
class AboutModel:
    """Words about a generator, for people who never saw its recipe."""

    title: str
    origin: str  # a sentence: who made it, of what

    @classmethod
    def of(cls, weights: Weights, *, title: str = "", by: str = "") -> Self:
        """Say what weights are.

        Args:
            weights: of a run, or of a single file.
            title: empty: the name of the run or of the file.
            by: who trained them; empty: nobody is named.
        """
        run = RunFolder.holding(weights.path)
        name = weights.path.stem if run is None else run.path.resolve().name
        what = f"{family_name(weights.recipe.family)} generator at {weights.recipe.resolution} pixels"
        trained = f", trained for {count(weights.step, 'step')}" if weights.step else ""
        pictures = _pictures(run) if run is not None else 0
        of = f" on {count(pictures, 'picture')}" if trained and pictures else ""
        return cls(" ".join(title.split()) or name, f"{made_by(by)}: {what}{trained}{of}.")


def _pictures(run: RunFolder) -> int:
    """Number of pictures that a run was last trained on; 0: its events do not say."""
    start: Mapping[str, Any] = {}
    for event in read_events(run.events, quiet) if run.events.is_file() else ():
        start = event if event.get("event") == "start" else start
    sources = start.get("data")
    numbers = [
        source.get("pictures") if isinstance(source, Mapping) else None
        for source in (sources.values() if isinstance(sources, Mapping) else ())
    ]
    return sum(number for number in numbers if isinstance(number, int))
