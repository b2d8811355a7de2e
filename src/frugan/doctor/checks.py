"""Checks of the self-test for every family: steps that must agree, and no waiting of the host for the device."""

import traceback
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from frugan.accelerator.choice import accelerator_of
from frugan.accelerator.precision import Precision
from frugan.contract.family import Family
from frugan.contract.phase import MicroBatch, Phase
from frugan.doctor.cards import CardTools
from frugan.doctor.comparison import EVERYTHING, largest_difference, movement_apart, or_infinite
from frugan.doctor.finding import A_CARD_ALONE, Check, Finding, judged, left_out
from frugan.doctor.trial import (
    FOUND_SCALE,
    FP32,
    OPTIMIZERS,
    STREAMS_SEED,
    HostDraws,
    MadePictures,
    PinnedPictures,
    Trial,
    Way,
    begin,
    half_precisions,
    other_losses,
    run_steps,
    tiny_subject,
)
from frugan.engine.plan import Plan
from frugan.engine.run.step_log import Readout
from frugan.engine.run.training import Training
from frugan.engine.state.state import TrainingState
from frugan.engine.step.update import PhaseResult, Probe
from frugan.planning.plan_space import SAVERS, SaverName
from frugan.setup.ops import kernel_names, ops_of
from frugan.training.kernels import what_is_missing
from frugan.wording import first_line

HALVES = frozenset({"fp16", "bf16"})


def family_checks(family: Family, device: torch.device, card: CardTools | None) -> Iterator[tuple[str, Check]]:
    """Yield the checks of a family, made by small trainings: the name of each if it breaks, and the check.

    Args:
        card: the device's tools; None: it is no card.
    """
    subject = tiny_subject(family)
    yield from _anywhere(subject, device)
    yield from _on_a_card(subject, card)
    if card is not None:
        yield from _beside_the_processor(family, card.device)


def _anywhere(subject: Training, device: torch.device) -> Iterator[tuple[str, Check]]:
    yield "fp32 against float64", partial(fp32_arithmetic, subject, device)
    for precision in half_precisions(device):
        yield f"{precision.name} against fp32", partial(half_precision, subject, device, precision)
    for name in HALVES - {precision.name for precision in half_precisions(device)}:
        yield "", partial(left_out, f"{name} against fp32", subject.family, "this device computes in it slowly, or not")
    for saver in SAVERS:
        yield f"memory saving {saver}", partial(memory_saving, subject, device, saver)
    yield "out of memory, on purpose", partial(out_of_memory_is_survived, subject, device)


def _on_a_card(subject: Training, card: CardTools | None) -> Iterator[tuple[str, Check]]:
    if card is None:
        yield "", partial(left_out, WAITS, subject.family, A_CARD_ALONE)
        for check in (SAME_STEP, SAME_STEPS):
            yield "", partial(left_out, check, subject.family, "this is the processor")
        return
    yield SAME_STEP, partial(same_as_the_processor, subject, card.device)
    for precision in (FP32, *half_precisions(card.device)):
        yield f"waits for nothing in {precision.name}", partial(waits_on_a_card, subject, card, precision)


def _beside_the_processor(family: Family, device: torch.device) -> Iterator[tuple[str, Check]]:
    for settings in OPTIMIZERS:
        subject = tiny_subject(family, settings)
        label = f"{SAME_STEPS}, {settings.kind}"
        yield label, partial(trains_as_the_processor, subject, device, settings.kind)
    for loss, objective in other_losses(family).items():
        subject = tiny_subject(family, objective=objective)
        yield f"{SAME_STEPS}, {loss}", partial(trains_as_the_processor, subject, device, f"{loss} loss")


# Whether the host waits.

WAITS = "the host waits for nothing"
MOST_FIRST_STEPS = 20
"""fp16 waits until it has found its loss scale; libraries are set up in the first steps."""
LEAST_FIRST_STEPS = 2


def waits_on_a_card(subject: Training, card: CardTools, precision: Precision = FP32) -> Finding:
    """A step on a card in which torch refuses whatever waits."""
    pictures = PinnedPictures(MadePictures(subject.stages[0].sources), card.device)
    trial = begin(subject, Way(card.device, precision), feeds=(pictures, HostDraws(STREAMS_SEED)))
    for step in range(MOST_FIRST_STEPS):
        trial.run()
        if step + 1 >= LEAST_FIRST_STEPS and all(scale.found for scale in trial.state.loss_scales.values()):
            break
    card.wait()
    refusal = waiting_refused(card, trial)
    return judged(
        WAITS,
        subject.family,
        refusal or f"a step in {precision.name} that is never waited for",
        passed=refusal is None,
        found=[refusal] if refusal else [],
        beside="a card",
    )


