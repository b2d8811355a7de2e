"""Networks, state and checkpoint come onto the device: by a smaller plan if there is no room, or one clear sentence."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from frugan.api.train.plan_in_force import TrainingPlanner
from frugan.engine.out_of_memory import ran_out_of_memory, release_memory
from frugan.engine.plan import Plan
from frugan.errors import TrainingFailed
from frugan.memory.budget import room_bytes
from frugan.memory.sizes import show_size

Loaded = TypeVar("Loaded")


def load_fitting(load: Callable[[Plan], Loaded], plan: Plan, planner: TrainingPlanner) -> tuple[Loaded, Plan]:
    """Load by a plan, and once more by a smaller one if memory runs out.

    Args:
        load: makes everything anew each time; what it had made when it failed goes.

    Returns:
        What was loaded, and the plan that it was loaded by.

    Raises:
        TrainingFailed: no plan is smaller, or memory ran out again.
    """
    try:
        return load(plan), plan
    except RuntimeError as error:
        if not ran_out_of_memory(error):
            raise
        message = str(error)
    release_memory(planner.device)
    plan = planner.next_to_load(plan, message)
    with told_when_full(planner.device, "the networks and their state were loaded by the smaller plan as well"):
        return load(plan), plan


@contextmanager
def told_when_full(device: torch.device, what: str) -> Iterator[None]:
    """Say in a sentence that memory ran out while `what`.

    Raises:
        TrainingFailed: it did.
    """
    try:
        yield
    except RuntimeError as error:
        if not ran_out_of_memory(error):
            raise
        reason = str(error).partition("\n")[0]
        raise TrainingFailed(
            f"memory ran out while {what} ({reason}){_left(device)}. Nothing is lost: close other programs that use "
            "the card and run the same command again, or choose a smaller recipe: `frugan plan` says which would fit"
        ) from None


def _left(device: torch.device) -> str:
    if device.type != "cuda":
        return ""
    try:
        return f"; there is room for {show_size(room_bytes(device))} on the card"
    except RuntimeError:  # too full to be asked
        return ""
