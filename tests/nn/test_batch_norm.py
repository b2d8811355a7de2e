"""Batch normalisation over exact groups."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from frugan.contract.layers import Observer
from frugan.nn.batch_norm import BatchNorm, ConditionalBatchNorm


def test_each_group_is_normalised_by_itself() -> None:
    layer = BatchNorm(5)
    nn.init.normal_(layer.gain)
    nn.init.normal_(layer.bias)
    layer.normalisation_batch = 4
    x = torch.randn(12, 5, 3, 3) * 4 + 2
    together = layer(x)
    apart = torch.cat([F.batch_norm(part, None, None, layer.gain, layer.bias, training=True) for part in x.split(4)])
    torch.testing.assert_close(together, apart, rtol=1e-5, atol=1e-5)


def test_running_statistics_move_once_by_the_mean_over_groups() -> None:
    layer = BatchNorm(5)
    layer.normalisation_batch = 4
    reference = nn.BatchNorm2d(5)
    observer = Observer()
    layer.observer = observer
    x = torch.randn(12, 5, 3, 3) + 1
    layer(x[:8])
    layer(x[8:])  # a second micro-batch of the same phase
    assert torch.equal(layer.stored_mean, torch.zeros(5))
    observer.commit(torch.tensor(True))
    means, variances = zip(
        *[(part.mean((0, 2, 3)), part.transpose(0, 1).flatten(1).var(1)) for part in x.split(4)], strict=True
    )
    torch.testing.assert_close(layer.stored_mean, 0.1 * torch.stack(means).mean(0))
    torch.testing.assert_close(layer.stored_var, 0.9 + 0.1 * torch.stack(variances).mean(0))
    reference(x[:4])
    single = BatchNorm(5)
    single.observer = observer
    single(x[:4])
    observer.commit(None)
    torch.testing.assert_close(single.stored_var, reference.running_var)


def test_rejected_and_repeated_observations_leave_no_trace() -> None:
    layer, observer = BatchNorm(2), Observer()
    layer.observer = observer
    layer(torch.randn(4, 2, 3, 3))
    observer.commit(torch.tensor(False))
    assert torch.equal(layer.stored_var, torch.ones(2))
    observer.recomputing = True
    layer(torch.randn(4, 2, 3, 3))
    observer.commit(None)
    assert torch.equal(layer.stored_mean, torch.zeros(2))


def test_condition_gives_gain_and_bias() -> None:
    layer = ConditionalBatchNorm(3, nn.Linear(4, 3), nn.Linear(4, 3))
    x, condition = torch.randn(6, 3, 2, 2), torch.randn(6, 4)
    expected = F.batch_norm(x, None, None, training=True)
    expected = expected * (1 + layer.gain(condition))[..., None, None] + layer.bias(condition)[..., None, None]
    torch.testing.assert_close(layer(x, condition), expected)
    layer.eval()
    one = layer(x[:1], condition[:1])
    torch.testing.assert_close(one, layer(x, condition)[:1])


def test_broken_groups_are_refused() -> None:
    layer = BatchNorm(2)
    layer.normalisation_batch = 4
    with pytest.raises(ValueError, match="6 samples are not a whole number of normalisation groups of 4"):
        layer(torch.randn(6, 2, 2, 2))


def test_half_inputs_keep_fp32_statistics() -> None:
    layer, observer = BatchNorm(1), Observer()
    layer.observer = observer
    x = (torch.randn(64, 1, 16, 16) * 0.01 + 8).to(torch.bfloat16)
    out = layer(x)
    assert out.dtype == torch.bfloat16
    observer.commit(None)
    expected = 0.1 * x.float().mean()
    assert abs(float(layer.stored_mean) - float(expected)) < 1e-5


@pytest.mark.parametrize("group", [None, 4])
def test_running_variances_over_all_samples(group: int | None) -> None:
    """The release's own batch norm (`mybn`) divides by n, torch by n - 1; what is given out is the same."""
    x = torch.randn(8, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    outputs = {}
    for biased in (False, True):
        layer = BatchNorm(3, biased=biased)
        layer.normalisation_batch = group
        layer.observer = Observer()
        outputs[biased] = layer(x)
        layer.observer.commit(None)
        parts = x.split(group or 8)
        expected = torch.stack([part.var((0, 2, 3), correction=0 if biased else 1) for part in parts]).mean(0)
        torch.testing.assert_close(layer.stored_var, 0.9 + 0.1 * expected)
    assert torch.equal(outputs[False], outputs[True])
