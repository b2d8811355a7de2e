"""The recorded runs of the original SAEHD, as inputs and targets for our engine.

Recordings are NHWC; what is handed out here is NCHW.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from frugan.engine.ema import EmaSettings
from frugan.engine.optimizers import AdaBeliefSettings, RMSpropSettings
from frugan.engine.plan import Plan
from frugan.engine.precision import Precision
from frugan.engine.state import TrainingState, create_state
from frugan.engine.step import Step
from frugan.engine.streams import Streams
from frugan.families.saehd import SAEHDFamily
from frugan.families.saehd.config import SAEHDNetworks, SAEHDObjective
from frugan.phase import Phase
from parity.saehd import weights

FOLDER = Path(__file__).parents[2] / "golden" / "saehd"
ARCHIS = ("df", "df-u", "df-d", "df-ud", "df-udt", "df-udtc", "liae", "liae-ud", "liae-udt")
LONG = ("df-ud_rmsprop", "df-ud_adabelief", "liae-ud_rmsprop", "liae-ud_adabelief")
DISCRIMINATOR_SEED = 77
BATCHES, BATCH = 4, 2
TENSORS = {"warped": "warped_{}", "target": "target_{}", "mask": "target_{}m", "eyes_mouth": "target_{}m_em"}


def arrays(path: str) -> dict[str, NDArray[Any]]:
    """All arrays of one .npz file of the recordings."""
    with np.load(FOLDER / path) as file:
        return {name: file[name] for name in file.files}


def nchw(value: NDArray[Any]) -> Tensor:
    """A recorded picture or map [B, H, W, C] as [B, C, H, W]."""
    return torch.from_numpy(value).permute(0, 3, 1, 2).contiguous()


def record(path: str) -> dict[str, Any]:
    """One .json file of the recordings."""
    found: dict[str, Any] = json.loads((FOLDER / path).read_text())
    return found


def networks_of(options: Mapping[str, Any]) -> SAEHDNetworks:
    """A recording's networks, unvalidated: they are narrower than any recipe's may be."""
    wanted = {"gan_patch_size": 8, "gan_dims": 4, "face_type": "f"} | dict(options)
    return SAEHDNetworks.model_construct(**{name: wanted[name] for name in SAEHDNetworks.model_fields})


def built(networks: SAEHDNetworks, seed: int) -> dict[str, nn.Module]:
    """All networks with the recordings' first weights."""
    found = SAEHDFamily().build(networks)
    for name, network in found.items():
        scope = weights.SCOPES.get(name)
        weights.fill(network, scope or name, DISCRIMINATOR_SEED if scope else seed)
    return found


@dataclass(frozen=True)
class Recording:
    """One recorded run.

    Attributes:
        name: "df-ud_rmsprop", or "extras/df-ud_gan".
        options: the original's.
        seed: of the autoencoder's first weights.
        steps: how many.
        losses: name -> [steps, samples].
    """

    name: str
    options: Mapping[str, Any]
    seed: int
    steps: int
    losses: Mapping[str, NDArray[np.float32]]

    @classmethod
    def read(cls, name: str) -> "Recording":
        case = record(f"train/{name}/case.json")
        return cls(name, case["options"], case["seed"], case["steps"], arrays(f"train/{name}/trace.npz"))

    @property
    def networks(self) -> SAEHDNetworks:
        return networks_of(self.options)

    @property
    def objective(self) -> SAEHDObjective:
        return SAEHDObjective(**{name: self.options[name] for name in SAEHDObjective.model_fields if name in self.options})

    @property
    def gradients(self) -> dict[str, dict[str, list[float]]]:
        """Optimizer "G", "D_code", "GAN_D" -> full key -> fingerprint of its first gradient."""
        found = record(f"train/{self.name}/grads_step0.json")
        return {which: {key: value for key, value in of.items() if key != "__global_norm__"} for which, of in found.items()}

    def movement(self, steps: int) -> dict[str, list[float]]:
        """Full key -> fingerprint of how far it moved in the first steps (1, or all)."""
        found: dict[str, list[float]] = record(f"train/{self.name}/weight_delta_fingerprints.json")[f"step{steps}"]
        return found

    def training(self, *, micro_batch: int = 1, dtype: torch.dtype = torch.float32) -> tuple[TrainingState, Step, Plan]:
        """The run as recorded. A micro-batch of 1 keeps the losses of the samples apart."""
        kind = AdaBeliefSettings if self.options["adabelief"] else RMSpropSettings
        settings = dict.fromkeys(SAEHDFamily().optimizers, kind(clip_norm=1.0 if self.options["clipgrad"] else None))
        networks = built(self.networks, self.seed)
        for network in networks.values():
            network.to(dtype)
        phases = SAEHDFamily().phases(self.networks, self.objective)
        plan = Plan(micro_batch=micro_batch, precision=Precision("fp32", torch.float32, "parity"))
        state = create_state(networks, phases, settings, {}, EmaSettings(), plan, None, torch.device("cpu"))
        return state, Step(phases, settings, Batches(dtype), Streams(0), BATCH), plan


@cache
def recording(name: str) -> Recording:
    """A recorded run, read once."""
    return Recording.read(name)


@cache
def extras() -> tuple[str, ...]:
    """Names of the recordings of single terms."""
    return tuple(sorted(f"extras/{path.name}" for path in (FOLDER / "train" / "extras").iterdir()))


@dataclass(frozen=True)
class Batches:
    """Feeds the engine the recorded batches, over and over.

    Attributes:
        dtype: that they are handed out in.
    """

    dtype: torch.dtype = torch.float32

    def take(self, source: str, stream: str, position: int, count: int) -> dict[str, Tensor]:
        assert stream == source, "every phase reads the step's pictures"
        step, first = divmod(position, BATCH)
        tensors = _batch(source, step % BATCHES)
        return {name: value[first : first + count].to(self.dtype) for name, value in tensors.items()}


@cache
def _batch(source: str, index: int) -> dict[str, Tensor]:
    recorded = _batches()
    return {name: nchw(recorded[f"b{index}_{key.format(source)}"]) for name, key in TENSORS.items()}


@cache
def _batches() -> dict[str, NDArray[np.float32]]:
    return arrays("train/batches.npz")
