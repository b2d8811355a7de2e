"""Recordings of the R3GAN program, and the same networks built here; see tests/golden/r3gan/README.md."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from frugan.families.r3gan.config import R3GANNetworks
from frugan.families.r3gan.family import R3GANFamily
from frugan.families.r3gan.snapshot import name_table

GOLDEN = Path(__file__).parents[2] / "golden" / "r3gan"
CASES = ("uncond16", "cond32")
Network = Literal["G", "D"]


def read_json(name: str) -> Any:
    """A recorded JSON file."""
    return json.loads((GOLDEN / name).read_text("utf-8"))


@cache
def tensors(name: str) -> dict[str, Tensor]:
    """A recorded file of tensors."""
    return load_file(GOLDEN / name)


@dataclass(frozen=True)
class Case:
    """One recording."""

    name: str  # of its folder
    settings: dict[str, Any]  # of the run

    @property
    def networks(self) -> R3GANNetworks:
        """Of the recording; stages are listed from 4 pixels up."""
        o = self.settings
        return R3GANNetworks(
            resolution=o["res"],
            classes=o["c_dim"] or None,
            latent_size=o["z_dim"],
            widths=o["g_widths"],
            groups=o["g_groups"],
            blocks=o["g_blocks"],
            discriminator_widths=o["d_widths"][::-1],
            discriminator_groups=o["d_groups"][::-1],
            discriminator_blocks=o["d_blocks"][::-1],
            generator_embedding=o.get("g_embed", 64),
            discriminator_embedding=o.get("d_embed"),
            half_resolutions=2,
        )

    def renamed(self, network: Network, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A network's tensors under our names."""
        translated = name_table(self.networks, network).to_ours(theirs)
        assert not translated.faults, translated.faults
        return translated.tensors

    def build(self, dtype: torch.dtype = torch.float32) -> dict[str, nn.Module]:
        """Both networks, with the recorded weights."""
        built = R3GANFamily().build(self.networks)
        for name in ("G", "D"):
            network: Network = name
            built[name].load_state_dict(self.renamed(network, tensors(f"{self.name}/{name}.safetensors")))
        return {name: network.to(dtype) for name, network in built.items()}

    def io(self, name: str) -> Tensor:
        """One of the recorded forwards, or of their inputs."""
        return tensors(f"{self.name}/io.safetensors")[name]

    def classes(self, labels: Tensor) -> Tensor | None:
        """Class numbers; None where there are none."""
        return labels.long() if self.settings["c_dim"] else None


@cache
def load(name: str) -> Case:
    """Read a recording."""
    return Case(name, read_json(f"{name}/case.json")["config"])
