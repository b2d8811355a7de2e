"""Small damages of real pictures are seen with few of them, and what is no damage is not."""

import pytest
import torch
from torch import Tensor

from frugan.metrics.control import DAMAGES, Control, control_of
from frugan.metrics.leave_one_out import leave_one_out
from metrics.test_two_sample import hills


def leaves(count: int, seed: int) -> Tensor:
    """Hills in bytes: [count, 1, 32, 32]."""
    return ((hills(seed, broken=False)[:count] + 1) * 127.5).byte()


def test_forty_pictures_are_enough_to_see_a_small_damage() -> None:
    real, others = leaves(40, 0), leaves(40, 1)
    same = leave_one_out(real, others)
    assert not same.tells_apart
    assert 0.05 < same.half_width < 0.25
    found = control_of(lambda damaged: leave_one_out(real, damaged).tells_apart, others)
    assert found.seen["blur"] in (0.5, 0.7)
    assert found.seen["blend"] in (0.1, 0.2)
    assert not found.blind
    assert str(found).startswith("sees a blur of 0.")
    assert Control.read(dict(found.seen)) == found


def test_chance_tells_nothing_apart() -> None:
    """Of pictures without any difference about one judgement in forty says that it is sure."""
    whole = torch.cat([leaves(300, 0), leaves(300, 1)])
    sure = 0
    for seed in range(20):
        order = torch.randperm(600, generator=torch.Generator().manual_seed(seed))
        sure += leave_one_out(whole[order[:40]], whole[order[40:80]]).tells_apart
    assert sure <= 2


def test_who_sees_colours_alone_is_blind() -> None:
    tint = Control({"blur": None, "blend": None, "colour": 4})
    assert tint.blind
    assert str(tint) == (
        "sees colours off by 4 of 255 levels; does not see a blur of 1 pixels, 40% of another picture laid over"
    )
    assert not Control({"blur": 1.0, "blend": None, "colour": None}).blind
    assert Control.read({"blur": 0.25, "blend": None, "colour": None}) is None
    assert Control.read([]) is None


@pytest.mark.parametrize("name", DAMAGES)
def test_damages_are_small_and_grow(name: str) -> None:
    pictures = leaves(30, 0).float()
    away = [
        float((DAMAGES[name].apply(pictures.byte(), strength).float() - pictures.byte()).square().mean().sqrt())
        for strength in DAMAGES[name].strengths
    ]
    assert away == sorted(away)
    assert 0 < away[0] < 12
