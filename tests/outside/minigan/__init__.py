"""A family in a package of its own, of docs/adding-a-family.md: a GAN without classes, a hinge game, 16 pixels."""

from collections.abc import Mapping
from typing import cast

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from frugan.contract.family import BufferRule, Family, GridRequest, NoObjective
from frugan.contract.phase import Draw, MicroBatch, Networks, Phase, PhaseState, Terms
from frugan.data.picture_needs import PictureNeeds
from frugan.objectives import hinge_fake, hinge_generator, hinge_real

SIDE = 16


class MiniNetworks(BaseModel):
    """The recipe's section `networks`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    channels: int = Field(8, ge=1, description="of every layer")
    latent_size: int = Field(16, ge=1, description="random numbers that a picture is made from")


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

    def build(self, networks: MiniNetworks, device: torch.device | str = "cpu") -> dict[str, nn.Module]:
        """Both networks."""
        with torch.device(device):
            return {"G": Generator(networks), "D": Discriminator(networks)}

    def phases(self, networks: MiniNetworks, objective: NoObjective) -> tuple[Phase, ...]:
        """D, then G."""
        draws = {"z": Draw("normal", (networks.latent_size,))}
        return (
            Phase("D", ("D",), ("D", "G"), "D", (real, fake), draws, sources=("images",)),
            Phase("G", ("G",), ("G", "D"), "G", (fool,), draws),
        )

    def sources(self, networks: MiniNetworks, objective: NoObjective) -> Mapping[str, PictureNeeds]:
        """One: pictures, whose classes are not read."""
        return {"images": PictureNeeds(SIDE, None)}

    def sample(self, networks: MiniNetworks, built: Networks, request: GridRequest) -> Tensor:
        """Rows of samples [rows, columns, 3, 16, 16]."""
        device = next(built["G"].parameters()).device
        random = torch.Generator().manual_seed(request.seed)
        z = torch.randn(request.rows * request.columns, networks.latent_size, generator=random) * request.truncation
        pictures = torch.cat([built["G"](part) for part in z.to(device).split(request.micro_batch)])
        return pictures.view(request.rows, request.columns, 3, SIDE, SIDE)

    def averaged(self) -> Mapping[str, BufferRule]:
        """The generator."""
        return {"G": "average"}

    def recomputable(self, built: Networks) -> dict[str, tuple[str, ...]]:
        """The block in the middle of each."""
        return dict.fromkeys(built, ("block",))

    def tiny(self) -> tuple[MiniNetworks, NoObjective]:
        """Four channels."""
        return MiniNetworks(channels=4), NoObjective()
