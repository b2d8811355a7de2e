"""Advice for a training that would be long here: a smaller recipe, or a faster card."""

from collections.abc import Iterator

from frugan.engine.plan import Plan
from frugan.planning.prediction import Prediction, predict
from frugan.planning.predictions import least_work
from frugan.planning.recipe_predictions import shipped_predictions
from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe
from frugan.recipes import built_in, smallest_cards
from frugan.setup.devices import serving_build
from frugan.setup.recipe_setup import training_of
from frugan.stepmemory.cards import PUBLISHED, Card, named_card
from frugan.wording import between, duration


def advice(recipe: Recipe, name: str, plan: Plan, step_seconds: float, steps: int, most_seconds: float) -> str:
    """Recommend a smaller recipe or a faster card for a long training; empty: no built-in one would be shorter.

    Args:
        name: of the recipe, if it is a built-in one.
        plan: that it runs by here.
        step_seconds: that a step takes here.
        steps: that are left.
        most_seconds: that a training should take.
    """
    training = training_of(recipe)
    try:
        predicted = predict(training, plan, "cpu", training.stages[0], rough=True)
    except RuntimeError:  # torch refuses the plan on tensors without data; the training itself has not been asked
        return ""
    parts = []
    if (smaller := _smaller(recipe, name, predicted, step_seconds, most_seconds)) is not None:
        parts.append(f"{smaller[0]}, which is smaller, takes about {duration(smaller[1])} here")
    if (card := _card(recipe, name, predicted, steps, step_seconds * steps, most_seconds)) is not None:
        parts.append(
            f"this one wants a card such as {card[0]}: about {duration(card[1])} by its maker's figures "
            f"({between(*(factor * card[1] for factor in named_card(card[0]).times))})"
        )
    return "".join(f"; {part}" for part in parts)


def _smaller(
    recipe: Recipe, name: str, predicted: Prediction, step_seconds: float, most_seconds: float
) -> tuple[str, float] | None:
    """Return the family's largest built-in recipe of at most this size that ends in time here, and its seconds.

    By arithmetic or by traffic, whichever says longer: small networks do not reach the arithmetic of large ones.
    """
    side = recipe.resolution
    candidates = []
    for other_name in built_in():
        other = load_recipe(other_name)
        file = shipped_predictions(other_name)
        if other.family != recipe.family or other_name == name or file is None or other.resolution > side:
            continue
        steps, theirs = other.training.duration.known_steps(other.training.batch), least_work(file)
        if steps is None or theirs is None:
            continue
        share = max(theirs.macs / predicted.work.macs, theirs.bytes_moved / predicted.work.bytes_moved)
        seconds = share * step_seconds * steps
        if seconds <= most_seconds:
            candidates.append((other.resolution, theirs.macs, other_name, seconds))
    return max(candidates)[2:] if candidates else None


def _card(
    recipe: Recipe, name: str, predicted: Prediction, steps: int, here_seconds: float, most_seconds: float
) -> tuple[str, float] | None:
    """Return the smallest known card that trains in time, or else the fastest, and its seconds."""
    half_gib = smallest_cards().get(name) or 0
    fp32_gib = smallest_cards(fp32=True).get(name) or half_gib
    candidates: list[tuple[float, Card]] = []
    for card in _cards():
        precision = card.precision(recipe.training.precision)
        least_gib = fp32_gib if precision.name == "fp32" else half_gib
        if PUBLISHED[card.name].gib >= least_gib:
            candidates.append((card.seconds(predicted.work, precision) * steps, card))
    in_time = [(seconds, card) for seconds, card in candidates if seconds <= most_seconds]
    seconds, card = in_time[0] if in_time else min(candidates, key=lambda one: one[0])
    return (card.name, seconds) if seconds < here_seconds / 2 else None


def _cards() -> Iterator[Card]:
    """Return known cards with measured speeds that current torch builds support, smallest first."""
    for key in sorted(PUBLISHED, key=lambda key: (PUBLISHED[key].gib, PUBLISHED[key].half)):
        if PUBLISHED[key].like is None and serving_build(PUBLISHED[key].capability) is not None:
            yield named_card(key)
