"""One update: its inputs, its forward and backward, its retries, and its result."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from frugan.accelerator.device import no_retry, ran_out_of_memory, release_memory
from frugan.accelerator.host_memory import HostCopies, pinned_copy
from frugan.contract.layers import SharedGroup
from frugan.contract.phase import MicroBatch, Networks, Phase, PhaseState, Terms
from frugan.engine.plan import Plan, micro_batch_sizes
from frugan.engine.ranks.place import Share
from frugan.engine.ranks.ranks import Ranks
from frugan.engine.state.gradients import GradientReport
from frugan.engine.state.loss_scale import LossScale
from frugan.engine.state.state import TrainingState
from frugan.errors import BadInput


class Probe:
    """Callbacks of a step; the base class does nothing.

    The calls of one update come in this order: `phase_begins`, `shown`, then for each micro-batch
    `micro_batch_begins` and `micro_batch_ends`, `reporting` if there is a report, `all_carried`, and `phase_ends` once
    its gradients are released.
    """

    def phase_begins(self, phase: Phase) -> None:
        """Called before anything of an update is done."""

    def shown(self, sizes: Sequence[int]) -> Sequence[int]:
        """Return which of an update's micro-batches are run, by their sizes."""
        return sizes

    def micro_batch_begins(self, state: TrainingState, phase: Phase, micro: MicroBatch) -> MicroBatch:
        """Return the inputs that parts shall see; called with inputs on the device and working weights installed."""
        return micro

    def micro_batch_ends(self, state: TrainingState, phase: Phase, terms: Terms) -> None:
        """Called once a micro-batch's backward is done and its gradients are added up."""

    def reporting(self) -> AbstractContextManager[object]:
        """Return what is open while something is done for reports alone, which most steps leave out."""
        return nullcontext()

    def all_carried(self, state: TrainingState) -> None:
        """Called once gradients are on the masters and judged, just before the commit."""

    def phase_ends(self, phase: Phase) -> None:
        """Called once the update is committed and its gradients are released."""

    def host_copies(self) -> HostCopies:
        """Return what offloads activations to host memory; one for all steps, which reuse its memory."""
        return self._host_copies

    @cached_property
    def _host_copies(self) -> HostCopies:
        return HostCopies()


def forward_and_backward(
    phase: Phase, networks: Networks, micro: MicroBatch, phase_state: PhaseState, factor: float, plan: Plan
) -> Terms:
    """Run a phase's parts on one micro-batch and leave their gradients in the working weights.

    Args:
        factor: multiplies the loss: the phase's gain times the micro-batch's share of the update.

    Raises:
        BadInput: a term is no scalar.
    """
    terms: Terms = {}
    losses: list[Tensor] = []
    scale = phase_state.loss_scale * factor  # backward begins with it, so that no product is recorded
    for part in phase.parts:
        part_terms = part(networks, micro, phase_state)
        for name, term in part_terms.items():
            if term.ndim:
                raise BadInput(
                    f"phase {phase.name}: loss `{name}` has the shape {list(term.shape)}; expected a scalar: the "
                    "mean over the micro-batch, such as values.mean()"
                )
        terms |= {name: term.detach() for name, term in part_terms.items()}
        losses += part_terms.values()
        if plan.parts_in_sequence:
            _backward(losses, scale)
            losses.clear()
    if losses:
        _backward(losses, scale)
    return terms


def _backward(losses: Sequence[Tensor], scale: Tensor) -> None:
    """Run backward of scale·loss for several losses at once; losses without a graph are only reported."""
    live = [loss for loss in losses if loss.requires_grad] or losses
    torch.autograd.backward(live, [scale.to(loss.dtype) for loss in live])


class PictureFeed(Protocol):
    """Source of pictures: a pure function of position, so that a repeated or resumed phase sees the same ones."""

    def take(self, source: str, stream: str, position: int, count: int) -> Mapping[str, Tensor]:
        """Return pictures position, position+1, ... of a source's stream: name -> [count, ...] on the host."""


