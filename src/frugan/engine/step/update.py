"""One update: what it is given, its forward and backward, what of these is recomputed, and what it reports."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from frugan.accelerator.device import no_way_back, ran_out_of_memory, release_memory
from frugan.accelerator.host_memory import HostCopies, pinned_copy
from frugan.contract.layers import SharedGroup
from frugan.contract.phase import MicroBatch, Networks, Phase, PhaseState, Terms
from frugan.engine.plan import Plan, micro_batch_sizes
from frugan.engine.ranks.place import Share
from frugan.engine.ranks.ranks import Ranks
from frugan.engine.state.gradients import GradientReport
from frugan.engine.state.loss_scale import LossScale
from frugan.engine.state.state import TrainingState


class Probe:
    """Is told where a step is. This one looks at nothing and changes nothing.

    The calls of one update come in this order: `phase_begins`, `shown`, then for each micro-batch
    `micro_batch_begins` and `micro_batch_ends`, `all_carried`, and `phase_ends` once its gradients are released.
    """

    def phase_begins(self, phase: Phase) -> None:
        """Nothing of an update has been done."""

    def shown(self, sizes: Sequence[int]) -> Sequence[int]:
        """Of the sizes of all micro-batches of an update those that are run."""
        return sizes

    def micro_batch_begins(self, state: TrainingState, phase: Phase, micro: MicroBatch) -> MicroBatch:
        """Its inputs are on the device, the working weights in their places; gives the inputs that parts shall see."""
        return micro

    def micro_batch_ends(self, state: TrainingState, phase: Phase, terms: Terms) -> None:
        """Its backward is done and gave these terms; its gradients are added up."""

    def all_carried(self, state: TrainingState) -> None:
        """Gradients are on the masters and judged; nothing has moved, and from here on it will."""

    def phase_ends(self, phase: Phase) -> None:
        """The update is committed and its gradients are released."""

    def host_copies(self) -> HostCopies:
        """What takes activations to host memory and back, where the plan wants that."""
        return self._host_copies

    @cached_property
    def _host_copies(self) -> HostCopies:
        """One for all steps, which use its memory again and again."""
        return HostCopies()


def forward_and_backward(
    phase: Phase, networks: Networks, micro: MicroBatch, own: PhaseState, factor: float, plan: Plan
) -> Terms:
    """Run a phase's parts on one micro-batch and leave their gradients in the working weights.

    Args:
        factor: of the loss: the phase's gain, and the micro-batch's share of the update.
    """
    terms: Terms = {}
    losses: list[Tensor] = []
    scale = own.loss_scale * factor  # what each loss counts: backward begins with it, so that no product is recorded
    for part in phase.parts:
        own_terms = part(networks, micro, own)
        terms |= {name: term.detach() for name, term in own_terms.items()}
        losses += own_terms.values()
        if plan.parts_in_sequence:
            _backward(losses, scale)
            losses.clear()
    if losses:
        _backward(losses, scale)
    return terms


def _backward(losses: Sequence[Tensor], scale: Tensor) -> None:
    """Backward of scale·loss, of several losses at once; some may be there to be read alone."""
    live = [loss for loss in losses if loss.requires_grad] or losses
    torch.autograd.backward(live, [scale.to(loss.dtype) for loss in live])


class PictureFeed(Protocol):
    """Where pictures come from: a pure function of position, so that a repeated or resumed phase sees the same ones."""

    def take(self, source: str, stream: str, position: int, count: int) -> Mapping[str, Tensor]:
        """Pictures position, position+1, ... of a source's stream: name -> [count, ...] on the host."""


class DrawFeed(Protocol):
    """Where random inputs come from; see `Streams`."""

    def batch(self, phase: Phase, step: int, repeat: int, count: int) -> Mapping[str, Tensor]:
        """Small inputs of one update, on the host."""

    def micro_batch(
        self, phase: Phase, step: int, repeat: int, first: int, count: int, device: torch.device
    ) -> dict[str, Tensor]:
        """Large inputs of some images of one update, on the device."""

    def update_seed(self, phase: Phase, step: int, repeat: int) -> int:
        """Seed of what one update draws by itself (learning-rate dropout)."""


@dataclass(frozen=True)
class Update:
    """One update of one phase."""

    phase: Phase
    repeat: int  # which of the phase's repeats
    step: int  # which step it belongs to: with `repeat` the place of its inputs
    count_zeros: bool  # whether its gradients' zeros are counted


@dataclass(frozen=True)
class PhaseResult:
    """What one update did; tensors stay on the device."""

    phase: str  # its name
    repeat: int  # which of the phase's repeats
    terms: dict[str, Tensor]  # name -> each micro-batch's value [micro-batches], fp32
    weights: tuple[float, ...]  # share of each micro-batch in the update
    gradients: GradientReport  # measured after unscaling, before `grad_hook` and clipping
    accepted: Tensor  # bool scalar; False: nothing was committed
    loss_scale: Tensor  # fp32 scalar, as used
    data_seconds: float  # that the host waited for pictures

    def finite_terms(self) -> bool:
        """Whether the losses were finite, whatever the gradients; waits for the device."""
        return bool(torch.isfinite(torch.cat(list(self.terms.values()))).all())


