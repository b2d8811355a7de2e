"""The original's weights: how its files name and lay them out, and the rule that made the recordings' first ones."""

import re
import zlib
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Array = NDArray[np.float32]

SCOPES = {"code_discriminator": "dis", "patch_discriminator": "D_src"}
"""What the original calls two networks inside; the others have our names."""


def file_key(parameter: str) -> str:
    """ "down1.downs.0.conv1.weight" -> "down1/downs_0/conv1/weight:0"."""
    return re.sub(r"\.(\d+)\.", r"_\1.", parameter).replace(".", "/") + ":0"


def full_key(network: str, parameter: str) -> str:
    """As the recordings name a weight of any network: "dis/convs_0/weight:0"."""
    return f"{SCOPES.get(network, network)}/{file_key(parameter)}"


def to_file(value: Tensor) -> NDArray[np.floating]:
    """Lay out a weight, or anything of its shape, as in the files. Conv (k, k, in, out), transposed (k, k, out, in),
    dense (in, out)."""
    return np.ascontiguousarray(_permuted(value.detach(), (2, 3, 1, 0)).numpy())


def from_file(value: NDArray[np.floating]) -> Tensor:
    """The inverse."""
    return _permuted(torch.from_numpy(value), (3, 2, 0, 1)).contiguous()


def _permuted(value: Tensor, four: tuple[int, int, int, int]) -> Tensor:
    return value.permute(four) if value.ndim == 4 else value.T if value.ndim == 2 else value


def made(seed: int, key: str, shape: tuple[int, ...]) -> Array:
    """A first weight of the recordings, which made them by rule so that nobody need keep them.

    Args:
        seed: of the recording.
        key: full key.
        shape: as in the files.
    """
    random = np.random.RandomState((seed * 1000003 + zlib.crc32(key.encode())) & 0x7FFFFFFF)
    if key.endswith("/bias:0"):
        return random.normal(0, 0.05, shape).astype(np.float32)
    # Of a transposed convolution with stride 2 the recordings' authors counted half of the inputs.
    inputs = np.prod(shape[:2]) * shape[3] / 2 if "/upconvs_" in key else np.prod(shape[:-1])
    largest = 1.15 * np.sqrt(3 / inputs)
    return random.uniform(-largest, largest, shape).astype(np.float32)


@torch.no_grad()
def fill(network: nn.Module, scope: str, seed: int) -> None:
    """Give a network the recordings' first weights."""
    for name, parameter in network.named_parameters():
        shape = to_file(parameter).shape
        parameter.copy_(from_file(made(seed, f"{scope}/{file_key(name)}", shape)))


@torch.no_grad()
def load(network: nn.Module, weights: Mapping[str, Array]) -> None:
    """Give a network the weights of a file; every one, and no other."""
    network.load_state_dict({re.sub(r"_(\d+)/", r".\1/", key)[:-2].replace("/", "."): from_file(value) for key, value in weights.items()})