class DrawFeed(Protocol):
    """Source of random inputs; see `Streams`."""

    def batch(self, phase: Phase, step: int, repeat: int, count: int) -> Mapping[str, Tensor]:
        """Return the small inputs of one update, on the host."""

    def micro_batch(
        self, phase: Phase, step: int, repeat: int, first: int, count: int, device: torch.device
    ) -> dict[str, Tensor]:
        """Return the large inputs of `count` images of one update from `first` on, on the device."""

    def update_seed(self, phase: Phase, step: int, repeat: int) -> int:
        """Return the seed of what the optimizer draws in one update (learning-rate dropout)."""


@dataclass(frozen=True)
class Update:
    """One update of one phase, identified by step and repeat."""

    phase: Phase
    repeat: int  # which of the phase's repeats
    step: int  # the step it belongs to; with `repeat` it determines the inputs
    count_zeros: bool  # whether its gradients' zeros are counted


@dataclass(frozen=True)
class PhaseResult:
    """Result of one update; tensors stay on the device."""

    phase: str  # its name
    repeat: int  # which of the phase's repeats
    terms: dict[str, Tensor]  # name -> each micro-batch's value [micro-batches], fp32
    weights: tuple[float, ...]  # share of each micro-batch in the update
    gradients: GradientReport  # measured after unscaling, before `grad_hook` and clipping
    accepted: Tensor  # bool scalar; False: nothing was committed
    loss_scale: Tensor  # fp32 scalar, as used
    data_seconds: float  # how long the host waited for pictures

    def finite_terms(self) -> bool:
        """Return whether all losses were finite, whatever the gradients; waits for the device."""
        return bool(torch.isfinite(torch.cat(list(self.terms.values()))).all())


