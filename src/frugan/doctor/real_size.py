"""A recipe of ordinary size on a card: memory and time against their predictions, and a cap that is run into."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

import torch

from frugan.accelerator.precision import Precision, PrecisionName, resolve_precision
from frugan.doctor.cards import CardTools, MeasuredMemory
from frugan.doctor.finding import A_CARD_ALONE, Check, Finding, judged, left_out, out_of_time
from frugan.doctor.trial import FOUND_SCALE, STREAMS_SEED, CountedCopies, Trial, Way, plan_by
from frugan.engine.plan import Plan
from frugan.engine.run.training import Training
from frugan.engine.step.update import PhaseResult, PictureFeed
from frugan.engine.streams import Streams
from frugan.errors import TrainingFailed
from frugan.planning.plan_space import SaverName
from frugan.planning.prediction import BlankPictures, Prediction, predict
from frugan.recipe.loading import load_recipe
from frugan.setup.recipe_setup import training_of
from frugan.stepmemory.allocator import not_modelled
from frugan.stepmemory.cards import TIME_ERROR, Card
from frugan.wording import first_line, show_size

MEASURED: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "amp": ("amp-224", ()),
        "biggan": ("biggan-cifar10-32", ("training.batch=100",)),
        "quick96": ("quick96", ()),
        "r3gan": ("r3gan-cifar10-32", ()),
        "saehd": ("saehd-df-ud-256", ()),
        "stylegan2": ("stylegan2-cifar10", ()),
        "stylegan3": ("stylegan3-finetune-256", ()),
        "xseg": ("xseg", ()),
    }
)
"""Family -> built-in recipe, and fields by which its batch is more than one micro-batch."""


@dataclass(frozen=True)
class Sized:
    """A built-in recipe at a size that a card trains in seconds."""

    recipe: str
    overrides: tuple[str, ...] = ()
    precision: PrecisionName = "fp32"
    saver: SaverName | None = None  # beside the smaller micro-batch

    @property
    def training(self) -> Training:
        """From its first step on."""
        return replace(training_of(load_recipe(self.recipe, self.overrides)), name=self.recipe, make_grids=None)


REAL_SIZE_RECIPES = (
    Sized("biggan-imagenet-128", ("training.batch=64",), "auto", "recompute"),
    Sized("stylegan2-ffhq-256", ("training.batch=16",), "auto"),
    Sized("saehd-df-ud-256", (), "auto"),
    Sized("biggan-deep-imagenet-128", ("training.batch=64",), "auto", "keep-products"),
    Sized("stylegan2-cifar10"),
    Sized("biggan-cifar10-32", ("training.batch=100",)),
    Sized("saehd-demo-64", (), "fp32", "optimizer-on-host"),
    Sized("biggan-digits-32", ("training.batch=48",)),
)
"""The largest first; of every family one that a slow card trains too."""
COUNTED = (Sized("biggan-digits-32"), Sized("stylegan2-digits-32"), Sized("saehd-demo-64"))
"""Trainings in which a host has most to start for each kernel of a card."""


def measured_training(family: str) -> Training:
    """The training by a family's recipe, from its first step on."""
    name, overrides = MEASURED[family]
    return replace(training_of(load_recipe(name, overrides)), name=name, make_grids=None)


PREDICTED, TIME, RUNS_OUT = "memory as predicted", "time as predicted", "out of memory, by a cap"
ALLOCATED = 0.05
"""Largest accepted relative error of allocated memory on a card, with workspaces as they were measured or guessed."""
RESERVED = 0.10
"""Largest accepted relative error of reserved memory on a card."""
MEASURED_STEPS = 3
MOST_SECONDS = 30.0
"""Time limit for timing steps."""
CAPPED_STEPS = 2
ROOM_BESIDE = 0.08
"""More than the smaller plan took, so that it fits under the cap."""


def real_size_checks(family: str, card: CardTools | None, figures: Card | None) -> Iterator[tuple[str, str, Check]]:
    """Yield the checks at ordinary size: their name if they break, their subject, and the check.

    Args:
        family: name of the family.
        card: tools of the card; None: the device is no card.
        figures: known properties of the card; None: the device is no card.
    """
    if card is not None and figures is not None and family in MEASURED:

        def measure() -> list[Finding]:
            precision = resolve_precision("auto", card.device)
            return real_size_on_a_card(measured_training(family), card, figures, precision)

        yield "recipe of ordinary size", MEASURED[family][0], measure
        return
    why = A_CARD_ALONE if card is None or figures is None else "no recipe is chosen for it"
    for check in (PREDICTED, TIME, RUNS_OUT):
        yield check, family, partial(left_out, check, family, why)


