"""Which device each of several ranks takes, and the line that says so."""

import os
from typing import TYPE_CHECKING

import torch

from frugan.api.machine.devices import choose_device
from frugan.engine.ranks.place import Place
from frugan.errors import BadInput

if TYPE_CHECKING:  # one process needs no torch.distributed
    from frugan.engine.ranks.group import RankGroup


def device_of_rank(asked: str, place: Place) -> torch.device:
    """The card or processor of this rank; a card becomes torch's current one before anything is done on it.

    No rank sets CUDA_VISIBLE_DEVICES: where a launcher has, and leaves each rank one card, that is the rank's.

    Raises:
        BadInput: there is no card for this rank, or one is named for all of them.
    """
    if asked not in ("auto", "cpu", "cuda"):
        raise BadInput(
            f"--device {asked}: {place.size} ranks take a card each: expected auto, cuda or cpu; choose the cards with "
            "CUDA_VISIBLE_DEVICES"
        )
    if asked == "cpu" or (asked == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    count = torch.cuda.device_count()
    index = 0 if count == 1 else place.local_rank
    if index >= count:
        raise BadInput(
            f"rank {place.rank}: this machine has {place.local_size} ranks and {count} CUDA cards; start it with "
            f"--nproc-per-node={count}, or train on processors: --device cpu"
        )
    device, _ = choose_device(f"cuda:{index}")
    torch.cuda.set_device(device)
    return device


def ranks_in_words(ranks: "RankGroup") -> str:
    """The line that says who trains together."""
    line = f"ranks: {ranks.size}, {ranks.local_size} of them on this machine; this is {ranks.watch.names[0]}"
    if ranks.device.type != "cuda":
        return f"{line} on a processor, over gloo"
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    which = f", of CUDA_VISIBLE_DEVICES={seen}" if seen else ""
    return f"{line} on {ranks.device} ({torch.cuda.get_device_name(ranks.device)}{which}), over NCCL"
