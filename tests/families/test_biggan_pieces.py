"""What of one BigGAN another may start from: blocks that are each other's counterparts, tables of classes."""

import pytest

from frugan.families.biggan.config import BigGANNetworks
from frugan.families.biggan.family import BigGANFamily

FAMILY = BigGANFamily()


def networks(resolution: int, *, deep: bool = False, shared: bool = True, classes: int = 3) -> BigGANNetworks:
    """Of few channels, without attention; z in chunks of 4 whatever the resolution."""
    return BigGANNetworks(
        architecture="biggan-deep" if deep else "biggan",
        resolution=resolution,
        classes=classes,
        generator_channels=2,
        discriminator_channels=2,
        latent_size=4 * (resolution.bit_length() - 2) if not deep else 8,
        shared_embedding=6 if shared else None,
        hierarchical_latent=shared,
        generator_attention=(),
        discriminator_attention=(),
    )


def pairs(theirs: BigGANNetworks, ours: BigGANNetworks, network: str, position: str = "0") -> dict[int, int | None]:
    """Block there -> block here."""
    blocks: dict[int, int | None] = {}
    for key in FAMILY.build(theirs, "meta")[network].state_dict():
        parts = key.split(".")
        if parts[0] == "blocks" and parts[2] == position:
            here = FAMILY.counterpart(f"{network}.{key}", theirs, ours)
            blocks[int(parts[1])] = None if here is None else int(here.split(".")[2])
    return blocks


@pytest.mark.parametrize(
    ("there", "here", "generator", "discriminator"),
    [
        (128, 128, dict(enumerate(range(5))), dict(enumerate(range(6)))),
        # 256 pixels have one stage of 8 to 8 channels more, in both
        (128, 256, {0: 0, 1: 1, 2: 3, 3: 4, 4: 5}, {0: 0, 1: 1, 2: 2, 3: 3, 4: 5, 5: 6}),
        (256, 128, {0: 0, 1: 1, 2: None, 3: 2, 4: 3, 5: 4}, {0: 0, 1: 1, 2: 2, 3: 3, 4: None, 5: 4, 6: 5}),
        (64, 128, {0: 0, 1: 1, 2: 2, 3: 3}, {0: 0, 1: 1, 2: 2, 3: 3, 4: 4}),
        (256, 512, dict(enumerate(range(6))), {0: 0, 1: 2, 2: 3, 3: 4, 4: 5, 5: 6, 6: 7}),
        (32, 128, {0: None, 1: None, 2: None}, {0: None, 1: None, 2: None, 3: None}),
    ],
)
def test_blocks_of_another_resolution(
    there: int, here: int, generator: dict[int, int | None], discriminator: dict[int, int | None]
) -> None:
    theirs, ours = networks(there), networks(here)
    assert pairs(theirs, ours, "G") == generator
    assert pairs(theirs, ours, "D") == discriminator


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("network", ["G", "D"])
def test_counterparts_have_the_same_shapes(network: str, deep: bool) -> None:
    theirs, ours = networks(128, deep=deep), networks(256, deep=deep)
    mine, own = (FAMILY.build(of, "meta")[network].state_dict() for of in (theirs, ours))
    counterparts = {key: FAMILY.counterpart(f"{network}.{key}", theirs, ours) for key in mine}
    taken = {key: here.partition(".")[2] for key, here in counterparts.items() if here is not None}
    assert len(set(taken.values())) == len(taken)
    fitting = [key for key, here in taken.items() if here in own and own[here].shape == mine[key].shape]
    assert len(fitting) == len(mine)  # every tensor of the smaller networks finds its place


def test_other_architectures_have_no_counterparts() -> None:
    assert FAMILY.counterpart("G.shared.weight", networks(128), networks(128, deep=True)) is None


@pytest.mark.parametrize(
    ("key", "piece"),
    [
        ("G.shared.weight", ("G", "shared", "")),
        ("G.linear.u0", ("G", "linear", "")),
        ("G.blocks.2.0.conv1.weight", ("G", "blocks.2", "conv1")),
        ("G.blocks.2.0.bn1.gain.weight", ("G", "blocks.2", "bn1")),
        ("G.blocks.3.1.theta.u0", ("G", "blocks.3", "attention")),
        ("G.blocks.3.1.gamma", ("G", "blocks.3", "attention")),
        ("D.blocks.3.1.conv1.weight", ("D", "blocks.3", "1.conv1")),
        ("G.output_layer.0.gain", ("G", "output_layer", "0")),
        ("D.embed.u0", ("D", "embed", "")),
    ],
)
def test_pieces(key: str, piece: tuple[str, str, str]) -> None:
    piece_found = FAMILY.piece_of(key)
    assert (piece_found.network, piece_found.block, piece_found.layer) == piece


@pytest.mark.parametrize("shared", [True, False])
def test_tables_of_classes_are_all_that_depends_on_their_number(shared: bool) -> None:
    few, many = networks(64, shared=shared), networks(64, shared=shared, classes=11)
    one, other = FAMILY.build(few, "meta"), FAMILY.build(many, "meta")
    for name in ("G", "D"):
        for key, value in one[name].state_dict().items():
            at = FAMILY.class_dimension(f"{name}.{key}", few)
            grown = other[name].state_dict()[key].shape
            assert [i for i in range(value.ndim) if value.shape[i] != grown[i]] == ([] if at is None else [at]), key
