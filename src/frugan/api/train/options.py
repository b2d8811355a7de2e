"""How to run a recipe on this machine: none of it changes the result beyond rounding."""

from dataclasses import dataclass

from frugan.engine.progress import Duration
from frugan.engine.ranks.asked_shares import parse_shares
from frugan.errors import BadInput
from frugan.memory.plan_space import Wishes
from frugan.memory.sizes import parse_size


@dataclass(frozen=True)
class TrainingOptions(Wishes):
    """What may be asked of a training, besides the recipe: what is wished of its plan (`micro_batch`, `use`, `avoid`),
    and how it runs.

    Attributes:
        recompute: recompute every block that may be.
        ema_on_host: keep the average in host memory.
        shard_optimizer: each rank keeps the optimizers' state of its part of the weights alone.
        device: "auto", "cpu", "cuda" or "cuda:1".
        workers: processes that make face samples, for all sources together; None: by the machine.
        memory: budget on the card, such as "6GiB"; None: what is free there less a margin.
        tensorboard: write TensorBoard's files into the run as well.
        wandb_project: send everything to this project on Weights & Biases; None: nothing.
        stop_after: time such as "23h" after which to save and stop, however much is left; None: never.
        shares: of a batch that ranks take: "equal", or a number for each such as "6,5"; None: as the run had it,
            else all alike.
        requeue: SIGUSR1 saves and stops as well, as schedulers send it before a job's time is over.
    """

    recompute: bool = False
    ema_on_host: bool = False
    shard_optimizer: bool = False
    device: str = "auto"
    workers: int | None = None
    memory: str | None = None
    tensorboard: bool = False
    wandb_project: str | None = None
    stop_after: str | None = None
    requeue: bool = False
    shares: str | None = None

    def __post_init__(self) -> None:
        """Refuse a mistyped size or time before any picture is read.

        Raises:
            BadInput: a saving is unknown, or `memory` is none, or `stop_after`, or `shares` are none.
        """
        super().__post_init__()
        if self.memory is not None:
            parse_size(self.memory)
        _ = self.stop_after_seconds
        if self.shares is not None:
            parse_shares(self.shares)

    @property
    def stop_after_seconds(self) -> float | None:
        """Seconds after which to stop; None: never.

        Raises:
            BadInput: it is no time.
        """
        if self.stop_after is None:
            return None
        try:
            after = Duration.parse(self.stop_after)
        except ValueError as error:
            raise BadInput(f"--stop-after {self.stop_after}: {error}") from error
        if after.unit != "seconds":
            raise BadInput(f"--stop-after {self.stop_after}: expected a time such as 23h or 90min")
        return after.amount

    @property
    def savers(self) -> bool:
        """Whether savers are asked for or ruled out by name."""
        return bool(self.use or self.avoid)

    @property
    def asks_for_a_plan(self) -> bool:
        """Whether anything is asked that a plan decides."""
        asked = (self.recompute, self.ema_on_host, self.shard_optimizer, self.memory, self.savers)
        return self.micro_batch is not None or any(asked)
