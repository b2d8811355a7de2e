"""How fast a machine would train a recipe: a processor is timed, a card's time predicted."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from frugan.accelerator.device import available_cores
from frugan.accelerator.precision import resolve_precision
from frugan.engine.plan import Plan
from frugan.engine.run import threads
from frugan.engine.run.threads import rehearse
from frugan.engine.streams import Streams
from frugan.errors import BadInput
from frugan.recipe.recipe import Recipe
from frugan.setup.devices import choose_device
from frugan.setup.recipe_setup import training_of
from frugan.stepmemory.calibration import choose_card
from frugan.stepmemory.cards import free_bytes
from frugan.wording import parse_size

ROUNDS = 2
"""Timings of each number of threads: training takes more before it begins."""

Pace = Callable[[Recipe], float | None]
"""Seconds of an average step; None: it does not fit the memory."""


@dataclass(frozen=True)
class Machine:
    """A processor or cards that train."""

    pace: Pace
    is_card: bool
    words: str  # its name for people, and how the pace is known


def machine_here(
    device: str = "auto",
    card: str | None = None,
    memory: str | None = None,
    gpus: int | None = None,
    link: str | None = None,
) -> Machine:
    """The machine that trains: its processor, timed, or one card or several, by what the planner predicts.

    Args:
        device: "auto", "cpu", or a kind of card: "cuda", "cuda:1".
        card: plan for this card instead, which need not be there; for several: "gtx-1080x8".
        memory: budget on the card, such as "6GiB"; None: what is free on the one here, all of one that is not. Of a
            processor it says nothing.
        gpus: cards that share each batch; None: as many as `card` names.
        link: between them, such as "8GB/s"; None: a guess.

    Raises:
        BadInput: the device, the card, their number or the link is unknown, or the budget is no size.
    """
    here, _ = choose_device(device)
    if here.type == "cpu" and card is None:
        return Machine(_timed, False, "this CPU, whose steps were timed")
    # what predicts is loaded only for a card
    from frugan.planning.plan_recipe import PlanOptions, options_of_choice, plan  # noqa: PLC0415
    from frugan.planning.several_cards import parse_cards  # noqa: PLC0415

    name, count = parse_cards(card, gpus, link)
    known = choose_card(name, here)
    budget_bytes = None if memory is None else parse_size(memory)
    if budget_bytes is None and card is None:
        usable, _ = free_bytes(here)
        budget_bytes = usable + known.context_bytes

    def predicted(recipe: Recipe) -> float | None:
        options, _ = options_of_choice(recipe, (), PlanOptions(card, gpus=gpus, link=link))
        try:
            report = plan(recipe, budget_bytes, options=options)
        except BadInput:  # not even the parameters fit
            return None
        return report.step_seconds if report.fits else None

    cards = name or "this card"
    return Machine(predicted, True, f"{cards if count == 1 else f'{count} x {cards}'}, by predicted times")


def _timed(recipe: Recipe) -> float:
    """Seconds of an average step on the processor, with as many threads as a training takes that is not very short."""
    from frugan.planning.prediction import BlankPictures  # noqa: PLC0415  (only where a recipe is chosen)

    training, cpu = training_of(recipe), torch.device("cpu")
    stage = training.stages[0]
    micro_batch = training.group if training.group > 1 else training.batch
    by = Plan(micro_batch, resolve_precision(recipe.training.precision, cpu))
    state = training.state(by, cpu)
    step = training.step(BlankPictures(stage.sources), Streams(recipe.training.seed), stage=stage)
    is_number_given = threads.asked_for() is not None
    counts = [torch.get_num_threads()] if is_number_given else threads.candidates(available_cores())
    with threads.threads_put_back():
        seconds_of = threads.time_counts(lambda: rehearse(step, state, by), counts, rounds=ROUNDS)
    return seconds_of[threads.fastest(seconds_of)]
