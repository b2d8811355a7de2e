"""Predicts a plan's memory and work: the engine's own step, run once without data."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor

from frugan.contract.data import SourceSpec
from frugan.engine.plan import Layout, Plan
from frugan.engine.ranks.ranks import OneRank
from frugan.engine.run.training import Stage, Training
from frugan.engine.state.state import TrainingState
from frugan.engine.state.working_weights import prepared_together
from frugan.engine.streams import Streams
from frugan.planning.step_memory import measure_step
from frugan.stepmemory.dataless import META, Dataless, WithoutData, running_without_data
from frugan.stepmemory.measurement import StepMemory
from frugan.stepmemory.work import Work


@dataclass(frozen=True)
class BlankPictures:
    """Gives sources blank samples of their kind: neither memory nor time of a step depends on what samples show."""

    needs: Mapping[str, SourceSpec]  # what each source has to give

    def take(self, source: str, stream: str, position: int, count: int) -> dict[str, Tensor]:
        """Return blank samples for a step."""
        return self.needs[source].blank(count)

    def preview(self, source: str, count: int) -> dict[str, Tensor]:
        """Return blank samples for grids."""
        return self.needs[source].blank(count)


Target = Literal["cpu", "card"]
"""What is predicted for: a CPU, whose memory holds everything, or a card beside a host, of whichever kind."""
HOST = torch.device("cpu")
"""Where plans are made for a CPU."""


@dataclass(frozen=True)
class Prediction:
    """Memory and work of a plan, in one stage of training or the most over several."""

    # most that lives at once, as torch's own count on a card: a block that is a little larger than what
    # was asked for counts whole
    live_bytes: int
    reserved_bytes: int  # the least that the caching allocator must be allowed to reserve; on a CPU what lives
    place: str  # where the peak of what lives falls: "phase/network.block"
    stage: str  # name of the stage of training in which it does
    categories: dict[
        str, int
    ]  # bytes that live at the peak, by what they are for, without the rounding of the allocator
    by_phase: dict[str, int]  # phase -> its own peak of what lives; "sheets": that of making grids of samples
    work: Work  # of an average step
    host_bytes: int = 0  # most that the plan keeps in host memory, besides pictures
    unlimited_bytes: int = 0  # what the allocator reserves without a limit, as torch's own count on a card
    stayed_bytes: int = 0  # of what a plan offloads, most that stays on the card at once for being small

    @property
    def tensor_bytes(self) -> int:
        """Bytes that live at the peak, without the rounding of the allocator."""
        return sum(self.categories.values())

    def as_json(self) -> dict[str, Any]:
        """Return it for a file."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what `as_json` returned."""
        known = {field.name: values[field.name] for field in fields(cls) if field.name in values}
        return cls(**known | {"work": Work(**values["work"])})

    def worst(self, other: "Prediction") -> "Prediction":
        """Join the predictions of two stages: the higher peak, and the most of each phase."""
        higher = max(self, other, key=lambda prediction: prediction.reserved_bytes)
        by_phase = {
            phase: max(self.by_phase.get(phase, 0), other.by_phase.get(phase, 0))
            for phase in {**self.by_phase, **other.by_phase}
        }
        return replace(higher, by_phase=by_phase, host_bytes=max(self.host_bytes, other.host_bytes))


@dataclass(frozen=True)
class CardPlan(Plan):
    """A plan that is laid out as on a card, wherever its tensors are."""

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """Return a plan, laid out as on a card."""
        return cls(**{field.name: getattr(plan, field.name) for field in fields(Plan)})

    def layout(self, device: torch.device) -> Layout:
        return super().layout(torch.device("cuda"))


def predict(
    training: Training,
    plan: Plan,
    target: Target,
    stage: Stage,
    *,
    rough: bool = False,
    dataless: Dataless | None = None,
) -> Prediction:
    """Predict a plan for one stage of training.

    Args:
        rough: from one micro-batch instead of two, and nothing but the step: in half the time.
        dataless: runs operations; one that has run like ones is faster, with the same results.

    Raises:
        RuntimeError: torch refuses the plan (two savings that exclude each other).
    """
    memory = step_memory(training, plan, target, stage, rough=rough, dataless=dataless)
    by_phase = {name: peak.size_bytes for name, peak in memory.by_phase.items()}
    prediction = Prediction(
        live_bytes=memory.peak.size_bytes,
        reserved_bytes=memory.peak.size_bytes,
        place=memory.peak.place,
        stage=stage.name,
        # empty ones go: whether there is a tensor without numbers differs between versions of torch
        categories={str(name): size for name, size in memory.peak.categories.items() if size},
        by_phase=by_phase,
        work=memory.work,
        host_bytes=memory.host_bytes,
        unlimited_bytes=memory.peak.size_bytes,
        stayed_bytes=memory.stayed_bytes,
    )
    if target == "cpu":
        return prediction
    card = memory.on_card
    return replace(
        prediction,
        live_bytes=memory.live_on_card_bytes,
        reserved_bytes=memory.needed_on_card_bytes,
        by_phase={name: max(size_bytes, card.taken_in(name)) for name, size_bytes in by_phase.items()},
        unlimited_bytes=max(prediction.live_bytes, card.reserved_bytes),
    )


def step_memory(
    training: Training,
    plan: Plan,
    target: Target,
    stage: Stage,
    *,
    rough: bool = False,
    dataless: Dataless | None = None,
) -> StepMemory:
    """Run one step without data, of two micro-batches: later ones peak no higher than the second."""
    as_card = target == "card"
    if as_card:
        plan = CardPlan.of(plan)
    dataless = dataless or Dataless()
    with running_without_data():
        with WithoutData(dataless):
            networks = training.build("meta")
            state = training.state(plan, META, OneRank(0, training.ranks), networks=networks, stage=stage)
        for scale in state.loss_scales.values():
            scale.found = True  # tensors without data cannot be asked
        pictures = BlankPictures(stage.sources)

        def grids() -> None:
            _make_grids(training, state, plan, pictures)

        averages_away = as_card and plan.ema_on_host and bool(state.ema.networks)  # then grids are made there
        return measure_step(
            training.step(pictures, Streams(0), stage=stage, ranks=OneRank(in_parts=training.in_parts)),
            state,
            plan,
            training.recomputable(networks),
            as_card=as_card,
            grids=None if rough or averages_away or training.make_grids is None else grids,
            micro_batches=1 if rough else 2,
            count_zeros=not rough,
            dataless=dataless,
        )


@torch.no_grad()
def _make_grids(training: Training, state: TrainingState, plan: Plan, pictures: BlankPictures) -> None:
    assert training.make_grids is not None
    networks, layout = state.shown, plan.layout(state.device)
    with prepared_together(networks, layout):
        training.make_grids(networks, plan.micro_batch, pictures)
