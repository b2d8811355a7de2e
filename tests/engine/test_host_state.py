"""State in host memory."""

from typing import cast

import pytest
import torch
from torch import Tensor

from frugan.engine.host_state import zeros_for


class OnCard:
    """Says that it is on a card, where host memory is pinned for it: which a machine without one refuses."""

    is_cuda = True

    def detach(self) -> Tensor:
        return torch.ones(2, 3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="here memory can be pinned")
def test_where_nothing_can_be_pinned_it_is_said_and_done_without() -> None:
    with pytest.warns(UserWarning, match="pageable memory"):
        made = zeros_for(cast(Tensor, OnCard()), on_host=True)
    assert made.shape == (2, 3)
    assert not made.any()
