"""State in host memory."""

from typing import cast

import pytest
import torch
from torch import Tensor

from frugan.engine.host_state import host_like, zeros_for


class OnCard:
    """Says that it is on a card, where host memory is pinned for it: which a machine without one refuses."""

    is_cuda = True

    def detach(self) -> Tensor:
        return torch.ones(2, 3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="here memory can be pinned")
def test_where_nothing_can_be_pinned_it_is_said_and_done_without() -> None:
    with pytest.warns(UserWarning, match="pageable memory"):
        made = zeros_for(cast(Tensor, OnCard()), on_host=True)
    with pytest.warns(UserWarning, match="what recomputed blocks are given lies in pageable memory"):
        assert host_like(cast(Tensor, OnCard()), "what recomputed blocks are given").shape == (2, 3)
    assert made.shape == (2, 3)
    assert not made.any()
