"""BigGAN, BigGAN-deep, SAGAN and SNGAN: class-conditional generators with a projection discriminator.

Source: Brock et al. 2018 (arXiv 1809.11096). Parameter names are those of the PyTorch release by its first author.
"""

import re
from collections.abc import Callable, Mapping
from typing import cast

import torch
from torch import Tensor, nn

from frugan.contract.family import BufferRule, Dimension, Drawing, GridRequest, LatentSpace, Piece, spread
from frugan.contract.phase import Networks, Phase
from frugan.data.picture_needs import PictureNeeds
from frugan.errors import BadInput
from frugan.families.biggan.config import (
    BOTTOM,
    GENERATOR,
    RESOLUTIONS,
    BigGANNetworks,
    BigGANObjective,
    discriminator_stages,
)
from frugan.families.biggan.networks import DEEP_BLOCKS, Discriminator, Generator, spared_macs
from frugan.families.biggan.phases import phases
from frugan.families.picture_gan import PictureGan, latent_grid
from frugan.nn.initialise import initialise

_BLOCK = re.compile(r"([GD])\.blocks\.(\d+)\.(\d+)\.(.+)")
_ATTENTION = frozenset({"theta", "phi", "g", "o", "gamma"})
_TABLES = re.compile(r"G\.blocks\.\d+\.\d+\.bn\d\.(?:gain|bias)\.weight")
_EMBEDDING_U = re.compile(r"D\.embed\.u\d+")

WIDTHS = (16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192)
"""Channel multipliers that the planner tries; published networks have 64, 96 or 128."""


