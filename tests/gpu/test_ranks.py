"""Ranks over NCCL, as far as one card can show: a group of one, beside a process without any."""

from dataclasses import replace

import pytest
import torch

from contract.made_up import MadeUpFamily
from contract.rig import Rig, assert_same
from distributed.processes import free_port
from frugan.engine.ranks.joining import joined
from frugan.engine.ranks.place import Place

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
CUDA = torch.device("cuda", 0)


def test_a_group_of_one_over_nccl_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums, the state that is given, the comparison: every message that training sends goes over NCCL here."""
    places = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    for name, value in (places | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}).items():
        monkeypatch.setenv(name, value)
    torch.cuda.set_device(CUDA)
    torch.use_deterministic_algorithms(True, warn_only=True)
    alone, grouped = Rig.create(MadeUpFamily(), device=CUDA), Rig.create(MadeUpFamily(), device=CUDA)
    alone.run(2)
    with joined(Place(0, 1, 0, 1), CUDA) as ranks:
        ranks.broadcast_state(grouped.state)
        grouped.step = replace(grouped.step, ranks=ranks)
        grouped.run(2)
        assert ranks.agree(grouped.state)
    torch.use_deterministic_algorithms(False)
    assert_same(alone.tensors(), grouped.tensors())
