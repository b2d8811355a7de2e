"""Where a step goes another way on a CPU than on a card, because torch would be many times slower there.

Plans predict the card's way. Tests that hold predictions to steps on a CPU make these steps go that way too.
"""

import torch
from torch import Tensor


def taken_for(x: Tensor) -> bool:
    """Whether a tensor is computed with in the way of CPUs."""
    return x.is_cpu


def taken_in_half_for(x: Tensor) -> bool:
    """Whether a tensor is computed with in a way of CPUs that pays in half precision alone."""
    return taken_for(x) and x.dtype in (torch.bfloat16, torch.float16)
