"""One training step: every phase that is due, on micro-batches, committed once and only if it was sound."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from frugan.accelerator.device import no_retry
from frugan.contract.layers import Observer, SharedGroup, penalised
from frugan.contract.phase import Phase, PhaseState
from frugan.engine.durations import Course
from frugan.engine.plan import Plan
from frugan.engine.ranks.ranks import ObservedShare, OneRank, Ranks, sharing
from frugan.engine.state.gradients import all_finite, clip, measure, shares_of_zeros
from frugan.engine.state.optimizer import Optimizer
from frugan.engine.state.optimizer_settings import OptimizerSettings, named_parameters
from frugan.engine.state.state import TrainingState
from frugan.engine.state.working_weights import WorkingWeights, install, working_weights
from frugan.engine.step.recompute import recomputing
from frugan.engine.step.update import (
    DrawFeed,
    Inputs,
    NextPlan,
    PhaseResult,
    PictureFeed,
    Probe,
    TimedPictures,
    Update,
    forward_and_backward,
    retry_until_finite,
)


@dataclass(frozen=True)
class Step:
    """Runs training steps: every due phase, each committed only if its losses and gradients are finite."""

    phases: Sequence[Phase]  # in order
    settings: Mapping[str, OptimizerSettings]  # optimizer settings by name
    pictures: PictureFeed  # where pictures come from
    draws: DrawFeed  # where random inputs come from
    batch: int  # samples per update
    course: Course = field(default_factory=Course)  # schedule of everything that changes during training
    # samples in a row that a part may look at together; None: those of a micro-batch
    normalisation_batch: int | None = None
    originals: bool = False  # prepare, carry and commit at every micro-batch, as the original programs do (for parity)
    probe: Probe = field(default_factory=Probe)  # is notified as each update progresses
    ranks: Ranks = field(default_factory=OneRank)  # the processes that share each update

    def run(
        self,
        state: TrainingState,
        plan: Plan,
        *,
        count_zeros: bool = False,
        next_plan: NextPlan | None = None,
    ) -> list[PhaseResult]:
        """Run the next step: all phases that are due with their repeats, then EMA.

        Args:
            next_plan: called when memory runs out before a commit. The phase is repeated by the plan it returns, with
                the same inputs, and later phases use that plan too. None: the error is raised.
        """
        results = []
        # On a card autograd runs backward on another thread, to serve several devices. There is one here, so backward
        # stays on this thread, and hooks and recomputation behave as on a processor.
        with torch.autograd.set_multithreading_enabled(False):
            for phase in self.phases:
                for repeat in range(phase.repeats) if phase.due(state.step) else ():
                    update = Update(phase, repeat, state.step, count_zeros)
                    result, plan = retry_until_finite(self.update, state, plan, update, next_plan)
                    results.append(result)
        state.step += 1
        with no_retry("the averages"):
            before, length = state.step - 1, self.course.length
            steps = None if length is None else length.steps_at(before)
            state.ema.update(state.step, self.batch, self._moved(results), self.course_at(before), steps)
        state.within_step = False
        return results

    def course_at(self, step: int) -> float:
        """Return the progress of scheduled values at step `step`, from 0 to 1."""
        return self.course.at(step * self.batch)

    def update(self, state: TrainingState, plan: Plan, update: Update) -> PhaseResult:
        """Run one update of one phase; nothing moves if its losses or gradients are not finite.

        Memory that runs out before the commit leaves no trace; during the commit the update cannot be repeated.

        Raises:
            RuntimeError: torch's own, out of memory among them; before anything has moved.
            TrainingFailed: memory ran out when a part had moved already.
        """
        phase, optimizer = update.phase, state.optimizers[update.phase.optimizer]
        settings, scale = self.settings[phase.optimizer], state.loss_scales[phase.optimizer]
        networks = {name: state.networks[name] for name in phase.uses}
        observer = Observer()
        course = self.course_at(state.step)
        phase_state = PhaseState({name: state.carried[name] for name in phase.carried}, scale.scale, course)
        pictures = TimedPictures(self.pictures)
        inputs = Inputs(pictures, self.draws, self.batch, self.normalisation_batch, self.probe, self.ranks)
        parameters = named_parameters(networks, phase.trainable)
        self.probe.phase_begins(phase)

        with gradients_released(optimizer):
            # Prepare, forward, backward, carry, on this process's share of the batch.
            share = inputs.share(phase)
            shared = self.ranks.sharing(share, phase.name, plan)
            with self.ranks.alike(phase.name) if shared is not None else nullcontext(), sharing(networks, shared):
                terms, shares = self._backward(state, plan, update, networks, observer, phase_state, inputs, shared)

            with self.ranks.alike(phase.name):
                # Sum gradients, losses and observations over the ranks, once.
                seen = ObservedShare(observer, phase_state, share)
                terms, shares = self.ranks.add_up(phase.name, parameters, terms, shares, seen)

                # Judge: unscaled gradients and losses are finite, or nothing moves.
                gradients = measure(parameters)
                if update.count_zeros:
                    with self.probe.reporting():
                        gradients = replace(gradients, zeros=shares_of_zeros(parameters.values()))
                accepted = all_finite(torch.cat([gradients.norm[None], *terms.values()]))

                # Regularise and clip; the verdict is already in.
                state.ema.let_weights_move()
                if phase.grad_hook is not None:
                    phase.grad_hook(networks)
                if settings.clip_norm is not None:
                    clip(parameters, gradients.norm, settings.clip_norm)
                self.probe.all_carried(state)

            # Commit everything that the phase moves.
            state.within_step = True
            with no_retry(f"the update of phase {phase.name}"):
                settings.steer(optimizer, course)
                with optimizer.in_shards():
                    optimizer.update(
                        accepted,
                        learning_rate=settings.rate_at(course),
                        period=settings.cosine_updates if phase.learning_rate_dropout else None,
                        share=settings.moving_share if phase.learning_rate_dropout else None,
                        seed=self.draws.update_seed(phase, update.step, update.repeat),
                    )
                observer.commit(accepted)
                _commit_carried(state, phase, phase_state, accepted)
                used_scale = scale.scale.clone()
                scale.move(accepted)
        self.probe.phase_ends(phase)
        return PhaseResult(phase.name, update.repeat, terms, shares, gradients, accepted, used_scale, pictures.seconds)

    def _backward(
        self,
        state: TrainingState,
        plan: Plan,
        update: Update,
        networks: dict[str, nn.Module],
        observer: Observer,
        phase_state: PhaseState,
        inputs: Inputs,
        shared: SharedGroup | None,
    ) -> tuple[dict[str, Tensor], tuple[float, ...]]:
        """Bring an update's unscaled gradients to the masters and free everything else that forward and backward held.

        Returns:
            Name -> each micro-batch's value of a term [micro-batches], and the micro-batches' shares of the update.
        """
        phase = update.phase
        gain = phase.gain * (phase.samples(self.batch) if phase.sums_over_batch else 1)
        many = len(inputs.sizes(phase, plan.micro_batch)) > 2
        scale = state.loss_scales[phase.optimizer]
        inverse_scale = scale.scale.reciprocal() if scale.dynamic else None
        host = self.probe.host_copies() if plan.offload else None
        terms: dict[str, list[Tensor]] = {}
        shares: list[float] = []
        with (
            # Prepare the working weights, once however many micro-batches follow.
            working_weights(
                networks,
                dict.fromkeys(networks, plan.layout(state.device)),
                phase.trainable,
                observer,
                plan.in_slices,
                many=many,
            ) as working,
            penalised(networks.values() if phase.penalises_gradients else ()),
            recomputing(
                networks,
                plan.recompute,
                # Torch returns a saved product only once, but penalties run backward through a block twice.
                keep_products=plan.keep_products and not phase.penalises_gradients,
                host=host,
                bring_ahead=plan.bring_ahead,
            ),
        ):
            # Forward and backward of each micro-batch; gradients add up in fp32.
            for micro, share in inputs.micro_batches(state, plan.micro_batch, update, shared):
                if self.originals and shares:
                    state.ema.let_weights_move()
                    _renew(working, observer, inverse_scale)
                micro_terms = forward_and_backward(phase, networks, micro, phase_state, gain * share, plan)
                for name, term in micro_terms.items():
                    terms.setdefault(name, []).append(term)
                _settle(working, observer)
                shares.append(share)
                self.probe.micro_batch_ends(state, phase, micro_terms)
            # Carry the gradients through norm, cast and loss scale to the masters.
            for weights in working.values():
                weights.carry(inverse_scale)
        return {name: torch.stack(values) for name, values in terms.items()}, tuple(shares)

    def pictures_at(self, step: int) -> int:
        """Return how many pictures step `step` (from 0) shows the networks, for the source with the most.

        Phases that share the step's pictures see the same ones; one with its own sees new ones at each repeat.
        """
        shared: dict[str, int] = {}
        separate: dict[str, int] = {}
        for phase in self.phases:
            samples = phase.samples(self.batch)
            for source in phase.sources if phase.due(step) else ():
                if phase.shared_data:
                    shared[source] = max(shared.get(source, 0), samples)
                else:
                    separate[source] = separate.get(source, 0) + phase.repeats * samples
        return max((shared.get(source, 0) + separate.get(source, 0) for source in {**shared, **separate}), default=0)

    def _moved(self, results: Sequence[PhaseResult]) -> dict[str, Tensor]:
        """Return network -> bool scalar, whether any of its updates in this step was accepted."""
        updates = {phase.name: phase.trainable for phase in self.phases}
        moved: dict[str, Tensor] = {}
        for result in results:
            for name in updates[result.phase]:
                moved[name] = moved[name] | result.accepted if name in moved else result.accepted
        return moved


@contextmanager
def gradients_released(optimizer: Optimizer) -> Iterator[None]:
    """Release gradients at the end, even after an error, so that a repetition does not add to them."""
    try:
        yield
    finally:
        for parameter in optimizer.parameters():  # not by zero_grad, which calls torch: nothing may fail here
            parameter.grad = None


def _settle(working: Mapping[str, WorkingWeights], observer: Observer) -> None:
    """Add a micro-batch's gradients and observations to the sums."""
    for weights in working.values():
        weights.add_up()
    observer.add_up()


def _renew(working: Mapping[str, WorkingWeights], observer: Observer, inverse_scale: Tensor | None) -> None:
    """Carry and commit now, and prepare again for the next micro-batch, as the original programs do."""
    for weights in working.values():
        weights.carry(inverse_scale)
        weights.restore()
    observer.commit(None)
    install(list(working.values()))


@torch.no_grad()
def _commit_carried(state: TrainingState, phase: Phase, phase_state: PhaseState, accepted: Tensor) -> None:
    for name, (observed, samples) in phase_state.observed().items():
        before = state.carried[name]
        state.carried[name] = torch.where(accepted, phase.carried[name].update(before, observed, samples), before)
