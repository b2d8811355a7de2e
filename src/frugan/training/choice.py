"""Which recipe for whose pictures, where nobody names one: by rules, from the pictures, the machine and the time.

The same facts give the same choice. What the rules say is in docs/training-well.md, with what was measured.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from frugan.contract.settings import DataSettings
from frugan.data.facts import PictureFacts, look_at
from frugan.data.formats.decoding import WHITE, background
from frugan.data.formats.picture_set import PictureSet
from frugan.data.formats.source import local_path
from frugan.data.survey import colour_name
from frugan.engine.durations import Duration
from frugan.errors import BadInput
from frugan.planning.pace import Machine, machine_here
from frugan.progress import Progress
from frugan.recipe.loading import load_recipe, recipe_with
from frugan.recipe.overrides import DEFAULT_OPTIMIZER
from frugan.recipe.recipe import Recipe
from frugan.setup.run_data_sources import Data
from frugan.training.starting_weights import Start

USUAL_TIME = "30min"
FOR_STEPS = 0.9
"""Share of the time that steps get; the rest is for the start, grids and scores."""
FEWEST_STEPS = 20
LONG_SECONDS = 4 * 3600.0
"""Of which an eighth is as much as anyone would want to lose to a power cut."""
SCORES, SCORED_HOURS = 4, 1
"""In a run, and between those of a long one."""
FOR_SCORES, FEWEST_SAMPLES = 0.05, 1000
"""Samples of all scores together, as a share of the pictures that are shown; and for each."""
ENOUGH_IMAGES = 10_000
"""At the smallest size: of fewer pictures shown nobody is to expect much."""
TRIED_TIMES, MANY_TIMES = 360, 1000
"""That each picture was shown, without augmentation and without harm; and from where on that is said."""
NEARLY = 0.75
"""Pictures may have this share of a side: they are enlarged by a third at most, or padded."""

FEW_PICTURES, LARGE_SIDE = 5000, 128
"""From fewer at such a side one had better start from weights for others: Karras et al. 2020 (arXiv 2006.06676) did so
with their 1,336 faces from paintings; with their sets of about 5,000 animals they began anew."""

SLOWED = "G"
"""Optimizer that learns at half its rate in a second try."""


@dataclass(frozen=True)
class _Candidate:
    """Something that could be trained."""

    recipe: str | Recipe  # that ships, by name; or that of weights to start from
    side: int  # of the pictures
    images: int  # fewest that a run should show for it to be worth it at this size
    on_card: bool = False  # too much for a processor, whatever the time

    def __str__(self) -> str:
        return self.recipe if isinstance(self.recipe, str) else "the weights' own"

    def loaded(self, words: Sequence[str] = ()) -> Recipe:
        """The recipe, with `key.sub=value` words."""
        if isinstance(self.recipe, str):
            return load_recipe(self.recipe, words)
        return recipe_with(self.recipe.model_dump(mode="json"), words, "recipe of the weights")


CANDIDATES = (
    _Candidate("stylegan2-auto", 256, 1_000_000, on_card=True),
    _Candidate("stylegan2-auto", 128, 500_000, on_card=True),
    _Candidate("biggan-small-128", 128, 100_000),  # creatures, badges and houses came out well of 52,000
    _Candidate("stylegan2-auto", 64, 500_000, on_card=True),
    _Candidate("biggan-small-64", 64, 50_000),  # README's six kinds were shown 56,000; icons were blobs after 29,000
    _Candidate("biggan-small-32", 32, 0),
)
"""The best first; the last one is taken where there is time for nothing else."""
SIDES = tuple(sorted({each.side for each in CANDIDATES}))


@dataclass(frozen=True)
class RecipeChoice:
    """A recipe, and why."""

    recipe: str | Recipe  # that ships, by name; or that of weights to start from, with the overrides in it
    overrides: tuple[str, ...]  # `key.sub=value` words
    lines: tuple[str, ...]  # what was chosen and why, for people
    second: tuple[str, ...] = ()  # overrides of a second try, should the discriminator give up; empty: there is none


def choose(
    facts: PictureFacts,
    machine: Machine,
    for_time: str | None = None,
    asked: Sequence[str] = (),
    start: Recipe | None = None,
) -> RecipeChoice:
    """The recipe for some pictures on a machine in a time.

    Args:
        facts: of the pictures.
        machine: what trains.
        for_time: how long, such as "30min"; None: USUAL_TIME.
        asked: `key.sub=value` words that hold whatever is chosen.
        start: recipe of weights to start from; None: of none.

    Raises:
        BadInput: it is no time, there is too little of it, or a resolution is asked for that no recipe has.
    """
    of = USUAL_TIME if for_time is None else for_time
    seconds = Duration.parse_seconds(of, "--for")
    given, data = _given(asked), _data(asked, start)
    asked_length = given.get("training.duration", "")
    asked_seconds = _asked_seconds(asked_length)
    if for_time is None and asked_seconds is not None:
        seconds = asked_seconds
    fitted = _fitted(facts, given)
    whole = "data.fit=pad" in fitted or data.fit == "pad"
    strict = "data.allow_upscale" in given and not data.allow_upscale and not whole
    if start is None:
        candidates = _on(machine, _of_side(facts, given, whole, strict), facts)
    else:
        asked_side = given.get("networks.resolution", "")
        side = int(asked_side) if asked_side.isascii() and asked_side.isdigit() else start.resolution
        candidates = [_Candidate(start, side, 0)]

    def tried(candidate: _Candidate) -> _Tried | None:
        words = _networks(candidate, facts, whole=whole) + fitted + _background(facts, candidate, given)
        try:
            recipe = candidate.loaded([*words, *asked])
        except BadInput as error:
            if asked_seconds is None:
                raise
            candidate.loaded([*words, *(word for word in asked if not word.startswith("training.duration="))])
            raise BadInput(
                f"training.duration={asked_length}: where frugan chooses the recipe, a time is given as --for "
                f"{asked_length}, of which it makes a number of steps"
            ) from error
        step_seconds = machine.pace(recipe)
        if step_seconds is None:
            return None
        duration = recipe.training.duration.known_steps(recipe.training.batch) if "training.duration" in given else None
        return _Tried(candidate, words, recipe, step_seconds, _steps(seconds, step_seconds), duration)

    best = _best(candidates, tried, machine)
    candidate, words, recipe, steps = best.candidate, best.words, best.recipe, best.steps
    if best.asked_steps is not None:  # then that is how long, and what is kept goes by it
        steps, seconds = best.asked_steps, best.asked_steps * best.step_seconds / FOR_STEPS
    elif steps < FEWEST_STEPS:
        raise BadInput(
            f"--for {of}: time for {steps} steps ({candidate}, {machine.words}); expected at "
            f"least {FEWEST_STEPS}, better some thousand: give it longer"
        )
    words += _length(steps, seconds)
    words += _fewer_samples(recipe, steps, seconds, given)
    chosen = candidate.loaded([*words, *asked])
    if not any(key.startswith("ema.") for key in given) and (average := _average(chosen)):
        words += (average,)
        chosen = candidate.loaded([*words, *asked])
    lines = _lines(facts, candidate, chosen, given, of, machine)
    return RecipeChoice(candidate.recipe if start is None else chosen, words, lines, _second_try(chosen, given))


@dataclass(frozen=True)
class _Tried:
    """A candidate as it would be trained, and its pace."""

    candidate: _Candidate
    words: tuple[str, ...]
    recipe: Recipe
    step_seconds: float
    steps: int  # that there is time for
    asked_steps: int | None  # for how long it was asked; None: for no number of steps

    def has_time_for(self, candidate: _Candidate) -> bool:
        """Whether at this pace another, or this one itself, would show enough pictures."""
        steps = self.steps if self.asked_steps is None else min(self.asked_steps, self.steps)
        return steps * self.recipe.training.batch >= candidate.images


def _best(candidates: Sequence[_Candidate], tried: Callable[[_Candidate], _Tried | None], machine: Machine) -> _Tried:
    """The first that there is time for, else the last that has room.

    A processor is timed, which takes longer than to predict: from the smallest on, and none that there could be no time
    for, as no larger one is faster.

    Raises:
        BadInput: none has room.
    """
    best: _Tried | None = None
    for candidate in candidates if machine.is_card else reversed(candidates):
        if not machine.is_card and best is not None and not best.has_time_for(candidate):
            break
        one = tried(candidate)
        if one is None:
            continue
        has_time = one.has_time_for(candidate)
        if machine.is_card or has_time or best is None:
            best = one
        if has_time is machine.is_card:  # no other can be better: a card's come best first, a processor's fastest first
            break
    if best is None:
        raise BadInput(f"no recipe that frugan chooses among fits {machine.words}; name one: `frugan recipes`")
    return best


def _given(asked: Sequence[str]) -> dict[str, str]:
    """What `key.sub=value` words say, by key, as it is written."""
    return dict(word.partition("=")[::2] for word in asked)


def _asked_seconds(duration: str) -> float | None:
    """Of a duration by the clock; None: it is another, or none."""
    try:
        parsed = Duration.parse(duration)
    except ValueError:
        return None
    return parsed.amount if parsed.unit == "seconds" else None


def _data(asked: Sequence[str], start: Recipe | None) -> DataSettings:
    """How pictures become samples, by what is asked for and by the recipe of weights.

    Raises:
        BadInput: what is asked for cannot be.
    """
    base = CANDIDATES[-1] if start is None else _Candidate(start, start.resolution, 0)
    return base.loaded([word for word in asked if word.startswith("data.")]).data


def _fitted(facts: PictureFacts, given: Mapping[str, str]) -> tuple[str, ...]:
    """How pictures become squares: what lies on a background keeps its ends, a photograph its middle."""
    laid_on = facts.transparent > len(facts.looked_at) / 2
    return ("data.fit=pad",) if laid_on and facts.oblong > 0.1 and "data.fit" not in given else ()


def _background(facts: PictureFacts, candidate: _Candidate, given: Mapping[str, str]) -> tuple[str, ...]:
    """That which the pictures were looked at on, where it is not white; weights know that of their recipe."""
    free = isinstance(candidate.recipe, str) and "data.background" not in given
    return (f"data.background={colour_name(facts.background)}",) if free and facts.background != WHITE else ()


def _check_side(asked: str | None) -> None:
    """Refuse a resolution that no recipe has."""
    if asked is not None and asked not in map(str, SIDES):
        raise BadInput(
            f"networks.resolution={asked}: expected {', '.join(map(str, SIDES))} where frugan chooses the recipe; "
            "other sizes need a recipe that you name (`frugan recipes`)"
        )


def _of_side(facts: PictureFacts, given: Mapping[str, str], whole: bool, strict: bool) -> Sequence[_Candidate]:
    """Candidates of sides that the pictures have, or of the one asked for.

    Args:
        whole: pictures are padded and not cropped.
        strict: none may be enlarged.

    Raises:
        BadInput: there is none of that side.
    """
    asked = given.get("networks.resolution")
    _check_side(asked)
    if facts.only_side is not None:
        of_set = [each for each in CANDIDATES if each.side == facts.only_side]
        if not of_set or asked not in (None, str(facts.only_side)):
            leave_out = f"leave out networks.resolution={asked}, or " if of_set else ""
            expected = asked or ", ".join(map(str, SIDES))
            raise BadInput(
                f"data: an opened set of {facts.only_side} pixels; expected one of {expected} where frugan chooses the "
                f"recipe: {leave_out}give the path of the pictures, which are resized, or name a recipe for this size"
            )
        return of_set
    if asked is not None:
        return [each for each in CANDIDATES if each.side == int(asked)]
    sides = facts.sides(whole=whole)
    if strict:
        fitting = [each for each in CANDIDATES if each.side <= sides.min()]
    else:
        fitting = [each for each in CANDIDATES if NEARLY * each.side <= np.percentile(sides, 5)]
    return fitting or [each for each in CANDIDATES if each.side == CANDIDATES[-1].side]


def _on(machine: Machine, candidates: Sequence[_Candidate], facts: PictureFacts) -> Sequence[_Candidate]:
    """Those that are not too much for a machine.

    Raises:
        BadInput: all are, as a size was asked for, or is that of an opened set.
    """
    left = [each for each in candidates if machine.is_card or not each.on_card]
    if not left:
        others = ", ".join(str(side) for side in SIDES if any(c.side == side and not c.on_card for c in CANDIDATES))
        side = candidates[0].side
        asked = f"networks.resolution={side}" if facts.only_side is None else f"data: an opened set of {side} pixels"
        raise BadInput(
            f"{asked}: frugan chooses this size on cards alone; expected one of {others} without one, or name a "
            "recipe: `frugan recipes`"
        )
    return left


def known_classes(recipe: Recipe) -> int | None:
    """Classes that networks of pictures are told apart by, be it a single one; None: they know of none."""
    return next(iter(recipe.sources.values())).classes


def _networks(candidate: _Candidate, facts: PictureFacts, *, whole: bool) -> tuple[str, ...]:
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
    if not whole and facts.sides(whole=False).min() < candidate.side:
        words.append("data.allow_upscale=true")
    return tuple(words)


def _steps(seconds: float, step_seconds: float) -> int:
    """How many fit, in two digits: a measurement that comes out a little different gives the same."""
    steps = int(FOR_STEPS * seconds / step_seconds)
    unit = 10 ** max(0, len(str(steps)) - 2)
    return int(steps // unit * unit)


def _length(steps: int, seconds: float) -> tuple[str, ...]:
    """How long, and how often something is kept: in parts of a short run, by the clock in a long one."""
    long = seconds > LONG_SECONDS
    saved = "30min" if long else f"{max(1, steps // 8)} steps"
    scored = f"{SCORED_HOURS}h" if long else f"{max(1, steps // SCORES)} steps"
    return (
        f"training.duration={steps} steps",
        f"saving.checkpoint_every={saved}",
        f"saving.snapshot_every={saved}",
        f"evaluation.every={scored}",
    )


def _fewer_samples(recipe: Recipe, steps: int, seconds: float, given: Mapping[str, str]) -> tuple[str, ...]:
    """Fewer samples for each score, where it would take a good part of the time: a sample costs about as much as a
    picture that is trained on."""
    if "evaluation.samples" in given:
        return ()
    scores = max(SCORES, seconds / 3600 / SCORED_HOURS) if seconds > LONG_SECONDS else SCORES
    enough = max(FEWEST_SAMPLES, int(FOR_SCORES * steps * recipe.training.batch / scores) // 1000 * 1000)
    return () if enough >= recipe.evaluation.samples else (f"evaluation.samples={enough}",)


def _average(recipe: Recipe) -> str | None:
    """An average that reaches back over less, where the recipe's is for longer runs; None: it is right."""
    batch = recipe.training.batch
    if (steps := recipe.training.duration.known_steps(batch)) is None:
        return None
    slow = recipe.ema.slow_over(steps, batch, recipe.training.course.at((steps - 1) * batch))
    return None if slow is None else f"ema.{recipe.ema.setting_for(steps, batch)}"


