"""StyleGAN2: styles that modulate convolutions, and a discriminator that sees how pictures of a group differ.

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
from frugan.families.stylegan2.config import RESOLUTIONS, StyleGAN2Networks, StyleGAN2Objective
from frugan.families.stylegan2.grids import noise_for, sample
from frugan.families.stylegan2.networks import Discriminator, Generator
from frugan.families.stylegan2.phases import phases

# The release's configuration "auto": what suits a resolution on one card.
#
# Source: Karras et al. 2020 (arXiv 2006.06676), the release's defaults. There a batch that one gives changes nothing
# else; here strength of R1 and length of the average go by the batch in force.

MOST_BATCH = 32
PIXELS_AT_ONCE = 4096
"""Resolution times batch."""
LARGEST_GROUP = 4
GAMMA = 0.0002
"""Strength of R1 for a pixel and a batch of 1."""
HALF_LIFE_BATCHES = 10_000 / 32
RULE = "auto"


def auto_batch(resolution: int) -> int:
    """Pictures for each update."""
    return max(1, min(PIXELS_AT_ONCE // resolution, MOST_BATCH))


def auto_rate(resolution: int) -> float:
    """Learning rate of both networks."""
    return 0.002 if resolution >= 1024 else 0.0025


BASES = (2048, 4096, 8192, 16384, 32768, 65536)
"""Values of channel_base tried; the published ones are 16384 and 32768."""


class StyleGAN2Family(PictureGan):
    """The family contract for StyleGAN2."""

    name = "stylegan2"
    networks_type = StyleGAN2Networks
    objective_type = StyleGAN2Objective
    generator_type = Generator
    discriminator_type = Discriminator
    rules = (RULE,)

    def phases(self, networks: StyleGAN2Networks, objective: StyleGAN2Objective) -> tuple[Phase, ...]:
        """G, its path lengths, D, and its gradient penalty."""
        return phases(networks, objective)

    def recomputable(self, built: Networks) -> dict[str, tuple[str, ...]]:
        """Every block of both."""
        generator, discriminator = cast(Generator, built["G"]), cast(Discriminator, built["D"])
        return {
            "G": tuple(f"synthesis.b{side}" for side in generator.synthesis.sides),
            "D": (*(f"b{side}" for side in discriminator.sides), "b4"),
        }

    def averaged(self) -> Mapping[str, BufferRule]:
        """The generator; its mean style and noise are copied."""
        return {"G": "copy"}

    def sample(self, networks: StyleGAN2Networks, built: Networks, request: GridRequest) -> Tensor:
        """Rows of pictures, or interpolations."""
        return sample(built, networks, request)

    def follow(self, rule: str, resolution: int, batch: int | None) -> Mapping[str, object]:
        """The release's "auto"."""
        if rule != RULE:
            raise BadInput(f"rule {rule!r}: StyleGAN2 has one rule, {RULE}; or leave it out")
        batch = batch or auto_batch(resolution)
        group = next(size for size in range(min(batch, LARGEST_GROUP), 0, -1) if batch % size == 0)
        return {
            "training.batch": batch,
            "training.normalisation_batch": group,
            "networks.channel_base": 32768 if resolution >= 512 else 16384,
            "objective.r1_gamma": round(GAMMA * resolution**2 / batch, 6),
            "optimizers.D.learning_rate": auto_rate(resolution),
            "optimizers.G.learning_rate": auto_rate(resolution),
            "ema.half_life_images": round(HALF_LIFE_BATCHES * batch),
        }

    def styles(self, networks: StyleGAN2Networks) -> int:
        """How many layers take a style: one for each convolution, and one for the last colours."""
        return networks.styles

    def drawing(self, networks: StyleGAN2Networks, built: Networks) -> Drawing:
        """The generator with its own constant noise; psi holds for all layers."""
        generator = cast(Generator, built["G"])

        def call(z: Tensor, *shares_and_psi: Tensor) -> Tensor:
            *shares, psi = shares_and_psi
            w = generator.mapping(z, shares[0] if shares else None)
            near = generator.mapping.truncated(w, psi)[:, None].expand(-1, generator.styles, -1)
            return cast(Tensor, generator.synthesis(near)).clamp(-1, 1)

        return Drawing("G", generator.latent_size, networks.classes or 0, True, call)

    def latent_space(self, networks: StyleGAN2Networks, built: Networks) -> LatentSpace:
        """Styles w, one for each layer; they hold their class. A block's colours take the next block's first style."""
        generator = cast(Generator, built["G"])

        def draw(ws: Tensor, _: Tensor | None, noise: Noise, random: torch.Generator | None) -> Tensor:
            added = noise_for(len(ws), networks, noise, random)
            pictures: Tensor = generator.synthesis(ws, added if isinstance(added, str) else added.to(ws.device))
            return pictures.float().clamp(-1, 1)

        def maps(layers: Sequence[int]) -> Tensor:
            taking = generator.synthesis.affines_by_style
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

    def snapshots(self, networks: StyleGAN2Networks) -> Mapping[str, GridRequest]:
        """As trained; nearer to the mean style, which shows less variety and fewer faults; and interpolations."""
        classes = None if networks.classes is None else range(networks.classes)
        return {
            "samples": GridRequest(seed=1, classes=classes),
            "truncated": GridRequest(seed=1, classes=classes, psi=0.7),
            "interpolation": GridRequest(seed=2, interpolate="latent" if networks.classes is None else "both"),
        }

    def piece_of(self, key: str) -> Piece | None:
        """Where the tensor "network.parameter" belongs: "G.synthesis.b8.conv0.affine.weight" to conv0 of G's b8."""
        network, *path = key.split(".")
        if path[0] == "synthesis":
            path = path[1:]
        if path[0] == "mapping":
            return Piece(network, "mapping")
        return None if path[1] == "resample_filter" else Piece(network, path[0], path[1])

    def class_dimension(self, key: str, networks: StyleGAN2Networks) -> int | None:
        """Of the embeddings of both mappings."""
        return 1 if key in ("G.mapping.embed.weight", "D.mapping.embed.weight") else None

    def variants(self, networks: StyleGAN2Networks) -> Mapping[Dimension, tuple[Mapping[str, object], ...]]:
        """Resolutions of the same channels, and channels of the same resolution, smallest first.

        The largest number of channels goes with the base, so that the low blocks shrink as well.
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
        """16 pixels, 8 channels at the most, 3 classes; every term."""
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
