"""A small network tells pictures apart that differ, and cannot tell apart what comes from one place."""

import pytest
import torch
from torch import Tensor

from frugan.metrics.two_sample import MOST_PICTURES, Judge, TwoSample, two_sample

ONE = Judge(networks=1)
QUICK = Judge(networks=1, steps=20)


def stripes(count: int, width: int, seed: int) -> Tensor:
    """Noise with stripes at a random place: [count, 1, 16, 16] in [-1, 1]."""
    random = torch.Generator().manual_seed(seed)
    places = torch.randint(16, (count, 1), generator=random)
    columns = ((torch.arange(16) + places) // width % 2).float() * 1.2 - 0.6  # [count, 16]
    noise = torch.randn(count, 1, 16, 16, generator=random) * 0.3
    return (columns[:, None, None, :] + noise).clamp(-1, 1)


def test_it_tells_apart_what_differs_and_nothing_else() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    real, more, other = stripes(160, 4, 0), stripes(200, 4, 1), stripes(160, 2, 2)
    differs, same = two_sample(real, other, ONE), two_sample(real, more, ONE)
    assert differs.mean > 0.9
    assert abs(same.mean - 0.5) < same.half_width + 0.05
    assert same.pictures == 160
    assert torch.rand(1) == expected  # torch's own stream has not moved
    assert two_sample(real, more, QUICK) == two_sample(real, more, QUICK)
    assert same.half_width >= 1.96 * 0.5 / 160**0.5


def squares(seed: int, noise: float) -> Tensor:
    """A small coloured square on white in each, plain or noisy: [300, 3, 32, 32], uint8."""
    random = torch.Generator().manual_seed(seed)
    pictures = torch.full((300, 3, 32, 32), 255, dtype=torch.uint8)
    for picture in pictures:
        side = int(torch.randint(4, 8, (), generator=random))
        top, left = (int(place) for place in torch.randint(10, 15, (2,), generator=random))
        colour = 32 + 128 * torch.rand(3, 1, 1, generator=random)
        inside = colour + noise * torch.randn(3, side, side, generator=random)
        picture[:, top : top + side, left : left + side] = inside.clamp(0, 255).byte()
    return pictures


@pytest.mark.long
def test_noise_in_a_small_place_is_seen() -> None:
    faint = two_sample(squares(0, 0), squares(2, 24), Judge(networks=3))
    assert faint.mean > 0.8  # 0.76 if the mean picture is not taken away


@pytest.mark.long
def test_more_noise_is_seen_by_each_network_and_no_noise_where_none_is() -> None:
    assert two_sample(squares(0, 0), squares(2, 48), ONE).mean > 0.85
    assert two_sample(squares(0, 0), squares(1, 0), ONE).mean < 0.62


def hills(seed: int, *, broken: bool) -> Tensor:
    """Ground below a sky, with a smooth line between them or one in steps: [300, 1, 32, 32] in [-1, 1]."""
    random = torch.Generator().manual_seed(seed)
    across = torch.linspace(0, 2 * torch.pi, 32)
    pictures = []
    for _ in range(300):
        high, fast, where, faster, there, sky, ground = torch.rand(7, generator=random)
        line = 12 + 8 * high + 4 * torch.sin(across * (1 + fast) + 2 * torch.pi * where)
        line += 2 * torch.sin(across * (2 + 3 * faster) + 2 * torch.pi * there)
        if broken:  # the same heights at other places
            line = line[torch.randperm(8, generator=random).repeat_interleave(4) * 4]
        below = torch.sigmoid(torch.arange(32)[:, None] - line)  # [32, 32]
        pictures.append(0.6 + sky * (1 - below) + 0.8 * (ground - 0.5) * below - 1)
    return torch.stack(pictures)[:, None]


@pytest.mark.long
def test_streaks_are_no_hills() -> None:
    soon = two_sample(hills(0, broken=False), hills(2, broken=True), Judge(networks=2, steps=200))
    assert soon.mean > 0.66  # 0.76; without batch norm 0.55, for that learns late


@pytest.mark.long
def test_hills_are_hills() -> None:
    whole, more, broken = hills(0, broken=False), hills(1, broken=False), hills(2, broken=True)
    assert two_sample(whole, broken, ONE).mean > 0.85
    assert two_sample(whole, more, ONE).mean < 0.6


def test_pictures_that_several_networks_judge_count_once() -> None:
    one, three = (TwoSample((0.5,) * networks, 100).half_width for networks in (1, 3))
    assert one == pytest.approx(1.96 * 0.05)
    assert three == pytest.approx(1.96 * 0.5 / 175**0.5)  # an eighth of the 200 was judged by none
    assert TwoSample((0.2, 0.5, 0.8), 100).half_width == pytest.approx(1.96 * 0.3 / 3**0.5)


@pytest.mark.long
def test_large_pictures_are_reduced_and_many_left_out() -> None:
    black, white = -torch.ones(64, 3, 80, 80), torch.ones(64, 3, 80, 80)
    assert two_sample(black, white, ONE).mean == 1
    assert MOST_PICTURES % 2 == 0


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (torch.zeros(59, 3, 16, 16), torch.zeros(80, 3, 16, 16), "59 first pictures: expected at least 60"),
        (torch.zeros(80, 3, 16, 16), torch.zeros(80, 1, 16, 16), r"second pictures \[80, 1, 16, 16\]"),
        (torch.zeros(80, 3, 16, 8), torch.zeros(80, 3, 16, 8), r"first pictures \[80, 3, 16, 8\]"),
        (torch.zeros(80, 3, 16, 16), torch.full((80, 3, 16, 16), torch.nan), "second pictures hold values"),
    ],
)
def test_what_cannot_be_compared_is_refused(first: Tensor, second: Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        two_sample(first, second)