def real_size_on_a_card(
    subject: Training,
    card: CardTools,
    figures: Card,
    precision: Precision,
    *,
    saver: SaverName | None = None,
    left_seconds: float = math.inf,
) -> list[Finding]:
    """A recipe of ordinary size on a card: memory and time against their predictions, and a cap that is run into.

    Args:
        figures: what is known of the card.
        saver: beside the smaller micro-batch; None: none.
        left_seconds: time that there is.
    """
    way = Way(card.device, precision, saver=saver, micro_batch=subject.micro_batch)
    plan = plan_by(subject, subject.build("meta"), way)
    predicted = predict(subject, plan, "card", subject.stages[0])
    expected, checks = predicted.reserved_bytes + figures.workspace_bytes, (PREDICTED, TIME, RUNS_OUT)
    if expected > card.room_bytes():
        why = f"takes {show_size(expected)}, and there is room for {show_size(card.room_bytes())}"
        return [left_out(check, subject.name, why) for check in checks]
    steps = MEASURED_STEPS + 2 * CAPPED_STEPS + _period(subject)  # of those under the cap some are repeated
    needed_seconds = steps * figures.seconds(predicted.work, precision)
    if needed_seconds > left_seconds:
        return [out_of_time(check, subject.name, needed_seconds, left_seconds) for check in checks]
    with card.watched() as taken:
        trial = begin_as_predicted(subject, plan, card.device)
        for _ in range(MEASURED_STEPS):
            trial.step.run(trial.state, plan, count_zeros=True)
    outcomes = [judge_memory(subject.name, predicted, taken, figures)]
    seconds = _time(subject, trial, card)
    if seconds is None:
        outcomes.append(left_out(TIME, subject.name, f"all phases together take more than {MOST_SECONDS:.0f} s here"))
    else:
        outcomes.append(judge_time(subject.name, figures.seconds(predicted.work, precision), seconds))
    try:
        outcomes.append(_run_out(subject, trial, card, taken))
    except RuntimeError as error:  # what was found before it is kept
        reason = first_line(error)
        outcomes.append(judged(RUNS_OUT, subject.name, f"not survived: {reason}", passed=False))
    return outcomes


def begin_as_predicted(
    subject: Training, plan: Plan, device: torch.device, *, pictures: PictureFeed | None = None
) -> Trial:
    """A training as it was predicted: random inputs of the card's own, and steps that are not repeated, at a loss scale
    that fp16 can go on with.

    Args:
        pictures: None: blank ones.
    """
    networks = {name: network.to(device) for name, network in subject.make().items()}
    blank = BlankPictures(subject.stages[0].sources)
    step = subject.step(pictures or blank, Streams(STREAMS_SEED))
    state = subject.state(plan, device, networks=networks)
    for scale in state.loss_scales.values():
        scale.found = True
        if scale.dynamic:
            scale.scale.clamp_(max=FOUND_SCALE)
    return Trial(state, step, plan, CountedCopies())


def judge_memory(name: str, predicted: Prediction, taken: MeasuredMemory, figures: Card) -> Finding:
    """A step may take what its libraries were found to; beyond that and below, the prediction is off."""
    live_off = _off(taken.allocated_bytes, predicted.live_bytes, figures.workspace_bytes)
    reserved = predicted.reserved_bytes + figures.workspace_bytes
    reserved_off = _off(taken.reserved_bytes, predicted.reserved_bytes, figures.workspace_bytes)
    settings = not_modelled()
    return judged(
        PREDICTED,
        name,
        (
            f"lives: predicted {show_size(predicted.live_bytes)}, taken {show_size(taken.allocated_bytes)}; reserved: "
            f"predicted {show_size(reserved)} with {show_size(figures.workspace_bytes)} of workspaces, taken "
            f"{show_size(taken.reserved_bytes)}"
            + (f"; the prediction does not know {settings}" if settings is not None else "")
        ),
        passed=abs(live_off) < ALLOCATED and abs(reserved_off) < RESERVED,
        predicted_live_bytes=predicted.live_bytes,
        taken_live_bytes=taken.allocated_bytes,
        predicted_reserved_bytes=predicted.reserved_bytes,
        workspace_bytes=figures.workspace_bytes,
        taken_workspace_bytes=max(0, taken.allocated_bytes - predicted.live_bytes),
        taken_reserved_bytes=taken.reserved_bytes,
        context_bytes=figures.context_bytes,
        taken_outside_bytes=taken.outside_bytes,
        allocator=settings,
        live_off=live_off,
        reserved_off=reserved_off,
        limits=[ALLOCATED, RESERVED],
    )