@dataclass(frozen=True)
class Inputs:
    """Gives updates what they see."""

    # pictures, draws: where they come from
    pictures: PictureFeed
    draws: DrawFeed
    batch: int  # samples of a whole update
    normalisation_batch: int | None  # samples in a row that a part may look at together; None: those of a micro-batch
    probe: Probe  # is told of every micro-batch
    ranks: Ranks  # the processes that share each update; this one gives the inputs of its own share

    def share(self, phase: Phase) -> Share:
        """The samples of an update that this process sees."""
        return self.ranks.share(phase.samples(self.batch), phase.group(self.normalisation_batch or 1))

    def sizes(self, phase: Phase, micro_batch: int) -> list[int]:
        """Sizes of the micro-batches of an update, as this process runs them: a part of a group is one of them."""
        share = self.share(phase)
        group = self.normalisation_batch or 1
        own = phase.micro_batch(micro_batch, group)
        if share.parts:
            own = len(share.samples)
        elif own < phase.group(group) and self.ranks.any_parts(self.batch, group):
            own = phase.group(group)  # the plan is one for a part of a group, and this rank has a whole one
        return micro_batch_sizes(len(share.samples), own)

    def micro_batches(
        self, state: TrainingState, micro_batch: int, update: Update, shared: SharedGroup | None
    ) -> Iterator[tuple[MicroBatch, float]]:
        """One update's inputs in micro-batches on the device, each with its share of the update.

        Args:
            shared: the group that this process has a part of; None: its groups are whole.
        """
        phase, repeat, step = update.phase, update.repeat, update.step
        share = self.share(phase)
        mine = share.samples
        pictures = {source: self._take(update, source, share) for source in phase.sources}
        drawn = self.draws.batch(phase, step, repeat, share.of)  # the whole update's, whoever sees which of them
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
        """A shared phase reads the step's pictures; one with its own data a stream of its own, without gaps."""
        phase, step, first, count = update.phase, update.step, share.samples.start, len(share.samples)
        if phase.shared_data:
            return self.pictures.take(source, source, step * self.batch + first, count)
        updates_before = -(-step // phase.every) * phase.repeats + update.repeat
        return self.pictures.take(source, f"{source}/{phase.name}", updates_before * share.of + first, count)


def _to(tensors: Mapping[str, Tensor], here: slice, device: torch.device) -> dict[str, Tensor]:
    return {name: tensor[here].to(device, non_blocking=True) for name, tensor in tensors.items()}


@dataclass
class TimedPictures:
    """A feed that takes note of the time it takes.

    It is the host's time. A card that still has work queued loses less than that; one that is kept busy makes the host
    wait for its numbers, and pictures are read meanwhile, so that little or nothing is waited for here.
    """

    feed: PictureFeed  # where pictures come from
    seconds: float = 0.0  # waited for them so far

    def take(self, source: str, stream: str, position: int, count: int) -> Mapping[str, Tensor]:
        """As the feed's own."""
        began = time.perf_counter()
        try:
            return self.feed.take(source, stream, position, count)
        finally:
            self.seconds += time.perf_counter() - began


RunUpdate = Callable[[TrainingState, Plan, Update], PhaseResult]

NextPlan = Callable[[Plan, str, str], Plan]
"""(plan that ran out of memory, phase, torch's message) -> a plan that takes less. Raises where there is none."""


def until_sound(
    run: RunUpdate, state: TrainingState, plan: Plan, update: Update, next_plan: NextPlan | None
) -> tuple[PhaseResult, Plan]:
    """Run an update, again at half the loss scale while that is too high for the first one, and again by another plan
    if memory runs out before anything has moved.

    With the first, fp16 trains on the same pictures as fp32 from the first on. Leaving them out starts another run:
    with 3 to 20 first steps skipped, `saehd-demo-64` had up to 20 % more loss after 500 steps, in fp32.

    Args:
        next_plan: gives a plan that takes less; None: errors are passed on.

    Returns:
        What it did, and the plan by which it was run.
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
            with no_way_back(f"the update of phase {result.phase}"):
                state.skipped[result.phase] += ~result.accepted
            return result, plan
        release_memory(state.device)  # outside the handler: its frames hold what has to go
        plan = next_plan(plan, update.phase.name, message)
        with no_way_back("moving to another plan"):
            state.follow(plan)


def _is_too_high(scale: LossScale, result: PhaseResult) -> bool:
    """Whether a loss scale that no update was accepted by so far may be the reason that this one was not."""
    if scale.found:
        return False
    scale.found = bool(result.accepted)
    return not scale.found and result.finite_terms() and float(result.loss_scale) > 1
