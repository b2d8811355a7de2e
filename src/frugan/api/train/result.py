"""What a training leaves behind."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TrainingResult:
    """What `train` left.

    Attributes:
        run: the run folder.
        step: steps done.
        finished: whether the recipe's duration is over.
        seconds: of training, over all resumptions.
        threads: that a CPU trained with, at the end.
        rank: of this process among those that trained together; the first alone has written anything.
    """

    run: Path
    step: int
    finished: bool
    seconds: float
    threads: int
    rank: int = 0
