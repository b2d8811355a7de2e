"""Rule-based choice of a recipe from the pictures, the machine and the time, where none is named.

The same facts give the same choice. What it chooses among, and the numbers that the rules go by, are data:
recipes/choice.toml. What the rules say is in docs/training-well.md, with what was measured.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from frugan.data.facts import PictureFacts, look_at
from frugan.data.formats.decoding import WHITE, background
from frugan.data.formats.picture_set import PictureSet
from frugan.data.formats.source import local_path
from frugan.data.pixel_lines import colour_name
from frugan.errors import BadInput
from frugan.families import families
from frugan.planning.pace import Machine, machine_here
from frugan.progress import Progress
from frugan.recipe.recipe import Recipe
from frugan.recipes import shipped_weights
from frugan.setup.networks import Weights
from frugan.setup.run_data_sources import Data
from frugan.training.candidates import THRESHOLDS, Candidate, Trial
from frugan.training.choice_lines import choice_lines
from frugan.training.choice_request import Request
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
    request = Request.of(overrides, start, for_time, from_noise=from_noise)
    best = _Chooser(facts, machine, request).best()
    steps, seconds = _length(best, request, machine)
    words = (
        *best.words,
        *_length_words(best, steps, seconds, request),
        *_fewer_samples(best.recipe, steps, seconds, request),
    )
    recipe = best.candidate.loaded([*words, *overrides])
    shipped = None if from_noise or start is not None else _shipped_start(best.candidate, recipe)
    lines = choice_lines(facts, best, recipe, request, machine, shipped)
    return RecipeChoice(best.candidate.recipe if start is None else recipe, words, lines, facts.left_out, shipped)


@dataclass(frozen=True)
class _Chooser:
    """Evaluates candidates for some pictures on a machine."""

    facts: PictureFacts
    machine: Machine
    request: Request

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

    def best(self) -> Trial:
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

    def trial(self, candidate: Candidate) -> Trial | None:
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

    def _timed(self, candidate: Candidate, words: tuple[str, ...]) -> Trial | None:
        """Return a candidate with these overrides and its pace; None: it does not fit into memory.

        Raises:
            BadInput: the words do not go with it.
        """
        recipe = self._loaded(candidate, words)
        step_seconds = self.machine.pace(recipe)
        if step_seconds is None:
            return None
        wanted = recipe.training.duration.known_steps(recipe.training.batch) if self.request.length else None
        return Trial(candidate, words, recipe, step_seconds, _steps(self.request.seconds, step_seconds), wanted)

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


def _background(facts: PictureFacts, candidate: Candidate, request: Request) -> tuple[str, ...]:
    """Override for the background that the pictures were inspected on, unless it is white or set elsewhere."""
    free = isinstance(candidate.recipe, str) and "data.background" not in request.values
    return (f"data.background={colour_name(facts.background)}",) if free and facts.background != WHITE else ()


def _networks(candidate: Candidate, facts: PictureFacts, *, whole: bool) -> tuple[str, ...]:
    """Fields that follow from the pictures, at the size of a candidate; `whole`: they are padded and not cropped."""
    shipped = candidate.loaded()
    words = []
    if shipped.resolution != candidate.side and isinstance(candidate.recipe, str):
        words.append(f"networks.resolution={candidate.side}")
    before = shipped.conditional_classes
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


def _length(trial: Trial, request: Request, machine: Machine) -> tuple[int, float]:
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


def _length_words(trial: Trial, steps: int, seconds: float, request: Request) -> Iterator[str]:
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


def _fewer_samples(recipe: Recipe, steps: int, seconds: float, request: Request) -> tuple[str, ...]:
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
    request = Request.of(overrides, start, for_time, from_noise=from_noise)
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
