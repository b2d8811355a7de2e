"""A family in a package of its own that uses what minigan does not.

It learns height maps, a kind of data of its own; styles may lie on the mean one's other side; its networks move by an
optimizer of its own, and its generator goes to and comes from a file format of its own.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from frugan.contract.family import BufferRule, Dimension, Family, GridRequest
from frugan.contract.phase import Draw, MicroBatch, Networks, Phase, PhaseState, Terms
from frugan.objectives import hinge_fake, hinge_generator, hinge_real
from terrain.heights import HeightNeeds
from terrain.signum import SignumSettings

SIDE = 8


class TerrainNetworks(BaseModel):
    """The recipe's section `networks`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    width: int = Field(16, ge=1, description="of every layer")


class TerrainObjective(BaseModel):
    """The recipe's section `objective`: nothing to choose."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Generator(nn.Module):
    """Latents to styles to heights."""

    def __init__(self, config: TerrainNetworks) -> None:
        super().__init__()
        self.mapping = nn.Linear(4, config.width)
        self.out = nn.Linear(config.width, SIDE * SIDE)

    def style(self, z: Tensor) -> Tensor:
        """z [B, 4] -> [B, width]; the mean one is 0."""
        return torch.tanh(self.mapping(z.to(self.mapping.weight.dtype)))

    def heights(self, style: Tensor) -> Tensor:
        """style [B, width] -> [B, 1, 8, 8] in [-1, 1], fp32."""
        return torch.tanh(self.out(style).float()).view(-1, 1, SIDE, SIDE)

    def forward(self, z: Tensor) -> Tensor:
        """z [B, 4] -> [B, 1, 8, 8] in [-1, 1], fp32."""
        return self.heights(self.style(z))


class Judge(nn.Module):
    """Heights to a number."""

    def __init__(self, config: TerrainNetworks) -> None:
        super().__init__()
        self.hidden = nn.Linear(SIDE * SIDE, config.width)
        self.out = nn.Linear(config.width, 1)

    def forward(self, heights: Tensor) -> Tensor:
        """heights [B, 1, 8, 8] -> [B, 1], fp32."""
        h = F.relu(self.hidden(heights.flatten(1).to(self.hidden.weight.dtype)))
        return cast(Tensor, self.out(h)).float()


def judge_both(networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
    """The judge on real and generated heights."""
    with torch.no_grad():
        made = networks["G"](micro.draws["z"])
    real = micro.pictures["maps"]["heights"]
    return {"real": hinge_real(networks["judge"](real)), "fake": hinge_fake(networks["judge"](made))}


def please(networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
    """The generator."""
    return {"adversarial": hinge_generator(networks["judge"](networks["G"](micro.draws["z"])))}


class TerrainFamily(Family):
    """What frugan asks of a family; see `Family`."""

    name = "terrain"
    networks_type = TerrainNetworks
    objective_type = TerrainObjective
    optimizers = ("judge", "G")

    @property
    def optimizer_types(self) -> Mapping[str, type[BaseModel]]:
        """One of its own, beside the engine's."""
        return {"signum": SignumSettings}

    def build(self, networks: TerrainNetworks, device: torch.device | str = "cpu") -> dict[str, nn.Module]:
        """Both networks."""
        with torch.device(device):
            return {"G": Generator(networks), "judge": Judge(networks)}

    def initialise(self, networks: TerrainNetworks, built: Networks, seed: Callable[[str], int]) -> None:
        """Normal weights, each network from a random stream of its own."""
        for name, network in built.items():
            random = torch.Generator().manual_seed(seed(name))
            for parameter in network.parameters():
                nn.init.normal_(parameter, std=0.2, generator=random)

    def phases(self, networks: TerrainNetworks, objective: TerrainObjective) -> tuple[Phase, ...]:
        """The judge, then G."""
        draws = {"z": Draw("normal", (4,))}
        return (
            Phase("judge", ("judge",), ("judge", "G"), "judge", (judge_both,), draws, sources=("maps",)),
            Phase("G", ("G",), ("G", "judge"), "G", (please,), draws),
        )

    def sources(self, networks: TerrainNetworks, objective: TerrainObjective) -> Mapping[str, HeightNeeds]:
        """One: height maps."""
        return {"maps": HeightNeeds(SIDE)}

    def recomputable(self, built: Networks) -> dict[str, tuple[str, ...]]:
        """The first layer of the judge."""
        return {"judge": ("hidden",)}

    def averaged(self) -> Mapping[str, BufferRule]:
        """The generator."""
        return {"G": "average"}

    def sample(self, networks: TerrainNetworks, built: Networks, request: GridRequest) -> Tensor:
        """Rows of samples [rows, columns, 1, 8, 8]; below psi 0 hills become valleys."""
        generator = cast(Generator, built["G"])
        random = torch.Generator().manual_seed(request.seed)
        z = torch.randn(request.rows * request.columns, 4, generator=random)
        z = z.to(next(generator.parameters()).device)
        made = [generator.heights(generator.style(part) * request.psi) for part in z.split(request.micro_batch)]
        return torch.cat(made).float().view(request.rows, request.columns, 1, SIDE, SIDE)

    def snapshots(self, networks: TerrainNetworks) -> Mapping[str, GridRequest]:
        """One grid."""
        return {"heights": GridRequest(seed=1, rows=4)}

    def variants(self, networks: TerrainNetworks) -> Mapping[Dimension, tuple[Mapping[str, Any], ...]]:
        """By width."""
        return {"width": tuple({"width": width} for width in (8, 16, 32))}

    def styles(self, networks: TerrainNetworks) -> int:
        """One for all layers; it makes the family one that psi is for."""
        return 1

    def tiny(self) -> tuple[TerrainNetworks, TerrainObjective]:
        """Eight wide."""
        return TerrainNetworks(width=8), TerrainObjective()
