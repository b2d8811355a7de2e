"""The recorded runs of the original BigGAN, as inputs and targets for our engine."""

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from frugan.accelerator.precision import Precision
from frugan.contract.phase import Phase
from frugan.engine.durations import Duration
from frugan.engine.plan import Plan
from frugan.engine.run.training import Stage, Training
from frugan.engine.state.ema import EmaSettings
from frugan.engine.state.optimizer_settings import AdamSettings
from frugan.engine.state.state import TrainingState
from frugan.engine.step.step import Step
from frugan.families.biggan.config import BigGANNetworks, BigGANObjective
from frugan.families.biggan.family import BigGANFamily

FOLDER = Path(__file__).parents[1] / "golden" / "biggan"
CASES = ("bg32_hier", "bg64_hier", "bg128_bs256x8", "deep128", "sngan64", "sagan64", "cifar32")
INITIALISATIONS = {"ortho": "orthogonal", "N02": "normal", "xavier": "xavier"}


def _resolutions(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("_") if part != "0")


@dataclass(frozen=True)
class Case:
    """One recorded configuration."""

    name: str
    options: Mapping[str, Any]
    record: Mapping[str, Any]
    data: Mapping[str, Tensor]
    states: Mapping[str, Tensor]

    @classmethod
    def load(cls, name: str) -> "Case":
        with gzip.open(FOLDER / f"{name}.json.gz") as file:
            record = json.load(file)
        data = load_file(FOLDER / f"{name}.data.safetensors")
        return cls(name, record["config"], record, data, load_file(FOLDER / f"{name}.init.safetensors"))

    @property
    def networks(self) -> BigGANNetworks:
        o = self.options
        return BigGANNetworks(
            architecture="biggan-deep" if o["model"] == "BigGANdeep" else "biggan",
            resolution=o["resolution"],
            classes=o["n_classes"],
            generator_channels=o["G_ch"],
            discriminator_channels=o["D_ch"],
            latent_size=o["dim_z"],
            shared_embedding=o["shared_dim"] if o["G_shared"] else None,
            hierarchical_latent=o["hier"],
            generator_attention=_resolutions(o["G_attn"]),
            discriminator_attention=_resolutions(o["D_attn"]),
            discriminator_wide=o["D_wide"],
            blocks_per_stage=o["D_depth"],
            generator_initialisation=INITIALISATIONS[o["G_init"]],
            discriminator_initialisation=INITIALISATIONS[o["D_init"]],
            batch_norm_eps=o["BN_eps"],
            spectral_norm_eps=o["SN_eps"],
        )

    def built(self, dtype: torch.dtype = torch.float32) -> dict[str, nn.Module]:
        """Both networks in their recorded first states."""
        networks = BigGANFamily().build(self.networks)
        for name, network in networks.items():
            prefix = f"{name}."
            network.load_state_dict({k[2:]: v for k, v in self.states.items() if k.startswith(prefix)})
            network.to(dtype)
        return networks

    def pictures(self, iteration: int) -> Tensor:
        """Loader batch of an iteration as uint8 [N, 3, R, R]."""
        small = self.data["train.x16_u8"][iteration]
        times = self.options["resolution"] // 16
        return small.repeat_interleave(times, 2).repeat_interleave(times, 3)

    def phases(self, orthogonality: float = 0.0) -> tuple[Phase, ...]:
        objective = BigGANObjective(
            discriminator_steps=self.options["num_D_steps"],
            generator_orthogonality=orthogonality,
            discriminator_orthogonality=orthogonality,
        )
        return BigGANFamily().phases(self.networks, objective)

    @property
    def batch(self) -> int:
        return int(self.options["batch_size"] * self.options["num_D_accumulations"])

    def training(
        self, orthogonality: float = 0.0, dtype: torch.dtype = torch.float32, momentum: float | None = None
    ) -> tuple[TrainingState, Step, Plan]:
        """The run as recorded: originals' habit, recorded pictures and draws. `momentum` overrides beta2 (a fault)."""
        o = self.options
        phases = self.phases(orthogonality)
        settings = {
            name: AdamSettings(
                learning_rate=o[f"{name}_lr"],
                beta1=o[f"{name}_B1"],
                beta2=o[f"{name}_B2"] if momentum is None else momentum,
                eps=o["adam_eps"],
            )
            for name in ("D", "G")
        }
        plan = Plan(micro_batch=o["batch_size"], precision=Precision("fp32", torch.float32, "parity"))
        start = Duration.parse(f"{o['ema_start']} steps")
        ema = EmaSettings(decay=o["ema_decay"], start=start)
        training = Training.of_family(
            BigGANFamily(),
            self.networks,
            settings=settings["G"],
            ema=ema,
            batch=self.batch,
            normalisation_batch=o["batch_size"],
        )
        training = replace(training, stages=(Stage(phases, settings),), averaged={"G": "average"})
        feed = Recording(self)
        state = training.state(plan, torch.device("cpu"), networks=self.built(dtype))
        return state, training.step(feed, feed, originals=True), plan


@dataclass(frozen=True)
class Recording:
    """Feeds the engine the recorded pictures, latents and classes."""

    case: Case
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def take(self, source: str, stream: str, position: int, count: int) -> dict[str, Tensor]:
        per_iteration = self.case.data["train.dy"].shape[1]
        iteration, first = divmod(position, per_iteration)
        here = slice(first, first + count)
        return {
            "pictures": self.case.pictures(iteration)[here],
            "labels": self.case.data["train.dy"][iteration][here].long(),
        }

    def batch(self, phase: Phase, step: int, repeat: int, count: int) -> dict[str, Tensor]:
        o = self.case.options
        accumulations = o["num_D_accumulations"]
        d_calls = o["num_D_steps"] * accumulations
        first = step * (d_calls + o["num_G_accumulations"])
        first += repeat * accumulations if phase.name == "D" else d_calls
        calls = accumulations if phase.name == "D" else o["num_G_accumulations"]
        rows = slice(first, first + calls)
        return {
            "z": self.case.data["train.z"][rows].flatten(0, 1),
            "y": self.case.data["train.y"][rows].flatten(0, 1).long(),
        }

    def micro_batch(
        self, phase: Phase, step: int, repeat: int, first: int, count: int, device: torch.device
    ) -> dict[str, Tensor]:
        return {}

    def update_seed(self, phase: Phase, step: int, repeat: int) -> int:
        return 0
