"""BigGAN, BigGAN-deep, SAGAN and SNGAN: class-conditional generators with a projection discriminator.

Source: Brock et al. 2018 (arXiv 1809.11096). Parameter names are those of the PyTorch release by its first author.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from frugan.contract.family import BufferRule, Dimension
from frugan.contract.phase import Networks, Phase
from frugan.contract.samples import SheetRequest
from frugan.contract.starting import Piece
from frugan.data.picture_needs import PictureNeeds
from frugan.families.biggan import phases, pieces, sheets
from frugan.families.biggan.config import BigGANNetworks, BigGANObjective
from frugan.families.biggan.discriminator import Discriminator
from frugan.families.biggan.generator import Generator
from frugan.families.biggan.variants import variants
from frugan.nn.initialise import initialise


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
        return sheets.sample(built, networks.classes, request)

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
        return pieces.piece_of(key)

    def counterpart(self, key: str, theirs: BigGANNetworks, ours: BigGANNetworks) -> str | None:
        """See `StartsElsewhere`."""
        return pieces.counterpart(key, theirs, ours)

    def class_dimension(self, key: str, networks: BigGANNetworks) -> int | None:
        """See `HasClassTables`."""
        return pieces.class_dimension(key, networks)

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