class BigGANFamily(PictureGan):
    """BigGAN, BigGAN-deep, SAGAN and SNGAN for commands, planner and engine."""

    name = "biggan"
    networks_type = BigGANNetworks
    objective_type = BigGANObjective
    generator_type = Generator
    discriminator_type = Discriminator

    def initialise(self, networks: BigGANNetworks, built: Networks, seed: Callable[[str], int]) -> None:
        """Draw each network's weights by the recipe's method, from a random stream of its own."""
        hows = {"G": networks.generator_initialisation, "D": networks.discriminator_initialisation}
        for name, how in hows.items():
            device = next(built[name].parameters()).device
            initialise(built[name], how, torch.Generator(device).manual_seed(seed(name)))

    def phases(self, networks: BigGANNetworks, objective: BigGANObjective) -> tuple[Phase, ...]:
        """D, D_r1 where a penalty is wanted, and G."""
        return phases(networks, objective)

    def sources(self, networks: BigGANNetworks, objective: BigGANObjective) -> Mapping[str, PictureNeeds]:
        """One source of pictures with classes."""
        return {"images": PictureNeeds(networks.resolution, networks.classes, networks.channels, without_classes="1")}

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

    def spared_macs(self, networks: BigGANNetworks) -> Mapping[str, int]:
        """Network -> multiply-accumulates of a picture that its order of the same arithmetic spares."""
        built = self.build(networks, "meta")
        return {
            "G": spared_macs(built["G"], BOTTOM),
            "D": spared_macs(built["D"], networks.resolution),
        }

    def forwards(self, networks: BigGANNetworks) -> Mapping[str, Callable[[nn.Module, int], object]]:
        """Run the generator on zero latents, and the discriminator on grey pictures, all of class 0."""
        side, channels = networks.resolution, networks.channels

        def generate(network: nn.Module, samples: int) -> Tensor:
            generator = cast(Generator, network)
            device = next(network.parameters()).device
            classes = torch.zeros(samples, dtype=torch.int64, device=device)
            z = torch.zeros(samples, generator.latent_size, device=device)
            return cast(Tensor, generator(z, generator.embed(classes)))

        def discriminate(network: nn.Module, samples: int) -> Tensor:
            device = next(network.parameters()).device
            classes = torch.zeros(samples, dtype=torch.int64, device=device)
            return cast(Tensor, network(torch.zeros(samples, channels, side, side, device=device), classes))

        return {"G": generate, "D": discriminate}

    def averaged(self) -> Mapping[str, BufferRule]:
        """The generator; its running statistics and singular vectors are averaged like weights, as in the release."""
        return {"G": "average"}

    @torch.no_grad()
    def sample(self, networks: BigGANNetworks, built: Networks, request: GridRequest) -> Tensor:
        """Generate a grid [rows, columns, C, R, R] in [-1, 1], fp32 on the host, `micro_batch` pictures at a time.

        See `latent_grid`.

        Raises:
            BadInput: psi is given, but BigGAN has no styles.
        """
        if request.psi != 1:
            raise BadInput(f"psi {request.psi:g}: BigGAN has no styles; truncation makes its latents shorter")
        generator = cast(Generator, built["G"])
        device = next(generator.buffers()).device
        classes, size = networks.classes, generator.latent_size
        rows = request.classes if request.classes is not None else spread(range(classes), request.rows)

        def conditions(labels: Tensor) -> Tensor:
            return generator.mixable(labels.to(device)).float().cpu()

        def generate(z: Tensor, y: Tensor) -> Tensor:
            return cast(Tensor, generator(z.to(device), y.to(device)))

        return latent_grid(generate, conditions, request, rows, classes=classes, latent_size=size)

    def drawing(self, networks: BigGANNetworks, built: Networks) -> Drawing:
        """Return the generator as a call of latents, and of class shares if there are several classes."""
        generator = cast(Generator, built["G"])
        several = networks.classes > 1

        def call(z: Tensor, shares: Tensor | None = None) -> Tensor:
            return cast(Tensor, generator(z, _condition(generator, z, shares)))

        return Drawing("G", generator.latent_size, networks.classes if several else 0, False, call)

    def latent_space(self, networks: BigGANNetworks, built: Networks) -> LatentSpace:
        """Space of latents z, of which blocks take chunks if z is split; classes are shares of their embeddings."""
        generator = cast(Generator, built["G"])
        several = networks.classes > 1

        return LatentSpace(
            network="G",
            name="z",
            latent_size=generator.latent_size,
            size=generator.latent_size,
            layers=1,
            classes=networks.classes if several else 0,
            class_free=not several,
            place=lambda z, _: z,
            draw=lambda z, shares, *_: generator(z[:, 0], _condition(generator, z, shares)),
            maps=lambda _: generator.latent_maps(),
            activations=lambda z, shares: generator.first_features(z, _condition(generator, z, shares)),
        )

    def snapshots(self, networks: BigGANNetworks) -> Mapping[str, GridRequest]:
        """Classes by ten samples, ten rows of the only one; and ten interpolations of class and latent together."""
        only = networks.classes == 1
        return {
            "samples": GridRequest(seed=1, classes=(0,) * 10 if only else range(networks.classes)),
            "interpolation": GridRequest(seed=2, interpolate="both"),
        }

    def piece_of(self, key: str) -> Piece:
        """Piece of the tensor "network.parameter": "G.blocks.2.0.conv1.weight" is of conv1 in G's blocks.2."""
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

    def counterpart(self, key: str, theirs: BigGANNetworks, ours: BigGANNetworks) -> str | None:
        """Name here of a tensor of other networks; None: there is none.

        Networks of another resolution have more or fewer stages. Stages that agree, counted from the coarsest on and
        from the picture on, are each other's counterparts; those between them are new.
        """
        if theirs.architecture != ours.architecture:
            return None
        match = _BLOCK.fullmatch(key)
        if match is None or theirs.resolution == ours.resolution:
            return key
        network, position, path = match[1], match[3], match[4]
        deep = ours.architecture == "biggan-deep"
        flat = DEEP_BLOCKS if deep and network == "G" else 1
        stage, within = divmod(int(match[2]), flat)
        tables = [_stages(network, config.resolution, deep=deep) for config in (theirs, ours)]
        here = _stage_counterpart(stage, *tables)
        return None if here is None else f"{network}.blocks.{here * flat + within}.{position}.{path}"

    def class_dimension(self, key: str, networks: BigGANNetworks) -> int | None:
        """Dimension of the tensor "network.parameter" that runs over the classes; None: none does."""
        if key in ("G.shared.weight", "D.embed.weight"):
            return 0
        if networks.shared_embedding is None and _TABLES.fullmatch(key):
            return 0
        return 1 if _EMBEDDING_U.fullmatch(key) else None

    def picture_dimension(self, key: str, networks: BigGANNetworks) -> int | None:
        """0 of the generator's last convolution, 1 of the discriminator's first ones; none has spectral norm."""
        if networks.spectral_norm:
            return None
        if key.startswith("G.output_layer.2."):
            return 0
        if networks.architecture == "biggan-deep":
            return 1 if key == "D.input_conv.weight" else None
        return 1 if key in ("D.blocks.0.0.conv1.weight", "D.blocks.0.0.conv_sc.weight") else None

    def variants(self, networks: BigGANNetworks) -> Mapping[Dimension, tuple[Mapping[str, object], ...]]:
        """Other resolutions with these channels, and other channels at this resolution, smallest first."""
        ratio = networks.discriminator_channels / networks.generator_channels
        attention = max((0, *networks.generator_attention, *networks.discriminator_attention))
        widths = sorted({*WIDTHS, networks.generator_channels})
        return {
            "resolution": tuple(
                {"resolution": r} for r in sorted(RESOLUTIONS[networks.architecture]) if r >= attention
            ),
            "width": tuple(
                {"generator_channels": width, "discriminator_channels": max(1, round(width * ratio))}
                for width in widths
            ),
        }

    def tiny(self) -> tuple[BigGANNetworks, BigGANObjective]:
        """Networks of 32 pixels and 8 channels with a hierarchical latent, and attention in both."""
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


def _condition(generator: Generator, z: Tensor, shares: Tensor | None) -> Tensor:
    """Conditions of shares of the classes [N, classes]; None: there is one class."""
    return generator.mixed(torch.ones(1, 1, device=z.device).expand(len(z), -1) if shares is None else shares)


def _stages(network: str, resolution: int, *, deep: bool) -> list[tuple[int | None, int]]:
    """Channels in and out of each stage; the generator's coarsest stage comes first, the discriminator's finest."""
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
