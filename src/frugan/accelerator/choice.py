"""Which implementation answers for a device."""

import torch

from frugan import registry
from frugan.accelerator.base import Accelerator, Processor

WITHOUT_DATA = "meta"


def accelerator_of(device: torch.device) -> Accelerator:
    """Return the accelerator of a device; tensors without data count as the processor's.

    Raises:
        BadInput: its kind is unknown.
    """
    return Processor(device) if device.type == WITHOUT_DATA else accelerator_class(device.type)(device)


def accelerator_class(kind: str) -> type[Accelerator]:
    """Return the accelerator class for devices of a kind.

    Raises:
        BadInput: the kind is unknown.
    """
    answering: type[Accelerator] = registry.load(registry.ACCELERATORS, kind)[0]
    return answering


def kinds_of_cards() -> list[str]:
    """Kinds that have memory of their own, those that ship first."""
    known = registry.names(registry.ACCELERATORS)
    return sorted((kind for kind in known if accelerator_class(kind).is_card), key=lambda kind: kind != "cuda")


def automatic_cards() -> list[Accelerator]:
    """Cards of this machine that torch can use, each kind's current one first."""
    cards: list[Accelerator] = []
    for kind in kinds_of_cards():
        accelerator = accelerator_class(kind)
        if count := accelerator.count():
            indices = dict.fromkeys((accelerator.current(), *range(count)))
            cards += [accelerator(torch.device(kind, index)) for index in indices]
    return cards


def out_of_memory_by_words(message: str) -> bool:
    """Return whether a RuntimeError's message is a card library's way to say that memory ran out."""
    return any(accelerator_class(kind).is_out_of_memory(message) for kind in kinds_of_cards())
