"""Durations with a unit, so that a schedule survives a change of batch, and when something is due by them."""

import itertools
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    GetCoreSchemaHandler,
    PlainSerializer,
    PlainValidator,
    model_validator,
)
from pydantic_core import core_schema

from frugan.contract.settings import CHANGEABLE, Settings, setting
from frugan.errors import BadInput

Unit = Literal["steps", "images", "seconds", "endless"]

_NUMBER = r"(\d+(?:\.\d+)?)"
_COUNT = re.compile(rf"\s*{_NUMBER}\s*([kM]?)\s*(steps?|images?)\s*")
_TIME = re.compile(
    rf"\s*(?:{_NUMBER}\s*(?:h|hours?)\s*)?(?:{_NUMBER}\s*(?:m|mins?|minutes?)\s*)?(?:{_NUMBER}\s*(?:s|seconds?)\s*)?"
)
_MINUTES_AFTER_HOURS = re.compile(r"(?<=h)\s*(\d\d?)\s*$")
MOST = 10**15
"""Steps, images or seconds: beyond all training, and exact as a float."""
_EXPECTED = "expected a number with a unit, such as '150k steps', '25M images' or '6h'"
_EXPECTED_TIME = "expected a time such as 15min or 2h"


def _seconds(text: str) -> Decimal | None:
    """Return the seconds of a time such as "90min" or "1h30"; None: it is no time."""
    match = _TIME.fullmatch(_MINUTES_AFTER_HOURS.sub(r"\1min", text))
    parts = match.groups() if match else ()
    if not any(parts):
        return None
    return sum((Decimal(part or 0) * unit for part, unit in zip(parts, (3600, 60, 1), strict=True)), Decimal(0))


