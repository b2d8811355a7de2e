"""How DeepFaceLab's files of face models name arrays and lay them out, and what sizes tell of options.

A convolution is stored [k, k, in, out], a transposed one [k, k, out, in], a dense layer [in, out]: for the first two
torch's layout is the same permutation, for the last the transpose.

Source: DeepFaceLab's behaviour.
"""

import re
from collections.abc import Mapping, Sequence
from math import isqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from frugan.faces.saehd.autoencoder import AutoencoderNetworks
from frugan.faces.saehd.config import Archi, SAEHDNetworks
from frugan.faces.saehd.networks import Decoder

UPDATES = "iters:0"
"""The one key of an optimizer's file that is no statistic: how many updates it has made, as a NumPy int64."""
RENAMED = {"patch_discriminator": "GAN"}
"""Networks whose file is not called as they are."""

OPTIMIZER_FILES = {
    "autoencoder": "src_dst_opt",
    "code_discriminator": "D_code_opt",
    "patch_discriminator": "GAN_opt",
}
SCOPES = {"code_discriminator": "dis", "patch_discriminator": "D_src"}
"""Networks that the keys of optimizers call otherwise."""

TRUNKS = ("upscale", "res", "upscalem", "out_conv")
"""Beginnings of the names of a decoder's blocks, in the order of its files."""
SLOTS = {"adabelief": ("ms", "vs"), "rmsprop": ("acc",)}
"""Statistics that each kind of optimizer keeps of a parameter."""

Arrays = dict[str, Any]
"""Key -> NumPy array; `iters:0` -> NumPy int64."""
Shape = tuple[int, ...]


def file_of(network: str) -> str:
    """Name of a network's file, without the model's name and ".npy"."""
    return RENAMED.get(network, network)


def key_of(parameter: str) -> str:
    """Name of a parameter in its network's file: down1.downs.0.conv1.weight -> down1/downs_0/conv1/weight:0."""
    return re.sub(r"\.(\d+)\.", r"_\1.", parameter).replace(".", "/") + ":0"


def slot_key(slot: str, network: str, parameter: str, scopes: Mapping[str, str] = SCOPES) -> str:
    """Name of a statistic in an optimizer's file: ms_encoder/down1/downs_0/conv1/weight_0:0."""
    return f"{slot}_{scopes.get(network, network)}/{key_of(parameter)}".replace(":", "_") + ":0"


def to_file(value: Tensor) -> NDArray[np.float32]:
    """Lay out a parameter, or a statistic of one, as the files have it."""
    array: NDArray[np.float32] = np.ascontiguousarray(_permuted(value.detach(), (2, 3, 1, 0)).numpy())
    return array


def from_file(value: NDArray[np.float32]) -> Tensor:
    """The inverse of `to_file`; shares no memory with `value`."""
    return _permuted(torch.from_numpy(value), (3, 2, 0, 1)).clone(memory_format=torch.contiguous_format)


def _permuted(value: Tensor, four: Sequence[int]) -> Tensor:
    if value.ndim == 4:
        return value.permute(*four)
    return value.T if value.ndim == 2 else value


def weight_keys(network: nn.Module) -> dict[str, tuple[str, Shape]]:
    """Parameter -> its key in the network's file and its shape there; of a network on any device, meta too."""
    return {name: (key_of(name), shape_in_file(parameter)) for name, parameter in in_files_order(network)}


def slot_keys(
    network: str, built: nn.Module, kind: str, scopes: Mapping[str, str] = SCOPES
) -> dict[tuple[str, str], tuple[str, Shape]]:
    """(parameter, slot) -> its key in an optimizer's file and its shape there, in the files' order.

    Args:
        network: name of `built`.
        kind: of optimizer, "adabelief" or "rmsprop".
        scopes: networks that the keys call otherwise.
    """
    return {
        (name, slot): (slot_key(slot, network, name, scopes), shape_in_file(parameter))
        for slot in SLOTS[kind]
        for name, parameter in in_files_order(built)
    }


