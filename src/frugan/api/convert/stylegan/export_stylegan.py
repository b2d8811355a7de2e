"""Trained StyleGAN2 networks as state dicts of the authors' classes, in a file that any program can read."""

import json
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from frugan.api.progress import Say
from frugan.api.weights import weights_of_family
from frugan.engine.tensor_files import write_tensors
from frugan.errors import BadInput
from frugan.families.stylegan2.config import StyleGAN2Networks
from frugan.families.stylegan2.files.snapshot_networks import constructor_arguments
from frugan.whole_files import whole_file


@dataclass(frozen=True)
class ExportedStates:
    """What `to_stylegan_safetensors` wrote.

    Attributes:
        path: the file.
        networks: in it: "G", "D", "G_ema".
    """

    path: Path
    networks: tuple[str, ...]


def to_stylegan_safetensors(
    source: str | Path, out: str | Path, *, replace: bool = False, say: Say = print
) -> ExportedStates:
    """Write "G.…", "D.…" and "G_ema.…", with the names and shapes of StyleGAN2-ADA for PyTorch.

    The file's metadata name, under "init_kwargs", what that program's classes are made with. A snapshot pickle itself
    cannot be written: it would have to contain that program's source text.

    Args:
        source: run, checkpoint or weights file.
        out: the .safetensors file.
        replace: it may be there.
        say: is given a line for everything that does not simply go over.

    Raises:
        BadInput: nothing to write, of another family, or the file is there.
        OSError: the disk is full or the file cannot be written.
    """
    out = Path(out)
    if out.suffix != ".safetensors":
        raise BadInput(f"{out}: expected a name that ends in .safetensors")
    if out.exists() and not replace:
        raise BadInput(f"{out}: is there already; choose another name, or add --replace")
    trained, averaged = weights_of_family(Path(source), "stylegan2", say)
    if trained.path == averaged.path:
        say(f"{trained.path}: has one generator, which is written as G and as G_ema")
    tensors: dict[str, Tensor] = dict(trained.tensors)
    generator = averaged.of(["G"])
    if not generator:
        raise BadInput(f"{averaged.path}: holds no generator")
    tensors |= {f"G_ema.{key.removeprefix('G.')}": value for key, value in generator.items()}
    settings = trained.recipe.networks
    assert isinstance(settings, StyleGAN2Networks)
    networks = tuple(dict.fromkeys(key.partition(".")[0] for key in tensors))
    arguments = constructor_arguments(settings, trained.recipe.training.normalisation_batch)
    made_with = json.dumps({name: arguments[name] for name in networks})
    out.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(out) as beside:
        write_tensors(beside, tensors, {"format": "stylegan2-ada-pytorch", "init_kwargs": made_with})
    return ExportedStates(out, networks)
