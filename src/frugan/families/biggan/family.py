"""BigGAN, BigGAN-deep, SAGAN and SNGAN: class-conditional generators with a projection discriminator.

Source: Brock et al. 2018 (arXiv 1809.11096). Parameter names are those of the PyTorch release by its first author.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from frugan.contract.family import BufferRule, Dimension, Piece, SheetRequest
from frugan.contract.phase import Networks, Phase
from frugan.data.picture_needs import PictureNeeds
from frugan.errors import BadInput
from frugan.families.biggan import phases
from frugan.families.biggan.config import GENERATOR, RESOLUTIONS, BigGANNetworks, BigGANObjective, discriminator_stages
from frugan.families.biggan.discriminator import Discriminator
from frugan.families.biggan.generator import Generator
from frugan.nn.initialise import initialise

# What of one BigGAN another may start from: layers of blocks that stand in the same place, and the tables of classes.
#
# Networks of another resolution have a stage more or less. Stages that agree, counted from the coarsest on and from the
# picture on, are each other's counterparts; what lies between them is new.

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


# Smaller and larger relatives of a BigGAN: for a planner that is asked what fits.

WIDTHS = (16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192)
"""Channel multipliers tried; the published ones are 64, 96 and 128."""


def variants(networks: BigGANNetworks) -> Mapping[Dimension, tuple[Mapping[str, Any], ...]]:
    """Resolutions of the same channels, and channels of the same resolution, smallest first."""
    ratio = networks.discriminator_channels / networks.generator_channels
    attention = max((0, *networks.generator_attention, *networks.discriminator_attention))
    widths = sorted({*WIDTHS, networks.generator_channels})
    return {
        "resolution": tuple({"resolution": r} for r in sorted(RESOLUTIONS[networks.architecture]) if r >= attention),
        "width": tuple(
            {"generator_channels": width, "discriminator_channels": max(1, round(width * ratio))} for width in widths
        ),
    }


# Sheets of samples: classes by row, and interpolations.


def _line(start: Tensor, end: Tensor, points: int) -> Tensor:
    """Straight line between two sets of vectors: [N, K], [N, K] -> [N, points, K], ends included."""
    weight = torch.linspace(0, 1, points, dtype=start.dtype).view(1, -1, 1)
    return torch.lerp(start[:, None], end[:, None], weight)


def _arc(start: Tensor, end: Tensor, points: int) -> Tensor:
    """Along the great circle between two sets of vectors, lengths in a straight line: [N, K], [N, K] -> [N, points, K].

    A straight line passes nearer to the origin than latents of a normal distribution ever are.

    Source: White 2016 (arXiv 1609.04468), section 2.1.
    """
    lengths = [each.norm(dim=1, keepdim=True) for each in (start, end)]  # [N, 1]
    one, other = (each / length.clamp(min=1e-12) for each, length in zip((start, end), lengths, strict=True))
    angle = (one * other).sum(1, keepdim=True).clamp(-1, 1).acos()[:, None]  # [N, 1, 1]
    weight = torch.linspace(0, 1, points, dtype=start.dtype).view(1, -1, 1)
    turned = ((1 - weight) * angle).sin() * one[:, None] + (weight * angle).sin() * other[:, None]
    direction = torch.where(angle > 1e-6, turned / angle.sin().clamp(min=1e-12), one[:, None])
    return direction * _line(lengths[0], lengths[1], points)


@torch.no_grad()
def sample(networks: Networks, classes: int, request: SheetRequest) -> Tensor:
    """Generate a sheet [rows, columns, C, R, R] in [-1, 1], fp32 on the host, `micro_batch` pictures at a time.

    Without interpolation each row is a class and each picture has its own latent. An interpolation's rows go in a
    straight line (or latents along an arc), ends included, from one class to another (one latent), one latent to
    another (one class), or both.

    Raises:
        BadInput: styles nearer to the mean one are asked for: there are none.
    """
    if request.psi != 1:
        raise BadInput(f"psi {request.psi:g}: BigGAN has no styles; truncation makes its latents shorter")
    generator = cast(Generator, networks["G"])
    device = next(generator.buffers()).device
    random = torch.Generator().manual_seed(request.seed)

    def latents(*shape: int) -> Tensor:
        return torch.randn(*shape, generator.latent_size, generator=random) * request.truncation

    def conditions(labels: Tensor) -> Tensor:
        return generator.mixable(labels.to(device)).float().cpu()

    columns = request.columns
    if request.interpolate is None:
        rows = list(request.classes) if request.classes is not None else list(range(min(classes, 10)))
        z = latents(len(rows), columns)  # [rows, columns, Z]
        y = conditions(torch.tensor(rows))[:, None].expand(-1, columns, -1)
    else:
        rows_at = _interpolation_classes(request, classes, random)  # [2, rows]
        count = rows_at.shape[1]
        z_start, z_end = latents(2, count)
        if request.interpolate == "class":
            z_end = z_start
        if request.interpolate == "latent":
            rows_at[1] = rows_at[0]
        z = (_arc if request.spherical else _line)(z_start, z_end, columns)
        y = _line(conditions(rows_at[0]), conditions(rows_at[1]), columns)
    pictures: list[Tensor] = [
        generator(part_z.to(device), part_y.to(device)).cpu()
        for part_z, part_y in zip(
            z.flatten(0, 1).split(request.micro_batch), y.flatten(0, 1).split(request.micro_batch), strict=True
        )
    ]
    sheet = torch.cat(pictures)  # [rows*columns, C, R, R]
    return sheet.view(*z.shape[:2], *sheet.shape[1:])


def _interpolation_classes(request: SheetRequest, classes: int, random: torch.Generator) -> Tensor:
    """Classes at both ends of each row: the requested ones in turn, or random ones, the two ends different."""
    if request.classes is not None:
        start = torch.tensor(request.classes)
        return torch.stack([start, start.roll(-1)])
    start = torch.randint(classes, (request.rows,), generator=random)
    if classes == 1:
        return torch.stack([start, start])
    return torch.stack([start, (start + torch.randint(1, classes, (request.rows,), generator=random)) % classes])


@dataclass(frozen=True)
class BigGANFamily:
    """The family contract for BigGAN."""

    name: str = "biggan"
    networks_type: type[BigGANNetworks] = BigGANNetworks
    objective_type: type[BigGANObjective] = BigGANObjective
    optimizers: tuple[str, ...] = ("D", "G")

    def build(self, networks: BigGANNetworks, device: torch.device | str = "cpu") -> dict[str, nn.Module]:
        """Generator "G" and discriminator "D"."""
        with torch.device(device):
            return {"G": Generator(networks), "D": Discriminator(networks)}

    def initialise(self, networks: BigGANNetworks, built: Networks, seed: Callable[[str], int]) -> None:
        """Each network from a random stream of its own."""
        hows = {"G": networks.generator_initialisation, "D": networks.discriminator_initialisation}
        for name, how in hows.items():
            device = next(built[name].parameters()).device
            initialise(built[name], how, torch.Generator(device).manual_seed(seed(name)))

    def phases(self, networks: BigGANNetworks, objective: BigGANObjective) -> tuple[Phase, ...]:
        """D, then G."""
        return phases.phases(networks, objective)

    @property
    def optimizer_types(self) -> Mapping[str, type[BaseModel]]:
        """The engine's own are enough."""
        return {}

    def sources(self, networks: BigGANNetworks, objective: BigGANObjective) -> Mapping[str, PictureNeeds]:
        """One: pictures with classes."""
        return {"images": PictureNeeds(networks.resolution, networks.classes, networks.channels)}

    def recomputable(self, built: Networks) -> dict[str, tuple[str, ...]]:
        """Every residual and attention block."""
        return {
            network: tuple(
                f"blocks.{i}.{j}"
                for i, stage in enumerate(module.blocks)  # type: ignore[arg-type]
                for j in range(len(stage))
            )
            for network, module in built.items()
        }

    def forwards(self, networks: BigGANNetworks) -> Mapping[str, Callable[[nn.Module, int], object]]:
        """The generator on zero latents, the discriminator on grey pictures; class 0."""
        side, channels = networks.resolution, networks.channels

        def generate(network: nn.Module, samples: int) -> Tensor:
            generator = cast(Generator, network)
            device = next(network.buffers()).device
            classes = torch.zeros(samples, dtype=torch.int64, device=device)
            z = torch.zeros(samples, generator.latent_size, device=device)
            return cast(Tensor, generator(z, generator.embed(classes)))

        def discriminate(network: nn.Module, samples: int) -> Tensor:
            device = next(network.buffers()).device
            classes = torch.zeros(samples, dtype=torch.int64, device=device)
            return cast(Tensor, network(torch.zeros(samples, channels, side, side, device=device), classes))

        return {"G": generate, "D": discriminate}

    def averaged(self) -> Mapping[str, BufferRule]:
        """The generator; its running statistics and singular vectors are averaged like weights, as in the release."""
        return {"G": "average"}

    def sample(self, networks: BigGANNetworks, built: Networks, request: SheetRequest) -> Tensor:
        """Rows of classes, or interpolations."""
        return sample(built, networks.classes, request)

    def snapshots(self, networks: BigGANNetworks) -> Mapping[str, SheetRequest]:
        """Ten classes by ten samples, and ten interpolations of class and latent together."""
        return {
            "samples": SheetRequest(seed=1, classes=range(min(networks.classes, 10))),
            "interpolation": SheetRequest(seed=2, interpolate="both"),
        }

    def fresh_after(self, before: object, now: object) -> tuple[str, ...]:
        """None: BigGAN knows no pretraining."""
        return ()

    def piece_of(self, key: str) -> Piece:
        """See `StartsInPart`: layers of blocks, tables of classes, and what the first features are made by."""
        return piece_of(key)

    def counterpart(self, key: str, theirs: BigGANNetworks, ours: BigGANNetworks) -> str | None:
        """See `StartsElsewhere`."""
        return counterpart(key, theirs, ours)

    def class_dimension(self, key: str, networks: BigGANNetworks) -> int | None:
        """See `HasClassTables`."""
        return class_dimension(key, networks)

    def variants(self, networks: BigGANNetworks) -> Mapping[Dimension, tuple[Mapping[str, object], ...]]:
        """By resolution, or by channels of both networks."""
        return variants(networks)

    def tiny(self) -> tuple[BigGANNetworks, BigGANObjective]:
        """32 pixels, 8 channels, hierarchical, with attention in both networks."""
        networks = BigGANNetworks(
            resolution=32,
            classes=3,
            generator_channels=2,
            discriminator_channels=2,
            latent_size=8,
            shared_embedding=4,
            generator_attention=(16,),
            discriminator_attention=(16,),
        )
        return networks, BigGANObjective()
