"""R3GAN: residual networks without normalisation, a loss on pairs of pictures, and two gradient penalties.

Source: Huang et al. 2024 (arXiv 2501.05441).
"""

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

from frugan.contract.family import BufferRule, Dimension, Drawing, GridRequest, LatentSpace, Piece, spread
from frugan.contract.phase import Networks, Phase
from frugan.errors import BadInput
from frugan.families.picture_gan import PictureGan, latent_grid
from frugan.families.r3gan.config import RESOLUTIONS, R3GANNetworks, R3GANObjective, propose_gamma
from frugan.families.r3gan.networks import Discriminator, Generator, ResidualBlock
from frugan.families.r3gan.phases import phases

SHARES = (1 / 8, 1 / 4, 1 / 2, 1, 2)
"""Of the channels and groups of a recipe: relatives for the planner."""


RULE = "guess"
SMALL_WIDTH, SMALL_CHANNELS = 128, 512
"""By the rule: channels of the widest stages, and at most this divided by the side of any."""
LEAST_GAMMA = 2.0 / 32**2
"""By the rule, for each pixel: with less, the discriminator of so small networks ran ahead on pictures of 32 and 64
pixels."""
CHANNELS_PER_GROUP = 16
"""Of the published networks but ImageNet's, inside a block."""


