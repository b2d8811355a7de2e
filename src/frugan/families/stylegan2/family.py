"""StyleGAN2: a generator of convolutions that styles modulate, and a discriminator that compares pictures of a group.

Source: Karras et al. 2019 (arXiv 1912.04958) and 2020 (arXiv 2006.06676). Parameter names are those of the authors'
PyTorch release with adaptive discriminator augmentation.
"""

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

from frugan.contract.family import BufferRule, Dimension, Drawing, GridRequest, LatentSpace, Noise, Piece
from frugan.contract.phase import Networks, Phase
from frugan.errors import BadInput
from frugan.families.picture_gan import PictureGan
from frugan.families.stylegan2.config import RESOLUTIONS, StyledNetworks, StyleGAN2Networks, StyleGAN2Objective
from frugan.families.stylegan2.grids import sample
from frugan.families.stylegan2.mapping import StyledGenerator
from frugan.families.stylegan2.networks import Discriminator, Generator
from frugan.families.stylegan2.phases import phases

# The release's configuration "auto", which suits a resolution on one card.
#
# Source: Karras et al. 2020 (arXiv 2006.06676), the release's defaults. There another batch changes nothing else; here
# the strength of R1 and the length of the average follow the batch.

MOST_BATCH = 32
PIXELS_AT_ONCE = 4096
"""Resolution times batch, as far as `MOST_BATCH` allows."""
LARGEST_GROUP = 4
"""Largest group of the minibatch standard deviation."""
GAMMA = 0.0002
"""Strength of R1 for each pixel at a batch of 1."""
HALF_LIFE_BATCHES = 10_000 / 32
"""Half-life of the average, in batches."""
RULE = "auto"


