"""Reads a run for its report, again and again while it goes on: each time only what was added."""

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from frugan.api.report.report_pictures import Sheets
from frugan.api.report.run_facts import facts, tiles
from frugan.api.report.taken_scores import taken_scores
from frugan.engine.events import EventTail
from frugan.engine.run_folder import RunFolder
from frugan.memory.sizes import GIB
from frugan.metrics.low_recall import low_recall
from frugan.metrics.provenance import Provenance
from frugan.regular_files import json_object
from frugan.report.run_view import Charts, Curve, RunView

PICTURE_BYTES = 3_000_000
"""For all sheets of a page, so that it can be sent by mail."""


@dataclass
class RunReader:
    """What has been read of a run so far.

    Attributes:
        folder: the run.
        name: as it is shown.
    """

    folder: RunFolder
    name: str
    _charts: Charts = field(default_factory=Charts)
    _notes: dict[tuple[str, str], None] = field(default_factory=dict)
    _last: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _damaged: int = 0

    def __post_init__(self) -> None:
        self._tail = EventTail(self.folder.events, self._count_damaged)
        self._sheets = Sheets(self.folder.samples)

    def read(self, *, to_the_end: bool = False) -> None:
        """Take in the events that were added since the last time.

        Args:
            to_the_end: also a last line that has no end.
        """
        if self._tail.begun_anew():  # the file is not the one that it was
            self._charts, self._notes, self._last, self._damaged = Charts(), {}, {}, 0
        for event in self._charts.read(self._remembered(self._tail.added(to_the_end=to_the_end))):
            if note := _note(event):
                self._notes[note] = None

    def view(self, picture_bytes: int = PICTURE_BYTES) -> RunView:
        """What is shown of what has been read."""
        last, charts = self._last, deepcopy(self._charts)  # to finish them ends their curves
        metrics = last.get("metrics", {})
        shown = charts.finish()
        scores, doubts = taken_scores(self.folder.scores)
        plan = json_object(self.folder.plan)
        measured = shown.get("Memory (GiB)", {}).get("measured")
        if isinstance(peak := plan.get("peak_bytes"), int | float) and peak and measured:
            ends = [measured.steps[0], measured.steps[-1]]
            shown["Memory (GiB)"]["planned"] = Curve(ends, [peak / GIB] * 2)
        provenance = metrics.get("provenance", {})
        scored_with = provenance if isinstance(provenance, Mapping) else {}
        return RunView(
            name=self.name,
            charts=shown,
            facts=facts(last.get("start", {}), plan, json_object(self.folder.recipe), scored_with),
            pictures=tuple(self._sheets.pictures(picture_bytes)),
            notes=tuple(dict.fromkeys([*self._notes, *_in_words(metrics), *(("warning", line) for line in doubts)])),
            tiles=tiles(last, charts.data_seconds / max(charts.took_seconds, 1e-9)),
            damaged=self._damaged,
            gradients=charts.gradients.finish(),
            never=charts.gradients.never(),
            scores=scores,
        )

    def _count_damaged(self, line: int) -> None:
        self._damaged += 1

    def _remembered(self, events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Pass events on, and keep the last of each kind."""
        for event in events:
            self._last[str(event.get("event"))] = event
            yield event


def _note(event: Mapping[str, Any]) -> tuple[str, str] | None:
    """A line for a person, and whether it is a warning."""
    kind = event.get("event")
    if kind == "choice":
        return "choice", str(event.get("line"))
    if (words := _WARNINGS.get(str(kind))) is None:
        return None
    about = {name: event.get(name) for name in ("line", "phase", "reason", "rollbacks")}
    return "warning", f"step {event.get('step')}: {words.format(**about)}"


_WARNINGS: Mapping[str, str] = MappingProxyType(
    {
        "warning": "{line}",
        "out_of_memory": "out of memory in phase {phase}; a smaller plan",
        "diverged": "training stopped, as updates of phase {phase} stay not finite ({reason}); ways back: {rollbacks}",
        "checkpoint_failed": "no checkpoint: {reason}",
        "snapshot_failed": "no sample grid: {reason}",
    }
)
"""What events mean that are no choice."""


def _in_words(metrics: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """What the last scores say to a person."""
    try:
        line = low_recall(metrics["scores"], Provenance.from_json(metrics["provenance"]))
    except (KeyError, TypeError, AttributeError):  # no scores, or of another version
        return
    if line is not None:
        yield "warning", f"step {metrics.get('step')}: {line}"
