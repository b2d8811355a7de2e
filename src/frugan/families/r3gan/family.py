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
from frugan.families.r3gan.config import RESOLUTIONS, R3GANNetworks, R3GANObjective, Stages, propose_gamma
from frugan.families.r3gan.networks import Discriminator, Generator, ResidualBlock
from frugan.families.r3gan.phases import phases

SHARES = (1 / 8, 1 / 4, 1 / 2, 1, 2)
"""Factors on the channels and groups of a recipe, by which the planner finds relatives."""


RULE = "guess"
SMALL_WIDTH = 128
"""The rule's largest number of channels of a stage."""
SMALL_CHANNELS = 512
"""The rule's largest product of a stage's channels and side."""
LEAST_GAMMA = 2.0 / 32**2
"""The rule's smallest gamma for each pixel: with less, the discriminator of networks as small as these ran ahead on
pictures of 32 and 64 pixels."""
CHANNELS_PER_GROUP = 16
"""Channels of a group inside a block, as in the published networks except ImageNet's."""


class R3GANFamily(PictureGan):
    """R3GAN for commands, planner and engine."""

    name = "r3gan"
    networks_type = R3GANNetworks
    objective_type = R3GANObjective
    generator_type = Generator
    discriminator_type = Discriminator
    rules = (RULE,)

    def phases(self, networks: R3GANNetworks, objective: R3GANObjective) -> tuple[Phase, ...]:
        """D, D_penalty where penalties have a phase of their own, and G."""
        return phases(networks, objective)

    def recomputable(self, built: Networks) -> dict[str, tuple[str, ...]]:
        """Every residual block of both networks."""
        return {
            network: tuple(name for name, module in built[network].named_modules() if isinstance(module, ResidualBlock))
            for network in ("G", "D")
        }

    def averaged(self) -> Mapping[str, BufferRule]:
        """The generator, whose only buffers are constant filters."""
        return {"G": "copy"}

    @torch.no_grad()
    def sample(self, networks: R3GANNetworks, built: Networks, request: GridRequest) -> Tensor:
        """Generate a grid [rows, columns, C, R, R] in [-1, 1], fp32 on the host, `micro_batch` pictures at a time.

        See `latent_grid`. Without classes there are `rows` rows, or as many as `classes` has zeros.

        Raises:
            BadInput: psi is given, but R3GAN has no styles; or classes are, and the networks know none.
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
        """Return the generator as a call of latents, and of class shares where it knows classes."""
        generator = cast(Generator, built["G"])

        def call(z: Tensor, shares: Tensor | None = None) -> Tensor:
            return cast(Tensor, generator(z, shares)).clamp(-1, 1)

        return Drawing("G", generator.latent_size, networks.classes or 0, False, call)

    def latent_space(self, networks: R3GANNetworks, built: Networks) -> LatentSpace:
        """Space of latents z, which the first stage takes beside the embedding of a class."""
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
        """Piece of the tensor "network.parameter": "G.b8.blocks.0.conv1.weight" is of blocks.0 in G's b8."""
        network, *path = key.split(".")
        if path[-1] == "resample_filter":
            return None
        if not path[0].startswith("b"):
            return Piece(network, path[0])
        return Piece(network, path[0], ".".join(path[1:3]) if path[1] == "blocks" else path[1])

    def class_dimension(self, key: str, networks: R3GANNetworks) -> int | None:
        """Dimension of the classes, which only the embeddings of both networks have."""
        return 1 if key in ("G.embed.weight", "D.embed.weight") else None

    def follow(self, rule: str, resolution: int, batch: int | None) -> Mapping[str, object]:
        """Stages of a network for few pictures, and a guess of the penalties' strength."""
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
        """Other resolutions, with the highest stage repeated or left out, and shares of the channels and groups."""
        fields = [f"{prefix}{name}" for prefix in ("", "discriminator_") for name in ("widths", "groups", "blocks")]
        stages = {field: values for field in fields if (values := getattr(networks, field)) is not None}
        shares = [_scaled(stages, share) for share in SHARES]
        return {
            "resolution": tuple({"resolution": side, **_stages_for(stages, side)} for side in RESOLUTIONS),
            "width": tuple(values for values in shares if values is not None),
        }

    def tiny(self) -> tuple[R3GANNetworks, R3GANObjective]:
        """Networks of 16 pixels, at most 8 channels and 3 classes."""
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


def _stages_for(stages: Mapping[str, Stages], resolution: int) -> dict[str, Stages]:
    """Fields of stages at another resolution, with the last stage's number repeated, or the last stages left out."""
    count = resolution.bit_length() - 2
    return {field: (numbers + (numbers[-1],) * count)[:count] for field, numbers in stages.items()}


def _scaled(stages: Mapping[str, Stages], share: float) -> dict[str, Stages] | None:
    """Widths and groups times a factor; None: some would not be whole numbers."""
    scaled = {
        field: [number * share for number in numbers]
        for field, numbers in stages.items()
        if not field.endswith("blocks")
    }
    if any(number < 1 or number != int(number) for numbers in scaled.values() for number in numbers):
        return None
    return {field: tuple(map(int, numbers)) for field, numbers in scaled.items()}
