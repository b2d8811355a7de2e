"""Scores on recorded features, against the numbers of torch-fidelity 0.4 (commit 5e211a9).

tests/golden/metrics/metric_inputs.npz holds the features, metrics.json the numbers.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from frugan.metrics.scores import (
    Moments,
    StreamingInceptionScore,
    StreamingMoments,
    ball_radii,
    clip_distance,
    density_coverage,
    frechet_distance,
    half_width,
    kernel_distance,
    precision_recall,
    proportion_half_width,
)
from limits import Limit

GOLDEN = Path(__file__).parents[1] / "golden" / "metrics"
INPUTS = dict(np.load(GOLDEN / "metric_inputs.npz"))
EXPECTED = json.loads((GOLDEN / "metrics.json").read_text("utf-8"))
A, B = INPUTS["A"], INPUTS["B"]


def moments(rows: object) -> Moments:
    return Moments.of(torch.as_tensor(rows))


def test_frechet_distance() -> None:
    expected = EXPECTED["fid"]["frechet_inception_distance"]
    assert frechet_distance(moments(A), moments(B)) == pytest.approx(expected, rel=1e-6)
    assert frechet_distance(moments(B), moments(A)) == pytest.approx(expected, rel=1e-6)


def test_recorded_moments() -> None:
    gathered = moments(A)
    np.testing.assert_allclose(gathered.mean, INPUTS["mu_A"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gathered.covariance, INPUTS["sigma_A"], rtol=1e-6, atol=1e-9)


def test_a_set_is_at_no_distance_from_itself() -> None:
    assert frechet_distance(moments(A), moments(A)) == pytest.approx(0, abs=1e-9)


def test_singular_covariances_give_a_number() -> None:
    """Fewer rows than dimensions, where iterations for the root of a matrix end in NaN; against the exact value."""
    few, shifted = torch.from_numpy(A[:20]), torch.from_numpy(A[:20]) + 1
    assert frechet_distance(moments(few), moments(few)) == pytest.approx(0, abs=1e-6)
    assert frechet_distance(moments(few), moments(shifted)) == pytest.approx(64, rel=1e-6)
    constant = torch.ones(5, 64)
    spread = moments(few).covariance.trace()
    away = (moments(few).mean - 1).square().sum()
    assert frechet_distance(moments(few), moments(constant)) == pytest.approx(float(spread + away), rel=1e-9)


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        (torch.ones(3, 4), torch.ones(3, 5), "4 and 5 dimensions"),
        (torch.ones(1, 4), torch.ones(3, 4), "1 rows"),
        (torch.full((3, 4), torch.nan), torch.ones(3, 4), "not finite"),
    ],
)
def test_moments_that_have_no_distance(one: torch.Tensor, other: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        frechet_distance(moments(one), moments(other))


@given(st.lists(st.integers(1, 300), min_size=1, max_size=12), st.integers(0, 2**31), st.floats(-1e4, 1e4))
@settings(max_examples=40)
def test_moments_are_the_same_however_they_come(sizes: list[int], seed: int, offset: float) -> None:
    """In pieces, or of several processes together; also far from zero, where sums of squares lose their digits."""
    rows = torch.randn(sum(sizes), 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + offset
    expected = torch.from_numpy(np.cov(rows.numpy().T, bias=True)) * len(rows)
    streamed = StreamingMoments(5)
    merged = Moments(0, torch.zeros(5, dtype=torch.float64), torch.zeros(5, 5, dtype=torch.float64))
    for part in rows.split(sizes):
        streamed.update(part)
        merged = merged.merged(Moments.of(part))
    for gathered in (streamed.finish(), merged):
        assert gathered.count == len(rows)
        torch.testing.assert_close(gathered.mean, rows.mean(0), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gathered.scatter, expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("batch", [1000, 37])
def test_inception_score(batch: int) -> None:
    logits = torch.from_numpy(INPUTS["logits"])
    score = StreamingInceptionScore(len(logits), logits.shape[1])
    for part in logits.split(batch):
        score.update(part)
    expected = EXPECTED["isc_no_shuffle"]
    mean, deviation = score.finish()
    assert mean == pytest.approx(expected["inception_score_mean"], rel=1e-6)
    assert deviation == pytest.approx(expected["inception_score_std"], rel=1e-6)


def test_inception_score_of_a_wrong_count() -> None:
    score = StreamingInceptionScore(10, 3, splits=2)
    score.update(torch.zeros(9, 3))
    with pytest.raises(ValueError, match="9 rows of 10"):
        score.finish()
    with pytest.raises(ValueError, match="more than the 10 rows"):
        score.update(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="at least one in each"):
        StreamingInceptionScore(3, 3)


def test_kernel_distance() -> None:
    mean, deviation = kernel_distance(A, B, subsets=10, subset_size=200)
    assert mean == pytest.approx(EXPECTED["kid"]["kernel_inception_distance_mean"], rel=1e-6)
    assert deviation == pytest.approx(EXPECTED["kid"]["kernel_inception_distance_std"], rel=1e-6)
    with pytest.raises(ValueError, match="subsets of 1000 from 600 and 500"):
        kernel_distance(A, B)


@pytest.mark.parametrize("block_rows", [2000, 64])
def test_precision_and_recall(block_rows: int, limit: Limit) -> None:
    limit("rows of a block", block_rows)
    precision, recall = precision_recall(A, B)
    assert precision == pytest.approx(EXPECTED["prc"]["precision"], rel=1e-6)
    assert recall == pytest.approx(EXPECTED["prc"]["recall"], rel=1e-6)
    assert precision_recall(A, B, real_radii=ball_radii(B)) == (precision, recall)


def test_precision_of_a_set_in_itself_is_whole() -> None:
    assert precision_recall(A, A) == (1.0, 1.0)
    with pytest.raises(ValueError, match="more than the 3 neighbours"):
        precision_recall(A[:3], B)


def test_distance_of_clip_features() -> None:
    """Against the sum over all pairs, as the paper writes it; the length of a row does not count."""

    def mean_kernel(one: np.ndarray, other: np.ndarray) -> float:
        a, b = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (one.astype(float), other.astype(float)))
        return float(np.exp(-np.square(a[:, None] - b[None]).sum(2) / 200).mean())

    one, other = A[:100], B[:80]
    expected = 1000 * (mean_kernel(one, one) + mean_kernel(other, other) - 2 * mean_kernel(one, other))
    assert clip_distance(one, other) == pytest.approx(expected, rel=1e-9)
    assert clip_distance(3 * one, other) == pytest.approx(expected, rel=1e-5)
    assert clip_distance(one, one) == pytest.approx(0, abs=1e-9)
    with pytest.raises(ValueError, match="100 and 0 rows"):
        clip_distance(one, other[:0])


def test_density_and_coverage_are_those_of_their_definition() -> None:
    random = np.random.default_rng(5)
    real, generated = random.standard_normal((40, 3)), random.standard_normal((50, 3)) + 0.5
    among = np.linalg.norm(real[:, None] - real, axis=2)
    radii = np.sort(among, 1)[:, 5]
    inside = np.linalg.norm(real[:, None] - generated, axis=2) <= radii[:, None]  # [real, generated]
    density, half_width, coverage = density_coverage(generated.astype(np.float32), real.astype(np.float32))
    assert density == pytest.approx(inside.sum() / (5 * 50))
    assert half_width == pytest.approx(1.96 * (inside.sum(0) / 5).std() / 50**0.5)
    assert coverage == pytest.approx(inside.any(1).mean())
    outlier = np.concatenate([real, [[100.0, 0, 0]]]).astype(np.float32)
    far = np.full((20, 3), 40, np.float32)  # in the ball of the one that lies far away
    assert precision_recall(far, outlier)[0] == 1
    assert density_coverage(far, outlier) == pytest.approx((0.2, 0, 1 / 41))
    with pytest.raises(ValueError, match="more than the 5 neighbours"):
        density_coverage(far, far[:5])


def test_intervals_are_of_each_estimators_own_error() -> None:
    scores = {
        "precision": 0.5,
        "recall": 0.0,
        "is_mean": 9.0,
        "is_std": 1.0,
        "kid_mean": 0.1,
        "kid_std": 0.01,
        "fid": 3.0,
    }
    of = {"samples": 96, "rows": 996}
    assert half_width("precision", scores, of) == pytest.approx(1.96 * 0.05)
    assert half_width("precision", scores, of | {"neighbours": 21}) == pytest.approx(1.96 * 0.1)
    recall = half_width("recall", scores, of)
    assert recall is not None
    assert 0 < recall < 0.01
    assert half_width("is_mean", scores, of) == pytest.approx(1.96 / 10**0.5)
    assert half_width("kid_mean", scores, {"samples": 4000, "rows": 9000}) == pytest.approx(1.96 * 0.01 / 2)
    assert half_width("fid", scores | {"fid": 3.0}, of) is None
    assert half_width("two_sample", {"two_sample": 0.7, "two_sample_half_width": 0.04}, {}) == 0.04
    random = np.random.default_rng(1)
    shares = random.binomial(200, 0.9, 400) / 200
    held = [abs(share - 0.9) <= proportion_half_width(share, 200) + 0.01 for share in shares]
    assert np.mean(held) > 0.93