def waiting_refused(card: CardTools, trial: Trial, steps: int = 1) -> str | None:
    """Return torch's message, and its place, about a wait in steps that forbid it; None: nothing waits."""
    readouts = []
    try:
        with card.refusing_to_wait():
            for _ in range(steps):
                readouts.append(Readout.start(trial.state.step, trial.run(), {}))  # noqa: PERF401  (torn off midway)
        for readout in readouts:
            readout.read()
    except RuntimeError as error:
        return f"{first_line(error)} ({_where(error)})"
    return None


def _where(error: RuntimeError) -> str:
    """The last line outside torch: it asked."""
    torch_folder = Path(torch.__file__).parent
    frames = [f for f in traceback.extract_tb(error.__traceback__) if torch_folder not in Path(f.filename).parents]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "within torch"


# Steps that must agree.

HOST = torch.device("cpu")
EXACT = 1e-5
"""Largest relative difference in float64, where only losses are fp32; splitting a batch was seen to give 1.4e-6."""
EXACT_ON_CARDS = 1e-4
"""Sums that run in another order there; no card has been seen yet."""
FP32_TERMS, FP32_GRADIENTS = 5e-4, 5e-3
"""Relative; 6e-7 and 5e-6 were seen on a processor. What has eleven bits, as TF32 and fp16 do, was 0.001 to 0.002 and
0.007 to 0.024 away."""
HALF_TERMS = 0.1
"""Relative, of bf16's 8 bits; 0.015 was seen on a processor, 0.002 in fp16."""
SMALL = 0.1
"""Terms nearer to zero are compared as if they were so large."""
REFUSED = ("during selective activation checkpoint", "under selective activation checkpoint")
"""Torch's messages about activations computed in place and double backward, for which the planner offers no
recomputation."""
SAME_STEP, SAME_STEPS = "same step as the processor's", "trains as the processor"
COMPARED_STEPS = 3
FP32_MOVEMENT, HALF_MOVEMENT = 1e-3, 0.5
"""Shares of what was moved; 2e-5 of any network or optimizer and 0.3 of everything were seen where last bits differ. In
half precision a network alone says little: what two nearly equal codes teach a discriminator is mostly rounding."""
ONLY_BESIDE_A_CARD: tuple[SaverName, ...] = ("offload", "ema-on-host", "optimizer-on-host")


def same_as_the_processor(subject: Training, device: torch.device) -> Finding:
    """One step on a card against the same step on the processor, both in float64."""
    there, here = begin(subject, Way(device, exact=True)), begin(subject, Way(HOST, exact=True))
    there.run()
    here.run()
    difference, where = largest_difference(there.tensors(), here.tensors())
    return judged(
        SAME_STEP,
        subject.family,
        f"largest difference {difference:.1e} ({where}), in float64",
        passed=difference < EXACT_ON_CARDS,
        difference=difference,
        limit=EXACT_ON_CARDS,
        where=where,
    )


def trains_as_the_processor(subject: Training, device: torch.device, what: str) -> list[Finding]:
    """A few steps on a card in each precision that it trains in, with every kernel of our own, against the processor's.

    In float64, which nobody trains in, own kernels and fused attention are left out, and scalars that fp32 has no room
    for are right.

    Args:
        what: is tried, in words.
    """
    kernels = kernel_names() if what_is_missing(device) is None else []
    host = begin(subject, Way(HOST))
    start = host.tensors()
    run_steps(host, COMPARED_STEPS)
    wanted, found = host.tensors(), list[Finding]()
    for precision in (FP32, *half_precisions(device)):
        card = begin(replace(subject, ops=ops_of(kernels)), Way(device, precision))
        for scale in card.state.loss_scales.values():
            scale.scale.clamp_(max=FOUND_SCALE)
        run_steps(card, COMPARED_STEPS)
        shares = movement_apart(start, wanted, card.tensors())
        where, limit = EVERYTHING, HALF_MOVEMENT
        if precision is FP32:
            where, limit = max(shares, key=lambda part: shares[part]), FP32_MOVEMENT
        apart = shares[where]
        beside = "own kernels" if kernels else "torch's operations"
        found.append(
            judged(
                f"{SAME_STEPS} in {precision.name}",
                subject.family,
                f"{what}: moved {apart:.1e} apart ({where}), by {beside}",
                passed=apart < limit,
                apart=apart,
                limit=limit,
                where=where,
                shares=shares,
                tried=what,
                kernels=kernels,
            )
        )
    return found


def fp32_arithmetic(subject: Training, device: torch.device) -> Finding:
    """One step in fp32 against the processor's in float64: losses and gradient norms."""
    exact, here = begin(subject, Way(HOST, exact=True)).run(), begin(subject, Way(device)).run()
    terms, where = _terms_apart(exact, here, SMALL)
    gradients = max(
        _apart(float(a.gradients.norm), float(b.gradients.norm), 1e-6) for a, b in zip(exact, here, strict=True)
    )
    return judged(
        "fp32 against float64",
        subject.family,
        f"losses differ by {terms:.1e} ({where}), gradient norms by {gradients:.1e}",
        passed=terms < FP32_TERMS and gradients < FP32_GRADIENTS and _all_accepted(here),
        losses=terms,
        gradients=gradients,
        limits=[FP32_TERMS, FP32_GRADIENTS],
    )


