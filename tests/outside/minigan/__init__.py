"""A family in a package of its own: what docs/adding-a-family.md builds, and the smallest that trains.

A generator and a discriminator without classes, a hinge game, 16 pixels.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from frugan.contract.family import BufferRule, Dimension, Family, SheetRequest
from frugan.contract.phase import Draw, MicroBatch, Networks, Phase, PhaseState, Terms
from frugan.data.picture_needs import PictureNeeds
from frugan.objectives import hinge_fake, hinge_generator, hinge_real

SIDE = 16


class MiniNetworks(BaseModel):
    """The recipe's section `networks`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    channels: int = Field(8, ge=1, description="of every layer")
    latent_size: int = Field(16, ge=1, description="random numbers that a picture is made from")


class MiniObjective(BaseModel):
    """The recipe's section `objective`: nothing to choose."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Generator(nn.Module):
    """Latents to pictures."""

    def __init__(self, config: MiniNetworks) -> None:
        super().__init__()
        self.channels = config.channels
        self.linear = nn.Linear(config.latent_size, config.channels * 8 * 8)
        self.block = nn.Conv2d(config.channels, config.channels, 3, padding=1)
        self.out = nn.Conv2d(config.channels, 3, 3, padding=1)

    def forward(self, z: Tensor) -> Tensor:
        """z [B, latent_size] -> [B, 3, 16, 16] in [-1, 1], fp32."""
        h = self.linear(z.to(self.linear.weight.dtype)).view(-1, self.channels, 8, 8)  # [B, C, 8, 8]
        h = F.interpolate(F.relu(self.block(F.relu(h))), scale_factor=2.0)  # [B, C, 16, 16]
        return torch.tanh(self.out(h).float())


class Discriminator(nn.Module):
    """Pictures to a number."""

    def __init__(self, config: MiniNetworks) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, config.channels, 3, stride=2, padding=1)
        self.block = nn.Conv2d(config.channels, config.channels, 3, stride=2, padding=1)
        self.linear = nn.Linear(config.channels, 1)

    def forward(self, pictures: Tensor) -> Tensor:
        """pictures [B, 3, 16, 16] in [-1, 1] -> [B, 1], fp32."""
        h = F.relu(self.stem(pictures.to(self.stem.weight.dtype)))  # [B, C, 8, 8]
        h = F.relu(self.block(h))  # [B, C, 4, 4]
        return cast(Tensor, self.linear(h.mean((2, 3)))).float()


def real(networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
    """The discriminator on real pictures."""
    pictures = micro.pictures["images"]["pictures"].float() / 127.5 - 1
    return {"real": hinge_real(networks["D"](pictures))}


def fake(networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
    """The discriminator on generated pictures."""
    with torch.no_grad():
        pictures = networks["G"](micro.draws["z"])
    return {"fake": hinge_fake(networks["D"](pictures))}


def fool(networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
    """The generator."""
    return {"adversarial": hinge_generator(networks["D"](networks["G"](micro.draws["z"])))}


class MiniGANFamily(Family):
    """What frugan asks of a family; see `frugan.contract.family.Family`."""

    name = "minigan"
    networks_type = MiniNetworks
    objective_type = MiniObjective
    optimizers = ("D", "G")

    def build(self, networks: MiniNetworks, device: torch.device | str = "cpu") -> dict[str, nn.Module]:
        """Both networks."""
        with torch.device(device):
            return {"G": Generator(networks), "D": Discriminator(networks)}

    def initialise(self, networks: MiniNetworks, built: Networks, seed: Callable[[str], int]) -> None:
        """Orthogonal weights, each network from a random stream of its own."""
        for name, network in built.items():
            random = torch.Generator().manual_seed(seed(name))
            for parameter in network.parameters():
                if parameter.ndim > 1:
                    nn.init.orthogonal_(parameter, generator=random)
                else:
                    nn.init.zeros_(parameter)

    def phases(self, networks: MiniNetworks, objective: MiniObjective) -> tuple[Phase, ...]:
        """D, then G."""
        draws = {"z": Draw("normal", (networks.latent_size,))}
        return (
            Phase("D", ("D",), ("D", "G"), "D", (real, fake), draws, sources=("images",)),
            Phase("G", ("G",), ("G", "D"), "G", (fool,), draws),
        )

    def sources(self, networks: MiniNetworks, objective: MiniObjective) -> Mapping[str, PictureNeeds]:
        """One: pictures, whose classes are not read."""
        return {"images": PictureNeeds(SIDE, None)}

    def recomputable(self, built: Networks) -> dict[str, tuple[str, ...]]:
        """The block in the middle of each."""
        return dict.fromkeys(built, ("block",))

    def averaged(self) -> Mapping[str, BufferRule]:
        """The generator."""
        return {"G": "average"}

    def sample(self, networks: MiniNetworks, built: Networks, request: SheetRequest) -> Tensor:
        """Rows of samples [rows, columns, 3, 16, 16]."""
        device = next(built["G"].parameters()).device
        random = torch.Generator().manual_seed(request.seed)
        count = request.rows * request.columns
        z = torch.randn(count, networks.latent_size, generator=random).to(device) * request.truncation
        pictures = torch.cat([built["G"](part) for part in z.split(request.micro_batch)])
        return pictures.view(request.rows, request.columns, 3, SIDE, SIDE)

    def snapshots(self, networks: MiniNetworks) -> Mapping[str, SheetRequest]:
        """One sheet."""
        return {"samples": SheetRequest(seed=1, rows=4)}

    def variants(self, networks: MiniNetworks) -> Mapping[Dimension, tuple[Mapping[str, Any], ...]]:
        """By width."""
        return {"width": tuple({"channels": channels} for channels in (4, 8, 16))}

    def tiny(self) -> tuple[MiniNetworks, MiniObjective]:
        """Four channels."""
        return MiniNetworks(channels=4), MiniObjective()