def auto_batch(resolution: int) -> int:
    """Pictures in a batch."""
    return max(1, min(PIXELS_AT_ONCE // resolution, MOST_BATCH))


def auto_rate(resolution: int) -> float:
    """Learning rate of both networks."""
    return 0.002 if resolution >= 1024 else 0.0025


def minibatch_group(batch: int) -> int:
    """Pictures in a group of the minibatch standard deviation."""
    return next(size for size in range(min(batch, LARGEST_GROUP), 0, -1) if batch % size == 0)


BASES = (2048, 4096, 8192, 16384, 32768, 65536)
"""Values of channel_base that the planner tries; published networks have 16384 or 32768."""


class StyledFamily(PictureGan):
    """Methods that the families of all generations of StyleGAN share."""

    def averaged(self) -> Mapping[str, BufferRule]:
        """The generator, whose mean style and other buffers are copied."""
        return {"G": "copy"}

    def sample(self, networks: StyledNetworks, built: Networks, request: GridRequest) -> Tensor:
        """Draw a grid; see `grids.sample`."""
        return sample(built, networks, request)

    def styles(self, networks: StyledNetworks) -> int:
        """Number of layers that take a style."""
        return networks.styles

    def drawing(self, networks: StyledNetworks, built: Networks) -> Drawing:
        """Return the generator with constant noise as a call of latents, class shares and psi, for all layers."""
        generator = cast(StyledGenerator, built["G"])

        def call(z: Tensor, *shares_and_psi: Tensor) -> Tensor:
            *shares, psi = shares_and_psi
            w = generator.mapping(z, shares[0] if shares else None)
            near = generator.mapping.truncated(w, psi)[:, None].expand(-1, generator.styles, -1)
            return generator.draw(near, "const", None).clamp(-1, 1)

        return Drawing("G", generator.latent_size, networks.classes or 0, True, call)

    def latent_space(self, networks: StyledNetworks, built: Networks) -> LatentSpace:
        """Space of styles w, one for each layer, which contain their class."""
        generator = cast(StyledGenerator, built["G"])

        def draw(ws: Tensor, _: Tensor | None, noise: Noise, random: torch.Generator | None) -> Tensor:
            return generator.draw(ws, noise, random).float().clamp(-1, 1)

        def maps(layers: Sequence[int]) -> Tensor:
            taking = generator.affines_by_style
            return torch.cat([affine.weight for layer in layers for affine in taking[layer]])

        return LatentSpace(
            network="G",
            name="w",
            latent_size=generator.latent_size,
            size=networks.style_size,
            layers=generator.styles,
            classes=networks.classes or 0,
            class_free=True,
            place=lambda z, shares: generator.mapping(z, shares).float(),
            draw=draw,
            maps=maps,
            mean=generator.mapping.w_avg.float(),
        )

    def snapshots(self, networks: StyledNetworks) -> Mapping[str, GridRequest]:
        """Samples at psi 1, samples at psi 0.7 with less variety and fewer faults, and interpolations."""
        classes = None if networks.classes is None else range(networks.classes)
        return {
            "samples": GridRequest(seed=1, classes=classes),
            "truncated": GridRequest(seed=1, classes=classes, psi=0.7),
            "interpolation": GridRequest(seed=2, interpolate="latent" if networks.classes is None else "both"),
        }

    def class_dimension(self, key: str, networks: StyledNetworks) -> int | None:
        """Dimension of the classes, which only the embeddings of both mapping networks have."""
        return 1 if key in ("G.mapping.embed.weight", "D.mapping.embed.weight") else None


class StyleGAN2Family(StyledFamily):
    """StyleGAN2 for commands, planner and engine."""

    name = "stylegan2"
    networks_type = StyleGAN2Networks
    objective_type = StyleGAN2Objective
    generator_type = Generator
    discriminator_type = Discriminator
    rules = (RULE,)

    def phases(self, networks: StyleGAN2Networks, objective: StyleGAN2Objective) -> tuple[Phase, ...]:
        """G, G_path where path lengths count, D, and D_r1 where a penalty is wanted."""
        return phases(networks, objective)

    def recomputable(self, built: Networks) -> dict[str, tuple[str, ...]]:
        """Every block of both networks."""
        generator, discriminator = cast(Generator, built["G"]), cast(Discriminator, built["D"])
        return {
            "G": tuple(f"synthesis.b{side}" for side in generator.synthesis.sides),
            "D": (*(f"b{side}" for side in discriminator.sides), "b4"),
        }

    def follow(self, rule: str, resolution: int, batch: int | None) -> Mapping[str, object]:
        """Settings of the release's configuration "auto"."""
        if rule != RULE:
            raise BadInput(f"rule {rule!r}: StyleGAN2 has one rule, {RULE}; or leave it out")
        batch = batch or auto_batch(resolution)
        return {
            "training.batch": batch,
            "training.normalisation_batch": minibatch_group(batch),
            "networks.channel_base": 32768 if resolution >= 512 else 16384,
            "objective.r1_gamma": round(GAMMA * resolution**2 / batch, 6),
            "optimizers.D.learning_rate": auto_rate(resolution),
            "optimizers.G.learning_rate": auto_rate(resolution),
            "ema.half_life_images": round(HALF_LIFE_BATCHES * batch),
        }

    def piece_of(self, key: str) -> Piece | None:
        """Piece of the tensor "network.parameter": "G.synthesis.b8.conv0.affine.weight" is of conv0 in G's b8."""
        network, *path = key.split(".")
        if path[0] == "synthesis":
            path = path[1:]
        if path[0] == "mapping":
            return Piece(network, "mapping")
        return None if path[1] == "resample_filter" else Piece(network, path[0], path[1])

    def variants(self, networks: StyleGAN2Networks) -> Mapping[Dimension, tuple[Mapping[str, object], ...]]:
        """Other resolutions with these channels, and other channels at this resolution, smallest first.

        channel_max is scaled with channel_base, so that the low blocks shrink as well.
        """
        ratio = networks.channel_max / networks.channel_base
        bases = sorted({*BASES, networks.channel_base})
        return {
            "resolution": tuple({"resolution": r} for r in RESOLUTIONS if r <= networks.channel_base),
            "width": tuple(
                {"channel_base": base, "channel_max": max(1, round(base * ratio))}
                for base in bases
                if base >= networks.resolution and max(1, round(base * ratio)) <= 4096
            ),
        }

    def tiny(self) -> tuple[StyleGAN2Networks, StyleGAN2Objective]:
        """Networks of 16 pixels, at most 8 channels and 3 classes."""
        networks = StyleGAN2Networks(
            resolution=16,
            classes=3,
            latent_size=8,
            style_size=8,
            mapping_layers=2,
            channel_base=64,
            channel_max=8,
            half_resolutions=1,
        )
        return networks, StyleGAN2Objective(r1_gamma=1.0, r1_every=2, path_length_every=2)
