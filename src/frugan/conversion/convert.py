"""Conversions of the programs that people come from: `convert` knows all formats, and there is a function for each."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from frugan import registry
from frugan.contract.formats import RECIPE_FILE, Conversion, Converted, FileFormat
from frugan.conversion.own_files import Ours
from frugan.conversion.written import check_target, write_imported
from frugan.errors import BadInput, checked
from frugan.progress import Say

OWN = "frugan"
"""Our own runs and weights: the other side of every conversion."""

OPTIONS = MappingProxyType(
    {
        "overrides": "KEY=VALUE",
        "name": "--name",
        "data": "--data",
        "replace": "--replace",
        "half": "--half",
        "raw": "--raw",
        "verify": "--verify",
    }
)
"""Fields of a conversion that only some formats take, as they are typed."""


def convert(conversion: Conversion, made_by: str = OWN, to: str = OWN) -> Converted:
    """Convert a model from one of these formats to our own, the other way round, or to another of them.

    Args:
        conversion: what, and how.
        made_by: format of what is read.
        to: format of what is written.

    Raises:
        BadInput: neither is a format of others, one cannot be read or written, or an option is not for it.
    """
    if OWN not in (made_by, to):
        return _convert_over_a_run(conversion, made_by, to)
    if made_by == to:
        known = _formats()
        ways = [
            f"--from {name} ({known_format.program})"
            for name, known_format in known.items()
            if known_format.reads is not None
        ]
        ways += [
            f"--to {name} ({known_format.program})"
            for name, known_format in known.items()
            if known_format.writes is not None
        ]
        raise BadInput("neither --from nor --to: expected one of " + ", ".join(ways))
    direction, name = ("from", made_by) if to == OWN else ("to", to)
    chosen = _format(name)
    taken = chosen.reads if direction == "from" else chosen.writes
    if taken is None:
        can = "written (--to)" if direction == "from" else "read (--from)"
        raise BadInput(f"--{direction} {name}: {chosen.program} can only be {can}")
    _check_options(conversion, taken, f"--{direction} {name}")
    if direction == "to":
        return chosen.write(conversion, Ours(conversion))
    check_target(conversion, chosen.makes)
    return write_imported(conversion, chosen.read(conversion, Ours(conversion)), chosen.makes)


def _convert_over_a_run(conversion: Conversion, made_by: str, to: str) -> Converted:
    """Convert from one format to another by a run that is deleted again."""
    source, target = _format(made_by), _format(to)
    reads, writes = source.reads or frozenset(), target.writes or frozenset()
    if source.reads is not None and target.writes is not None and "run" not in source.makes:
        raise BadInput(f"--from {made_by} --to {to}: {source.program} becomes no run, which --to {to} is made of")
    _check_options(conversion, reads | writes, f"--from {made_by} --to {to}")
    there = next(folder for folder in conversion.out.absolute().parents if folder.is_dir())
    with TemporaryDirectory(prefix=".converting-", dir=there) as folder:
        run = Path(folder) / (conversion.source.absolute().name or "model")
        convert(_with_options(conversion, reads, out=run), made_by)
        return convert(_with_options(conversion, writes - reads, source=run), to=to)


def _with_options(conversion: Conversion, names: Collection[str], **paths: Path) -> Conversion:
    """Return a conversion of other paths, with some of its options."""
    options: dict[str, Any] = {name: getattr(conversion, name) for name in OPTIONS if name in names}
    return Conversion(**{"source": conversion.source, "out": conversion.out, "say": conversion.say, **options, **paths})


def _format(name: str) -> FileFormat:
    file_format: FileFormat = registry.create(registry.FORMATS, name, also=[OWN])[0]
    return file_format


def _formats() -> dict[str, FileFormat]:
    return {name: _format(name) for name in registry.names(registry.FORMATS)}


def _check_options(conversion: Conversion, taken: Collection[str], way: str) -> None:
    """Refuse an option that this way of converting, such as `--from leras`, does not take.

    Raises:
        BadInput: as `convert`.
    """
    for field in OPTIONS:
        if getattr(conversion, field) and field not in taken:
            others = _takers(field)
            where = f"is for {' and '.join(others)}" if others else f"is not for {way}"
            word = conversion.overrides[0] if field == "overrides" else OPTIONS[field]
            raise BadInput(f"{word} {where}; leave it out")


def _takers(field: str) -> list[str]:
    """Formats that take a field, in the words of the command line."""
    known = _formats()
    taking = [f"--from {name}" for name, known_format in known.items() if field in (known_format.reads or ())]
    return taking + [f"--to {name}" for name, known_format in known.items() if field in (known_format.writes or ())]


@checked
def from_leras(
    source: str | Path, out: str | Path, *, name: str | None = None, overrides: Sequence[str] = (), say: Say = print
) -> Converted:
    """Make a run of a DeepFaceLab SAEHD model; `train` with the recipe in it goes on.

    Args:
        source: DeepFaceLab's folder for models.
        out: folder for the run; must not be there, or be empty.
        name: of the model, where the folder holds several.
        overrides: `key.sub=value` words for what the model has no option for, such as training.precision=fp32.
        say: is given a line for everything that does not simply go over.

    Raises:
        BadInput: files are missing, damaged or do not fit each other; nothing is written then.
        OSError: the disk is full or the folder cannot be written; nothing is left then.
    """
    converted = convert(Conversion(Path(source), Path(out), say, overrides=overrides, name=name), made_by="leras")
    return dataclasses.replace(converted, recipe=converted.path / RECIPE_FILE)


@checked
def to_leras(
    source: str | Path,
    folder: str | Path,
    *,
    name: str | None = None,
    replace: bool = False,
    data: str | Path | Mapping[str, Any] | None = None,
    say: Say = print,
) -> Converted:
    """Write a run as a DeepFaceLab SAEHD model, which that program goes on with: the inverse of `from_leras`.

    Args:
        source: run or checkpoint.
        folder: DeepFaceLab's folder for models; made if missing.
        name: of the model; None: as it was imported, else the name of the run folder.
        replace: a model of that name may be there; its files are moved to a folder in `folder`.
        data: faces to compare with the options, as for training.
        say: is given a line for everything that does not simply go over.

    Raises:
        BadInput: nothing to write, the faces do not fit, or a model of that name is there.
        OSError: the disk is full or the folder cannot be written.
    """
    conversion = Conversion(Path(source), Path(folder), say, name=name, replace=replace, data=data)
    return convert(conversion, to="leras")


@checked
def to_dfm(
    source: str | Path,
    path: str | Path,
    *,
    half: bool = False,
    replace: bool = False,
    data: str | Path | Mapping[str, Any] | None = None,
    say: Say = print,
) -> Converted:
    """Write a run as a DFM file, with which DeepFaceLive swaps faces.

    Args:
        source: run or checkpoint.
        path: the file; must end in ".dfm".
        half: convolutions in half precision.
        replace: the file may be there.
        data: faces to compare with the options, as for training.
        say: is given lines.

    Returns:
        With the largest difference of any colour or mask between file and networks, on test pictures; the range is 1.

    Raises:
        BadInput: nothing to write, the faces do not fit, the file is there, onnx or onnxruntime are missing, or the
            file would not compute what the networks do.
        OSError: the disk is full or the path cannot be written.
    """
    return convert(Conversion(Path(source), Path(path), say, half=half, replace=replace, data=data), to="dfm")


@checked
def from_stylegan_pickle(source: str | Path, out: str | Path, *, say: Say = print) -> Converted:
    """Convert a snapshot of the PyTorch programs of StyleGAN2 and StyleGAN3; nothing in it is run.

    Args:
        source: network-snapshot-….pkl.
        out: a new .safetensors file with the averaged generator and the discriminator; or a new folder with the
            generator as trained, its average, the discriminator, and a recipe to fine-tune them by.
        say: is given a line for everything that does not simply go over.

    Raises:
        BadInput: not a snapshot of these, damaged, or hostile; or `out` is there. Nothing is written then.
        OSError: the disk is full or `out` cannot be written; nothing is left then.
    """
    return convert(Conversion(Path(source), Path(out), say), made_by="stylegan-pickle")


@checked
def from_r3gan_pickle(
    source: str | Path,
    out: str | Path,
    *,
    overrides: Sequence[str] = (),
    raw: bool = False,
    say: Say = print,
) -> Converted:
    """Convert a snapshot of the R3GAN program, under its modules' present names or the earlier ones; nothing is run.

    Args:
        source: network-snapshot-….pkl.
        out: a new .safetensors file with the averaged generator and the discriminator; or a new folder for a run, with
            which `train` goes on: networks, averages, Adam's states, and the count of pictures.
        overrides: `key.sub=value` words for what a snapshot does not say, such as training.batch=512.
        raw: a file's generator is the one as trained.
        say: is given a line for everything that does not simply go over.

    Raises:
        BadInput: not a snapshot of R3GAN, damaged, or hostile; or `out` is there. Nothing is written then.
        OSError: the disk is full or `out` cannot be written; nothing is left then.
    """
    return convert(Conversion(Path(source), Path(out), say, overrides=overrides, raw=raw), made_by="r3gan-pickle")


@checked
def to_stylegan_safetensors(
    source: str | Path, out: str | Path, *, replace: bool = False, say: Say = print
) -> Converted:
    """Write "G.…", "D.…" and "G_ema.…", with the names and shapes of StyleGAN2-ADA for PyTorch, or of StyleGAN3.

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
    return convert(Conversion(Path(source), Path(out), say, replace=replace), to="stylegan-safetensors")
