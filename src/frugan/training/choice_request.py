"""What a user sets where frugan chooses the recipe: no choice overrides it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from frugan.contract.settings import DataSettings
from frugan.engine.durations import Duration
from frugan.errors import BadInput
from frugan.recipe.faults import dotted_keys, explain
from frugan.recipe.overrides import apply_overrides
from frugan.recipe.recipe import Recipe
from frugan.training.candidates import THRESHOLDS, Candidate


@dataclass(frozen=True)
class Request:
    """Settings that the user gives; no choice overrides them."""

    overrides: Sequence[str]  # `key.sub=value` words
    start: Recipe | None  # that of weights to start from
    time: str  # that training may take, as it is written
    seconds: float  # that training may take; of a length by the clock where no time is given
    data: DataSettings  # how pictures become samples, by the words and by the recipe of weights
    named_time: bool  # whether the user says how long
    from_noise: bool  # not from weights that ship

    @classmethod
    def of(cls, overrides: Sequence[str], start: Recipe | None, for_time: str | None, *, from_noise: bool) -> "Request":
        """Read it.

        Raises:
            BadInput: `for_time` is no time, or what the words say of data cannot be.
        """
        time = THRESHOLDS.usual_time if for_time is None else for_time
        seconds = Duration.parse_seconds(time, "--for")
        base = THRESHOLDS.last if start is None else Candidate(start, start.resolution, 0)
        words = [word for word in overrides if word.startswith("data.")]
        _check_data(words)
        data = base.loaded(words).data
        request = cls(overrides, start, time, seconds, data, for_time is not None, from_noise)
        if for_time is None and request.length_seconds is not None:
            return replace(request, seconds=request.length_seconds)
        return request

    @cached_property
    def values(self) -> Mapping[str, str]:
        """Values of the overrides by key, unparsed."""
        return dict(word.partition("=")[::2] for word in self.overrides)

    @property
    def length(self) -> str:
        """The override of training.duration; empty: there is none."""
        return self.values.get("training.duration", "")

    @property
    def length_seconds(self) -> float | None:
        """Seconds of a length by the clock; None: it is another, or none."""
        try:
            parsed = Duration.parse(self.length)
        except ValueError:
            return None
        return parsed.amount if parsed.unit == "seconds" else None

    def check_side(self) -> None:
        """Refuse a resolution that no recipe has."""
        side = self.values.get("networks.resolution")
        if side is not None and side not in map(str, THRESHOLDS.sides):
            raise BadInput(
                f"networks.resolution={side}: expected {', '.join(map(str, THRESHOLDS.sides))} where frugan chooses "
                "the recipe; other sizes need a recipe that you name (`frugan recipes`)"
            )


def _check_data(words: Sequence[str]) -> None:
    """Refuse values of data without naming a recipe: nobody has named one.

    Raises:
        BadInput: a value that cannot be.
    """
    known = {*dotted_keys(DataSettings, "data")}
    values: dict[str, Any] = {}
    apply_overrides(values, [word for word in words if word.partition("=")[0] in known], ())
    try:
        DataSettings.model_validate(values.get("data", {}))
    except ValidationError as error:
        raise BadInput(explain(error, DataSettings, "data")) from error
