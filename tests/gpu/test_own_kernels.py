"""Kernels of our own on a CUDA card, beside torch's operations there. Never run so far."""

import pytest
import torch

from frugan.setup.ops import kernel, kernel_names
from frugan.training.kernels import difference, what_is_missing

CUDA = torch.device("cuda", 0)
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card"),
    pytest.mark.skipif(torch.cuda.is_available() and what_is_missing(CUDA) is not None, reason="needs Triton"),
]


@pytest.mark.parametrize("shape", [(3, 21, 7, 9), (2, 64, 16, 16), (5, 130, 6, 8), (8, 32, 67, 64)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("name", kernel_names())
def test_they_give_what_torch_gives(
    name: str, order: torch.memory_format, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    assert difference(*kernel(name).case(shape, dtype, order, CUDA), kernel(name)()) is None
