"""What one update is, what it is given, and what it reports."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from frugan.contract.layers import SharedGroup
from frugan.contract.phase import MicroBatch, Phase
from frugan.engine.gradients import GradientReport
from frugan.engine.host_state import pinned_copy
from frugan.engine.plan import micro_batch_sizes
from frugan.engine.probe import Probe
from frugan.engine.ranks.place import Share
from frugan.engine.ranks.ranks import Ranks
from frugan.engine.state import TrainingState


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
    """One update of one phase.

    Attributes:
        phase: what.
        repeat: which of the phase's repeats.
        step: which step it belongs to: with `repeat` the place of its inputs.
        count_zeros: whether its gradients' zeros are counted.
    """

    phase: Phase
    repeat: int
    step: int
    count_zeros: bool


@dataclass(frozen=True)
class PhaseResult:
    """What one update did; tensors stay on the device.

    Attributes:
        phase: its name.
        repeat: which of the phase's repeats.
        terms: name -> each micro-batch's value [micro-batches], fp32.
        weights: share of each micro-batch in the update.
        gradients: measured after unscaling, before `grad_hook` and clipping.
        accepted: bool scalar; False: nothing was committed.
        loss_scale: fp32 scalar, as used.
        data_seconds: that the host waited for pictures.
    """

    phase: str
    repeat: int
    terms: dict[str, Tensor]
    weights: tuple[float, ...]
    gradients: GradientReport
    accepted: Tensor
    loss_scale: Tensor
    data_seconds: float

    def finite_terms(self) -> bool:
        """Whether the losses were finite, whatever the gradients; waits for the device."""
        return bool(torch.isfinite(torch.cat(list(self.terms.values()))).all())


@dataclass(frozen=True)
class Inputs:
    """Gives updates what they see.

    Attributes:
        pictures, draws: where it comes from.
        batch: samples of a whole update.
        normalisation_batch: samples in a row that a part may look at together; None: those of a micro-batch.
        probe: is told of every micro-batch.
        ranks: the processes that share each update; this one gives the inputs of its own share.
    """

    pictures: PictureFeed
    draws: DrawFeed
    batch: int
    normalisation_batch: int | None
    probe: Probe
    ranks: Ranks

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
            self.probe.micro_batch_ends(state, phase)
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
