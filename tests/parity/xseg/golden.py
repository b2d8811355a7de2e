"""The recorded runs of the original XSeg, as inputs and targets for ours."""

import json
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from parity.saehd.weights import Array, file_key, load, to_file

FOLDER = Path(__file__).parents[2] / "golden" / "xseg"
SCOPE = "XSeg"
SIDE = 256


def record(name: str) -> Any:
    return json.loads((FOLDER / name).read_text())


@cache
def arrays(name: str) -> dict[str, Array]:
    with np.load(FOLDER / name) as file:
        return dict(file)


def nchw(value: Array) -> Tensor:
    """Bytes [B, H, W, C] -> [B, C, H, W] in [0, 1], float64."""
    return torch.from_numpy(value).permute(0, 3, 1, 2).contiguous().double() / 255


def masks(packed: Array) -> Tensor:
    """Packed bits -> [2, 1, R, R], float64."""
    return torch.from_numpy(np.unpackbits(packed).reshape(2, 1, SIDE, SIDE)).double()


def random_of(seed: int, name: str) -> np.random.RandomState:
    return np.random.RandomState((seed * 1000003 + zlib.crc32(name.encode())) & 0x7FFFFFFF)


def drawn(seed: int, key: str, shape: tuple[int, ...]) -> Array:
    """A first weight of the recordings, by its name in the original's graph and its shape in the files."""
    random = random_of(seed, key)
    if len(shape) > 1:
        transposed = "/up" in key and len(shape) == 4
        inputs = np.prod(shape[:2]) * shape[3] if transposed else np.prod(shape[:-1])
        largest = np.sqrt(3) * 1.15 / np.sqrt(inputs)
        return random.uniform(-largest, largest, shape).astype(np.float32)
    if key.endswith("/eps:0"):
        return (1e-3 * random.uniform(0.2, 1, shape)).astype(np.float32)
    first, deviation = (1, 0.2) if key.endswith("/weight:0") else (0, 0.1 if key.endswith("/tau:0") else 0.05)
    return (first + deviation * random.normal(size=shape)).astype(np.float32)


def shapes(network: nn.Module) -> dict[str, tuple[int, ...]]:
    """Key in the file -> shape there, in the order of the parameters."""
    return {file_key(key): to_file(parameter).shape for key, parameter in network.named_parameters()}


def fill(network: nn.Module, seed: int) -> None:
    """Give the network the recordings' first weights."""
    load(network, {key: drawn(seed, f"{SCOPE}/{key}", shape) for key, shape in shapes(network).items()})
