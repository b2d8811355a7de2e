"""What of one BigGAN another may start from: layers of blocks that stand in the same place, and the tables of classes.

Networks of another resolution have a stage more or less. Stages that agree, counted from the coarsest on and from the
picture on, are each other's counterparts; what lies between them is new.
"""

import re

from frugan.contract.starting import Piece
from frugan.families.biggan.channels import GENERATOR, discriminator_stages
from frugan.families.biggan.config import BigGANNetworks

DEEP_BLOCKS = 2
"""Of a stage of BigGAN-deep's generator, which lists its blocks one after the other."""
_BLOCK = re.compile(r"([GD])\.blocks\.(\d+)\.(\d+)\.(.+)")
_ATTENTION = frozenset({"theta", "phi", "g", "o", "gamma"})
_TABLES = re.compile(r"G\.blocks\.\d+\.\d+\.bn\d\.(?:gain|bias)\.weight")
_EMBEDDING_U = re.compile(r"D\.embed\.u\d+")


def piece_of(key: str) -> Piece:
    """Where the tensor "network.parameter" belongs: "G.blocks.2.0.conv1.weight" to conv1 of G's blocks.2."""
    match = _BLOCK.fullmatch(key)
    if match is None:
        network, _, path = key.partition(".")
        block, _, rest = path.partition(".")
        return Piece(network, block, rest.partition(".")[0] if block == "output_layer" else "")
    network, block, position, path = match.groups()
    layer = path.partition(".")[0]
    if layer in _ATTENTION:
        return Piece(network, f"blocks.{block}", "attention")
    return Piece(network, f"blocks.{block}", layer if position == "0" else f"{position}.{layer}")


def counterpart(key: str, theirs: BigGANNetworks, ours: BigGANNetworks) -> str | None:
    """Name here of a tensor of other networks; None: there is none."""
    if theirs.architecture != ours.architecture:
        return None
    match = _BLOCK.fullmatch(key)
    if match is None or theirs.resolution == ours.resolution:
        return key
    network, position, path = match[1], match[3], match[4]
    deep = ours.architecture == "biggan-deep"
    flat = DEEP_BLOCKS if deep and network == "G" else 1
    stage, within = divmod(int(match[2]), flat)
    tables = [_stages(network, of.resolution, deep=deep) for of in (theirs, ours)]
    here = _stage_counterpart(stage, *tables)
    return None if here is None else f"{network}.blocks.{here * flat + within}.{position}.{path}"


def _stages(network: str, resolution: int, *, deep: bool) -> list[tuple[int | None, int]]:
    """Channels in and out of each stage, the coarsest one first for the generator, the finest for the discriminator."""
    if network == "G":
        return list(GENERATOR[resolution])
    return [(stage.inputs, stage.outputs) for stage in discriminator_stages(resolution, deep=deep)]


def _stage_counterpart(
    stage: int, theirs: list[tuple[int | None, int]], ours: list[tuple[int | None, int]]
) -> int | None:
    if stage >= len(theirs):
        return None
    alike = 0
    while alike < min(len(theirs), len(ours)) and theirs[alike] == ours[alike]:
        alike += 1
    if stage < alike:
        return stage
    from_the_end = len(theirs) - stage
    here = len(ours) - from_the_end
    if here < alike or theirs[stage:] != ours[here:]:
        return None
    return here


def class_dimension(key: str, networks: BigGANNetworks) -> int | None:
    """Dimension of the tensor "network.parameter" that runs over the classes; None: none does."""
    if key in ("G.shared.weight", "D.embed.weight"):
        return 0
    if networks.shared_embedding is None and _TABLES.fullmatch(key):
        return 0
    return 1 if _EMBEDDING_U.fullmatch(key) else None