class R3GANFamily(PictureGan):
    """The family contract for R3GAN."""

    name = "r3gan"
    networks_type = R3GANNetworks
    objective_type = R3GANObjective
    generator_type = Generator
    discriminator_type = Discriminator
    rules = (RULE,)

    def phases(self, networks: R3GANNetworks, objective: R3GANObjective) -> tuple[Phase, ...]:
        """D, its penalties where they have a phase of their own, and G."""
        return phases(networks, objective)

    def recomputable(self, built: Networks) -> dict[str, tuple[str, ...]]:
        """Every residual block of both."""
        return {
            network: tuple(name for name, module in built[network].named_modules() if isinstance(module, ResidualBlock))
            for network in ("G", "D")
        }

    def averaged(self) -> Mapping[str, BufferRule]:
        """The generator."""
        return {"G": "copy"}

    @torch.no_grad()
    def sample(self, networks: R3GANNetworks, built: Networks, request: GridRequest) -> Tensor:
        """Generate a grid [rows, columns, C, R, R] in [-1, 1], fp32 on the host, `micro_batch` pictures at a time.

        See `latent_grid`; without classes there are `rows` rows, or as many as zeros are asked for.

        Raises:
            BadInput: styles nearer to the mean one are asked for, or classes of networks without.
        """
        if request.psi != 1:
            raise BadInput(f"psi {request.psi:g}: R3GAN has no styles; truncation makes its latents shorter")
        known = networks.classes
        if known is None and (any(request.classes or ()) or request.interpolate == "class"):
            raise BadInput("classes: these networks were made without (networks.classes is none)")
        generator = cast(Generator, built["G"])
        device = next(generator.buffers()).device
        rows: Sequence[int] = [0] * (len(request.classes) if request.classes is not None else request.rows)
        if known is not None:
            rows = request.classes if request.classes is not None else spread(range(known), request.rows)

        def shares(labels: Tensor) -> Tensor:
            return torch.nn.functional.one_hot(labels, known or 1).float()

        def generate(z: Tensor, y: Tensor) -> Tensor:
            pictures = generator(z.to(device), None if known is None else y.to(device))
            return cast(Tensor, pictures).clamp(-1, 1)

        size = generator.latent_size
        return latent_grid(generate, shares, request, rows, classes=known or 1, latent_size=size)

    def drawing(self, networks: R3GANNetworks, built: Networks) -> Drawing:
        """The generator, with classes where it knows any."""
        generator = cast(Generator, built["G"])

        def call(z: Tensor, shares: Tensor | None = None) -> Tensor:
            return cast(Tensor, generator(z, shares)).clamp(-1, 1)

        return Drawing("G", generator.latent_size, networks.classes or 0, False, call)

    def latent_space(self, networks: R3GANNetworks, built: Networks) -> LatentSpace:
        """Latents z, which the first stage takes beside the class's embedding."""
        generator = cast(Generator, built["G"])
        size = generator.latent_size

        return LatentSpace(
            network="G",
            name="z",
            latent_size=size,
            size=size,
            layers=1,
            classes=networks.classes or 0,
            class_free=networks.classes is None,
            place=lambda z, _: z,
            draw=lambda z, shares, *_: cast(Tensor, generator(z[:, 0], shares)).clamp(-1, 1),
            maps=lambda _: generator.first_weight[:, :size],
            activations=generator.first_features,
        )

    def snapshots(self, networks: R3GANNetworks) -> Mapping[str, GridRequest]:
        """Samples and interpolations."""
        classes = None if networks.classes is None else range(networks.classes)
        return {
            "samples": GridRequest(seed=1, classes=classes),
            "interpolation": GridRequest(seed=2, interpolate="latent" if networks.classes is None else "both"),
        }

    def piece_of(self, key: str) -> Piece | None:
        """Where the tensor "network.parameter" belongs: "G.b8.blocks.0.conv1.weight" to blocks.0 of G's b8."""
        network, *path = key.split(".")
        if path[-1] == "resample_filter":
            return None
        if not path[0].startswith("b"):
            return Piece(network, path[0])
        return Piece(network, path[0], ".".join(path[1:3]) if path[1] == "blocks" else path[1])

    def class_dimension(self, key: str, networks: R3GANNetworks) -> int | None:
        """Of the embeddings of both networks."""
        return 1 if key in ("G.embed.weight", "D.embed.weight") else None

    def follow(self, rule: str, resolution: int, batch: int | None) -> Mapping[str, object]:
        """Stages of a network for few pictures, and a strength of the penalties that is no more than a guess."""
        if rule != RULE:
            raise BadInput(f"rule {rule!r}: R3GAN has one rule, {RULE}; or leave it out")
        sides = [1 << n for n in range(2, resolution.bit_length())]
        widths = [max(CHANNELS_PER_GROUP // 2, min(SMALL_WIDTH, SMALL_CHANNELS // side)) for side in sides]
        gamma = max(LEAST_GAMMA * resolution**2, propose_gamma(resolution, classes=False))
        return {
            "networks.widths": widths,
            "networks.groups": [2 * width // CHANNELS_PER_GROUP for width in widths],
            "networks.blocks": [1] * len(widths),
            "objective.gamma": gamma,
            "objective.final_gamma": float(f"{gamma / 2:.2g}"),
        }

    def variants(self, networks: R3GANNetworks) -> Mapping[Dimension, tuple[Mapping[str, object], ...]]:
        """Resolutions, with the highest stage repeated or left out, and shares of channels and groups, smallest
        first."""
        fields = [
            f"{whose}{name}"
            for whose in ("", "discriminator_")
            for name in ("widths", "groups", "blocks")
            if getattr(networks, f"{whose}{name}") is not None
        ]

        def at(resolution: int) -> dict[str, object]:
            stages = resolution.bit_length() - 2
            lists = {field: getattr(networks, field) for field in fields}
            return {"resolution": resolution} | {f: (v + (v[-1],) * stages)[:stages] for f, v in lists.items()}

        scaled = [field for field in fields if not field.endswith("blocks")]
        widths: list[dict[str, object]] = []
        for share in SHARES:
            values = {field: [value * share for value in getattr(networks, field)] for field in scaled}
            if all(value >= 1 and value == int(value) for numbers in values.values() for value in numbers):
                widths.append({field: tuple(map(int, numbers)) for field, numbers in values.items()})
        return {"resolution": tuple(map(at, RESOLUTIONS)), "width": tuple(widths)}

    def tiny(self) -> tuple[R3GANNetworks, R3GANObjective]:
        """16 pixels, at the most 8 channels, 3 classes; every term."""
        networks = R3GANNetworks(
            resolution=16,
            classes=3,
            latent_size=8,
            widths=(8, 8, 4),
            groups=(4, 4, 2),
            blocks=(1, 2, 1),
            generator_embedding=4,
            half_resolutions=1,
        )
        return networks, R3GANObjective(gamma=1.0)
