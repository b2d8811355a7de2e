"""How the ranks of one attempt find each other: what an earlier attempt has left in the store must not mislead them.

torchrun keeps one store while it starts lost ranks again, and each machine's counts its own restarts: neither the store
nor the count tells one attempt from the next. Without this, ranks that were started again looked for the addresses of
those before them, and waited.
"""

import time
import uuid

from torch._C._distributed_c10d import Store

from frugan.errors import TrainingFailed

LOOK_SECONDS = 0.05
"""Between two looks."""


def meet(store: Store, rank: int, size: int, seconds: float) -> str:
    """Agree on a word that no earlier attempt has used; every rank calls it.

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
    """What is kept there; empty: nothing."""
    return store.get(key).decode() if store.check([key]) else ""
