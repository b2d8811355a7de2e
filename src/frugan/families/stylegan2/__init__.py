"""StyleGAN2: styles that modulate convolutions, and a discriminator that sees how pictures of a group differ.

Source: Karras et al. 2019 (arXiv 1912.04958) and 2020 (arXiv 2006.06676). Parameter names are those of the authors'
PyTorch release with adaptive discriminator augmentation.
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
from frugan.families.stylegan2 import auto, phases, pieces, sheets
from frugan.families.stylegan2.config import StyleGAN2Networks, StyleGAN2Objective
from frugan.families.stylegan2.discriminator import Discriminator
from frugan.families.stylegan2.generator import Generator
from frugan.families.stylegan2.variants import variants


@dataclass(frozen=True)
class StyleGAN2Family:
    """The family contract for StyleGAN2."""

    name: str = "stylegan2"
    networks_type: type[StyleGAN2Networks] = StyleGAN2Networks
    objective_type: type[StyleGAN2Objective] = StyleGAN2Objective
    optimizers: tuple[str, ...] = ("D", "G")

    def build(self, networks: StyleGAN2Networks, device: torch.device | str = "cpu") -> dict[str, nn.Module]:
        """Generator "G" and discriminator "D"."""
        with torch.device(device):
            return {"G": Generator(networks), "D": Discriminator(networks)}

    @torch.no_grad()
    def initialise(self, networks: StyleGAN2Networks, built: Networks, seed: Callable[[str], int]) -> None:
        """Each network from a random stream of its own, layer by layer."""
        for name, network in built.items():
            device = next(network.parameters()).device
            generator = torch.Generator(device).manual_seed(seed(name))
            for module in network.modules():
                start: Callable[[torch.Generator], None] | None = getattr(module, "initialise", None)
                if start is not None:
                    start(generator)

    def phases(self, networks: StyleGAN2Networks, objective: StyleGAN2Objective) -> tuple[Phase, ...]:
        """G, its path lengths, D, and its gradient penalty."""
        return phases.phases(networks, objective)

    @property
    def optimizer_types(self) -> Mapping[str, type[BaseModel]]:
        """The engine's own are enough."""
        return {}

    def sources(self, networks: StyleGAN2Networks, objective: StyleGAN2Objective) -> Mapping[str, PictureNeeds]:
        """One: pictures, with classes where the networks know them."""
        return {"images": PictureNeeds(networks.resolution, networks.classes, networks.channels)}

    def recomputable(self, built: Networks) -> dict[str, tuple[str, ...]]:
        """Every block of both."""
        generator, discriminator = cast(Generator, built["G"]), cast(Discriminator, built["D"])
        return {
            "G": tuple(f"synthesis.b{side}" for side in generator.synthesis.sides),
            "D": (*(f"b{side}" for side in discriminator.sides), "b4"),
        }

    def forwards(self, networks: StyleGAN2Networks) -> Mapping[str, Callable[[nn.Module, int], object]]:
        """The generator on the same latent for all, the discriminator on grey pictures; class 0."""
        side, channels = networks.resolution, networks.channels

        def labels(network: nn.Module, samples: int) -> Tensor | None:
            if networks.classes is None:
                return None
            return torch.zeros(samples, dtype=torch.int64, device=next(network.buffers()).device)

        def generate(network: nn.Module, samples: int) -> Tensor:
            device = next(network.buffers()).device
            z = torch.ones(samples, networks.latent_size, device=device)
            return cast(Tensor, network(z, labels(network, samples)))

        def discriminate(network: nn.Module, samples: int) -> Tensor:
            device = next(network.buffers()).device
            pictures = torch.zeros(samples, channels, side, side, device=device)
            return cast(Tensor, network(pictures, labels(network, samples)))

        return {"G": generate, "D": discriminate}

    def averaged(self) -> Mapping[str, BufferRule]:
        """The generator; its mean style and noise are copied."""
        return {"G": "copy"}

    def sample(self, networks: StyleGAN2Networks, built: Networks, request: SheetRequest) -> Tensor:
        """Rows of pictures, or interpolations."""
        return sheets.sample(built, networks, request)

    def follow(self, rule: str, resolution: int, batch: int | None) -> Mapping[str, object]:
        """See `Ruled`: the release's "auto"."""
        return auto.follow(rule, resolution, batch)

    def styles(self, networks: StyleGAN2Networks) -> int:
        """How many layers take a style: one for each convolution, and one for the last colours."""
        return networks.styles

    def snapshots(self, networks: StyleGAN2Networks) -> Mapping[str, SheetRequest]:
        """As trained; nearer to the mean style, which shows less variety and fewer faults; and interpolations."""
        classes = None if networks.classes is None else range(min(networks.classes, sheets.MOST_ROWS))
        return {
            "samples": SheetRequest(seed=1, classes=classes),
            "truncated": SheetRequest(seed=1, classes=classes, psi=0.7),
            "interpolation": SheetRequest(seed=2, interpolate="latent" if networks.classes is None else "both"),
        }

    def fresh_after(self, before: object, now: object) -> tuple[str, ...]:
        """None: StyleGAN2 knows no pretraining."""
        return ()

    def piece_of(self, key: str) -> Piece | None:
        """See `StartsInPart`: layers, and the mapping as a whole."""
        return pieces.piece_of(key)

    def class_dimension(self, key: str, networks: StyleGAN2Networks) -> int | None:
        """See `HasClassTables`: the embeddings of both mappings."""
        return pieces.class_dimension(key)

    def variants(self, networks: StyleGAN2Networks) -> Mapping[Dimension, tuple[Mapping[str, object], ...]]:
        """By resolution, or by channels of both networks."""
        return variants(networks)

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
