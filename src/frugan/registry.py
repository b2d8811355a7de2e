"""Extensions by name, of frugan or of other packages: families, file formats, kinds of device, and kernels."""

import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any

from frugan.errors import BadInput

FAMILIES = "frugan.families"
"""Group of entry points to families, which are classes without arguments."""
FORMATS = "frugan.formats"
"""Group of entry points to file formats, which are classes without arguments."""
ACCELERATORS = "frugan.accelerators"
"""Group of entry points to kinds of device, which are classes with a device as argument."""
OPS = "frugan.ops"
"""Group of entry points to kernels, which are subclasses of `frugan.contract.kernel.Kernel`."""

WORDS = MappingProxyType({FAMILIES: "family", FORMATS: "format", ACCELERATORS: "device", OPS: "kernel"})

SHIPPED: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        FAMILIES: {
            "amp": "frugan.faces.amp.family:AMPFamily",
            "biggan": "frugan.families.biggan.family:BigGANFamily",
            "quick96": "frugan.faces.quick96.family:Quick96Family",
            "r3gan": "frugan.families.r3gan.family:R3GANFamily",
            "saehd": "frugan.faces.saehd.family:SAEHDFamily",
            "stylegan2": "frugan.families.stylegan2.family:StyleGAN2Family",
            "stylegan3": "frugan.families.stylegan3.family:StyleGAN3Family",
            "xseg": "frugan.faces.xseg.family:XSegFamily",
        },
        FORMATS: {
            "leras": "frugan.faces.saehd.leras:Leras",
            "leras-quick96": "frugan.faces.quick96.leras:LerasQuick96",
            "leras-amp": "frugan.faces.amp.leras:LerasAMP",
            "leras-xseg": "frugan.faces.xseg.leras:LerasXSeg",
            "xseg-onnx": "frugan.faces.xseg.onnx_file:XSegOnnx",
            "dfm": "frugan.faces.saehd.dfm:Dfm",
            "dfm-amp": "frugan.faces.amp.dfm:DfmAMP",
            "biggan-pytorch": "frugan.families.biggan.release:BigGANPyTorch",
            "biggan-tfhub": "frugan.families.biggan.hub:BigGANHub",
            "r3gan-pickle": "frugan.families.r3gan.snapshot:R3GANPickle",
            "stylegan-pickle": "frugan.families.stylegan3.snapshot:StyleGANSnapshots",
            "stylegan-safetensors": "frugan.families.stylegan3.snapshot:StyleGANStates",
        },
        ACCELERATORS: {
            "cpu": "frugan.accelerator.base:Processor",
            "cuda": "frugan.accelerator.cuda:Cuda",
        },
        OPS: {
            "leaky_relu": "frugan.kernels.activation:LeakyReLU",
            "styled_leaky_relu": "frugan.kernels.modulation:StyledLeakyReLU",
            "modulation": "frugan.kernels.modulation:Modulation",
            "styles": "frugan.kernels.styles:Styles",
            "fir": "frugan.kernels.fir:Fir",
            "filtered_nonlinearity": "frugan.kernels.filtered_nonlinearity:FilteredNonlinearity",
            "dssim": "frugan.kernels.ssim:Dssim",
            "batch_norm": "frugan.kernels.norm:BatchNorm",
            "spectral_norm": "frugan.kernels.scaling:SpectralNorm",
            "pooling": "frugan.kernels.pooling:Pooling",
        },
    }
)
"""Group -> name -> module and class, which is imported when it is needed: a plan of one family imports no other."""


def names(group: str) -> list[str]:
    """Names of all extensions of a group, sorted."""
    return sorted({*SHIPPED[group], *_others(group, tuple(sys.path))})


def create(group: str, name: str, also: Sequence[str] = ()) -> tuple[Any, EntryPoint | None]:
    """Create the extension of a name without arguments, and give the entry point that it comes from; None: it ships.

    Args:
        group: group of the extension.
        name: name of the extension.
        also: further names to list in messages.

    Raises:
        BadInput: there is no such extension, or the package that has it cannot be imported.
    """
    kind, entry = load(group, name, also)
    try:
        return kind(), entry
    except TypeError as error:
        if entry is None:
            raise
        raise _unloadable(group, entry, error) from error


def load(group: str, name: str, also: Sequence[str] = ()) -> tuple[Any, EntryPoint | None]:
    """Import the extension of a name, and give the entry point that it comes from; None: it ships.

    Args:
        group: group of the extension.
        name: name of the extension.
        also: further names to list in messages.

    Raises:
        BadInput: there is no such extension, or the package that has it cannot be imported.
    """
    if name in SHIPPED[group]:
        module, _, kind = SHIPPED[group][name].partition(":")
        return getattr(import_module(module), kind), None
    word, entry = WORDS[group], _others(group, tuple(sys.path)).get(name)
    if entry is None:
        raise BadInput(
            f"{word} {name!r} is unknown; expected one of: {', '.join([*also, *names(group)])}. Another package may "
            "bring one: is it installed in this environment?"
        )
    try:
        return entry.load(), entry
    except (ImportError, AttributeError) as error:
        raise _unloadable(group, entry, error) from error


def _unloadable(group: str, entry: EntryPoint, error: Exception) -> BadInput:
    return BadInput(
        f"{WORDS[group]} {entry.name!r} of another package ({entry.value}) cannot be loaded: {error}; reinstall it, or "
        "ask its author"
    )


@cache
def _others(group: str, _path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    """Entry points of other packages by name, which are read anew when `sys.path` changes.

    A training calls this 60 times, and each time the files of all installed packages would be read, in 10 ms.
    """
    return MappingProxyType({entry.name: entry for entry in entry_points(group=group)})
