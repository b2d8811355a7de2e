"""Where a step goes another way on a CPU than on a card, because torch would be many times slower there.

What is predicted is the card's way. Tests that hold predictions to steps on a CPU make it go that way there.
"""

import torch
from torch import Tensor


def taken_for(x: Tensor) -> bool:
    """Whether what is done with a tensor is done in the way of CPUs."""
    return x.is_cpu


def taken_in_half_for(x: Tensor) -> bool:
    """The same, of ways that pay in half precision alone."""
    return taken_for(x) and x.dtype in (torch.bfloat16, torch.float16)
