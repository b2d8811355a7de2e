"""The recorded run of the original Quick96, as inputs and targets for ours."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from frugan.faces.quick96.config import Quick96Networks
from frugan.faces.quick96.family import Quick96Family
from parity.saehd import weights
from parity.saehd.golden import nchw
from parity.saehd.weights import Array

FOLDER = Path(__file__).parents[2] / "golden" / "quick96"
BATCH = 4
NETWORKS = Quick96Networks()
TENSORS = {"warped": "warped_{}", "target": "target_{}", "mask": "target_{}m"}


def record(name: str = "trace.json") -> Any:
    return json.loads((FOLDER / name).read_text())


@cache
def arrays(name: str) -> dict[str, Array]:
    with np.load(FOLDER / name) as file:
        return dict(file)


def built(dtype: torch.dtype) -> dict[str, nn.Module]:
    """All networks with the recordings' first weights."""
    networks = Quick96Family().build(NETWORKS)
    for name, network in networks.items():
        weights.fill(network, name, record()["seed"])
    return {name: network.to(dtype) for name, network in networks.items()}


@dataclass(frozen=True)
class Batches:
    """Feeds the engine the recorded batches, one after the other."""

    dtype: torch.dtype
    first: int = 0  # number of the batch that the first recorded one stands for

    def take(self, source: str, stream: str, position: int, count: int) -> dict[str, Tensor]:
        """See `PictureFeed`."""
        batch, first = divmod(position, BATCH)
        recorded = arrays("batches.npz")
        return {
            name: nchw(recorded[f"b{batch - self.first}_{key.format(source)}"])[first : first + count].to(self.dtype)
            / 255
            for name, key in TENSORS.items()
        }
