"""The recorded runs of the original AMP, as inputs and targets for ours."""

import json
import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from frugan.faces.amp.config import AMPNetworks
from frugan.faces.amp.family import AMPFamily
from parity.saehd.golden import nchw
from parity.saehd.weights import Array, file_key, load, to_file

FOLDER = Path(__file__).parents[2] / "golden" / "amp"
SCOPES = {"patch_discriminator": "GAN"}
"""Networks that the original calls otherwise in its graph."""


def record(name: str) -> Any:
    return json.loads((FOLDER / name).read_text())


@cache
def arrays(name: str) -> dict[str, Array]:
    with np.load(FOLDER / name) as file:
        return dict(file)


def pictures(name: str) -> Tensor:
    """Recorded pictures of the forwards, [B, C, H, W] in float64."""
    return nchw(arrays("forward.npz")[name]).double()


def random_of(seed: int, name: str) -> np.random.RandomState:
    return np.random.RandomState((seed * 1000003 + zlib.crc32(name.encode())) & 0x7FFFFFFF)


def drawn(seed: int, key: str, shape: tuple[int, ...]) -> Array:
    """A first weight of the recordings, by its name in the original's graph and its shape in the files."""
    random = random_of(seed, key)
    if len(shape) == 1:
        return (0.05 * random.normal(size=shape)).astype(np.float32)
    inputs = np.prod(shape[:2]) * shape[3] if "/upconvs_" in key else np.prod(shape[:-1])
    largest = np.sqrt(3) * 1.15 / np.sqrt(inputs)
    return random.uniform(-largest, largest, shape).astype(np.float32)


def chosen(seed: int, name: str, samples: int, channels: int, factor: float) -> Array:
    """The recordings' random choice of channels, 1 or 0 [samples, channels]."""
    random, rows = random_of(seed, name), []
    for _ in range(samples):
        row = np.zeros(channels, np.float32)
        row[: int(channels * factor)] = 1
        random.shuffle(row)
        rows.append(row)
    return np.stack(rows)


def networks_of(options: Mapping[str, Any]) -> AMPNetworks:
    """A recording's networks, past the recipes' limits."""
    return AMPNetworks.model_construct(**{name: options[name] for name in AMPNetworks.model_fields})


def shapes(network: nn.Module) -> dict[str, tuple[int, ...]]:
    """Key in the file -> shape there."""
    return {file_key(key): to_file(parameter).shape for key, parameter in network.named_parameters()}


def built(options: Mapping[str, Any], seed: int) -> dict[str, nn.Module]:
    """All networks with the recordings' first weights."""
    networks = AMPFamily().build(networks_of(options))
    for name, network in networks.items():
        scope = SCOPES.get(name, name)
        load(network, {key: drawn(seed, f"{scope}/{key}", shape) for key, shape in shapes(network).items()})
    return networks


def double(networks: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    return {name: network.double() for name, network in networks.items()}


def as_uniform(choice: Array) -> Tensor:
    """Random numbers that `exact_subset` makes this choice of, 1 or 0 [B, I]."""
    order = np.empty(choice.shape, np.int64)
    for row, places in zip(choice, order, strict=True):
        places[row == 1], places[row == 0] = np.arange((row == 1).sum()), np.arange((row == 1).sum(), row.size)
    uniform = np.empty(choice.shape)
    np.put_along_axis(uniform, order, np.arange(choice.shape[1]) / choice.shape[1] + np.zeros(choice.shape), 1)
    return torch.from_numpy(uniform)
