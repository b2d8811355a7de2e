"""Where a run stands, for the person who made its pictures: one sentence, and two scores with their controls."""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from textwrap import shorten
from types import MappingProxyType
from typing import Any

from frugan.metrics.provenance import NONE
from frugan.metrics.scores import half_width
from frugan.wording import (
    clock,
    controls_in,
    count,
    family_name,
    judge_in_words,
    made_by,
    says_little,
    score_name,
    with_interval,
)

SECOND: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "fid": ("FID", "distance of the pictures' statistics from real ones: lower is better"),
        "kid_mean": ("KID", "distance of the pictures' features from real ones: lower is better"),
        "cmmd": ("CMMD", "distance of the pictures' features from real ones: lower is better"),
        "recall": ("recall", "share of the real pictures that the generator comes near: 1 is all of them"),
        "precision": ("precision", "share of the generated pictures that lie near real ones: 1 is all of them"),
    }
)
"""Score -> its name and meaning, in the order in which one of them is shown beside two-sample."""
NO_VALUE = "-"
"""Value of a score that saw nothing."""
GUESSING = 0.55
ALMOST_ALL = 0.95
"""Shares of pictures told apart: up to the first a judge may guess, from the second on it is nearly always right."""
MOST_OF_WARNING = 80
"""Characters of a warning in the sentence: the whole is among the run's notes."""
A_LITTLE = 0.02
"""Share above what the same judge finds between real pictures, up to which it may be guessing."""


@dataclass(frozen=True)
class Headline:
    """A score as it is shown large."""

    name: str
    value: str
    about: str  # what it means, with its control

    @property
    def as_json(self) -> dict[str, str]:
        """Its fields by name."""
        return asdict(self)


def headlines(metrics: Mapping[str, Any]) -> list[Headline]:
    """At most two scores of an event of scores: pictures told from real ones, and one by features."""
    scores, measured = metrics.get("scores"), metrics.get("provenance")
    if not isinstance(scores, Mapping):
        return []
    measured = measured if isinstance(measured, Mapping) else {}
    return [*_told_apart(scores, measured), *_by_features(scores, measured)]


