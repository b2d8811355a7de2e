"""Which options of a DeepFaceLab model do not fit its arrays.

Letters u and c and the face type leave no trace in arrays.
"""

from collections.abc import Mapping, Sequence
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frugan.families.saehd.archi import Archi
from frugan.families.saehd.config import SAEHDNetworks

Files = Mapping[str, Mapping[str, NDArray[Any]]]
"""File, such as "encoder" -> key -> array."""


def misfits(networks: SAEHDNetworks, files: Files) -> list[str]:
    """A line for every option that is another than the one the arrays were made with, as far as these tell."""
    lines = [
        f"{option} is {given}, but {file}.npy is of {option} {made}"
        for option, given, made, file in (
            ("e_dims", networks.e_dims, _size(files, "encoder", _first_layer(files), 3), "encoder"),
            ("ae_dims", networks.ae_dims, _size(files, _inter(files), "dense1/weight:0", 1), _inter(files)),
            ("d_dims", networks.d_dims, _widths(files, "upscale0"), _decoder(files)),
            ("d_mask_dims", networks.d_mask_dims, _widths(files, "upscalem0"), _decoder(files)),
            ("resolution", networks.resolution, _resolution(files), _inter(files)),
        )
        if made is not None and made != given
    ]
    return [*_letters(networks.letters, networks.archi, files), *lines]


def gan_misfit(networks: SAEHDNetworks, files: Files) -> list[str]:
    """The same for the patch discriminator."""
    made = _size(files, "GAN", "in_conv/weight:0", 3)
    if made is not None and made != networks.gan_dims:
        return [f"gan_dims is {networks.gan_dims}, but GAN.npy is of gan_dims {made}"]
    return [f"gan_patch_size is {networks.gan_patch_size}, but GAN.npy is of another"]


def _letters(asked: Archi, archi: str, files: Files) -> list[str]:
    lines = []
    kinds = {"df": {"inter", "decoder_src", "decoder_dst"}, "liae": {"inter_AB", "inter_B", "decoder"}}
    there = [kind for kind, names in kinds.items() if names & files.keys()]
    if there and asked.kind not in there:
        return [f"archi is {archi}, but the files are those of {there[0]}"]
    encoder, decoder = files.get("encoder", {}), files.get(_decoder(files), {})
    if encoder and asked.deeper != (made := "down1/conv1/weight:0" in encoder):
        lines.append(f"archi is {archi}, but encoder.npy is of an archi {'with' if made else 'without'} the letter t")
    if decoder and asked.doubled != (made := "out_conv1/weight:0" in decoder):
        word = "with" if made else "without"
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
