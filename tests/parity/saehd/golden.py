"""The recorded runs of the original SAEHD, as inputs and targets for our engine.

Recordings are NHWC; pictures and maps are handed out as [B, C, H, W]. The networks are narrower than a recipe's may be.

All files are as recorded but `train/*/state20.json`: fingerprints (`errors.py`) of the statistics in the optimizer's
file after the last step, which is large.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from frugan.accelerator.precision import Precision
from frugan.engine.plan import Plan
from frugan.engine.run.training import Training
from frugan.engine.state.ema import EmaSettings
from frugan.engine.state.optimizer_settings import AdaBeliefSettings, OptimizerSettings, RMSpropSettings
from frugan.engine.state.state import TrainingState
from frugan.engine.step.step import Step
from frugan.engine.streams import Streams
from frugan.faces.saehd.config import SAEHDNetworks, SAEHDObjective
from frugan.faces.saehd.family import SAEHDFamily
from parity.saehd import weights
from parity.saehd.weights import Array

FOLDER = Path(__file__).parents[2] / "golden" / "saehd"
ARCHIS = ("df", "df-u", "df-d", "df-ud", "df-udt", "df-udtc", "liae", "liae-ud", "liae-udt")
LONG = ("df-ud_rmsprop", "df-ud_adabelief", "liae-ud_rmsprop", "liae-ud_adabelief")
SHORT = tuple(sorted(f"extras/{path.name}" for path in (FOLDER / "train" / "extras").iterdir()))
"""Runs of 20 steps with the usual terms, and of 3 steps with one more."""

DISCRIMINATOR_SEED = 77
BATCHES, BATCH = 4, 2
TENSORS = {"warped": "warped_{}", "target": "target_{}", "mask": "target_{}m", "eyes_mouth": "target_{}m_em"}


def arrays(path: str) -> dict[str, Array]:
    """All arrays of one of the recordings' .npz files."""
    with np.load(FOLDER / path) as file:
        return {name: file[name] for name in file.files}


def record(path: str) -> Any:
    """One of the recordings' .json files."""
    return json.loads((FOLDER / path).read_text())


def nchw(value: Array) -> Tensor:
    """[B, H, W, C] -> [B, C, H, W]."""
    return torch.from_numpy(value).permute(0, 3, 1, 2).contiguous()


def networks_of(options: Mapping[str, Any]) -> SAEHDNetworks:
    """A recording's networks, past the recipes' limits."""
    chosen: dict[str, Any] = {"face_type": "f", "gan_patch_size": 8, "gan_dims": 4} | dict(options)
    return SAEHDNetworks.model_construct(**{name: chosen[name] for name in SAEHDNetworks.model_fields})


def built(networks: SAEHDNetworks, seed: int) -> dict[str, nn.Module]:
    """All networks with the recordings' first weights."""
    networks_built = SAEHDFamily().build(networks)
    for name, network in networks_built.items():
        weights.fill(network, weights.SCOPES.get(name, name), DISCRIMINATOR_SEED if name in weights.SCOPES else seed)
    return networks_built


@dataclass(frozen=True)
class Recording:
    """One recorded run."""

    name: str  # "df-ud_rmsprop", "extras/df-ud_gan"
    options: dict[str, Any]  # the original's
    seed: int  # of the autoencoder's first weights
    steps: int  # how many
    trace: Mapping[str, Array]  # losses, name -> [steps, samples], and some pictures
    faults: Mapping[str, float] = field(default_factory=dict)  # settings of the optimizers that are made wrong

    @classmethod
    def read(cls, name: str) -> "Recording":
        case = record(f"train/{name}/case.json")
        return cls(name, case["options"], case["seed"], case["steps"], arrays(f"train/{name}/trace.npz"))

    @property
    def networks(self) -> SAEHDNetworks:
        return networks_of(self.options)

    @property
    def objective(self) -> SAEHDObjective:
        names = SAEHDObjective.model_fields.keys() & self.options.keys()
        return SAEHDObjective(**{name: self.options[name] for name in names})

    @property
    def settings(self) -> OptimizerSettings:
        kind = AdaBeliefSettings if self.options["adabelief"] else RMSpropSettings
        return kind(clip_norm=1.0 if self.options["clipgrad"] else None, **self.faults)

    def gradients(self) -> dict[str, dict[str, Array]]:
        """Optimizer "G", "D_code" or "GAN_D" -> graph key -> fingerprint of the first gradient."""
        recorded = record(f"train/{self.name}/grads_step0.json")
        return {name: {key: np.array(v) for key, v in of.items() if key[:2] != "__"} for name, of in recorded.items()}

    def movement(self, steps: int) -> dict[str, Array]:
        """Graph key -> fingerprint of how far it moved in the first steps: 1 or all."""
        recorded = record(f"train/{self.name}/weight_delta_fingerprints.json")[f"step{steps}"]
        return {key: np.array(values) for key, values in recorded.items()}

    def training(self, dtype: torch.dtype = torch.float32, micro_batch: int = 1) -> tuple[TrainingState, Step, Plan]:
        """The run as recorded. Micro-batches of one keep the losses of the samples apart."""
        plan = Plan(micro_batch, Precision("fp32", torch.float32, "parity"))
        networks = {name: network.to(dtype) for name, network in built(self.networks, self.seed).items()}
        training = Training.of_family(
            SAEHDFamily(), self.networks, self.objective, settings=self.settings, ema=EmaSettings(), batch=BATCH
        )
        training = replace(training, averaged={}, normalisation_batch=None)
        state = training.state(plan, torch.device("cpu"), networks=networks)
        return state, training.step(Batches(dtype), Streams(0)), plan


@cache
def recording(name: str) -> Recording:
    """A recorded run, read once."""
    return Recording.read(name)


@dataclass(frozen=True)
class Batches:
    """Feeds the engine the recorded batches, over and over."""

    dtype: torch.dtype = torch.float32  # that they are handed out in

    def take(self, source: str, stream: str, position: int, count: int) -> dict[str, Tensor]:
        """See `PictureFeed`."""
        assert stream == source, "every phase reads the step's pictures"
        step, first = divmod(position, BATCH)
        tensors = _batch(source, step % BATCHES)
        return {name: value[first : first + count].to(self.dtype) for name, value in tensors.items()}


@cache
def _batch(source: str, index: int) -> dict[str, Tensor]:
    recorded = _batches()
    return {name: nchw(recorded[f"b{index}_{key.format(source)}"]) for name, key in TENSORS.items()}


@cache
def _batches() -> dict[str, Array]:
    return arrays("train/batches.npz")
