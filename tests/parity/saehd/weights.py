"""The original's weights: how its files name and lay them out, and the rule that made the recordings' first ones."""

import re
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from frugan.safe_pickle.reader import load_pickle

Array = NDArray[Any]

SCOPES = {"code_discriminator": "dis", "patch_discriminator": "D_src"}
"""What the original calls two networks in its graph; the others are called as here."""


def file_key(parameter: str) -> str:
    """Name of a parameter in the file of its network: down1.downs.0.conv1.weight -> down1/downs_0/conv1/weight:0."""
    return re.sub(r"\.(\d+)\.", r"_\1.", parameter).replace(".", "/") + ":0"


def parameter_name(key: str) -> str:
    """The inverse of `file_key`."""
    return re.sub(r"_(\d+)/", r".\1/", key).replace("/", ".").removesuffix(":0")


def graph_key(network: str, parameter: str) -> str:
    """Name of a parameter among those of all networks: dis/convs_0/weight:0."""
    return f"{SCOPES.get(network, network)}/{file_key(parameter)}"


def slot_key(slot: str, network: str, parameter: str) -> str:
    """Name of an optimizer's statistic of a parameter: ms_encoder/down1/downs_0/conv1/weight_0:0."""
    return f"{slot}_{graph_key(network, parameter)}".replace(":", "_") + ":0"


def to_file(value: Tensor) -> Array:
    """Lay out a parameter, or anything of its shape, as in the files.

    Convolution [k, k, in, out], transposed convolution [k, k, out, in], dense [in, out].
    """
    array: Array = np.ascontiguousarray(_permuted(value.detach(), (2, 3, 1, 0)).numpy())
    return array


def from_file(value: Array) -> Tensor:
    """The inverse of `to_file`."""
    return _permuted(torch.from_numpy(value), (3, 2, 0, 1)).contiguous()


def _permuted(value: Tensor, four: Sequence[int]) -> Tensor:
    if value.ndim == 4:
        return value.permute(*four)
    return value.T if value.ndim == 2 else value


def read(path: Path) -> dict[str, Array]:
    """One of the original's .npy files: key -> array."""
    arrays: dict[str, Array] = load_pickle(path.read_bytes(), str(path))
    return arrays


def load(network: nn.Module, file: Mapping[str, Array]) -> None:
    """Give a network the weights of a file: all of them, and no others."""
    network.load_state_dict({parameter_name(key): from_file(value) for key, value in file.items()})


def flat(networks: Mapping[str, nn.Module]) -> dict[str, Array]:
    """Copies of all parameters as graph key -> array, laid out as in the files."""
    return {
        graph_key(name, key): to_file(parameter).copy()
        for name, network in networks.items()
        for key, parameter in network.named_parameters()
    }


@cache
def drawn(seed: int, key: str, shape: tuple[int, ...]) -> Array:
    """A first weight of the recordings, which follow a rule so that nobody need keep them.

    Args:
        seed: of the recording.
        key: graph key.
        shape: as in the files.
    """
    random = np.random.RandomState((seed * 1000003 + zlib.crc32(key.encode())) & 0x7FFFFFFF)
    if key.endswith("/bias:0"):
        return random.normal(0, 0.05, shape).astype(np.float32)
    # Half of a transposed convolution's inputs count: all of them reach no output.
    inputs = np.prod(shape[:2]) * shape[3] / 2 if "/upconvs_" in key else np.prod(shape[:-1])
    largest = 1.15 * np.sqrt(3 / inputs)
    return random.uniform(-largest, largest, shape).astype(np.float32)


def fill(network: nn.Module, scope: str, seed: int) -> None:
    """Give a network first weights by the rule."""
    shapes = {file_key(key): to_file(parameter).shape for key, parameter in network.named_parameters()}
    load(network, {key: drawn(seed, f"{scope}/{key}", shape) for key, shape in shapes.items()})