def _second_try(recipe: Recipe, given: Mapping[str, str]) -> tuple[str, ...]:
    """A slower generator, unless its rate was asked for: a discriminator that gave up was outrun by it."""
    before = recipe.optimizers.get(SLOWED, recipe.optimizers.get(DEFAULT_OPTIMIZER))
    if before is None or any(key.startswith("optimizers.") for key in given):
        return ()
    rates = {"learning_rate": before.learning_rate, "final_learning_rate": before.final_learning_rate}
    return tuple(f"optimizers.{SLOWED}.{key}={rate / 2:g}" for key, rate in rates.items() if rate is not None)


def _lines(
    facts: PictureFacts,
    candidate: _Candidate,
    recipe: Recipe,
    given: Mapping[str, str],
    of: str,
    machine: Machine,
) -> tuple[str, ...]:
    """What was chosen and why.

    Args:
        given: what was asked for, which is no choice.
        of: the time, as it was given.
    """
    batch, side = recipe.training.batch, candidate.side
    on = f", laid on {colour_name(background(recipe.data.background))}" if facts.transparent else ""
    if _background(facts, candidate, given):
        on += ", as most cannot be seen on white"
    lines = [
        f"pictures: {facts}{on}",
        f"recipe: {candidate} at {side} pixels, for {machine.words}; override with a recipe's name, or "
        "networks.resolution=",
    ]
    if (steps := recipe.training.duration.known_steps(batch)) is not None:  # else it was asked for in hours
        images, chosen = steps * batch, "training.duration" not in given
        times = max(1, round(images / facts.pictures))
        lines.append(
            f"length: {steps:,} steps of {batch}{f' in {of}' if chosen else ''}, in which each picture is seen about "
            f"{times:,} times{'; override with --for' if chosen else ''}"
        )
        if images < candidate.images or (candidate is CANDIDATES[-1] and images < ENOUGH_IMAGES):
            lines.append(
                f"warning: {images:,} pictures shown are few to learn from at {side} pixels: expect outlines; give it "
                f"longer ({'--for' if chosen else 'training.duration'}), or a card"
            )
        elif times > MANY_TIMES and not _augments(recipe):
            lines.append(
                f"warning: tried with up to {TRIED_TIMES} times only: it may learn your pictures by heart; compare "
                "with `frugan sample RUN --nearest 1 --data PATH`, and stop before, or add pictures"
            )
    if facts.pictures < FEW_PICTURES and side >= LARGE_SIDE and isinstance(candidate.recipe, str):
        lines.append(
            f"few pictures: from {facts.pictures:,} at {side} pixels people start with weights for other pictures; if "
            "you have some, name them with --init (docs/fine-tuning.md)"
        )
    known = None if isinstance(candidate.recipe, str) else candidate.recipe
    theirs = None if known is None else known_classes(known)
    if theirs not in (None, ours := known_classes(recipe)) and ours is not None:
        lines.append(
            f"classes: {ours:,}, and the weights know {theirs:,}: what these become is said with --init-classes"
        )
    elif facts.class_counts and known is not None and recipe.classes == 1:
        lines.append("classes: none, as the weights know none; the folders are not told apart")
    if not recipe.data.flip:
        lines.append("flips: none, as writing would be mirrored too; if yours may be mirrored: data.flip=true")
    elif "data.flip" not in given:
        lines.append(
            "flips: half of the pictures, as the weights' recipe has it; if yours show writing: data.flip=false"
        )
    return tuple(lines)


