"""How the processes that torchrun has started find each other, become ranks of one training, and part again."""

import os
import platform
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # documented, but not in its __all__
from torch.distributed.rendezvous import rendezvous

from frugan.accelerator.choice import accelerator_of
from frugan.accelerator.device import available_cores
from frugan.engine.ranks.group import RankGroup
from frugan.engine.ranks.place import Place
from frugan.engine.ranks.watch import Heartbeat
from frugan.engine.requests import StopRequest
from frugan.errors import BadInput, TrainingFailed
from frugan.wording import first_line

LOOK_SECONDS = 0.05
"""Wait between two looks at the store."""


def meet(store: Store, rank: int, size: int, seconds: float) -> str:
    """Agree on a word that no earlier attempt has used; every rank calls it.

    torchrun keeps one store while it starts lost ranks again, and each machine's counts its own restarts: neither the
    store nor the count tells one attempt from the next. Without this, ranks that were started again looked for the
    addresses of those before them, and waited.

    Each rank says hello by a word of its own; the first answers with that word and the new one, until all have said
    that they know it. An answer to a rank of an earlier attempt is of no use to the one that now has its place.

    Raises:
        TrainingFailed: some rank did not come in time.
    """
    until = time.monotonic() + seconds
    if rank != 0:
        mine = uuid.uuid4().hex
        store.set(f"hello/{rank}", mine)
        while time.monotonic() < until:
            answer = _found(store, f"answer/{rank}")
            if answer.startswith(mine):
                store.set(f"known/{rank}", answer.removeprefix(mine))
                return answer.removeprefix(mine)
            time.sleep(LOOK_SECONDS)
        raise TrainingFailed(f"rank {rank} found no rank 0 within {seconds:.0f} seconds: did all machines start?")
    word = uuid.uuid4().hex
    missing = set(range(1, size))
    while missing and time.monotonic() < until:
        for other in missing:
            if hello := _found(store, f"hello/{other}"):
                store.set(f"answer/{other}", hello + word)
        time.sleep(LOOK_SECONDS)
        missing = {other for other in missing if _found(store, f"known/{other}") != word}
    if missing:
        raise TrainingFailed(
            f"rank 0 waited {seconds:.0f} seconds for rank {', '.join(map(str, sorted(missing)))} of {size}: did all "
            "machines start?"
        )
    return word


def _found(store: Store, key: str) -> str:
    """Return the value of a key; empty: there is none."""
    return store.get(key).decode() if store.check([key]) else ""


MEETING_SECONDS = 300.0
"""Timeout for all ranks to join: the machines of a cluster do not start at the same moment."""
UPDATE_SECONDS = 1800.0
"""Timeout for a rank's share of an update; one that runs out of memory looks for another plan."""
ORDER_SECONDS = 30 * 24 * 3600.0
"""Timeout for the first rank's next action: it saves and draws meanwhile. `Heartbeat` notices lost ranks."""


def threads_unset(card: bool, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the environment leaves the number of threads of a rank open.

    Beside a card the host averages, if the plan has it so, while the card waits. torchrun says 1 there for each of
    several ranks where nothing was said; on processors that is obeyed, for ranks share the cores.
    """
    said = environment.get("OMP_NUM_THREADS")
    return not said or (card and said == "1" and "TORCHELASTIC_RUN_ID" in environment)


@contextmanager
def joined(place: Place, device: torch.device) -> Iterator[RankGroup]:
    """Join the other ranks; the device must be torch's current one already.

    Raises:
        BadInput: two ranks have the same card, or cards cannot add up by this torch.
        TrainingFailed: the others do not come, or one is lost later.
    """
    accelerator = accelerator_of(device)
    _refuse_build(accelerator.collectives, platform.system())
    if threads_unset(accelerator.is_card):
        torch.set_num_threads(max(1, available_cores() // place.local_size))
    host = socket.gethostname()
    try:
        meeting, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=MEETING_SECONDS)))
        word = meet(meeting, place.rank, place.size, MEETING_SECONDS)
        store = PrefixStore(word, meeting)
        dist.init_process_group(
            accelerator.collectives,
            store=store,
            rank=place.rank,
            world_size=place.size,
            timeout=timedelta(seconds=UPDATE_SECONDS),
        )
    except RuntimeError as error:
        reason = first_line(error)
        raise TrainingFailed(f"the {place.size} ranks did not come together: {reason}") from error
    try:
        orders = dist.new_group(backend="gloo", timeout=timedelta(seconds=ORDER_SECONDS))
        cards: list[Any] = [None] * place.size
        dist.all_gather_object(
            cards, (host, accelerator.uuid, accelerator.name if accelerator.is_card else "a processor"), group=orders
        )
        names = [f"rank {rank} ({name})" for rank, (name, _, _) in enumerate(cards)]
        _refuse_shared(cards)
        if accelerator.is_card:
            # The cards' own connection, now rather than in the first update. Torch would make it by itself if it were
            # told the device; but then it makes every later group by splitting this one, which all ranks have to join,
            # and a team of some of them would wait for the others for ever.
            dist.all_reduce(torch.zeros(1, device=device))
        watch = Heartbeat(PrefixStore(f"{word}/watch", meeting.clone()), place.rank, names, StopRequest())
        ranks = RankGroup(place, device, watch, orders, tuple(words for _, _, words in cards))
        watch.beat()
        ranks.barrier()
        watch.begin()
        try:
            yield ranks
            watch.comes_to("at the end")
        except BaseException as error:
            watch.announce_end(first_line(error))
            raise
        finally:
            watch.end()
    except BaseException:
        if accelerator.collectives == "gloo":  # NCCL would wait for those who are lost
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def _refuse_build(collectives: str, system: str) -> None:
    """Before any rank waits for the others: no torch for Windows has NCCL.

    Gloo could add up on cards, but not gather there what each rank has moved.
    """
    if dist.is_backend_available(collectives):
        return
    cure = "start the ranks in WSL 2 or Linux" if system == "Windows" else "install torch's own"
    raise BadInput(
        f"several cards share a training over {collectives.upper()}, and this torch ({torch.__version__}) is built "
        f"without it: {cure}; or train on one card, without torchrun"
    )


def _refuse_shared(cards: list[Any]) -> None:
    for rank, card in enumerate(cards):
        first = cards.index(card)
        if card[1] is not None and first != rank:
            raise BadInput(
                f"ranks {first} and {rank} on {card[0]} have the same card: --nproc-per-node may be no larger than the "
                "number of cards"
            )
