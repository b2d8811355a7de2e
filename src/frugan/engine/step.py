"""One training step: every phase that is due, on micro-batches, committed once and only if it was sound."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from frugan.engine.gradients import GradientReport, clip, measure
from frugan.engine.host_state import pinned_copy
from frugan.engine.offload import HostCopies
from frugan.engine.optimizers import OptimizerSettings, named_parameters, update_parameters
from frugan.engine.out_of_memory import ran_out_of_memory
from frugan.engine.plan import Plan, micro_batch_sizes
from frugan.engine.recompute import recomputing
from frugan.engine.state import TrainingState
from frugan.engine.working_weights import WorkingWeights, working_weights
from frugan.errors import TrainingFailed
from frugan.phase import MicroBatch, Observer, Phase, PhaseState


class _RanOut(Exception):
    """Memory ran out before anything was committed."""

    def __init__(self, cause: RuntimeError) -> None:
        super().__init__(str(cause))
        self.cause = cause.with_traceback(None)  # its frames hold what has to go


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
class PhaseResult:
    """What one update did; tensors stay on the device.

    Attributes:
        phase: its name.
        repeat: which of the phase's repeats.
        terms: name -> each micro-batch's value [micro-batches], fp32.
        weights: share of each micro-batch in the update.
        gradients: measured after unscaling, before `on_masters` and clipping.
        accepted: bool scalar; False: nothing was committed.
        loss_scale: fp32 scalar, as used.
    """

    phase: str
    repeat: int
    terms: dict[str, Tensor]
    weights: tuple[float, ...]
    gradients: GradientReport
    accepted: Tensor
    loss_scale: Tensor

    def finite_terms(self) -> bool:
        """Whether the losses were finite, whatever the gradients; waits for the device."""
        return bool(torch.isfinite(torch.cat(list(self.terms.values()))).all())


NextPlan = Callable[[Plan, str, str], Plan]
"""(plan that ran out of memory, phase, torch's message) -> a plan that takes less. Raises where there is none."""


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
class Ready:
    """A phase before its update: everything is known, and nothing has moved yet."""

    terms: dict[str, Tensor]
    weights: tuple[float, ...]
    gradients: GradientReport
    accepted: Tensor
    observer: Observer
    own: PhaseState


@dataclass(frozen=True)
class Step:
    """Runs steps.

    Attributes:
        phases: in order.
        settings: optimizer settings by name.
        pictures, draws: inputs.
        batch: samples per update.
        length: steps of the whole training, for learning rates that change; None: unknown.
        originals: prepare, carry and commit at every micro-batch, as the original programs do (for parity).
    """

    phases: Sequence[Phase]
    settings: Mapping[str, OptimizerSettings]
    pictures: PictureFeed
    draws: DrawFeed
    batch: int
    length: int | None = None
    originals: bool = False

    def run(
        self, state: TrainingState, plan: Plan, *, count_zeros: bool = False, next_plan: NextPlan | None = None
    ) -> list[PhaseResult]:
        """Run the next step: all phases that are due with their repeats, then EMA.

        Args:
            next_plan: is asked when memory runs out before an update: the phase is then repeated by the plan that it
                gives, with the same inputs, and so are those after it. None: the error is passed on.
        """
        results = []
        for phase in self.phases:
            for repeat in range(phase.repeats) if phase.due(state.step) else ():
                result, plan = self._run_sound(state, plan, Update(phase, repeat, state.step, count_zeros), next_plan)
                results.append(result)
        state.step += 1
        state.ema.update(state.step, self.batch, self._moved(results))
        return results

    def pictures_at(self, step: int) -> int:
        """Pictures of a source that step `step` shows the networks, from 0; of several sources, that of which most.

        Phases that share the step's pictures see the same ones; one with its own sees new ones at each repeat.
        """
        shared: dict[str, int] = {}
        own: dict[str, int] = {}
        for phase in self.phases:
            samples = phase.samples(self.batch)
            for source in phase.sources if phase.due(step) else ():
                if phase.shared_data:
                    shared[source] = max(shared.get(source, 0), samples)
                else:
                    own[source] = own.get(source, 0) + phase.repeats * samples
        return max((shared.get(source, 0) + own.get(source, 0) for source in {**shared, **own}), default=0)

    def _run_sound(
        self, state: TrainingState, plan: Plan, update: Update, next_plan: NextPlan | None
    ) -> tuple[PhaseResult, Plan]:
        """Run a phase, again at half the loss scale while that is too high for the first update.

        So fp16 trains on the same pictures as fp32 from the first on. Leaving them out starts another run: with 3 to 20
        first steps skipped, `saehd-demo-64` had up to 20 % more loss after 500 steps, in fp32.
        """
        scale = state.loss_scales[update.phase.optimizer]
        while True:
            result, plan = self._run_fitting(state, plan, update, next_plan)
            if not scale.found:
                scale.found = bool(result.accepted)
                if not scale.found and result.finite_terms() and float(result.loss_scale) > 1:
                    continue
            state.skipped[result.phase] += ~result.accepted
            return result, plan

    def _run_fitting(
        self, state: TrainingState, plan: Plan, update: Update, next_plan: NextPlan | None
    ) -> tuple[PhaseResult, Plan]:
        """Run a phase, again by a plan that takes less if memory runs out before the update."""
        while True:
            try:
                return self._run_phase(state, plan, update), plan
            except _RanOut as error:
                if next_plan is None:
                    raise error.cause from None
                message = str(error.cause)
            # Outside the handler: the error's frames, and what they hold, are gone.
            gc.collect()
            if state.device.type == "cuda":
                torch.cuda.empty_cache()
            plan = next_plan(plan, update.phase.name, message)
            state.follow(plan)

    def _run_phase(self, state: TrainingState, plan: Plan, update: Update) -> PhaseResult:
        """Run a phase and release its gradients, also after an error, so that a repetition does not add to them."""
        try:
            try:
                ready = self._prepare_update(state, plan, update)
            except RuntimeError as error:
                if not ran_out_of_memory(error):
                    raise
                raise _RanOut(error) from None
            try:
                return self._commit(state, plan, update, ready)
            except RuntimeError as error:
                if not ran_out_of_memory(error):
                    raise
                raise TrainingFailed(
                    f"memory ran out in the midst of the update of phase {update.phase.name}, which cannot be "
                    f"repeated: resume from the last checkpoint with a smaller --memory ({error})"
                ) from None
        finally:
            state.optimizers[update.phase.optimizer].zero_grad(set_to_none=True)

    def _prepare_update(self, state: TrainingState, plan: Plan, update: Update) -> Ready:
        """Everything of a phase that may fail: gradients on the masters, measured, judged and clipped."""
        phase = update.phase
        scale = state.loss_scales[phase.optimizer]
        networks = {name: state.networks[name] for name in phase.uses}
        layouts = dict.fromkeys(networks, plan.layout(state.device))
        observer = Observer()
        own = PhaseState({name: state.carried[name] for name in phase.carried}, scale.scale)
        terms: dict[str, list[Tensor]] = {}
        weights: list[float] = []
        gain = phase.gain * (phase.samples(self.batch) if phase.sums_over_batch else 1)

        with (
            working_weights(
                networks, layouts, phase.moving, observer, plan.in_slices, many=self._micro_batch_count(plan, phase) > 2
            ) as working,
            recomputing(
                networks,
                plan.recompute,
                keep_products=plan.keep_products,
                host=self._host_copies() if plan.offload else None,
            ),
        ):
            for micro, weight in self._micro_batches(state, plan, update):
                if self.originals and weights:
                    _renew(working, observer)
                losses: list[Tensor] = []
                for part in phase.parts:
                    found = part(networks, micro, own)
                    loss = torch.stack(list(found.values())).sum() * (gain * weight) * scale.scale
                    for name, term in found.items():
                        terms.setdefault(name, []).append(term.detach())
                    if plan.parts_in_sequence:
                        loss.backward()
                    else:
                        losses.append(loss)
                if losses:
                    torch.stack(losses).sum().backward()
                weights.append(weight)
            for weights_of_network in working.values():
                weights_of_network.carry()

        parameters = named_parameters(networks, phase.moving)
        inverse = scale.scale.reciprocal() if scale.dynamic else None
        gradients = measure(parameters, inverse, zeros=update.count_zeros)
        stacked = {name: torch.stack(values) for name, values in terms.items()}
        accepted = torch.isfinite(gradients.norm) & torch.isfinite(torch.cat(list(stacked.values()))).all()
        if phase.on_masters is not None:
            phase.on_masters(networks)
        if (largest := self.settings[phase.optimizer].clip_norm) is not None:
            clip(parameters, gradients.norm, largest)
        return Ready(stacked, tuple(weights), gradients, accepted, observer, own)

    def _commit(self, state: TrainingState, plan: Plan, update: Update, ready: Ready) -> PhaseResult:
        """Move everything that the phase moves, where it was sound."""
        phase = update.phase
        scale = state.loss_scales[phase.optimizer]
        update_parameters(
            state.optimizers[phase.optimizer],
            self.settings[phase.optimizer],
            accepted=ready.accepted,
            progress=state.step / self.length if self.length else 0.0,
            dropout_seed=self.draws.update_seed(phase, update.step, update.repeat),
            dropout=phase.learning_rate_dropout,
            on_host=plan.optimizer_on_host,
        )
        ready.observer.commit(ready.accepted)
        _commit_carried(state, phase, ready.own, ready.accepted)
        used_scale = scale.scale.clone()
        scale.move(ready.accepted)
        return PhaseResult(
            phase.name, update.repeat, ready.terms, ready.weights, ready.gradients, ready.accepted, used_scale
        )

    def _host_copies(self) -> HostCopies:
        return HostCopies()

    def _micro_batch_count(self, plan: Plan, phase: Phase) -> int:
        return len(micro_batch_sizes(phase.samples(self.batch), plan.micro_batch))

    def _micro_batches(self, state: TrainingState, plan: Plan, update: Update) -> Iterator[tuple[MicroBatch, float]]:
        """The inputs of one update in micro-batches on the device, each with its share of the update."""
        phase, repeat, step = update.phase, update.repeat, update.step
        samples = phase.samples(self.batch)
        pictures = {source: self._take(update, source, samples) for source in phase.sources}
        drawn = self.draws.batch(phase, step, repeat, samples)
        draws = {name: pinned_copy(draw, state.device, "what is drawn") for name, draw in drawn.items()}
        first = 0
        for size in micro_batch_sizes(samples, plan.micro_batch):
            here = slice(first, first + size)
            large = self.draws.micro_batch(phase, step, repeat, first, size, state.device)
            yield (
                MicroBatch(
                    pictures={source: _to(named, here, state.device) for source, named in pictures.items()},
                    draws=_to(draws, here, state.device) | large,
                    size=size,
                    normalisation_batch=state.normalisation_batch,
                ),
                size / samples,
            )
            first += size

    def _take(self, update: Update, source: str, samples: int) -> Mapping[str, Tensor]:
        """A shared phase reads the step's pictures; one with its own data a stream of its own, without gaps."""
        phase, step = update.phase, update.step
        if phase.shared_data:
            return self.pictures.take(source, source, step * self.batch, samples)
        updates_before = -(-step // phase.every) * phase.repeats + update.repeat
        return self.pictures.take(source, f"{source}/{phase.name}", updates_before * samples, samples)

    def _moved(self, results: Sequence[PhaseResult]) -> dict[str, Tensor]:
        """Network -> whether any of its updates in this step was accepted."""
        updates = {phase.name: phase.moving for phase in self.phases}
        moved: dict[str, Tensor] = {}
        for result in results:
            for name in updates[result.phase]:
                moved[name] = moved[name] | result.accepted if name in moved else result.accepted
        return moved


def _renew(working: Mapping[str, WorkingWeights], observer: Observer) -> None:
    """The originals' habit: carry and commit now, and prepare again for the next micro-batch."""
    for weights in working.values():
        weights.carry()
        weights.restore()
    observer.commit(None)
    for weights in working.values():
        weights.install()


@torch.no_grad()
def _commit_carried(state: TrainingState, phase: Phase, own: PhaseState, accepted: Tensor) -> None:
    for name, (observed, samples) in own.observed().items():
        before = state.carried[name]
        state.carried[name] = torch.where(accepted, phase.carried[name].update(before, observed, samples), before)


def _to(tensors: Mapping[str, Tensor], here: slice, device: torch.device) -> dict[str, Tensor]:
    return {name: tensor[here].to(device, non_blocking=True) for name, tensor in tensors.items()}
