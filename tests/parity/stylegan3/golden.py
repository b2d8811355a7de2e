"""Recordings of StyleGAN3's release, and the same networks built here; see tests/golden/stylegan3/README.md."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from frugan.families.stylegan3.config import StyleGAN3Networks

GOLDEN = Path(__file__).parents[2] / "golden" / "stylegan3"
CASES = ("t_res32", "r_res64")


@dataclass(frozen=True)
class Case:
    """One recording."""

    arguments: dict[str, Any]  # of the generator
    layers: dict[str, dict[str, Any]]  # name -> numbers that follow
    data: dict[str, Tensor]  # "file.tensor" -> value

    @property
    def networks(self) -> StyleGAN3Networks:
        """Settings of the recorded networks."""
        of = self.arguments
        return StyleGAN3Networks(
            resolution=of["img_resolution"],
            channels=of["img_channels"],
            classes=of["c_dim"] or None,
            latent_size=of["z_dim"],
            style_size=of["w_dim"],
            mapping_layers=of["mapping_kwargs"]["num_layers"],
            equivariance="rotation" if of.get("use_radial_filters") else "translation",
            layers=of["num_layers"],
            generator_channel_base=of["channel_base"],
            generator_channel_max=of["channel_max"],
        )

    @property
    def state(self) -> dict[str, Tensor]:
        """Recorded state of the generator."""
        return {key.removeprefix("G."): value for key, value in self.data.items() if key.startswith("G.")}

    def io(self, name: str) -> Tensor:
        """One of the recorded inputs or outputs."""
        return self.data[f"io.{name}"]

    @property
    def classes(self) -> Tensor | None:
        """Class numbers of the pictures; None where there are none."""
        return self.io("c").argmax(1) if self.arguments["c_dim"] else None


@cache
def load(name: str) -> Case:
    """Read a recording."""
    recorded = json.loads((GOLDEN / f"{name}.json").read_text("utf-8"))
    return Case(recorded["init_kwargs"], recorded["layers"], load_file(GOLDEN / f"{name}.safetensors"))
