"""Where a launcher has put this process among those that train together."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from frugan.errors import BadInput


@dataclass(frozen=True)
class Place:
    """Where a launcher has put this process.

    Attributes:
        rank, size: among all.
        local_rank, local_size: on its machine.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int

    @classmethod
    def here(cls, environment: Mapping[str, str] = os.environ) -> "Place":
        """As torchrun's variables have it; without them, this process is the only one.

        Raises:
            BadInput: they contradict each other.
        """
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        given = {name: environment[name] for name in names if environment.get(name)}
        if given.get("WORLD_SIZE", "1") == "1":
            return cls(0, 1, 0, 1)
        missing = [name for name in (*names, "MASTER_ADDR", "MASTER_PORT") if not environment.get(name)]
        if missing:
            raise BadInput(f"{' and '.join(given)} are set, {', '.join(missing)} not: start the ranks with torchrun")
        rank, size, local_rank, local_size = (int(given[name]) for name in names)
        return cls(rank, size, local_rank, local_size)

    @property
    def alone(self) -> bool:
        """Whether there are no others."""
        return self.size == 1
