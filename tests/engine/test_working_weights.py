"""Working weights: gradients of half-precision leaves add up in fp32."""

import pytest
import torch
from torch import nn

from frugan.contract.layers import Scaling
from frugan.engine.plan import Layout
from frugan.engine.state.working_weights import working_weights
from limits import Limit

MICRO_BATCHES = 300


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [2, 17])
def test_gradients_of_many_micro_batches_add_up_in_fp32(
    width: int, dtype: torch.dtype, many: bool, limit: Limit
) -> None:
    """In half, 300 ones make 256 in bf16; in fp16 a first 2048 would swallow all the ones after it."""
    limit("elements of a small gradient", 16)
    layer = nn.Linear(width, 1, bias=False)
    first = 2048.0 if dtype == torch.float16 else 1.0
    inputs = [first] + [1.0] * (MICRO_BATCHES - 1)
    layouts = {"network": Layout(dtype)}
    with working_weights({"network": layer}, layouts, ("network",), None, many=many) as working:
        for value in inputs:
            layer(torch.full((1, width), value, dtype=dtype)).sum().backward()
        working["network"].carry()
    gradient = layer.weight.grad
    assert gradient is not None
    assert gradient.dtype == torch.float32
    assert gradient.unique().tolist() == [sum(inputs)]
    in_half = torch.zeros((), dtype=dtype)
    for value in inputs:
        in_half += value
    assert float(in_half) < sum(inputs)  # or the test could not fail


def test_a_loss_scale_is_taken_out_where_divisors_are_constants() -> None:
    scaling = Scaling([torch.tensor([3.0]), 7.0, torch.tensor([[5.0], [6.0]])])
    masters = [torch.ones(2), torch.ones(2), torch.ones(2, 3)]
    carried = scaling.carry(masters, [torch.full((2,), 24.0), None, torch.full((2, 3), 240.0)], torch.tensor(1 / 8))
    assert [None if each is None else each.tolist() for each in carried] == [[1.0] * 2, None, [[6.0] * 3, [5.0] * 3]]
