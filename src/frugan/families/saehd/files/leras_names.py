"""How DeepFaceLab's files name SAEHD's arrays and lay them out. Source: DeepFaceLab's behaviour.

A convolution is stored [k, k, in, out], a transposed one [k, k, out, in], a dense layer [in, out]: for the first two
torch's layout is the same permutation, for the last the transpose.
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

UPDATES = "iters:0"
"""The one key of an optimizer's file that is no statistic: how many updates it has made, as a NumPy int64."""
FILES = {"patch_discriminator": "GAN"}
"""Networks whose file is not called as they are."""

OPTIMIZER_FILES = {
    "autoencoder": "src_dst_opt",
    "code_discriminator": "D_code_opt",
    "patch_discriminator": "GAN_opt",
}
SCOPES = {"code_discriminator": "dis", "patch_discriminator": "D_src"}
"""Networks that the keys of optimizers call otherwise."""

SLOTS = {"adabelief": ("ms", "vs"), "rmsprop": ("acc",)}
"""Statistics that each kind of optimizer keeps of a parameter."""

Arrays = Mapping[str, NDArray[np.float32]]
Shape = tuple[int, ...]


def file_of(network: str) -> str:
    """Name of a network's file, without the model's name and ".npy"."""
    return FILES.get(network, network)


def key_of(parameter: str) -> str:
    """Name of a parameter in its network's file: down1.downs.0.conv1.weight -> down1/downs_0/conv1/weight:0."""
    return re.sub(r"\.(\d+)\.", r"_\1.", parameter).replace(".", "/") + ":0"


def slot_key(slot: str, network: str, parameter: str) -> str:
    """Name of a statistic in an optimizer's file: ms_encoder/down1/downs_0/conv1/weight_0:0."""
    return f"{slot}_{SCOPES.get(network, network)}/{key_of(parameter)}".replace(":", "_") + ":0"


def to_file(value: Tensor) -> NDArray[np.float32]:
    """Lay out a parameter, or a statistic of one, as the files have it."""
    found: NDArray[np.float32] = np.ascontiguousarray(_permuted(value.detach(), (2, 3, 1, 0)).numpy())
    return found


def from_file(value: NDArray[np.float32]) -> Tensor:
    """The inverse of `to_file`; shares no memory with `value`."""
    return _permuted(torch.from_numpy(value), (3, 2, 0, 1)).clone(memory_format=torch.contiguous_format)


def _permuted(value: Tensor, four: Sequence[int]) -> Tensor:
    if value.ndim == 4:
        return value.permute(*four)
    return value.T if value.ndim == 2 else value


def weight_keys(network: nn.Module) -> dict[str, tuple[str, Shape]]:
    """Parameter -> its key in the network's file and its shape there; of a network on any device, meta too."""
    return {name: (key_of(name), _shape(parameter)) for name, parameter in network.named_parameters()}


def slot_keys(network: str, built: nn.Module, kind: str) -> dict[tuple[str, str], tuple[str, Shape]]:
    """(parameter, slot) -> its key in an optimizer's file and its shape there, in the files' order.

    Args:
        network: name of `built`.
        kind: of optimizer, "adabelief" or "rmsprop".
    """
    return {
        (name, slot): (slot_key(slot, network, name), _shape(parameter))
        for slot in SLOTS[kind]
        for name, parameter in built.named_parameters()
    }


def _shape(parameter: Tensor) -> Shape:
    return tuple(_permuted(parameter, (2, 3, 1, 0)).shape)


def faults(file: str, found: Arrays, expected: Mapping[str, Shape]) -> list[str]:
    """A line for every array of a file that is missing or misshapen."""
    lines = []
    for key, shape in expected.items():
        if key not in found:
            lines.append(f"{file}: {key}: missing, expected {list(shape)}")
        elif found[key].shape != shape:
            lines.append(f"{file}: {key}: {list(found[key].shape)}, expected {list(shape)}")
    return lines