@dataclass(frozen=True)
class Inputs:
    """Provides the micro-batches of updates, this rank's share of each."""

    pictures: PictureFeed  # where pictures come from
    draws: DrawFeed  # where random inputs come from
    batch: int  # samples of a whole update
    normalisation_batch: int | None  # samples in a row that a part may look at together; None: those of a micro-batch
    probe: Probe  # is notified of every micro-batch
    ranks: Ranks  # the processes that share each update; this one gives the inputs of its own share

    def share(self, phase: Phase) -> Share:
        """Return the samples of an update that this process sees."""
        return self.ranks.share(phase.samples(self.batch), phase.group(self.normalisation_batch or 1))

    def sizes(self, phase: Phase, micro_batch: int) -> list[int]:
        """Return the sizes of this process's micro-batches of an update; a part of a group is one micro-batch."""
        share = self.share(phase)
        group = self.normalisation_batch or 1
        size = phase.micro_batch(micro_batch, group)
        if share.parts:
            size = len(share.samples)
        elif size < phase.group(group) and self.ranks.any_parts(self.batch, group):
            size = phase.group(group)  # the plan was made for part of a group, and this rank has a whole one
        return micro_batch_sizes(len(share.samples), size)

    def micro_batches(
        self, state: TrainingState, micro_batch: int, update: Update, shared: SharedGroup | None
    ) -> Iterator[tuple[MicroBatch, float]]:
        """Yield one update's micro-batches on the device, each with its share of the update.

        Args:
            shared: the normalisation group of which this process holds a part; None: its groups are whole.
        """
        phase, repeat, step = update.phase, update.repeat, update.step
        share = self.share(phase)
        mine = share.samples
        pictures = {source: self._take(update, source, share) for source in phase.sources}
        drawn = self.draws.batch(phase, step, repeat, share.of)  # for the whole update, of which a rank takes its slice
        draws = {
            name: pinned_copy(draw[mine.start : mine.stop], state.device, "what is drawn")
            for name, draw in drawn.items()
        }
        group = self.normalisation_batch and phase.group(self.normalisation_batch)
        first = 0
        for size in self.probe.shown(self.sizes(phase, micro_batch)):
            here = slice(first, first + size)
            large = self.draws.micro_batch(phase, step, repeat, mine.start + first, size, state.device)
            yield (
                self.probe.micro_batch_begins(
                    state,
                    phase,
                    MicroBatch(
                        pictures={source: _to(named, here, state.device) for source, named in pictures.items()},
                        draws=_to(draws, here, state.device) | large,
                        size=size,
                        normalisation_batch=group,
                        shared=shared,
                    ),
                ),
                share.weight * size / len(mine),
            )
            first += size

    def _take(self, update: Update, source: str, share: Share) -> Mapping[str, Tensor]:
        """Take the step's pictures, or those of the phase's separate stream, which has no gaps."""
        phase, step, first, count = update.phase, update.step, share.samples.start, len(share.samples)
        if phase.replay is not None:
            seen = self.pictures.take(source, source, phase.replay.batch_of(step) * self.batch + first, count)
            return phase.replay.change(seen) if phase.replay.due(step) else seen
        if phase.shared_data:
            return self.pictures.take(source, source, step * self.batch + first, count)
        updates_before = -(-step // phase.every) * phase.repeats + update.repeat
        return self.pictures.take(source, f"{source}/{phase.name}", updates_before * share.of + first, count)


def _to(tensors: Mapping[str, Tensor], here: slice, device: torch.device) -> dict[str, Tensor]:
    return {name: tensor[here].to(device, non_blocking=True) for name, tensor in tensors.items()}


@dataclass
class TimedPictures:
    """A feed that measures how long the host waits for pictures.

    This is the most that a card loses: while work is queued it goes on, and beside a busy card pictures are read while
    the host waits for its results.
    """

    feed: PictureFeed  # where pictures come from
    seconds: float = 0.0  # waited so far

    def take(self, source: str, stream: str, position: int, count: int) -> Mapping[str, Tensor]:
        """Take pictures from the feed and add the time to `seconds`."""
        began = time.perf_counter()
        try:
            return self.feed.take(source, stream, position, count)
        finally:
            self.seconds += time.perf_counter() - began


RunUpdate = Callable[[TrainingState, Plan, Update], PhaseResult]

NextPlan = Callable[[Plan, str, str], Plan]
"""(plan that ran out of memory, phase, torch's message) -> a plan that takes less. Raises where there is none."""


def retry_until_finite(
    run: RunUpdate, state: TrainingState, plan: Plan, update: Update, next_plan: NextPlan | None
) -> tuple[PhaseResult, Plan]:
    """Run an update, and repeat it with a smaller plan if memory runs out before anything has moved.

    Until the first update was accepted, one that is not finite is repeated at half the loss scale; later it is skipped.

    Repeating the first update lets fp16 train on the same pictures as fp32. Skipping it makes another run: with its
    first 3 to 20 steps skipped, `saehd-demo-64` had up to 20 % more loss after 500 steps, in fp32.

    Args:
        next_plan: returns a plan that takes less memory; None: errors are raised.

    Returns:
        The result, and the plan by which the update was run.
    """
    scale = state.loss_scales[update.phase.optimizer]
    while True:
        try:
            result = run(state, plan, update)
        except RuntimeError as error:
            if next_plan is None or not ran_out_of_memory(error):
                raise
            message = str(error)
        else:
            if _is_too_high(scale, result):
                continue
            with no_retry(f"the update of phase {result.phase}"):
                state.skipped[result.phase] += ~result.accepted
            return result, plan
        release_memory(state.device)  # outside the handler: its frames hold what has to go
        plan = next_plan(plan, update.phase.name, message)
        with no_retry("moving to another plan"):
            state.follow(plan)


def _is_too_high(scale: LossScale, result: PhaseResult) -> bool:
    """Return whether an update failed because its loss scale, which none has passed yet, may be too high."""
    if scale.found:
        return False
    scale.found = bool(result.accepted)
    return not scale.found and result.finite_terms() and float(result.loss_scale) > 1
