"""The self-test: what this program promises, tried on one device."""

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch

from frugan.api.doctor.card_tools import CardTools
from frugan.api.doctor.measured_recipes import measured_recipe
from frugan.api.doctor.memory_check import (
    PREDICTED,
    RUNS_OUT,
    TIME,
    memory_on_a_processor,
    real_size_on_a_card,
)
from frugan.api.doctor.outcome import Outcome, left_out
from frugan.api.doctor.step_checks import (
    fp32_arithmetic,
    half_precision,
    memory_saving,
    out_of_memory_is_survived,
    same_as_the_processor,
)
from frugan.api.doctor.trial import FP32, recipe_subject, tiny_subject
from frugan.api.doctor.waiting_check import waits_on_a_card, waits_on_a_stand_in
from frugan.api.progress import quiet
from frugan.contract.family import Family
from frugan.engine.arithmetic import pin_arithmetic
from frugan.engine.out_of_memory import release_memory
from frugan.engine.precision import DTYPES, Precision, card_has_bf16_units, resolve_precision
from frugan.engine.training import Training
from frugan.memory.cards import Card
from frugan.memory.plan_space import SAVERS

Tell = Callable[[Outcome], None]
Check = Callable[[], Outcome | list[Outcome]]

BROKEN = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, OSError)
"""What a check may end with: it has failed then, and the others go on."""
HALVES = frozenset({"fp16", "bf16"})
A_CARD_ALONE = "only a card can show it"


def self_test(
    families: Mapping[str, Family],
    device: torch.device,
    card: CardTools | None = None,
    figures: Card | None = None,
    tell: Tell = quiet,
) -> list[Outcome]:
    """Try every family.

    Args:
        families: by name.
        device: where.
        card: its tools; None: it is no card.
        figures: what was measured on the card, or is guessed; goes with `card`.
        tell: is given each outcome as it is found.
    """
    pin_arithmetic()
    found: list[Outcome] = []
    for name, family in families.items():
        subject = tiny_subject(family)
        checks = _on_a_card(subject, card) if card is not None else _on_a_processor(subject, device)
        for label, check in [*_anywhere(subject, device), *checks]:
            found += _made(label, name, check, device, tell)
    for name in families:
        found += _at_real_size(name, device, card, figures, tell)
    return found


def _anywhere(subject: Training, device: torch.device) -> Iterable[tuple[str, Check]]:
    yield "fp32 against float64", partial(fp32_arithmetic, subject, device)
    for precision in half_precisions(device):
        yield f"{precision.name} against fp32", partial(half_precision, subject, device, precision)
    for name in HALVES - {precision.name for precision in half_precisions(device)}:
        yield "", partial(left_out, f"{name} against fp32", subject.family, "this device computes in it slowly, or not")
    for saver in SAVERS:
        yield f"memory saving {saver}", partial(memory_saving, subject, device, saver)
    yield "out of memory, on purpose", partial(out_of_memory_is_survived, subject, device)


def _on_a_card(subject: Training, card: CardTools) -> Iterable[tuple[str, Check]]:
    yield "same step as the processor's", partial(same_as_the_processor, subject, card.device)
    for precision in (FP32, *half_precisions(card.device)):
        yield f"waits for nothing in {precision.name}", partial(waits_on_a_card, subject, card, precision)


def _on_a_processor(subject: Training, device: torch.device) -> Iterable[tuple[str, Check]]:
    yield "waits for nothing", partial(waits_on_a_stand_in, subject)
    yield PREDICTED, partial(memory_on_a_processor, subject, device)
    yield "", partial(left_out, "same step as the processor's", subject.family, "this is the processor")


def _at_real_size(
    name: str, device: torch.device, card: CardTools | None, figures: Card | None, tell: Tell
) -> list[Outcome]:
    """Memory, time and a cap, by a recipe of ordinary size."""
    checks = (PREDICTED, TIME, RUNS_OUT) if card is not None else (TIME, RUNS_OUT)
    if card is None or figures is None:
        return _told([left_out(check, name, A_CARD_ALONE) for check in checks], tell)
    if (recipe := measured_recipe(name)) is None:
        return _told([left_out(check, name, "no recipe is chosen for it") for check in checks], tell)
    precision = resolve_precision("auto", device)

    def measure() -> list[Outcome]:
        return real_size_on_a_card(recipe_subject(recipe[1], recipe[0]), card, figures, precision)

    return _made("recipe of ordinary size", recipe[0], measure, device, tell)


def _made(label: str, subject: str, check: Check, device: torch.device, tell: Tell) -> list[Outcome]:
    """Make a check; one that breaks has failed."""
    began = time.perf_counter()
    try:
        made = check()
        found = made if isinstance(made, list) else [made]
    except BROKEN as error:
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        found = [Outcome(label, subject, "failed", reason, {"seconds": time.perf_counter() - began})]
    if device.type == "cuda":
        release_memory(device)  # outside the handler: its frames hold what has to go
    return _told(found, tell)


def _told(found: list[Outcome], tell: Tell) -> list[Outcome]:
    for outcome in found:
        tell(outcome)
    return found


def half_precisions(device: torch.device) -> tuple[Precision, ...]:
    """Those worth trying: a processor computes fp16 far slower than fp32, and older cards have no bf16."""
    names = ["bf16"]
    if device.type == "cuda":
        names = ["fp16", "bf16"] if card_has_bf16_units(torch.cuda.get_device_capability(device)) else ["fp16"]
    return tuple(Precision(name, DTYPES[name], "tried") for name in names)  # type: ignore[arg-type]