def in_files_order(network: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Parameters by name, a decoder's in the original's order: it goes through one trunk after the other."""
    named = list(network.named_parameters())
    if not isinstance(network, Decoder):
        return named
    last = f"upscalem{network.levels}"  # beside the heads that double the resolution

    def turn(entry: tuple[str, nn.Parameter]) -> int:
        block = entry[0].partition(".")[0]
        if block in ("out_convm", last):
            return len(TRUNKS) + (block == "out_convm")
        return next(at for at, trunk in enumerate(TRUNKS) if re.fullmatch(rf"{trunk}\d*", block))

    return sorted(named, key=turn)


def shape_in_file(parameter: Tensor) -> Shape:
    return tuple(_permuted(parameter, (2, 3, 1, 0)).shape)


def faults(file: str, arrays: Mapping[str, NDArray[Any]], expected: Mapping[str, Shape]) -> list[str]:
    """A line for every array of a file that is missing or misshapen."""
    lines = []
    for key, shape in expected.items():
        if key not in arrays:
            lines.append(f"{file}: {key}: missing, expected {list(shape)}")
        elif arrays[key].shape != shape:
            lines.append(f"{file}: {key}: {list(arrays[key].shape)}, expected {list(shape)}")
    return lines


Files = Mapping[str, Mapping[str, NDArray[Any]]]
"""File, such as "encoder" -> key -> array."""


def misfits(networks: AutoencoderNetworks, files: Files) -> list[str]:
    """A line for every option that is another than the one the arrays were made with, as far as these tell."""
    lines = [
        f"{option} is {expected}, but {file}.npy is of {option} {found}"
        for option, expected, found, file in (
            ("e_dims", networks.e_dims, _size(files, "encoder", _first_layer(files), 3), "encoder"),
            ("ae_dims", networks.ae_dims, _size(files, _inter(files), "dense1/weight:0", 1), _inter(files)),
            ("d_dims", networks.d_dims, _widths(files, "upscale0"), _decoder(files)),
            ("d_mask_dims", networks.d_mask_dims, _widths(files, "upscalem0"), _decoder(files)),
            ("resolution", networks.resolution, _resolution(files), _inter(files)),
        )
        if found is not None and found != expected
    ]
    return [*_letters(networks.letters, str(networks.letters), files), *lines]


def gan_misfit(networks: SAEHDNetworks, files: Files) -> list[str]:
    """Return how the recipe's patch discriminator differs from the files."""
    size = _size(files, "GAN", "in_conv/weight:0", 3)
    if size is not None and size != networks.gan_dims:
        return [f"gan_dims is {networks.gan_dims}, but GAN.npy is of gan_dims {size}"]
    return [f"gan_patch_size is {networks.gan_patch_size}, but GAN.npy is of another"]


def _letters(letters: Archi, archi: str, files: Files) -> list[str]:
    lines = []
    kinds = {"df": {"inter", "decoder_src", "decoder_dst"}, "liae": {"inter_AB", "inter_B", "decoder"}}
    there = [kind for kind, names in kinds.items() if names & files.keys()]
    if there and letters.kind not in there:
        return [f"archi is {archi}, but the files are those of {there[0]}"]
    encoder, decoder = files.get("encoder", {}), files.get(_decoder(files), {})
    if encoder and letters.deeper != (found := "down1/conv1/weight:0" in encoder):
        lines.append(f"archi is {archi}, but encoder.npy is of an archi {'with' if found else 'without'} the letter t")
    if decoder and letters.doubled != (found := "out_conv1/weight:0" in decoder):
        word = "with" if found else "without"
        lines.append(f"archi is {archi}, but {_decoder(files)}.npy is of an archi {word} the letter d")
    return lines


def _first_layer(files: Files) -> str:
    deeper = "down1/conv1/weight:0" in files.get("encoder", {})
    return "down1/conv1/weight:0" if deeper else "down1/downs_0/conv1/weight:0"


def _inter(files: Files) -> str:
    return "inter" if "inter" in files else "inter_AB"


def _decoder(files: Files) -> str:
    return "decoder_src" if "decoder_src" in files else "decoder"


def _size(files: Files, file: str, key: str, axis: int) -> int | None:
    """Length of an array along an axis; None if it is not there."""
    shape: Sequence[int] = files.get(file, {}).get(key, np.empty(0)).shape
    return shape[axis] if len(shape) > axis else None


def _widths(files: Files, layer: str) -> int | None:
    """d_dims of a decoder's trunk: its first layer makes 8 times as many channels, each in four places."""
    channels = _size(files, _decoder(files), f"{layer}/conv1/weight:0", 3)
    return None if channels is None else channels // 32


def _resolution(files: Files) -> int | None:
    """From the length of the encoder's vector, 8·e_dims·side²."""
    length = _size(files, _inter(files), "dense1/weight:0", 0)
    e_dims = _size(files, "encoder", _first_layer(files), 3)
    if not length or not e_dims:
        return None
    halvings = 5 if _first_layer(files) == "down1/conv1/weight:0" else 4
    return isqrt(length // (8 * e_dims)) << halvings
