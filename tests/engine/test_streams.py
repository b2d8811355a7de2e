"""Named random streams."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from frugan.contract.phase import Draw, Phase
from frugan.engine.streams import Streams, derive_seed

PHASE = Phase(
    "p",
    ("n",),
    ("n",),
    "o",
    (lambda *_: {},),
    {
        "z": Draw("normal", (4,)),
        "y": Draw("classes", classes=5),
        "noise": Draw("uniform", (3,), per_image=True),
    },
)


def test_streams_differ_by_every_part_of_their_name() -> None:
    seeds = {derive_seed(0, "a", 1), derive_seed(1, "a", 1), derive_seed(0, "b", 1), derive_seed(0, "a", 2)}
    assert len(seeds) == 4
    # Pinned: a changed hash would change what every resumed run draws next.
    assert derive_seed(0, "draws", "D", 3) == 8103210446196299944
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_batches_repeat_and_differ_by_step_and_repeat() -> None:
    streams = Streams(1)
    first = streams.batch(PHASE, 3, 0, 1000)
    assert set(first) == {"z", "y"}
    assert torch.equal(first["z"], streams.batch(PHASE, 3, 0, 1000)["z"])
    assert not torch.equal(first["z"], streams.batch(PHASE, 4, 0, 1000)["z"])
    assert not torch.equal(first["z"], streams.batch(PHASE, 3, 1, 1000)["z"])
    assert abs(float(first["z"].std()) - 1) < 0.05
    assert set(first["y"].tolist()) == set(range(5))


@given(st.integers(1, 9))
def test_large_inputs_do_not_depend_on_the_micro_batch(size: int) -> None:
    streams, cpu = Streams(1), torch.device("cpu")
    whole = streams.micro_batch(PHASE, 0, 0, 0, 9, cpu)["noise"]
    parts = [streams.micro_batch(PHASE, 0, 0, first, min(size, 9 - first), cpu)["noise"] for first in range(0, 9, size)]
    assert torch.equal(whole, torch.cat(parts))
