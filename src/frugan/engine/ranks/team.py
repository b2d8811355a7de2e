"""A team of ranks: those who share a normalisation group, and what they must run alike."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from frugan.engine.plan import Plan


@dataclass(frozen=True)
class Team:
    """Ranks that share normalisation groups.

    Attributes:
        sums: the process group of their devices; None: all ranks are in it.
        words: gloo's, between hosts.
        size: how many they are.
    """

    sums: Any
    words: Any
    size: int

    @classmethod
    def of(cls, team: range, ranks: int, device: torch.device, orders: Any) -> "Team":
        """Come together; only those in it need to.

        Args:
            ranks: how many there are in all.
            orders: gloo's group of all of them.
        """
        if len(team) == ranks:
            return cls(None, orders, ranks)

        def made(backend: str) -> Any:
            return dist.new_group(list(team), backend=backend, use_local_synchronization=True)

        words = made("gloo")
        return cls(made("nccl") if device.type == "cuda" else words, words, len(team))

    def gather(self, number: int) -> list[int]:
        """Everyone's number, in order."""
        found = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(found, torch.tensor([number]), group=self.words)
        return [int(each) for each in found]


def forwards_of(plan: Plan) -> int:
    """A number that differs where plans run other forwards, or in another order: every one of them sums over ranks."""
    values = plan.as_json()
    alike = {name: values[name] for name in ("precision", "recompute", "keep_products", "offload", "parts_in_sequence")}
    return int.from_bytes(hashlib.sha256(json.dumps(alike, sort_keys=True).encode()).digest()[:7], "big")
