"""Host memory beside a card."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from frugan.engine.host_memory import HostCopies

CARD = torch.device("privateuseone", 0)  # torch's name of the first simulated card until it is registered


@pytest.mark.parametrize(
    "part",
    [lambda x: x[:, 16:32].view(8, 1, 4, 4), lambda x: x[:, :1].expand(8, 3), lambda x: x.t(), lambda x: x],
    ids=["columns", "expanded", "transposed", "whole"],
)
def test_a_part_of_a_larger_tensor_goes_to_the_host_and_comes_back(
    part: Callable[[Tensor], Tensor], cards: Callable[..., Any]
) -> None:
    cards()
    whole = torch.arange(8 * 164, dtype=torch.float32).view(8, 164)
    copies, sent = HostCopies(), part(whole.to(CARD))
    there = copies.send(sent)
    assert torch.equal(copies.bring(there, CARD).cpu(), part(whole))