@dataclass(frozen=True)
class Duration:
    """So many steps, images or seconds.

    Written `150k steps`, `25M images`, `6h`, `90min` or `30s`. A time may also be `5m`, `1h30` or `1h 30min`.
    """

    amount: float  # a whole number of steps or images; seconds may be a fraction; infinite without an end
    unit: Unit  # unit of the amount
    text: str  # text as it was written

    @classmethod
    def parse(cls, text: str) -> "Duration":
        """Read a duration.

        Raises:
            ValueError: not in one of the forms above.
        """
        try:
            return cls._read(text)
        except ValueError as error:
            raise ValueError(f"duration {text[:40]!r}: {error}") from error

    @classmethod
    def _read(cls, text: str) -> "Duration":
        """Read a duration; what is wrong with another text is said without it."""
        match, seconds = _COUNT.fullmatch(text), _seconds(text)
        if match is None and seconds is None:
            raise ValueError(_EXPECTED)
        number, prefix, unit = match.groups() if match else (str(seconds), "", "seconds")
        # not by floating point: 4.1 times a million is not a whole number there
        amount = float(Decimal(number) * {"": 1, "k": 1_000, "M": 1_000_000}[prefix])
        if amount > MOST:
            raise ValueError("expected at most 1e15")
        if unit == "seconds":
            return cls(amount, "seconds", text)
        if amount != int(amount):
            raise ValueError(f"expected a whole number of {unit}")
        return cls(amount, "steps" if unit.startswith("step") else "images", text)

    @classmethod
    def time(cls, text: str) -> "Duration":
        """Read a time such as "23h"; what is wrong with another text is said without it.

        Raises:
            ValueError: it is none, or a number without its unit.
        """
        if re.fullmatch(r"\s*\d{1,9}\s*", text):
            number = text.strip()
            raise ValueError(f"in which unit? Write {number}min, {number}s or {number}h")
        try:
            duration = cls._read(text)
        except ValueError as error:
            raise ValueError(_EXPECTED_TIME) from error
        if duration.unit != "seconds":
            raise ValueError(_EXPECTED_TIME)
        return duration

    @classmethod
    def parse_seconds(cls, text: str, option: str) -> float:
        """Seconds of a time such as "23h" that an option of a command was given.

        Raises:
            BadInput: it is none, or a number without its unit.
        """
        try:
            return cls.time(text).amount
        except ValueError as error:
            raise BadInput(f"{option} {text.strip()[:40] or repr(text)}: {error}") from error

    def __str__(self) -> str:
        return self.text

    def steps(self, batch: int) -> int:
        """Whole steps, rounded up, at `batch` images a step.

        Raises:
            ValueError: the duration is in seconds or has no end.
        """
        if (steps := self.known_steps(batch)) is None:
            raise ValueError(f"{self.text} has no number of steps")
        return steps

    def known_steps(self, batch: int) -> int | None:
        """Return whole steps, rounded up, at `batch` images a step; None: in seconds, or endless."""
        if self.unit in ("seconds", "endless"):
            return None
        return int(self.amount) if self.unit == "steps" else -(-int(self.amount) // batch)

    def seconds(self, batch: int, step_seconds: float) -> float | None:
        """Return the duration of a training in seconds; None: it has no end."""
        steps = self.known_steps(batch)
        seconds = self.amount if steps is None else steps * step_seconds
        return seconds if math.isfinite(seconds) else None

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        def read(value: Any) -> Duration:
            if isinstance(value, cls):
                return value
            if isinstance(value, str):
                return cls._read(value)
            raise ValueError(_EXPECTED)

        return core_schema.no_info_plain_validator_function(read, serialization=core_schema.to_string_ser_schema())


ENDLESS = Duration(math.inf, "endless", "endless")
"""Duration of a training that only a person stops; nothing else may be endless, so `parse` does not know it."""
UNDECIDED_STEPS = 10**9
"""Length of an endless training that keeps a time, until some steps were timed: no training comes to it."""


def _above_nothing(duration: Duration) -> Duration:
    if duration.amount <= 0:
        raise ValueError(f"{str(duration)!r}: expected more than nothing, such as '1k steps'")
    return duration


Interval = Annotated[Duration, AfterValidator(_above_nothing)]
"""A duration that is longer than nothing: how long, or how often."""


def _time(value: Any) -> Duration:
    if isinstance(value, str | int) and not isinstance(value, bool):
        value = Duration.time(str(value))  # a number is typed without its unit
    if not isinstance(value, Duration) or value.unit != "seconds":
        raise ValueError(_EXPECTED_TIME)
    if value.amount <= 0:
        raise ValueError("expected more than nothing, such as 15min")
    return value


Time = Annotated[Duration, BeforeValidator(_time)]
"""A duration in hours, minutes and seconds, that is longer than nothing."""


def _interval_or_share(value: Any) -> Duration | float:
    if isinstance(value, str):
        value = Duration._read(value)
    if isinstance(value, Duration):
        return _above_nothing(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ValueError(
            "expected text such as '10k steps' or '20M images', or a share of the duration: above 0, at most 1"
        )
    return float(value)


def _way(value: Any) -> Duration | float:
    way = _interval_or_share(value)
    if isinstance(way, Duration) and way.unit == "seconds":
        raise ValueError(f"{way}: expected steps or images; what follows the clock could not be repeated")
    return way


_AS_WRITTEN = PlainSerializer(lambda way: str(way) if isinstance(way, Duration) else way, return_type=str | float)

Way = Annotated[Duration | float, PlainValidator(_way), _AS_WRITTEN]
"""Steps or images, or a share of how long a training takes."""

IntervalOrShare = Annotated[Duration | float, PlainValidator(_interval_or_share), _AS_WRITTEN]
"""Time between two of a kind: steps, images or seconds, or a share of how long the training takes."""


@dataclass
class Length:
    """Number of steps of a training, which may be decided again as it goes.

    Progress is 0 at the start and 1 at the end. From where a training is when its length is decided again, it goes on
    evenly to the new end.
    """

    decided: list[tuple[int, int]]  # (step at which it was decided, steps in all), oldest first; the first at step 0

    @classmethod
    def of(cls, steps: int, earlier: Iterable[tuple[int, int]] = ()) -> Self:
        """Make the length of a training of `steps` steps.

        Args:
            earlier: lengths before this one: (step until which it was in force, steps in all), oldest first.
        """
        until, lengths = zip(*earlier, strict=True) if (earlier := tuple(earlier)) else ((), ())
        return cls(list(zip((0, *until), (*lengths, steps), strict=True)))

    @property
    def steps(self) -> int:
        """Steps in all, as decided last."""
        return self.decided[-1][1]

    @property
    def earlier(self) -> tuple[tuple[int, int], ...]:
        """Lengths before the last one, as `of` takes them."""
        pairs = itertools.pairwise(self.decided)
        return tuple((until, steps) for (_, steps), (until, _) in pairs)

    def decide(self, step: int, steps: int) -> None:
        """From `step` on, train until `steps` steps are done.

        Raises:
            ValueError: it is before an earlier decision, or the end would be over.
        """
        if step < self.decided[-1][0] or steps < step:
            raise ValueError(f"length of {steps} steps at step {step}, after {self.decided[-1]}")
        if step == self.decided[-1][0]:  # nothing was trained by the length before
            self.decided.pop()
        self.decided.append((step, steps))

    def steps_at(self, step: int) -> int:
        """Return how many steps in all the training was to have at step `step`."""
        return next(steps for at, steps in reversed(self.decided) if at <= step)

    def at(self, step: float) -> float:
        """Return the progress after `step` steps, from 0 to 1."""
        return min(1.0, self.ends_at(step))

    def ends_at(self, step: float) -> float:
        """Return the progress after `step` steps, which goes on to 2 where steps were added at the end, and so on."""
        progress, goal = 0.0, 1.0
        for (begin, steps), (end, _) in itertools.pairwise([*self.decided, (self.steps, self.steps)]):
            part = min(step, end) - begin
            if part > 0:
                goal += math.isclose(progress, goal)
                progress += (goal - progress) * part / (steps - begin)
        return progress


@dataclass(frozen=True)
class Course:
    """Course of all settings with a final value (`final_…` in recipes) from their first value to that."""

    images: float | None = None  # images that it takes to reach the final values; None: they stay at their first value
    # along half a cosine, slow at both ends (Loshchilov and Hutter 2016, arXiv 1608.03983), and not along a line
    cosine: bool = False
    length: Length | None = None  # of the training, in steps; None: unknown
    # the share of the length after which final values are reached, which moves with the length; None: `images` stays
    share: float | None = None

    def at(self, images: int) -> float:
        """Share of the way, from 0 to 1, after so many images."""
        if self.images is None:
            return 0.0
        share = images / self.images
        if self.share is not None and self.length is not None and self.length.earlier:
            first = self.length.decided[0][1]
            share = self.length.at(share * self.share * first) / self.share
        share = min(1.0, share)
        return (1 - math.cos(math.pi * share)) / 2 if self.cosine else share


FIRST_WAIT_SECONDS = 300.0
"""Without new grids at the start of a training, however long its steps are; later a tenth of the time so far."""
LEAST_SHARE = 50
"""Grids that the clock asks for take at most one in so many parts of the time."""
MOST_SHARE = 8
"""Grids that a share of the length or a round number of steps asks for take at most one in so many parts of it."""


@dataclass
class Clock:
    """Says when something is due, in steps, images or seconds of training.

    Each at multiples of its interval since the beginning of the training: it comes due in many short sessions as often
    as in a long one.
    """

    every: Duration | float  # the interval, or a share of the training's length
    batch: int  # images per step
    last: float = 0.0  # seconds of training at which it was last asked; only intervals in seconds need it
    length: Length | None = None  # of the training; only shares need it

    def due(self, step: int, seconds: float) -> bool:
        """Return whether it is due after `step` steps and `seconds` of training; call once a step."""
        if not isinstance(self.every, Duration):
            return self._times(step) > self._times(step - 1)
        if self.every.unit == "seconds":
            before, self.last = self.last, max(self.last, seconds)
            return self.last // self.every.amount > before // self.every.amount
        if self.every.unit == "steps":
            return step % int(self.every.amount) == 0
        images = int(self.every.amount)
        return step * self.batch // images > (step - 1) * self.batch // images

    def times_left(self, step: int, steps: int, seconds: float) -> float:
        """Return how often it will be due between `step` and a later end, in about `seconds` of training."""
        if not isinstance(self.every, Duration):
            return self._times(steps) - self._times(step)
        if self.every.unit == "seconds":
            return seconds / self.every.amount
        return (steps - step) * (1 if self.every.unit == "steps" else self.batch) / self.every.amount

    def _times(self, step: int) -> int:
        """Return how often a share of the length was reached by `step`, by rounding as near as it can be known.

        Steps that were added at the end have shares of their own: nothing would come due in them otherwise.
        """
        assert self.length is not None
        assert isinstance(self.every, float)
        return int(self.length.ends_at(step) / self.every + 1e-9)


@dataclass
class GridClock(Clock):
    """Says when grids are due: at the interval, after 1, 10, 100 ... steps, and when none was drawn for long.

    A thousand steps are minutes of one training and days of another, and whoever begins one wants to see something.
    What a person has not asked for by a number of steps or by the clock is left out where it would take a good part of
    the time, as in a training of a dozen steps.
    """

    took_seconds: float | None = None  # duration of drawing the last grids; None: none were drawn yet
    _drawn: float = field(init=False)

    def __post_init__(self) -> None:
        self._drawn = self.last

    def due(self, step: int, seconds: float) -> bool:
        """Return whether grids are due after `step` steps and `seconds` of training; call once a step."""
        wait = max(FIRST_WAIT_SECONDS, seconds / 10, LEAST_SHARE * (self.took_seconds or 0.0))
        is_round, is_due, since = str(step).rstrip("0") == "1", super().due(step, seconds), seconds - self._drawn
        if isinstance(self.every, Duration) and is_due:
            return True
        return since >= wait or ((is_due or is_round) and since >= self._least_wait)

    def times_left(self, step: int, steps: int, seconds: float) -> float:
        """See `Clock`; no more often than `due` allows."""
        times = super().times_left(step, steps, seconds)
        return (
            times
            if isinstance(self.every, Duration) or not self.took_seconds
            else min(times, seconds / self._least_wait)
        )

    @property
    def _least_wait(self) -> float:
        return MOST_SHARE * (self.took_seconds or 0.0)

    def took_at_most(self, seconds: float) -> bool:
        """Return whether grids were drawn, and the last ones in at most `seconds`."""
        return self.took_seconds is not None and self.took_seconds <= seconds

    def drew(self, seconds: float, took_seconds: float) -> None:
        """Take note of grids that were drawn after `seconds` of training."""
        self._drawn, self.took_seconds = seconds, took_seconds


BestBy = Literal["fid", "is_mean", "kid_mean", "precision", "recall", "f_score", "intra_fid", "cmmd", "two_sample"]
"""Scores that may decide which checkpoints are best."""
CHOOSING: Mapping[str, str] = MappingProxyType(
    {"is_mean": "is", "kid_mean": "kid", "precision": "pr", "recall": "pr", "f_score": "pr"}
)
"""Score -> the metric that takes it, where their names differ."""


class EvaluationSettings(Settings):
    """Scores while training goes on; they disturb none of its random streams."""

    every: IntervalOrShare | None = setting(
        None, "time between scores taken during training, or a share of its duration; none: take none", CHANGEABLE
    )
    metrics: tuple[Literal["fid", "is", "kid", "pr", "dc", "intra-fid", "cmmd", "two-sample"], ...] = setting(
        ("fid",), "scores to take", CHANGEABLE, min_length=1
    )
    samples: int = setting(10_000, "pictures to generate for each score", CHANGEABLE, ge=10)
    network: str = setting(
        "inception",
        "feature network: inception, inception-torchvision, dinov2, clip, digits, pixels, a TorchScript file, or "
        "module:callable",
        CHANGEABLE,
    )
    statistics: Literal["running", "standing", "batch"] = setting(
        "running", "statistics that batch normalisation uses for scores", CHANGEABLE
    )
    standing_batches: int = setting(16, "batches to measure standing statistics over", CHANGEABLE, ge=1)
    standing_size: int | None = setting(
        None, "samples in each of these batches; none: training.normalisation_batch", CHANGEABLE, ge=1
    )
    truncation: float = setting(1.0, "standard deviation of the latents for scores", CHANGEABLE, gt=0, le=10)
    noise: Literal["const", "random", "none"] = setting(
        "const", "what layers of a network with styles add for scores; StyleGAN2's release: random", CHANGEABLE
    )
    best_by: BestBy = setting("fid", "score that decides which checkpoints are best", CHANGEABLE)
    keep_best: int = setting(2, "how many of the best checkpoints to keep, besides the newest", CHANGEABLE, ge=0)

    @model_validator(mode="after")
    def _measures_what_it_keeps_by(self) -> Self:
        metric = CHOOSING.get(self.best_by, self.best_by.replace("_", "-"))
        if self.every is not None and self.keep_best and metric not in self.metrics:
            scores = {CHOOSING.get(score, score.replace("_", "-")): score for score in get_args(BestBy)}
            near = next((scores[taken] for taken in self.metrics if taken in scores), None)
            by_another = "evaluation.keep_best=0" if near is None else f"evaluation.best_by={near}"
            raise ValueError(
                f"best_by = {self.best_by}: the best checkpoints go by {metric}, and evaluation.metrics are "
                f"{', '.join(self.metrics)}; give {by_another} too, or add {metric} to the metrics"
            )
        usual = type(self).model_fields["standing_batches"].default
        if self.statistics != "standing" and (self.standing_size is not None or self.standing_batches != usual):
            raise ValueError("standing_batches and standing_size go with statistics = 'standing', and only with it")
        return self