def of_newest(events: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Scores of the newest weights that have any, as one event: those that tell pictures apart, and the others.

    `evaluate` may have taken them one after the other, and says of each what it was measured with.

    Args:
        events: of scores, newest first, with their steps; of one step the first counts.
    """
    read = [
        event for event in events if isinstance(event.get("scores"), Mapping) and isinstance(event.get("step"), int)
    ]
    newest = max((event["step"] for event in read), default=None)
    of_step = [event for event in read if event["step"] == newest]
    told, others = (
        next((event for event in of_step if any(name in event["scores"] for name in names)), None)
        for names in (("two_sample",), SECOND)
    )
    if told is None or others is None or told is others:
        return told or others or next(iter(of_step), {})
    scores = {name: value for name, value in told["scores"].items() if name.startswith("two_sample")}
    one, other = (found if isinstance(found := event.get("provenance"), Mapping) else {} for event in (told, others))
    words = {
        word: separator.join(
            part
            for measured, own in ((one, True), (other, False))
            for part in str(measured.get(word, NONE)).split(separator)
            if part != NONE and part.startswith("two-sample") is own
        )
        for word, separator in (("control", "; "), ("blind", ","))
    }
    said = {word: line or NONE for word, line in words.items()}
    return {**others, "scores": {**others["scores"], **scores}, "provenance": {**one, **other, **said}}


def _told_apart(scores: Mapping[str, Any], measured: Mapping[str, Any]) -> Iterator[Headline]:
    name = "told from real pictures"
    if "two-sample" in str(measured.get("blind", NONE)).split(","):
        yield Headline(name, NO_VALUE, "too few pictures for this score to see anything")
        return
    share, half_width, real = (scores.get(f"two_sample{of}") for of in ("", "_half_width", "_real"))
    if not isinstance(share, float):
        return
    about = ["50 is guessing"]
    if isinstance(real, float):
        about.append(f"real ones from each other: {100 * real:.0f}")
    about += _seen("two-sample", measured)
    if any(says_little(score, scores, measured) for score in scores):
        about.append("precision and recall by pixels say little yet")
    width = half_width if isinstance(half_width, float) else None
    told = with_interval("two_sample", share, width, ".0f", 100)
    yield Headline(name, f"{told} times in 100", "; ".join(about))


def _by_features(scores: Mapping[str, Any], measured: Mapping[str, Any]) -> Iterator[Headline]:
    blind = "pr" in str(measured.get("blind", NONE)).split(",")
    for score, (name, about) in SECOND.items():
        value = scores.get(score)
        if not isinstance(value, int | float) or (blind and score in ("recall", "precision")):
            continue
        if says_little(score, scores, measured):
            continue
        width = half_width(score, scores, measured)
        shown = with_interval(score, value, width, ".3g")
        real = scores.get(f"{score}_real")
        beside = [f"real ones from each other: {real:.2g}"] if isinstance(real, float) else []
        sees = _seen("pr", measured) if score in ("recall", "precision") else ()
        yield Headline(score_name(name, measured.get("network")), shown, "; ".join((about, *beside, *sees)))
        return


def _seen(metric: str, measured: Mapping[str, Any]) -> Iterator[str]:
    """How small a damage of real pictures a metric sees, and what it does not see; nothing where it has no control."""
    for metrics, seen in controls_in(measured.get("control")).items():
        if metric in metrics.split(","):
            yield f"shown damaged real pictures, it {seen}"


def sentence(state: str, last: Mapping[str, Mapping[str, Any]], warning: str | None, run: str = "RUN") -> str:
    """How a run goes and what to do, in a sentence.

    Args:
        state: running, starting, waiting, imported, finished, stopped or died.
        last: newest event of each kind.
        warning: the newest one that is not over.
        run: its folder, for a command.
    """
    step, good = last.get("step", {}), _how_good(last.get("metrics", {}))
    at = f" at step {number:,}" if isinstance(number := step.get("step"), int) else ""
    begins = {
        "waiting": "Waiting in the queue: it begins by itself.",
        "starting": "Starting: it reads its pictures and looks for a plan that fits; first samples come soon.",
    }
    if state in begins:
        return begins[state]
    if state == "imported":
        of = last.get("imported", {}).get("step")
        of_step = f" at step {of:,}" if isinstance(of, int) else ""
        return (
            f"Imported{of_step}, not trained here yet: frugan train {shlex.quote(run)} --data PICTURES goes on from it."
        )
    if state == "running":
        left = step.get("eta_seconds")
        until = f"Training, {clock(float(left))} left" if isinstance(left, int | float) else "Training without an end"
        todo = f"read the warning: {_brief(warning)}" if warning else "nothing needs to be done"
    else:
        until = {"finished": "Finished", "died": f"Ended{at} without saying why"}.get(state, f"Stopped{at}")
        todo = {
            "finished": "look at its pictures, and train longer if they still get better",
            "stopped": "look at its pictures, and let it go on if they still get better",
            "died": "look at its last lines, then let it go on from its last checkpoint",
        }.get(state, "look at the pictures")
        todo = f"{todo}; read the warning first: {_brief(warning)}" if warning else todo
    return f"{until}: {f'{good}; ' if good else ''}{todo}."


def _brief(warning: str) -> str:
    """The beginning of a warning, by which it is found among the others."""
    return f'"{shorten(warning, MOST_OF_WARNING, placeholder=" ...")}"'


def origin(start: Mapping[str, Any], by: str = "") -> str:
    """Kind of generator and number of pictures that the event of a start tells; empty: it does not.

    Args:
        by: who trained it; empty: nobody is named.
    """
    recipe, data = start.get("recipe"), start.get("data")
    if not isinstance(recipe, Mapping) or not isinstance(data, Mapping) or not isinstance(recipe.get("family"), str):
        return ""
    numbers = [source.get("pictures") for source in data.values() if isinstance(source, Mapping)]
    pictures = sum(number for number in numbers if isinstance(number, int))
    of = f", trained on {count(pictures, 'picture')}" if pictures else ""
    return f"{made_by(by)}: {family_name(recipe['family'])} generator{of}."


def _how_good(metrics: Mapping[str, Any]) -> str:
    scores, measured = metrics.get("scores"), metrics.get("provenance")
    if not isinstance(scores, Mapping) or not isinstance(share := scores.get("two_sample"), float):
        return ""
    blind = measured.get("blind", NONE) if isinstance(measured, Mapping) else NONE
    if "two-sample" in str(blind).split(","):
        return ""
    within, real = (
        float(value) if isinstance(value := scores.get(f"two_sample_{name}"), int | float) else default
        for name, default in (("half_width", 0.0), ("real", 0.5))
    )
    who = judge_in_words(measured.get("judge") if isinstance(measured, Mapping) else None)
    if share <= GUESSING and share - within <= real + A_LITTLE:
        return f"{who} can hardly tell its pictures from real ones"
    if share >= ALMOST_ALL:
        return "its pictures are still easily told from real ones"
    return f"{who} still tells its pictures from real ones {100 * round(share, 2):.0f} times in 100"


def note(event: Mapping[str, Any]) -> tuple[str, str] | None:
    """Line for a person of an event, after its kind: "choice" or "warning"; None: it has none."""
    kind = event.get("event")
    if kind == "choice":
        return "choice", str(event.get("line"))
    if kind == "length":
        return _new_length(event)
    if (words := _WARNINGS.get(str(kind))) is None:
        return None
    about = {name: event.get(name) for name in ("line", "phase", "reason", "rollbacks")}
    return "warning", f"step {event.get('step')}: {words.format(**about)}"


NOTICEABLE = 0.05
"""Change of a step's seconds from which on it is given as the reason for another length."""


def _new_length(event: Mapping[str, Any]) -> tuple[str, str] | None:
    """Another number of steps of a run that keeps a time, in words."""
    steps, before, slowdown = (event.get(name) for name in ("steps", "before", "slowdown"))
    if not isinstance(steps, int):
        return None  # of another version
    if not isinstance(before, int):  # of a training without an end, before a time was kept
        return "choice", f"step {event.get('step')}: {steps:,} steps, to keep the time"
    why = _why(slowdown, is_less=steps < before) if isinstance(slowdown, float) else ""
    return "choice", f"step {event.get('step')}: {steps:,} steps in place of {before:,}, to keep the time{why}"


def _why(slowdown: float, *, is_less: bool) -> str:
    """Give the reason for fewer steps, or more, in brackets; empty: steps changed too little to be the whole of it."""
    if (slowdown > 1) != is_less:
        return f" (what comes between steps takes {'more' if is_less else 'less'} time than was kept for it)"
    if abs(slowdown - 1) < NOTICEABLE:
        return ""
    return f" (a step took {_times(slowdown)} times as long as thought)"


def _times(factor: float) -> str:
    return f"{factor:.2g}" if factor < 10 else f"{factor:,.0f}"


_WARNINGS: Mapping[str, str] = MappingProxyType(
    {
        "warning": "{line}",
        "out_of_memory": "out of memory in phase {phase}; a smaller plan",
        "diverged": "training stopped, as updates of phase {phase} stay not finite ({reason}); ways back: {rollbacks}",
        "checkpoint_failed": "no checkpoint: {reason}",
        "snapshot_failed": "no sample grid: {reason}",
    }
)
"""Lines for people, by the kind of an event, for those that tell of trouble."""
