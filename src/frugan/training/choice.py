"""Rule-based choice of a recipe from the pictures, the machine and the time, where none is named.

The same facts give the same choice. What it chooses among, and the numbers that the rules go by, are data:
recipes/choice.toml. What the rules say is in docs/training-well.md, with what was measured.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from frugan.contract.settings import DataSettings
from frugan.data.facts import PictureFacts, look_at
from frugan.data.formats.decoding import WHITE, background
from frugan.data.formats.picture_set import PictureSet
from frugan.data.formats.source import local_path
from frugan.data.parts import trained_on
from frugan.data.pixel_lines import colour_name
from frugan.engine.durations import Duration
from frugan.errors import BadInput
from frugan.families import families
from frugan.planning.pace import Machine, machine_here
from frugan.progress import Progress
from frugan.recipe.faults import dotted_keys, explain
from frugan.recipe.overrides import apply_overrides
from frugan.recipe.recipe import Recipe
from frugan.recipes import shipped_weights
from frugan.setup.networks import Weights
from frugan.setup.run_data_sources import Data
from frugan.training.candidates import THRESHOLDS, Candidate
from frugan.training.picture_lines import enlarged_lines
from frugan.training.starting_weights import FROM_NOISE
from frugan.wording import duration

FOLLOWED = frozenset(("networks.resolution", "networks.classes", "networks.channels"))
"""Fields of networks that weights follow, or that name those that ship."""


@dataclass(frozen=True)
class RecipeChoice:
    """A recipe, and why."""

    recipe: str | Recipe  # that ships, by name; or that of weights to start from, with the overrides in it
    overrides: tuple[str, ...]  # `key.sub=value` words
    lines: tuple[str, ...]  # what was chosen and why, for people
    left_out: tuple[str, ...] = ()  # which files are no pictures of the set, for people; training says it again
    start: str | None = None  # recipe whose shipped weights it starts from; None: from those that are named, or noise


def choose(
    facts: PictureFacts,
    machine: Machine,
    for_time: str | None = None,
    overrides: Sequence[str] = (),
    start: Recipe | None = None,
    *,
    from_noise: bool = False,
) -> RecipeChoice:
    """The recipe for some pictures on a machine in a time.

    Args:
        facts: of the pictures.
        machine: what trains.
        for_time: how long, such as "30min"; None: as usual.
        overrides: `key.sub=value` words that hold whatever is chosen.
        start: recipe of weights to start from; None: none are named.
        from_noise: not from weights that ship, either.

    Raises:
        BadInput: it is no time, there is too little of it, or a resolution is asked for that no recipe has.
    """
    request = _Request.of(overrides, start, for_time, from_noise=from_noise)
    best = _Chooser(facts, machine, request).best()
    steps, seconds = _length(best, request, machine)
    words = (
        *best.words,
        *_length_words(best, steps, seconds, request),
        *_fewer_samples(best.recipe, steps, seconds, request),
    )
    recipe = best.candidate.loaded([*words, *overrides])
    shipped = None if from_noise or start is not None else _shipped_start(best.candidate, recipe)
    lines = _lines(facts, best, recipe, request, machine, shipped)
    return RecipeChoice(best.candidate.recipe if start is None else recipe, words, lines, facts.left_out, shipped)


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


@dataclass(frozen=True)
class _Request:
    """Settings that the user gives; no choice overrides them."""

    overrides: Sequence[str]  # `key.sub=value` words
    start: Recipe | None  # that of weights to start from
    time: str  # that training may take, as it is written
    seconds: float  # that training may take; of a length by the clock where no time is given
    data: DataSettings  # how pictures become samples, by the words and by the recipe of weights
    named_time: bool  # whether the user says how long
    from_noise: bool  # not from weights that ship

    @classmethod
    def of(
        cls, overrides: Sequence[str], start: Recipe | None, for_time: str | None, *, from_noise: bool
    ) -> "_Request":
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


@dataclass(frozen=True)
class _Trial:
    """A candidate as it would be trained, and its pace."""

    candidate: Candidate
    words: tuple[str, ...]
    recipe: Recipe
    step_seconds: float
    steps: int  # that fit into the time
    wanted_steps: int | None  # set by the user; None: not set
    larger: str = ""  # how long the next larger size would need, in words; empty: time was not what spoke against one

    def has_time_for(self, candidate: Candidate) -> bool:
        """Return whether a candidate would see enough pictures at the measured pace."""
        steps = self.steps if self.wanted_steps is None else min(self.wanted_steps, self.steps)
        return steps * self.recipe.training.batch >= candidate.images

    def seconds_for(self, candidate: Candidate) -> float:
        """Seconds in which a candidate would see enough pictures at the measured pace."""
        return candidate.images / self.recipe.training.batch * self.step_seconds / THRESHOLDS.time_for_steps


@dataclass(frozen=True)
class _Chooser:
    """Evaluates candidates for some pictures on a machine."""

    facts: PictureFacts
    machine: Machine
    request: _Request

    @cached_property
    def fit(self) -> tuple[str, ...]:
        """Overrides that make pictures square: objects on a background are padded, photographs cropped."""
        laid_on = self.facts.transparent > len(self.facts.looked_at) / 2
        pads = laid_on and self.facts.oblong > THRESHOLDS.oblong_share and "data.fit" not in self.request.values
        return ("data.fit=pad",) if pads else ()

    @cached_property
    def whole(self) -> bool:
        """Whether pictures are padded rather than cropped."""
        return bool(self.fit) or self.request.data.fit == "pad"

    def best(self) -> _Trial:
        """The first that there is time for, else the last that has room.

        A processor is timed, which takes longer than to predict: from the smallest on, and none that there could be no
        time for, as no larger one is faster.

        Raises:
            BadInput: none has room.
        """
        best, is_card, candidates = None, self.machine.is_card, self.candidates()
        larger: list[tuple[int, str]] = []
        for candidate in candidates if is_card else reversed(candidates):
            if not is_card and best is not None and not best.has_time_for(candidate):
                larger.append((candidate.side, f"more than {duration(best.seconds_for(candidate))}"))
                break
            trial = self.trial(candidate)
            if trial is None:
                continue
            has_time = trial.has_time_for(candidate)
            if not has_time:
                larger.append((candidate.side, f"about {duration(trial.seconds_for(candidate))}"))
            if is_card or has_time or best is None:
                best = trial
            if has_time is is_card:  # no other can be better: a card's come best first, a processor's fastest first
                break
        if best is None:
            raise BadInput(f"no recipe that frugan chooses among fits {self.machine.words}; name one: `frugan recipes`")
        needed = min(((side, needs) for side, needs in larger if side > best.candidate.side), default=None)
        if needed is None or best.wanted_steps is not None:
            return best
        return replace(best, larger=f"; {needed[0]} pixels would need {needed[1]}")

    def candidates(self) -> Sequence[Candidate]:
        """Return the candidates that could be trained, best first.

        Raises:
            BadInput: there is none of the side that is wanted, or it is too much for a processor.
        """
        start, side = self.request.start, self.request.values.get("networks.resolution", "")
        if start is not None:
            return [Candidate(start, int(side) if side.isascii() and side.isdigit() else start.resolution, 0)]
        candidates = [self._from_weights(candidate) for candidate in self._of_side()]
        left = [candidate for candidate in candidates if self.machine.is_card or not candidate.on_card]
        if left:
            return left
        others = sorted({candidate.side for candidate in THRESHOLDS.candidates if not candidate.on_card})
        side = str(candidates[0].side)
        where = (
            f"networks.resolution={side}" if self.facts.only_side is None else f"data: an opened set of {side} pixels"
        )
        raise BadInput(
            f"{where}: frugan chooses this size on cards alone; expected one of {', '.join(map(str, others))} without "
            "one, or name a recipe: `frugan recipes`"
        )

    def _from_weights(self, candidate: Candidate) -> Candidate:
        """Return a candidate that needs to show fewer pictures, as it starts from weights that ship, if it does."""
        fewer = candidate.images_from_weights
        changed = {key for key in self.request.values if key.startswith("networks.")} - FOLLOWED
        if fewer is None or self.request.from_noise or changed:
            return replace(candidate, words_of_few_steps=())
        return replace(candidate, images=fewer)

    def _of_side(self) -> Sequence[Candidate]:
        """Return the candidates for the pictures' resolutions, or for the requested one.

        Raises:
            BadInput: there is none of that side.
        """
        self.request.check_side()
        wanted = self.request.values.get("networks.resolution")
        if self.facts.only_side is not None:
            return self._of_opened_set(self.facts.only_side, wanted)
        if wanted is not None:
            return THRESHOLDS.of_side(int(wanted))
        sides = self.facts.sides(whole=self.whole)
        share, least = THRESHOLDS.side_share, np.percentile(sides, THRESHOLDS.side_percentile)
        allowed, is_named = self.request.data.allow_upscale, "data.allow_upscale" in self.request.values
        if allowed == "leave-out" or (is_named and not allowed and not self.whole):
            share = 1.0  # none is enlarged, and few are left out
        fitting = [candidate for candidate in THRESHOLDS.candidates if share * candidate.side <= least]
        return fitting or THRESHOLDS.of_side(THRESHOLDS.last.side)

    def _of_opened_set(self, side: int, wanted: str | None) -> Sequence[Candidate]:
        """Return the candidates for the resolution of an opened set.

        Raises:
            BadInput: there is none, or another side is wanted.
        """
        candidates = THRESHOLDS.of_side(side)
        if candidates and wanted in (None, str(side)):
            return candidates
        leave_out = f"leave out networks.resolution={wanted}, or " if candidates else ""
        raise BadInput(
            f"data: an opened set of {side} pixels; expected one of {wanted or ', '.join(map(str, THRESHOLDS.sides))} "
            f"where frugan chooses the recipe: {leave_out}give the path of the pictures, which are resized, or name a "
            "recipe for this size"
        )

    def trial(self, candidate: Candidate) -> _Trial | None:
        """Return a candidate configured for these pictures; None: it does not fit into memory.

        Raises:
            BadInput: the words do not go with it.
        """
        words = (*_networks(candidate, self.facts, whole=self.whole), *self.fit)
        words += _background(self.facts, candidate, self.request)
        trial, more = self._timed(candidate, words), candidate.words_of_few_steps
        has_few = trial is not None and trial.wanted_steps is None and trial.steps < THRESHOLDS.few_steps
        if not has_few or {word.partition("=")[0] for word in more} & set(self.request.values):
            return trial
        return self._timed(candidate, (*words, *more)) if more else trial

    def _timed(self, candidate: Candidate, words: tuple[str, ...]) -> _Trial | None:
        """Return a candidate with these overrides and its pace; None: it does not fit into memory.

        Raises:
            BadInput: the words do not go with it.
        """
        recipe = self._loaded(candidate, words)
        step_seconds = self.machine.pace(recipe)
        if step_seconds is None:
            return None
        wanted = recipe.training.duration.known_steps(recipe.training.batch) if self.request.length else None
        return _Trial(candidate, words, recipe, step_seconds, _steps(self.request.seconds, step_seconds), wanted)

    def _loaded(self, candidate: Candidate, words: Sequence[str]) -> Recipe:
        """Load the candidate's recipe with these overrides and the user's.

        Raises:
            BadInput: they do not go with it; where that is for a length by the clock, it says how a time is given.
        """
        overrides, length = self.request.overrides, self.request.length
        try:
            return candidate.loaded([*words, *overrides])
        except BadInput as error:
            if self.request.length_seconds is None:
                raise
            candidate.loaded([*words, *(word for word in overrides if not word.startswith("training.duration="))])
            raise BadInput(
                f"training.duration={length}: where frugan chooses the recipe, a time is given as --for {length}: it "
                "makes a number of steps of it, and keeps the time as training.time"
            ) from error


def known_classes(recipe: Recipe) -> int | None:
    """Return the number of classes of a class-conditional recipe, which may be one; None: it is unconditional."""
    return next(iter(recipe.sources.values())).classes


def _background(facts: PictureFacts, candidate: Candidate, request: _Request) -> tuple[str, ...]:
    """Override for the background that the pictures were inspected on, unless it is white or set elsewhere."""
    free = isinstance(candidate.recipe, str) and "data.background" not in request.values
    return (f"data.background={colour_name(facts.background)}",) if free and facts.background != WHITE else ()


def _networks(candidate: Candidate, facts: PictureFacts, *, whole: bool) -> tuple[str, ...]:
    """Fields that follow from the pictures, at the size of a candidate; `whole`: they are padded and not cropped."""
    shipped = candidate.loaded()
    words = []
    if shipped.resolution != candidate.side and isinstance(candidate.recipe, str):
        words.append(f"networks.resolution={candidate.side}")
    before = known_classes(shipped)
    classes = len(facts.class_counts) or (None if before is None else 1)
    # weights that know no classes keep all that they know; a network for classes would begin anew in places
    if classes != before and not (before is None and isinstance(candidate.recipe, Recipe)):
        words.append(f"networks.classes={classes}")
    if facts.grey and isinstance(candidate.recipe, str):
        words.append("networks.channels=1")
    small = facts.smaller_than(candidate.side, whole=False)
    if small and not whole and not facts.few_smaller_than(candidate.side):
        words.append("data.allow_upscale=true")
    return tuple(words)


def _shipped_start(candidate: Candidate, recipe: Recipe) -> str | None:
    """Name of the candidate whose shipped weights fit its networks here, but for classes and colours; None: none do."""
    file = shipped_weights(str(candidate.recipe))
    if file is None:
        return None
    theirs, ours = (
        networks.model_dump(exclude={"classes", "channels"})
        for networks in (Weights.open(file).recipe.networks, recipe.networks)
    )
    return str(candidate.recipe) if theirs == ours else None


def _steps(seconds: float, step_seconds: float) -> int:
    """Return how many steps fit, rounded down to two digits so that timing noise does not change the choice."""
    steps = int(THRESHOLDS.time_for_steps * seconds / step_seconds)
    unit = 10 ** max(0, len(str(steps)) - 2)
    return int(steps // unit * unit)


def _length(trial: _Trial, request: _Request, machine: Machine) -> tuple[int, float]:
    """Steps of a training, and seconds that it takes: those that are wanted, else those that there is time for.

    Raises:
        BadInput: there is time for too few.
    """
    if trial.wanted_steps is not None:
        return trial.wanted_steps, trial.wanted_steps * trial.step_seconds / THRESHOLDS.time_for_steps
    if trial.steps < THRESHOLDS.fewest_steps:
        seconds = THRESHOLDS.fewest_steps * trial.step_seconds / THRESHOLDS.time_for_steps
        raise BadInput(
            f"--for {request.time}: time for {trial.steps} steps ({trial.candidate}, {machine.words}); expected at "
            f"least {THRESHOLDS.fewest_steps}, better some thousand: give it {duration(seconds)} or longer"
        )
    return trial.steps, request.seconds


def _length_words(trial: _Trial, steps: int, seconds: float, request: _Request) -> Iterator[str]:
    """Overrides for the length and what follows it: saving in shares of a short run, by the hour in a long one."""
    if not request.length:
        yield f"training.duration={steps} steps"
        yield f"training.time={request.time}"
    is_counted = not request.length or trial.wanted_steps is not None
    saved, scored = THRESHOLDS.intervals(seconds)
    if not is_counted and seconds <= THRESHOLDS.long_seconds:
        saved, scored = (f"{max(1, steps // parts)} steps" for parts in (THRESHOLDS.checkpoints, THRESHOLDS.scores))
    yield f"saving.checkpoint_every={saved}"
    yield f"saving.snapshot_every={saved}"
    yield f"evaluation.every={scored}"
    if is_counted and not any(key.startswith("ema.") for key in request.values):
        yield f"ema.run_share={THRESHOLDS.average_share}"


def _fewer_samples(recipe: Recipe, steps: int, seconds: float, request: _Request) -> tuple[str, ...]:
    """Fewer samples for each score, where it would take a good part of the time: a sample costs about as much as a
    picture that is trained on."""
    if "evaluation.samples" in request.values:
        return ()
    scores: float = THRESHOLDS.scores
    if seconds > THRESHOLDS.long_seconds:
        scores = max(scores, seconds / 3600 / THRESHOLDS.long_score_hours)
    affordable = int(THRESHOLDS.images_for_samples * steps * recipe.training.batch / scores) // 1000 * 1000
    samples = max(THRESHOLDS.fewest_samples, affordable)
    return () if samples >= recipe.evaluation.samples else (f"evaluation.samples={samples}",)


def _lines(
    facts: PictureFacts, trial: _Trial, recipe: Recipe, request: _Request, machine: Machine, shipped: str | None
) -> tuple[str, ...]:
    """Describe each choice and its reason, leaving out what the user set."""
    candidate = trial.candidate
    on = f", laid on {colour_name(background(recipe.data.background))}" if facts.transparent else ""
    if _background(facts, candidate, request):
        on += ", as most cannot be seen on white"
    return (
        f"pictures: {facts}{on}",
        *facts.duplicate_lines,
        f"recipe: {candidate} at {candidate.side} pixels, for {machine.words}{trial.larger}; override with a recipe's "
        "name, or networks.resolution=",
        *enlarged_lines(facts, recipe),
        *_length_lines(facts, candidate, recipe, request),
        *_start_lines(facts, trial, recipe, shipped),
        *_flip_lines(recipe, request),
    )


def _length_lines(facts: PictureFacts, candidate: Candidate, recipe: Recipe, request: _Request) -> Iterator[str]:
    """Describe the length and warn of too few or too many repetitions; nothing for a duration in time units."""
    batch, side, is_chosen = recipe.training.batch, candidate.side, not request.length
    steps = recipe.training.duration.known_steps(batch)
    if steps is None:
        return
    images, pictures = steps * batch, trained_on(facts.pictures, recipe.data)
    times = max(1, round(images / pictures))
    time = f" in {request.time}{'' if request.named_time else ', as no time is given'}" if is_chosen else ""
    yield (
        f"length: {steps:,} steps of {batch} pictures{time}, in which each picture is "
        f"seen about {times:,} times{'; override with --for' if is_chosen else ''}"
    )
    if images < candidate.images or (THRESHOLDS.is_last(candidate) and images < THRESHOLDS.few_images):
        yield (
            f"warning: {images:,} pictures shown are few to learn from at {side} pixels: expect outlines; give it "
            f"longer ({'--for' if is_chosen else 'training.duration'}), or a card"
        )
    if times > THRESHOLDS.many_times and not _augments(recipe):
        tried = max(1, THRESHOLDS.tried_times * pictures // batch)
        yield (
            f"warning: tried with up to {THRESHOLDS.tried_times} times only: it may learn your pictures by heart; "
            "compare with `frugan sample RUN --nearest 1 --data PATH`, and stop before, or add pictures; "
            f"{THRESHOLDS.tried_times} times are training.duration='{tried} steps'"
        )


def _start_lines(facts: PictureFacts, trial: _Trial, recipe: Recipe, shipped: str | None) -> Iterator[str]:
    """Say which weights a training starts from, recommend some, or say how the classes of named ones are treated."""
    candidate = trial.candidate
    if shipped is not None:
        yield (
            "start: weights that ship with frugan, trained on drawn pictures of many kinds "
            f"(docs/starting-weights.md); from noise instead: --init {FROM_NOISE}"
        )
        if words := [word for word in candidate.words_of_few_steps if word in trial.words]:
            yield f"settings: {' '.join(words)}, as there is time for few steps; set one of them, and the recipe's hold"
    elif isinstance(candidate.recipe, str):
        pictures = trained_on(facts.pictures, recipe.data)
        if pictures < THRESHOLDS.few_pictures and candidate.side >= THRESHOLDS.large_side:
            yield (
                f"few pictures: from {pictures:,} at {candidate.side} pixels people start with weights for other "
                "pictures; if you have some, name them with --init (docs/fine-tuning.md)"
            )
    else:
        theirs, ours = known_classes(candidate.recipe), known_classes(recipe)
        if theirs not in (None, ours) and ours is not None:
            yield f"classes: {ours:,}, and the weights know {theirs:,}: what these become is said with --init-classes"
        elif facts.class_counts and recipe.classes == 1:
            yield "classes: none, as the weights know none; the folders are not told apart"


def _flip_lines(recipe: Recipe, request: _Request) -> Iterator[str]:
    """Say whether pictures are mirrored, which is wrong for some, such as writing."""
    if not recipe.data.flip:
        yield "flips: none, as writing would be mirrored too; if yours may be mirrored: data.flip=true"
    elif "data.flip" not in request.values:
        yield "flips: half of the pictures, as the weights' recipe has it; if yours show writing: data.flip=false"


def _augments(recipe: Recipe) -> bool:
    """Return whether the objective augments, so that the discriminator never sees the same picture twice."""
    augmentation: Mapping[str, object] = recipe.objective.model_dump().get("augmentation", {})
    return augmentation.get("method") is not None


# Choosing from paths and opened sets.


def choose_for(
    data: Data | None,
    device: str = "auto",
    *,
    for_time: str | None = None,
    overrides: Sequence[str] = (),
    card: str | None = None,
    memory: str | None = None,
    gpus: int | None = None,
    link: str | None = None,
    start: Recipe | None = None,
    from_noise: bool = False,
    progress: Progress | None = None,
) -> RecipeChoice:
    """Look at pictures, and choose the recipe for them.

    Args:
        data: the pictures: a path, or an opened set; by the name of the one source or without.
        for_time, overrides, start, from_noise: as for `choose`.
        device, card, memory, gpus, link: as for `machine_here`.
        progress: gets (headers read, pictures).

    Raises:
        BadInput: as `choose` and `look_at`; or they are no pictures for a recipe to be chosen for.
    """
    request = _Request.of(overrides, start, for_time, from_noise=from_noise)
    named = list(data.items()) if isinstance(data, Mapping) else [("", data)]
    if data is None or not named:
        fitting = "frugan recipes" if card is None else f"frugan recipes --card {card}"
        raise BadInput(f"no recipe and no pictures given: add --data PATH, or name a recipe: `{fitting}`")
    name, pictures = named[0]
    if len(named) > 1 or name not in ("", "images"):
        raise BadInput(
            f"--data {name}=...: frugan chooses recipes for one set of pictures; for faces name one, such as "
            "saehd-df-ud-256: `frugan recipes`"
        )
    if isinstance(pictures, str | Path):
        pictures = local_path(pictures)
    elif not isinstance(pictures, PictureSet):
        raise BadInput(f"data: expected pictures, not {type(pictures).__name__}; name a recipe for them")
    laid_on = background(request.data.background)
    if start is None:
        request.check_side()
    notices = _notices(pictures) if isinstance(pictures, Path) else ()
    machine = machine_here(device, card, memory, gpus, link)
    is_free = start is None and "data.background" not in request.values
    facts = look_at(pictures, progress, None if is_free else laid_on, request.data.range)
    choice = choose(facts, machine, for_time, overrides, start, from_noise=from_noise)
    return replace(choice, lines=(*notices, *choice.lines))


def _notices(pictures: Path) -> tuple[str, ...]:
    """What the families that ship say of pictures that they know to be their data.

    Raises:
        BadInput: a family says that nothing sensible could be chosen for them.
    """
    return tuple(line for family in families().values() if (line := family.notice(pictures)) is not None)