def half_precision(subject: Training, device: torch.device, precision: Precision) -> Finding:
    """One step in half precision against the same in fp32, on the same device."""
    trial = begin(subject, Way(device, precision))
    for scale in trial.state.loss_scales.values():
        scale.scale.clamp_(max=FOUND_SCALE)
    full, half = begin(subject, Way(device)).run(), trial.run()
    difference, where = _terms_apart(full, half, SMALL)
    finite = all(result.finite_terms() for result in half)
    same = all(torch.equal(a.terms[n], b.terms[n]) for a, b in zip(full, half, strict=True) for n in a.terms)
    line = f"losses differ by {difference:.1%} ({where})"
    if not finite:
        line = f"losses are not finite in {precision.name}: set training.precision=fp32 on this card"
    elif same:
        line = f"losses are fp32's to the last digit: {precision.name} has not been used"
    return judged(
        f"{precision.name} against fp32",
        subject.family,
        line,
        passed=finite and not same and difference < HALF_TERMS,
        losses=difference if finite else None,
        limit=HALF_TERMS,
        finite=finite,
    )


def memory_saving(subject: Training, device: torch.device, saver: SaverName) -> Finding:
    """One step with a memory saving against the same without, in float64."""
    check, on_card = f"memory saving {saver}", accelerator_of(device).is_card
    if saver == "shard-optimizer":
        return left_out(check, subject.family, "this process is alone: there is nobody to share it with")
    if not on_card and saver in ONLY_BESIDE_A_CARD:
        return left_out(check, subject.family, "host and device are one memory here")
    plain, saving = begin(subject, Way(device, exact=True)), begin(subject, Way(device, exact=True, saver=saver))
    if saving.plan == plain.plan:
        return left_out(check, subject.family, "this kind of model has nothing that it could save")
    try:
        saving.run()
    except RuntimeError as error:
        if saver != "keep-products" or not any(words in str(error) for words in REFUSED):
            raise
        return left_out(check, subject.family, "never offered: torch refuses it for these networks")
    plain.run()
    difference, where = largest_difference(plain.tensors(), saving.tensors())
    limit = EXACT_ON_CARDS if on_card else EXACT
    line = f"largest difference {difference:.1e} ({where})"
    unused = saver == "offload" and saving.sent.count == 0
    return judged(
        check,
        subject.family,
        "nothing went to host memory" if unused else line,
        passed=difference < limit and not unused,
        difference=difference,
        limit=limit,
        where=where,
    )


class _RunsOut(Probe):
    """Lets memory run out at the first micro-batch that is as large as the batch, as torch says it."""

    def __init__(self, batch: int) -> None:
        self._batch = batch

    def micro_batch_begins(self, state: TrainingState, phase: Phase, micro: MicroBatch) -> MicroBatch:
        if micro.size == self._batch:
            raise torch.OutOfMemoryError("out of memory on purpose")
        return micro


def out_of_memory_is_survived(subject: Training, device: torch.device) -> Finding:
    """Memory that runs out in a step: the phase is repeated by a smaller plan, and the step is the same as without."""
    batch, phases = subject.batch, list[str]()

    def smaller(plan: Plan, phase: str, message: str) -> Plan:
        phases.append(phase)
        return replace(plan, micro_batch=subject.micro_batch)

    free, tight = begin(subject, Way(device, exact=True)), begin(subject, Way(device, exact=True), _RunsOut(batch))
    tight.step.run(tight.state, tight.plan, next_plan=smaller)
    free.run()
    difference, where = largest_difference(free.tensors(), tight.tensors())
    limit = EXACT_ON_CARDS if accelerator_of(device).is_card else EXACT
    return judged(
        "out of memory, on purpose",
        subject.family,
        f"repeated by a smaller plan in phase {phases[0]}; largest difference {difference:.1e} ({where})"
        if phases
        else "nothing was repeated",
        passed=bool(phases) and difference < limit,
        difference=difference,
        limit=limit,
        repeated=len(phases),
    )


def _terms_apart(one: list[PhaseResult], other: list[PhaseResult], least: float) -> tuple[float, str]:
    """Largest relative difference of losses, and of which."""
    apart = [
        (_apart(float(a.terms[name].mean()), float(b.terms[name].mean()), least), f"{a.phase}/{name}")
        for a, b in zip(one, other, strict=True)
        for name in a.terms
    ]
    return max(apart)


def _apart(one: float, other: float, least: float) -> float:
    return or_infinite(abs(one - other) / max(abs(one), least))


def _all_accepted(results: list[PhaseResult]) -> bool:
    return all(bool(result.accepted) for result in results)
