"""One plan that was run without data, and what it costs."""

from dataclasses import dataclass
from typing import Any

from frugan.engine.plan import Plan
from frugan.planning.plan_space import SaverName, savers_of
from frugan.planning.prediction import Prediction
from frugan.stepmemory.work import Work


@dataclass(frozen=True)
class PlanCandidate:
    """A plan and its costs; all of them are predicted."""

    plan: Plan
    prediction: Prediction  # memory: the most over all stages of training
    batch: int  # samples of a step on this card
    outside_bytes: int  # on the card beside torch's allocator: CUDA's context, libraries, communication
    work: Work  # of an average step of the stage that takes most memory
    seconds: float  # of such a step, as plans are compared: from the same few runs for all of them
    step_seconds: float  # of such a step, on the card; it may be `Card.times` of that
    whole_seconds: float  # of an average step of the whole training
    busy_share: float  # of a step, in which the card works and does not wait for its host
    extra_compute: float  # multiply-accumulates beyond those without recompute, as a share
    extra_time: float  # beyond the fastest plan's, as a share

    @property
    def micro_batch(self) -> int:
        """Samples in one forward."""
        return self.plan.micro_batch

    @property
    def accumulation(self) -> int:
        """Forwards for one update."""
        return -(-self.batch // self.plan.micro_batch)

    @property
    def savers(self) -> tuple[SaverName, ...]:
        """Memory savings used."""
        return savers_of(self.plan, self.batch)

    @property
    def peak_bytes(self) -> int:
        """Most on the card in all: reserved by the allocator, and outside of it."""
        return self.prediction.reserved_bytes + self.outside_bytes

    @property
    def host_bytes(self) -> int:
        """Most that is kept in the host's memory: averages, optimizer state, inputs of blocks."""
        return self.prediction.host_bytes

    def as_json(self) -> dict[str, Any]:
        """Return the costs for a program to read."""
        return {
            "micro_batch": self.micro_batch,
            "accumulation": self.accumulation,
            "savers": self.savers,
            "peak_bytes": self.peak_bytes,
            "host_bytes": self.host_bytes,
            "extra_compute": self.extra_compute,
            "extra_time": self.extra_time,
            "step_seconds": self.step_seconds,
        }
