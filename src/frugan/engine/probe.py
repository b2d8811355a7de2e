"""How a step can be looked at, and cut short, from outside: the planner counts it, a rehearsal times it."""

from collections.abc import Sequence

from frugan.contract.phase import MicroBatch, Phase
from frugan.engine.offload import HostCopies
from frugan.engine.state import TrainingState


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

    def micro_batch_ends(self, state: TrainingState, phase: Phase) -> None:
        """Its backward is done."""

    def all_carried(self, state: TrainingState) -> None:
        """Gradients are on the masters and judged; nothing has moved, and from here on it will."""

    def phase_ends(self, phase: Phase) -> None:
        """The update is committed and its gradients are released."""

    def host_copies(self) -> HostCopies:
        """What takes activations to host memory and back, where the plan wants that."""
        return HostCopies()
