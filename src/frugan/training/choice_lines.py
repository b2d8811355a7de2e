"""An automatic choice of a recipe in words: what was chosen, why, and what may go wrong with it."""

from collections.abc import Iterator, Mapping

from frugan.data.facts import PictureFacts
from frugan.data.formats.decoding import background
from frugan.data.parts import trained_on
from frugan.data.pixel_lines import colour_name
from frugan.engine.run.tensor_files import read_names
from frugan.planning.pace import Machine
from frugan.recipe.recipe import Recipe
from frugan.recipes import shipped_weights
from frugan.training.candidates import THRESHOLDS, Candidate, Trial
from frugan.training.choice_request import Request
from frugan.training.picture_lines import enlarged_lines
from frugan.training.starting_weights import FROM_NOISE


def choice_lines(
    facts: PictureFacts, trial: Trial, recipe: Recipe, request: Request, machine: Machine, shipped: str | None
) -> tuple[str, ...]:
    """Describe each choice and its reason, leaving out what the user set."""
    candidate = trial.candidate
    on = f", laid on {colour_name(background(recipe.data.background))}" if facts.transparent else ""
    if any(word.startswith("data.background=") for word in trial.words):
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


def _length_lines(facts: PictureFacts, candidate: Candidate, recipe: Recipe, request: Request) -> Iterator[str]:
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


def _start_lines(facts: PictureFacts, trial: Trial, recipe: Recipe, shipped: str | None) -> Iterator[str]:
    """Say which weights a training starts from, recommend some, or say how the classes of named ones are treated."""
    candidate = trial.candidate
    if shipped is not None:
        yield (
            f"start: {_what_ships(shipped)} with frugan, trained on drawn pictures of many kinds "
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
        theirs, ours = candidate.recipe.conditional_classes, recipe.conditional_classes
        if theirs not in (None, ours) and ours is not None:
            yield f"classes: {ours:,}, and the weights know {theirs:,}: what these become is said with --init-classes"
        elif facts.class_counts and recipe.classes == 1:
            yield "classes: none, as the weights know none; the folders are not told apart"


def _what_ships(recipe: str) -> str:
    """Subject and verb of a line on a recipe's weights, which may be of the discriminator alone."""
    file = shipped_weights(recipe)
    alone = file is not None and {name.partition(".")[0] for name in read_names(file)} == {"D"}
    return "a discriminator that ships" if alone else "weights that ship"


def _flip_lines(recipe: Recipe, request: Request) -> Iterator[str]:
    """Say whether pictures are mirrored, which is wrong for some, such as writing."""
    if not recipe.data.flip:
        yield "flips: none, as writing would be mirrored too; if yours may be mirrored: data.flip=true"
    elif "data.flip" not in request.values:
        yield "flips: half of the pictures, as the weights' recipe has it; if yours show writing: data.flip=false"


def _augments(recipe: Recipe) -> bool:
    """Return whether the objective augments, so that the discriminator never sees the same picture twice."""
    augmentation: Mapping[str, object] = recipe.objective.model_dump().get("augmentation", {})
    return augmentation.get("method") is not None
