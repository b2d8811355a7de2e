"""Waiting for a card."""

import torch


def queued_so_far(device: torch.device) -> torch.cuda.Event:
    """An event behind everything on a card's current stream; who waits for it sleeps.

    Torch's own events keep a processor busy while one waits, which the threads that read pictures could use.
    """
    event = torch.cuda.Event(blocking=True)
    event.record(torch.cuda.current_stream(device))
    return event
