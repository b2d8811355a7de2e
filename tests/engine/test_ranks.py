"""Shares of a batch, sums of many tensors, and who is lost: without processes."""

import itertools
import platform
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from contract.made_up import MadeUpFamily
from contract.rig import Rig
from frugan.accelerator.base import Processor
from frugan.contract.phase import Phase, Terms
from frugan.engine.ranks import group as rank_group
from frugan.engine.ranks import joining
from frugan.engine.ranks import watch as rank_watch
from frugan.engine.ranks.group import add_up, checksum
from frugan.engine.ranks.joining import meet, threads_unset
from frugan.engine.ranks.place import Place, deal
from frugan.engine.ranks.ranks import OneRank, check_ranks
from frugan.engine.ranks.watch import Heartbeat
from frugan.engine.state.working_weights import memory_of
from frugan.engine.step.update import forward_and_backward
from frugan.errors import BadInput, TrainingFailed


@pytest.mark.parametrize("samples", [1, 6, 7, 12, 32])
def test_everything_is_dealt_once(samples: int) -> None:
    for group, size, proportions in itertools.product((1, 4, 32), (1, 2, 3, 5), (False, True)):
        _assert_dealt_once(samples, group, size, proportions)


def _assert_dealt_once(samples: int, group: int, size: int, proportions: bool) -> None:
    shares = deal(samples, group, size, [3, 1, 2, 2, 5][:size] if proportions else None)
    assert len(shares) == size
    assert [sample for share in shares if share.counts for sample in share.samples] == list(range(samples))
    assert sum(share.weight for share in shares) == pytest.approx(1)
    for rank, share in enumerate(shares):
        first, last = share.samples[0], share.samples[-1]
        if share.team is None:
            assert not share.counts or (first % group == 0 and (last + 1) % group in (0, samples % group))
        else:  # the whole team has the whole group
            assert rank in share.team
            assert first // group == last // group
            assert all(shares[other].team == share.team for other in share.team)
            assert share.parts == tuple(len(shares[other].samples) for other in share.team)
            assert sum(share.parts) == min(group, samples - first // group * group)
    lengths = [len(share.samples) for share in shares if share.counts]
    whole = -(-samples // group) >= size
    assert proportions or not whole or max(lengths) - min(lengths) <= group


def test_samples_are_dealt_in_proportion() -> None:
    def lengths(samples: int, group: int, proportions: Sequence[float]) -> list[int]:
        return [len(share.samples) for share in deal(samples, group, len(proportions), proportions)]

    assert lengths(22, 1, [6, 6, 5, 5]) == [6, 6, 5, 5]
    assert lengths(64, 1, [1] * 12) == [6] * 4 + [5] * 8
    assert lengths(64 * 4, 4, [1] * 12) == [24] * 4 + [20] * 8
    assert lengths(32, 4, [0.61, 0.39]) == [20, 12]
    assert lengths(12, 4, [100, 1, 1]) == [4, 4, 4]  # none goes without
    assert lengths(8, 8, [6, 2]) == [6, 2]  # parts of one group
    assert lengths(16, 8, [4, 4, 5, 3]) == [4, 4, 5, 3]
    assert [share.team for share in deal(16, 8, 4, [4, 4, 5, 3])] == [range(2)] * 2 + [range(2, 4)] * 2
    assert [share.counts for share in deal(2, 2, 3)] == [True, True, False]  # a sample each, and none for the last


def test_one_rank_has_all() -> None:
    share = OneRank().share(7, 4)
    assert (share.samples, share.part, share.weight) == (range(7), 1.0, 1.0)


def phases(**fractions: float) -> list[Phase]:
    """By name, of so much of the batch each."""
    return [Phase(name, (), (), "any", (lambda *_: {},), fraction=each) for name, each in fractions.items()]


def test_ranks_without_work_are_refused_or_told() -> None:
    assert check_ranks(phases(D=1, G=1), 32, 4, 8) == []
    (line,) = check_ranks(phases(D=1, G_path=0.5), 32, 4, 8)
    assert line.startswith("normalisation groups of 4 are shared by ranks in phase G_path: fewer groups than ranks")
    (line,) = check_ranks(phases(D=1), 32, 32, 2)
    assert line.startswith("normalisation groups of 32 are shared by ranks in phase D: ")
    (line,) = check_ranks(phases(autoencoder=1, code=0.5), 4, 1, 4)
    assert line == "phase code: 2 samples for 4 ranks: 2 of them work in vain there"
    with pytest.raises(BadInput, match=r"33 ranks: an update has 32 samples.*start at most 32"):
        check_ranks(phases(D=1), 32, 32, 33)
    with pytest.raises(BadInput, match=r"3 ranks: an update has 2 samples.*start at most 2"):
        check_ranks(phases(autoencoder=1), 2, 1, 3)


@pytest.mark.parametrize("bucket_bytes", [1, 64, 10_000])
def test_sums_keep_shapes_layouts_and_types(bucket_bytes: int) -> None:
    made = [
        torch.randn(3, 4),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(5, dtype=torch.float64),
        torch.randn(4, 3).t(),
        torch.randn(()),
        torch.randn(1, 3, 1, 1),
    ]
    before = [tensor.clone() for tensor in made]
    strides = [tensor.stride() for tensor in made]
    messages: list[int] = []

    def all_reduce(flat: Tensor) -> None:
        messages.append(flat.numel())
        flat.mul_(3)

    assert add_up(made, all_reduce, bucket_bytes) == sum(tensor.nbytes for tensor in made)
    assert sum(messages) == sum(tensor.numel() for tensor in made)
    assert len(messages) == {1: 6, 64: 4, 10_000: 2}[bucket_bytes]
    assert [tensor.stride() for tensor in made] == strides
    for now, then in zip(made, before, strict=True):
        torch.testing.assert_close(now, then * 3)


def test_a_tensor_with_gaps_is_refused() -> None:
    with pytest.raises(ValueError, match="does not lie densely"):
        memory_of(torch.zeros(4, 4)[:, :2])


def test_the_place_comes_from_the_launcher() -> None:
    assert Place.here({}) == Place(0, 1, 0, 1)
    there = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    address = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
    assert Place.here(there | address) == Place(5, 8, 1, 4)
    with pytest.raises(BadInput, match="MASTER_ADDR, MASTER_PORT not: start the ranks with torchrun"):
        Place.here(there)


def test_ranks_of_an_earlier_attempt_mislead_nobody() -> None:
    """On one store, as torchrun keeps it: each attempt agrees on a word of its own."""
    store = HashStore()
    words = []
    for _ in range(2):
        with ThreadPoolExecutor(3) as pool:
            words.append(list(pool.map(lambda rank: meet(store, rank, 3, 20.0), range(3))))
    assert [len(set(word)) for word in words] == [1, 1]
    assert words[0][0] != words[1][0]
    with pytest.raises(TrainingFailed, match="rank 0 waited 0 seconds for rank 1, 2 of 3"):
        meet(store, 0, 3, 0.2)
    with pytest.raises(TrainingFailed, match="rank 2 found no rank 0"):
        meet(store, 2, 3, 0.2)


class Shelf:
    """A store in this process."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.kept[key] = value

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.kept[key].encode() for key in keys]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.kept for key in keys)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        return self.kept.setdefault(key, desired).encode()


NAMES = ("rank 0 (a)", "rank 1 (b)", "rank 2 (b)")


@pytest.fixture
def watches(monkeypatch: pytest.MonkeyPatch) -> tuple[Shelf, list[Heartbeat], list[str]]:
    """Three watches on one shelf, in haste; the processes that they would end."""
    quick: Mapping[str, float] = {"BEAT": 0.02, "LOST": 0.3, "SUSPECTED": 0.1, "GRACE": 0.05}
    for name, seconds in quick.items():
        monkeypatch.setattr(rank_watch, f"{name}_SECONDS", seconds)
    ended: list[str] = []

    def end(watch: Heartbeat, reason: str) -> None:
        ended.append(reason)
        watch._over.set()

    monkeypatch.setattr(Heartbeat, "_end_process", end)
    shelf = Shelf()
    watches = [Heartbeat(shelf, rank, NAMES) for rank in range(3)]
    for watch in watches:
        watch.beat()
    return shelf, watches, ended


def _until(done: list[str], count: int) -> None:
    began = time.monotonic()
    while len(done) < count and time.monotonic() - began < 20:
        time.sleep(0.02)


def test_who_gives_no_sign_of_life_is_lost_for_all(watches: tuple[Shelf, list[Heartbeat], list[str]]) -> None:
    _, (first, second, _), ended = watches
    first.begin()
    second.begin()
    _until(ended, 2)
    assert [reason.startswith("rank 2 (b) is lost: no sign of life") for reason in ended] == [True, True]


def test_a_store_that_goes_away_just_then_ends_the_process_too(
    watches: tuple[Shelf, list[Heartbeat], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf, (first, second, _), ended = watches

    def gone(*_: str) -> bytes:
        raise RuntimeError("connection reset")

    monkeypatch.setattr(shelf, "compare_set", gone)
    first.begin()
    second.begin()
    _until(ended, 2)
    assert [reason.startswith("rank 2 (b) is lost: no sign of life") for reason in ended[:1]] == [True]
    assert len(ended) == 2


def test_a_lost_first_rank_is_noticed_by_the_others(watches: tuple[Shelf, list[Heartbeat], list[str]]) -> None:
    _, (_, second, third), ended = watches
    second.begin()
    third.begin()
    _until(ended, 2)
    assert [reason.startswith("rank 0 (a) is lost") for reason in ended] == [True, True]


def test_why_a_rank_ended_is_passed_on(watches: tuple[Shelf, list[Heartbeat], list[str]]) -> None:
    _, (first, second, third), _ = watches
    third.announce_end("the disk is full")
    assert first.lost() == "rank 2 (b) ended: the disk is full"
    assert first.told
    second.announce_end("because of rank 2")
    assert second.lost() == "rank 2 (b) ended: the disk is full"


def test_a_message_that_failed_without_a_loss(watches: tuple[Shelf, list[Heartbeat], list[str]]) -> None:
    _, every, ended = watches
    for watch in every:
        watch.begin()
    assert every[0].lost() is None
    for watch in every:
        watch.end()
    assert ended == []


COMMON = ["adding up phase D", "adding up phase G"] * 3


def test_a_rank_that_takes_its_time_is_waited_for(watches: tuple[Shelf, list[Heartbeat], list[str]]) -> None:
    """It has come to fewer places, and a team of two calls each other between them."""
    _, every, ended = watches
    for number, watch in enumerate(every):
        for place in COMMON[: 6 - number]:
            watch.comes_to(place)
            if number != 0:
                watch.comes_to("sharing", range(1, 3))
        watch.begin()
    began = [watch._beats for watch in every]
    while not ended and any(watch._beats < before + 3 for watch, before in zip(every, began, strict=True)):
        time.sleep(0.02)
    for watch in every:
        watch.end()
    assert ended == []


@pytest.mark.parametrize(
    ("team", "places"),
    [
        (range(3), ("telling all ranks", "comparing phase D")),
        (range(1, 3), ("sharing", "comparing plans")),  # of whom the first rank hears by their first one
    ],
)
def test_a_rank_that_goes_another_way_is_named_with_the_places(
    team: range, places: tuple[str, str], watches: tuple[Shelf, list[Heartbeat], list[str]]
) -> None:
    """Wherever the others have come to since, as a card's host is ahead of it."""
    _, every, ended = watches
    for rank, watch in enumerate(every):
        for place in COMMON:
            watch.comes_to(place)
        if rank in team:
            watch.comes_to(places[rank == 2], team)
        for _ in range(4 if rank < 2 else 0):
            watch.comes_to("adding up phase D")
    for watch in every:
        watch.begin()
    _until(ended, 3)
    first = NAMES[team[0]]
    assert set(ended) == {f"rank 2 (b) was {places[1]} where {first} was {places[0]}: {rank_watch.ANOTHER_WAY}"} or (
        set(ended) == {f"{first} was {places[0]} where rank 2 (b) was {places[1]}: {rank_watch.ANOTHER_WAY}"}
    )


def test_a_call_of_a_team_that_one_of_it_leaves_out_is_noticed(
    watches: tuple[Shelf, list[Heartbeat], list[str]],
) -> None:
    """It goes on to where all ranks meet, and waits there for one that waits for it."""
    _, every, ended = watches
    for rank, watch in enumerate(every):
        if rank != 0:
            watch.comes_to("sharing", range(1, 3))
        if rank == 2:
            watch.comes_to("sharing", range(1, 3))
        else:
            watch.comes_to("adding up phase D")
        watch.begin()
    _until(ended, 3)
    assert ["was sharing" in reason and "was adding up phase D" in reason for reason in ended] == [True] * 3


def test_a_rank_that_has_ended_is_waited_for_by_none(watches: tuple[Shelf, list[Heartbeat], list[str]]) -> None:
    _, (first, second, third), ended = watches
    for watch in (second, third):
        watch.begin()
        watch.comes_to("waiting for all ranks" if watch is second else "at the end")
    first.comes_to("at the end")
    first.end()
    _until(ended, 2)
    assert ended[0].startswith("rank 0 (a) was at the end where rank 1 (b) was waiting for all ranks")


def test_a_stop_that_is_asked_of_any_rank_reaches_the_first(
    watches: tuple[Shelf, list[Heartbeat], list[str]],
) -> None:
    _, every, _ = watches
    every[2].stop.signal_name = "SIGTERM"
    for watch in every:
        watch.begin()
    began = time.monotonic()
    while not every[0].stop.asked and time.monotonic() - began < 20:
        time.sleep(0.02)
    for watch in every:
        watch.end()
    assert every[0].stop.signal_name == "SIGTERM"
    assert not every[1].stop.asked


@pytest.mark.parametrize(
    ("card", "environment", "is_open"),
    [
        (False, {}, True),
        (False, {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "x"}, False),
        (True, {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "x"}, True),  # torchrun's own word
        (True, {"OMP_NUM_THREADS": "1"}, False),
        (True, {"OMP_NUM_THREADS": "4", "TORCHELASTIC_RUN_ID": "x"}, False),
    ],
)
def test_who_says_how_many_threads_a_rank_has(card: bool, environment: dict[str, str], is_open: bool) -> None:
    assert threads_unset(card, environment) is is_open


@pytest.mark.parametrize(
    ("system", "cure"), [("Windows", "start the ranks in WSL 2 or Linux"), ("Linux", "install torch's own")]
)
def test_cards_that_cannot_add_up_are_refused_before_anybody_waits(
    system: str, cure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No torch for Windows has NCCL."""

    class Card(Processor):
        is_card = True
        collectives = "nccl"

    monkeypatch.setattr(joining, "accelerator_of", Card)
    monkeypatch.setattr(joining, "rendezvous", lambda *_, **__: pytest.fail("waits for the others"))
    monkeypatch.setattr(dist, "is_backend_available", lambda name: name == "gloo")
    monkeypatch.setattr(platform, "system", lambda: system)
    refused = pytest.raises(BadInput, match=f"over NCCL, .* built without it: {cure}.*; or train on one card")
    with refused, joining.joined(Place(0, 2, 0, 2), torch.device("cpu")):
        pass


def test_cards_are_joined_without_binding_the_group_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that is bound to a device makes later ones by splitting, which ranks outside of a team never join."""

    class Card(Processor):
        is_card = True
        name = "made up"

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)
    summed: list[torch.Size] = []
    all_reduce = dist.all_reduce

    def noted(tensor: Tensor) -> None:
        summed.append(tensor.shape)
        all_reduce(tensor)

    monkeypatch.setattr(joining, "accelerator_of", Card)
    monkeypatch.setattr(dist, "all_reduce", noted)
    with joining.joined(Place(0, 1, 0, 1), torch.device("cpu")):
        assert dist.distributed_c10d._get_default_group().bound_device_id is None
        assert summed == [torch.Size([1])]  # the cards' own connection is made at once


def test_a_checksum_waits_for_what_is_on_its_way_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, waited = Rig.create(MadeUpFamily(), optimizer_on_host=True), list[torch.device]()

    class Waiting(Processor):
        def synchronize(self) -> None:
            waited.append(self.device)

    monkeypatch.setattr(rank_group, "accelerator_of", Waiting)
    first = checksum(rig.state)
    assert waited == [rig.state.device]
    assert torch.equal(first, checksum(rig.state))


def test_backward_stays_on_the_thread_that_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a card autograd would take one of its own, where nothing of ours has been run."""
    rig, allowed = Rig.create(MadeUpFamily()), list[bool]()

    def noted(*args: Any) -> Terms:
        allowed.append(torch._C._is_multithreading_enabled())
        return forward_and_backward(*args)

    monkeypatch.setattr("frugan.engine.step.step.forward_and_backward", noted)
    rig.run(1)
    assert allowed
    assert not any(allowed)
    assert torch._C._is_multithreading_enabled()
