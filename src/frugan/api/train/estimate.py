"""How long a training takes, and what would be shorter: a smaller recipe here, or this one on a card."""

from collections.abc import Iterator

from frugan.api.machine.card_support import serving_build
from frugan.api.plan.planner import planned_precision, shipped_predictions
from frugan.api.plan.shipped_recipes import smallest_cards
from frugan.api.setup import training_of
from frugan.engine.plan import Plan
from frugan.memory.cards import PUBLISHED, TIME_ERROR, Card, named_card
from frugan.memory.prediction import predict
from frugan.memory.prediction_store import least_work
from frugan.memory.sizes import GIB
from frugan.memory.work import Work
from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe
from frugan.recipes import built_in


def in_words(seconds: float) -> str:
    """A time as one says it: "0.15 s", "41 min", "3.2 days"."""
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.{1 if seconds < 10 * size else 0}f} {unit}"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


def advice(recipe: Recipe, name: str, plan: Plan, step_seconds: float, steps: int, most_seconds: float) -> str:
    """The end of a line about a training that takes long; empty if nothing that ships would be shorter.

    Args:
        name: of the recipe, if it is a built-in one.
        plan: that it runs by here.
        step_seconds: that a step takes here.
        steps: that are left.
        most_seconds: that a training should take.
    """
    training = training_of(recipe)
    try:
        work = predict(training, plan, "cpu", training.stages[0], rough=True).work
    except RuntimeError:  # torch refuses the plan on tensors without data; the training itself has not been asked
        return ""
    parts = []
    if (smaller := _smaller(recipe, name, work, step_seconds, most_seconds)) is not None:
        parts.append(f"{smaller[0]}, which is smaller, takes about {in_words(smaller[1])} here")
    if (card := _card(recipe, name, work, steps, step_seconds * steps, most_seconds)) is not None:
        parts.append(
            f"this one wants a card such as {card[0]}: about {in_words(card[1])}, give or take {TIME_ERROR:.0%}, "
            "by its maker's figures"
        )
    return "".join(f"; {part}" for part in parts)


def _smaller(
    recipe: Recipe, name: str, work: Work, step_seconds: float, most_seconds: float
) -> tuple[str, float] | None:
    """The largest built-in recipe of the family, no larger in pixels, that would end in time here, and its seconds.

    By arithmetic or by traffic, whichever says longer: small networks do not reach the arithmetic of large ones.
    """
    side = _resolution(recipe)
    found = []
    for other_name in built_in():
        other = load_recipe(other_name)
        file = shipped_predictions(other_name)
        if other.family != recipe.family or other_name == name or file is None or _resolution(other) > side:
            continue
        steps, theirs = other.training.duration.known_steps(other.training.batch), least_work(file)
        if steps is None or theirs is None:
            continue
        share = max(theirs.macs / work.macs, theirs.bytes_moved / work.bytes_moved)
        seconds = share * step_seconds * steps
        if seconds <= most_seconds:
            found.append((_resolution(other), theirs.macs, other_name, seconds))
    return max(found)[2:] if found else None


def _card(
    recipe: Recipe, name: str, work: Work, steps: int, here_seconds: float, most_seconds: float
) -> tuple[str, float] | None:
    """The smallest known card on which training ends in time, or the fastest of all, and its seconds."""
    half_gib = smallest_cards().get(name) or 0
    fp32_gib = smallest_cards(fp32=True).get(name) or half_gib
    found: list[tuple[float, Card]] = []
    for card in _cards():
        precision = planned_precision(recipe, card)
        least_gib = fp32_gib if precision.name == "fp32" else half_gib
        if (card.memory_bytes or 0) >= least_gib * GIB:
            found.append((card.seconds(work, precision) * steps, card))
    in_time = [(seconds, card) for seconds, card in found if seconds <= most_seconds]
    seconds, card = in_time[0] if in_time else min(found, key=lambda one: one[0])
    return (card.name, seconds) if seconds < here_seconds / 2 else None


def _cards() -> Iterator[Card]:
    """Known cards that a build of torch still serves, smallest first."""
    for key in sorted(PUBLISHED, key=lambda key: (PUBLISHED[key].gib, PUBLISHED[key].half)):
        if serving_build(PUBLISHED[key].capability) is not None:
            yield named_card(key)


def _resolution(recipe: Recipe) -> int:
    return max(need.resolution for need in recipe.kind.sources(recipe.networks, recipe.objective).values())