def _off(taken: int, predicted: int, workspaces: int) -> float:
    """By which share what was taken lies outside what was predicted, without workspaces or with."""
    if taken < predicted:
        return taken / predicted - 1
    return max(0.0, taken / (predicted + workspaces) - 1)


def judge_time(name: str, predicted_seconds: float, measured_seconds: float) -> Finding:
    """A step's time, which is predicted to about a third."""
    off = predicted_seconds / measured_seconds - 1
    return judged(
        TIME,
        name,
        f"predicted {predicted_seconds:.3g} s a step, measured {measured_seconds:.3g} s: {off:+.0%}",
        passed=abs(off) <= TIME_ERROR,
        predicted_seconds=predicted_seconds,
        measured_seconds=measured_seconds,
        off=off,
        limit=TIME_ERROR,
    )


def _period(subject: Training) -> int:
    """Steps after which phases come round again, and no fewer than are worth timing."""
    return max(MEASURED_STEPS, *(phase.every for phase in subject.stages[0].phases))


def _time(subject: Training, trial: Trial, card: CardTools) -> float | None:
    """Seconds of an average step, over as many as there are between two updates of the rarest phase; None: too many."""
    period = _period(subject)
    card.wait()
    began, behind = time.perf_counter(), card.card.queued_so_far()
    for _ in range(period):
        trial.run()
        before, behind = behind, card.card.queued_so_far()
        before.synchronize()  # the host is no more than a step ahead, as in a training: time goes by the card
        if time.perf_counter() - began > MOST_SECONDS:
            return None
    card.wait()
    return (time.perf_counter() - began) / period


def _run_out(subject: Training, trial: Trial, card: CardTools, taken: MeasuredMemory) -> Finding:
    """Steps by a plan that takes too much, under a cap that a smaller one keeps: they are repeated, and go on."""
    phases: list[str] = []
    state, plan = trial.state, trial.plan
    least = replace(plan, recompute=subject.recomputable(state.networks))

    def smaller(before: Plan, phase: str, message: str) -> Plan:
        if before == least:
            raise TrainingFailed(f"the smallest plan does not fit either, in phase {phase}: {message}")
        phases.append(phase)
        return plan if before.micro_batch > plan.micro_batch else least

    results, large = list[PhaseResult](), replace(plan, micro_batch=subject.batch)
    with card.capped(int((1 + ROOM_BESIDE) * taken.reserved_bytes) - taken.kept_bytes):
        for _ in range(CAPPED_STEPS):
            results += trial.step.run(state, large, next_plan=smaller)
    if not phases:
        return left_out(RUNS_OUT, subject.name, "the larger plan kept within the cap as well")
    finite = all(bool(torch.isfinite(p).all()) for n in state.networks.values() for p in n.parameters())
    return judge_running_out(
        subject.name, phases, [(result.phase, bool(result.accepted)) for result in results], finite
    )


def judge_running_out(name: str, phases: Sequence[str], updates: Sequence[tuple[str, bool]], finite: bool) -> Finding:
    """Updates that were repeated, and those after them, must have moved weights: finite they are without as well.

    Args:
        phases: phases in which memory ran out.
        updates: phase of each update, and whether it was accepted.
        finite: whether all weights are, after them.
    """
    accepted = {phase for phase, moved in updates if moved}
    skipped = [phase for phase in dict.fromkeys(phase for phase, _ in updates) if phase not in accepted]
    count = sum(moved for _, moved in updates)
    then = f"repeated by a smaller plan; {count} of {len(updates)} updates accepted"
    if skipped:
        then += f", and none of {', '.join(skipped)}"
    if not finite:
        then += ", and weights are not finite after that"
    return judged(
        RUNS_OUT,
        name,
        f"ran out in {', '.join(dict.fromkeys(phases))}; {then}",
        passed=finite and not skipped and bool(updates),
        repeated=len(phases),
        updates=len(updates),
        accepted=count,
        finite=finite,
    )
