"""Where attention stands in the 32-pixel discriminators, whose table of resolutions is wrong in the release.

Its table calls every stage's output 16 pixels wide (truly 16, 8, 8, 8; deep: 16, 8, 8), so that asking for attention at
16 gives a block after every stage, and at 8 none: seen by running it. No recording has it; the keys are what matters.
"""

import re
from typing import Literal

import pytest
import torch

from frugan.families.biggan.config import BigGANNetworks
from frugan.families.biggan.networks import Discriminator
from parity.passes import eval_forward

Architecture = Literal["biggan", "biggan-deep"]


def networks(architecture: Architecture, attention: int, *, compatible: bool, resolution: int = 32) -> BigGANNetworks:
    return BigGANNetworks(
        architecture=architecture,
        resolution=resolution,
        classes=3,
        discriminator_channels=8,
        generator_attention=(),
        discriminator_attention=(attention,),
        reference_attention_at_32=compatible,
    )


def places(discriminator: Discriminator) -> list[str]:
    """Keys of the attention blocks."""
    return [key.removesuffix(".gamma") for key in discriminator.state_dict() if re.search(r"\.gamma$", key)]


@pytest.mark.parametrize(
    ("architecture", "attention", "compatible", "expected"),
    [
        ("biggan", 16, True, ["blocks.0.1", "blocks.1.1", "blocks.2.1", "blocks.3.1"]),
        ("biggan", 8, True, []),
        ("biggan", 16, False, ["blocks.0.1"]),
        ("biggan", 8, False, ["blocks.1.1", "blocks.2.1", "blocks.3.1"]),
        ("biggan-deep", 16, True, ["blocks.0.2", "blocks.1.2", "blocks.2.2"]),
        ("biggan-deep", 8, True, []),
        ("biggan-deep", 16, False, ["blocks.0.2"]),
        ("biggan-deep", 8, False, ["blocks.1.2", "blocks.2.2"]),
    ],
)
def test_attention_is_placed_by_true_resolution_or_by_the_table_of_the_release(
    architecture: Architecture, attention: int, compatible: bool, expected: list[str]
) -> None:
    assert places(Discriminator(networks(architecture, attention, compatible=compatible))) == expected


@pytest.mark.parametrize("architecture", ["biggan", "biggan-deep"])
def test_the_switch_is_for_32_pixels_only(architecture: Architecture) -> None:
    blocks = [
        places(Discriminator(networks(architecture, 16, compatible=compatible, resolution=64)))
        for compatible in (False, True)
    ]
    assert blocks[0] == blocks[1]
    assert len(blocks[0]) == 1


@pytest.mark.parametrize("architecture", ["biggan", "biggan-deep"])
def test_every_attention_block_of_the_release_takes_part(architecture: Architecture) -> None:
    torch.manual_seed(0)
    discriminator = Discriminator(networks(architecture, 16, compatible=True))
    pictures, classes = torch.rand(2, 3, 32, 32) * 2 - 1, torch.tensor([0, 2])
    before = eval_forward(discriminator, lambda d: d(pictures, classes))
    assert before.shape == (2, 1)
    for place in places(discriminator):
        gamma = discriminator.get_parameter(f"{place}.gamma")
        with torch.no_grad():
            gamma.fill_(0.5)
        assert not torch.equal(eval_forward(discriminator, lambda d: d(pictures, classes)), before), place
        with torch.no_grad():
            gamma.fill_(0)
