"""StyleGAN3: a generator whose details move with what they belong to, against StyleGAN2's discriminator.

Source: Karras et al. 2021 (arXiv 2106.12423). Parameter names are those of the authors' release.
"""

import re
from collections.abc import Mapping
from typing import cast

from frugan.contract.family import Dimension, Piece
from frugan.contract.phase import Networks, Phase
from frugan.errors import BadInput
from frugan.families.stylegan2.config import RESOLUTIONS
from frugan.families.stylegan2.family import RULE, StyledFamily, minibatch_group
from frugan.families.stylegan2.networks import Discriminator
from frugan.families.stylegan3.config import StyleGAN3Networks, StyleGAN3Objective
from frugan.families.stylegan3.networks import Generator
from frugan.families.stylegan3.phases import phases

# Settings that the release's documentation proposes, by resolution and batch.

BATCH = 32
GAMMA = 2 / 256**2
"""Strength of R1 for each pixel."""
MAGNITUDE_IMAGES = 20_000
"""Half-life of the layers' magnitudes."""
HALF_LIFE_BATCHES = 10_000 / 32
"""Half-life of the average, in batches."""

BASES = (2048, 4096, 8192, 16384, 32768, 65536)
"""Values of generator_channel_base that the planner tries; published networks have 32768 or 65536."""
_LAYER = re.compile(r"G\.synthesis\.L(\d+)_\d+_\d+\.(.+)")


class StyleGAN3Family(StyledFamily):
    """StyleGAN3 for commands, planner and engine."""

    name = "stylegan3"
    networks_type = StyleGAN3Networks
    objective_type = StyleGAN3Objective
    generator_type = Generator
    discriminator_type = Discriminator
    rules = (RULE,)
    movable = True

    def phases(self, networks: StyleGAN3Networks, objective: StyleGAN3Objective) -> tuple[Phase, ...]:
        """G, D, and D_r1 where a penalty is wanted."""
        return phases(networks, objective)

    def recomputable(self, built: Networks) -> dict[str, tuple[str, ...]]:
        """Every layer of the generator, and every block of the discriminator."""
        synthesis, discriminator = cast(Generator, built["G"]).synthesis, cast(Discriminator, built["D"])
        return {
            "G": ("synthesis.input", *(f"synthesis.{name}" for name in (*synthesis.names, synthesis.last))),
            "D": (*(f"b{side}" for side in discriminator.sides), "b4"),
        }

    def move(self, built: Networks, translate: tuple[float, float], rotate: float) -> None:
        """Let the generator draw its pictures moved, by the transform of its first frequencies."""
        cast(Generator, built["G"]).synthesis.input.move(translate, rotate)

    def follow(self, rule: str, resolution: int, batch: int | None) -> Mapping[str, object]:
        """Settings that the release's documentation proposes."""
        if rule != RULE:
            raise BadInput(f"rule {rule!r}: StyleGAN3 has one rule, {RULE}; or leave it out")
        batch = batch or BATCH
        return {
            "training.batch": batch,
            "training.normalisation_batch": minibatch_group(batch),
            "networks.magnitude_decay": round(0.5 ** (batch / MAGNITUDE_IMAGES), 6),
            "objective.r1_gamma": round(GAMMA * resolution**2, 6),
            "ema.half_life_images": round(HALF_LIFE_BATCHES * batch),
        }

    def piece_of(self, key: str) -> Piece | None:
        """Piece of the tensor "network.parameter": "G.synthesis.L3_52_512.weight" is G's L3, with all its tensors.

        What follows from the numbers of a layer alone, its filters, belongs to none.
        """
        network, *path = key.split(".")
        if path[0] == "mapping":
            return Piece(network, "mapping")
        if path[-1] in ("up_filter", "down_filter", "resample_filter", "transform"):
            return None
        if path[0] == "synthesis":
            return Piece(network, path[1].partition("_")[0])
        return Piece(network, path[0], path[1])

    def counterpart(self, key: str, theirs: StyleGAN3Networks, ours: StyleGAN3Networks) -> str | None:
        """Name here of a tensor of other networks: layers have the same number, and another size in their name."""
        match = _LAYER.fullmatch(key)
        if match is None:
            return key
        index = int(match[1])
        if theirs.layers != ours.layers or index > ours.layers:
            return None
        return f"G.synthesis.{ours.layer_shapes[index].name}.{match[2]}"

    def variants(self, networks: StyleGAN3Networks) -> Mapping[Dimension, tuple[Mapping[str, object], ...]]:
        """Other resolutions with these channels, and other channels at this resolution, smallest first.

        All limits of channels are scaled together.
        """
        bases = sorted({*BASES, networks.generator_channel_base})
        fields = ("generator_channel_base", "generator_channel_max", "channel_base", "channel_max")

        def scaled(base: int) -> dict[str, object]:
            ratio = base / networks.generator_channel_base
            return {name: max(1, round(getattr(networks, name) * ratio)) for name in fields}

        least = min(networks.generator_channel_base, networks.channel_base)
        widths = (scaled(base) for base in bases)
        return {
            "resolution": tuple({"resolution": r} for r in RESOLUTIONS if r <= least),
            "width": tuple(
                width
                for width in widths
                if cast(int, width["channel_base"]) >= networks.resolution <= cast(int, width["generator_channel_base"])
                and max(cast(int, width["channel_max"]), cast(int, width["generator_channel_max"])) <= 4096
            ),
        }

    def tiny(self) -> tuple[StyleGAN3Networks, StyleGAN3Objective]:
        """Networks of 16 pixels, at most 6 channels and 3 classes, with every kind of layer."""
        networks = StyleGAN3Networks(
            resolution=16,
            classes=3,
            latent_size=8,
            style_size=8,
            equivariance="rotation",
            layers=3,
            generator_channel_base=64,
            generator_channel_max=6,
            channel_base=64,
            channel_max=8,
            half_resolutions=1,
            magnitude_decay=0.9,
        )
        return networks, StyleGAN3Objective(r1_gamma=1.0, r1_every=2, blur=2.0, blur_images=100)
