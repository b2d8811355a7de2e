"""Recordings of StyleGAN2's release, and the same networks built here; see tests/golden/stylegan2/README.md."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from frugan.engine.state.working_weights import set_normalisation_batch
from frugan.families.stylegan2.config import StyleGAN2Networks, StyleGAN2Objective
from frugan.families.stylegan2.family import StyleGAN2Family

GOLDEN = Path(__file__).parents[2] / "golden" / "stylegan2"
CASES = ("res32", "res64_cond")


@dataclass(frozen=True)
class Case:
    """One recording."""

    name: str  # of its files
    settings: dict[str, Any]  # of the run
    data: dict[str, Tensor]  # "file.tensor" -> value

    @property
    def networks(self) -> StyleGAN2Networks:
        """Of the recording."""
        return self.networks_with(None)

    def networks_with(self, clamp: float | None) -> StyleGAN2Networks:
        """Of the recording, with a clamp that some of its forwards have."""
        o = self.settings
        return StyleGAN2Networks(
            resolution=o["res"],
            channels=o["ch"],
            classes=o["c_dim"] or None,
            latent_size=o["z_dim"],
            style_size=o["w_dim"],
            mapping_layers=o["map_layers"],
            channel_base=o["cbase"],
            channel_max=o["cmax"],
            convolution_clamp=clamp,
        )

    @property
    def objective(self) -> StyleGAN2Objective:
        """Of the recording; it mixes no styles."""
        o = self.settings
        return StyleGAN2Objective(
            r1_gamma=o["r1_gamma"], r1_every=o["d_reg"], path_length_every=o["g_reg"], style_mixing=0
        )

    def build(self, clamp: float | None = None) -> dict[str, nn.Module]:
        """Both networks, with the recorded weights."""
        built = StyleGAN2Family().build(self.networks_with(clamp))
        for name, network in built.items():
            network.load_state_dict(self.state(name), strict=True)
            set_normalisation_batch(network, self.settings["mbstd"])
        return built

    def state(self, network: str) -> dict[str, Tensor]:
        """Recorded first state of a network."""
        return {key.removeprefix(f"{network}."): v for key, v in self.data.items() if key.startswith(f"{network}.")}

    def io(self, name: str) -> Tensor:
        """One of the recorded forwards, or of their inputs."""
        return self.data[f"io.{name}"]

    def classes(self, one_hot: Tensor) -> Tensor | None:
        """Class numbers of one-hot labels [.., classes]; None where there are none."""
        return one_hot.argmax(-1) if self.settings["c_dim"] else None

    def pictures(self, name: str = "real_u8") -> Tensor:
        """Real pictures in [-1, 1]."""
        return self.io(name).float() / 127.5 - 1


@cache
def load(name: str) -> Case:
    """Read a recording."""
    settings = json.loads((GOLDEN / f"{name}.json").read_text("utf-8"))["config"]
    return Case(name, settings, load_file(GOLDEN / f"{name}.safetensors"))


def grouped(samples: int, group: int) -> Tensor:
    """The order in which samples in a row make the release's groups, which stride over a batch."""
    return torch.arange(samples).view(group, samples // group).T.flatten()