def _augments(recipe: Recipe) -> bool:
    """Whether the discriminator never sees a picture twice alike."""
    augmentation: Mapping[str, object] = recipe.objective.model_dump().get("augmentation", {})
    return augmentation.get("method") is not None


# From pictures as they are given.


def choose_for(
    data: Data | None,
    device: str = "auto",
    *,
    for_time: str | None = None,
    asked: Sequence[str] = (),
    card: str | None = None,
    memory: str | None = None,
    gpus: int | None = None,
    link: str | None = None,
    init: str | Path | None = None,
    progress: Progress | None = None,
) -> RecipeChoice:
    """Look at pictures, and choose the recipe for them.

    Args:
        data: the pictures: a path, or an opened set; by the name of the one source or without.
        for_time, asked: as for `choose`.
        device, card, memory, gpus, link: as for `machine_here`.
        init: weights to start from, whose recipe is taken; None: there are none.
        progress: gets (headers read, pictures).

    Raises:
        BadInput: as `choose` and `look_at`; or they are no pictures for a recipe to be chosen for.
    """
    Duration.parse_seconds(USUAL_TIME if for_time is None else for_time, "--for")
    given = list(data.items()) if isinstance(data, Mapping) else [("", data)]
    if data is None or not given:
        raise BadInput("no recipe and no pictures given: add --data PATH, or name a recipe: `frugan recipes`")
    name, pictures = given[0]
    if len(given) > 1 or name not in ("", "images"):
        raise BadInput(
            f"--data {name}=...: frugan chooses recipes for one set of pictures; for faces name one, such as "
            "saehd-df-ud-256: `frugan recipes`"
        )
    if isinstance(pictures, str | Path):
        pictures = local_path(pictures)
    elif not isinstance(pictures, PictureSet):
        raise BadInput(f"data: expected pictures, not {type(pictures).__name__}; name a recipe for them")
    begun_from = Start.of(init, None)
    start = None if begun_from is None else begun_from.weights.recipe
    if start is not None and start.shows_given:
        raise BadInput(
            f"--init {init}: weights of {start.family}, which are not trained on a set of pictures; name a recipe"
        )
    words, laid_on = _given(asked), background(_data(asked, start).background)
    if start is None:
        _check_side(words.get("networks.resolution"))
    machine = machine_here(device, card, memory, gpus, link)
    is_free = start is None and "data.background" not in words
    facts = look_at(pictures, progress, None if is_free else laid_on)
    return choose(facts, machine, for_time, asked, start)
