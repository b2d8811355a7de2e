"""DeepFaceLab's folders of face models: options, loss history and arrays, as plain values.

Whether arrays fit the options is for the family to say.

Source: DeepFaceLab's behaviour.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from frugan.errors import BadInput
from frugan.faces.saehd.leras_names import OPTIMIZER_FILES, UPDATES, Arrays, Shape
from frugan.files import read_untrusted, write_flushed
from frugan.safe_pickle.reader import load_pickle
from frugan.safe_pickle.writer import dump_pickle

MOST_FILE_BYTES = 8 << 30
"""Largest file: the arrays of the largest published models take 2 GiB."""
BACKUPS = "autobackups"
DATA, SUMMARY = "data.dat", "summary.txt"

NETWORKS = (
    *("encoder", "inter", "inter_AB", "inter_B", "decoder_src", "decoder_dst", "decoder"),
    *("code_discriminator", "GAN"),
)
OPTIMIZERS = tuple(OPTIMIZER_FILES.values())


@dataclass(frozen=True)
class ModelKind:
    """Files of one kind of DeepFaceLab's models."""

    title: str  # in the files' names, after the model's
    networks: tuple[str, ...] = NETWORKS  # files of networks, without the model's name and ".npy"
    optimizers: tuple[str, ...] = OPTIMIZERS  # likewise of optimizers

    @property
    def mark(self) -> str:
        """Middle of a file's name: "_SAEHD_"."""
        return f"_{self.title}_"

    @property
    def files(self) -> tuple[str, ...]:
        """Files of a model, after its name; what else DeepFaceLab makes (history, backups, DFM) stays untouched."""
        return (DATA, SUMMARY, *(f"{stem}.npy" for stem in (*self.networks, *self.optimizers)))


SAEHD = ModelKind("SAEHD")
FORMATS = MappingProxyType({"AMP": "leras-amp", "Quick96": "leras-quick96", "SAEHD": "leras", "XSeg": "leras-xseg"})
"""Title of a kind of model, as in its files' names -> our name of its format."""


@dataclass
class LerasModel:
    """A model in DeepFaceLab's format."""

    name: str  # as in its file names, before `_SAEHD_`
    iteration: int  # updates done
    options: dict[str, Any]  # by the original's names, plain Python values
    loss_history: list[list[float]]  # [src, dst] for each iteration
    # file, such as "encoder" -> its float32 arrays, in the original's layout
    networks: dict[str, Arrays] = field(default_factory=dict)
    # file, such as "src_dst_opt" -> its float32 arrays, and `iters:0`
    optimizers: dict[str, Arrays] = field(default_factory=dict)
    half: list[str] = field(default_factory=list)  # names of its files that were in half precision
    sample_for_preview: Any = None  # the faces of its previews; None: it chooses some when it is opened
    kind: ModelKind = SAEHD

    def file(self, stem: str) -> str:
        """Name of one of its array files."""
        return file_name(self.name, f"{stem}.npy", self.kind)


def file_name(name: str, what: str, kind: ModelKind = SAEHD) -> str:
    """Name of one of a model's files: "new" and "data.dat" make "new_SAEHD_data.dat"."""
    return f"{name}{kind.mark}{what}"


def find_models(folder: Path, kind: ModelKind = SAEHD) -> list[str]:
    """Names of the models in a folder, sorted.

    Raises:
        BadInput: it is no folder.
    """
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such folder; expected the folder of a DeepFaceLab model, such as WORKSPACE/model")
    end = f"{kind.mark}{DATA}"
    return sorted(path.name.removesuffix(end) for path in folder.iterdir() if path.name.endswith(end))


def read_model(folder: Path, name: str | None = None, kind: ModelKind = SAEHD) -> LerasModel:
    """Read a model.

    Args:
        folder: DeepFaceLab's folder for models.
        name: which one; None: the only one of its kind.

    Raises:
        BadInput: none or several are there, or a file is damaged or not what it should be.
    """
    name = _chosen(folder, find_models(folder, kind), name, kind)
    model = _read_data(folder / file_name(name, DATA, kind), name, kind)
    for files, stems in ((model.networks, kind.networks), (model.optimizers, kind.optimizers)):
        for stem in stems:
            path = folder / model.file(stem)
            if path.is_file():
                files[stem], is_half = read_arrays(path)
                model.half += [path.name] if is_half else []
    return model


def _chosen(folder: Path, names: list[str], requested: str | None, kind: ModelKind) -> str:
    if not names:
        titles = {path.name.removesuffix(f"_{DATA}").split("_")[-1] for path in folder.glob(f"*_{DATA}")}
        others = [f"{title} (--from {FORMATS[title]})" for title in sorted(titles & FORMATS.keys() - {kind.title})]
        raise BadInput(
            f"{folder}: holds no {kind.title} model (no file ends in {kind.mark}{DATA})"
            + (f", but of {', '.join(others)}" if others else "")
        )
    if requested is None:
        if len(names) > 1:
            raise BadInput(f"{folder}: holds the models {', '.join(map(repr, names))}; choose one with --name")
        return names[0]
    for name in (requested, requested.replace("_", " ")):  # as the original changes names that are typed in
        if name in names:
            return name
    raise BadInput(f"{folder}: holds no model {requested!r}, but {', '.join(map(repr, names))}")


def _read_data(path: Path, name: str, kind: ModelKind) -> LerasModel:
    value = unpickled(path)
    if not isinstance(value, dict) or not isinstance(value.get("options"), dict):
        raise BadInput(
            f"{path}: expected iteration, options and loss history; this is no {kind.title} model's data.dat"
        )
    iteration = plain(value.get("iter"), f"{path}: iter")
    if type(iteration) is not int or iteration < 0:
        raise BadInput(f"{path}: iter {iteration!r}: expected a number of iterations")
    options = {key: plain(option, f"{path}: option {key}") for key, option in value["options"].items()}
    history = plain(value.get("loss_history", []), f"{path}: loss_history")
    return LerasModel(
        name,
        iteration,
        options,
        _checked_history(history, path),
        sample_for_preview=value.get("sample_for_preview"),
        kind=kind,
    )


def unpickled(path: Path) -> Any:
    """Read one of DeepFaceLab's pickles, without running what is in it.

    Raises:
        BadInput: it cannot be read, is empty, or holds what no such file does.
    """
    try:
        content = read_untrusted(path, MOST_FILE_BYTES)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}); copy it again") from error
    if not content.strip(b"\0"):
        what = "nothing but zeros" if content else "empty"
        raise BadInput(f"{path}: {what}, as a power loss leaves files; {_way_back(path)}")
    return load_pickle(content, str(path))


def _way_back(path: Path) -> str:
    """Say where an older state of the model is that a damaged file belongs to; the original numbers the newest 01."""
    if (match := re.match(r"[^_]*_[^_]+_", path.name)) is not None:
        backups = path.parent / f"{match.group()}{BACKUPS}"
        newest = min((folder for folder in backups.glob("[0-9][0-9]") if folder.is_dir()), default=None)
        if newest is not None:
            return f"its newest backup is {newest}, which `frugan convert` reads like the model itself"
    return f"take a backup of the model ({file_name('NAME', BACKUPS)} beside it is not there)"


def _checked_history(history: Any, path: Path) -> list[list[float]]:
    if not isinstance(history, list):
        raise BadInput(f"{path}: loss_history is a {type(history).__name__}; expected a list of [src, dst]")
    for i, entry in enumerate(history):
        numbers = isinstance(entry, list) and all(type(number) in (int, float) for number in entry)
        if not numbers or len(entry) != 2:
            raise BadInput(f"{path}: loss_history entry {i}: expected two numbers, [src, dst]; got {entry!r:.80}")
    return [[float(src), float(dst)] for src, dst in history]


def plain(value: Any, where: str) -> Any:
    """The value without NumPy: the original keeps numbers that it has clipped as NumPy scalars."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return [plain(inner, where) for inner in value]
    if isinstance(value, Mapping):
        return {key: plain(inner, where) for key, inner in value.items()}
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()  # a lone surrogate could not be written again
    if value is None or type(value) in (bool, int, float):
        return value
    raise BadInput(f"{where} is a {type(value).__name__}; expected numbers, words and lists of them")


def read_arrays(path: Path) -> tuple[Arrays, bool]:
    """Return the arrays of a file, and whether it has any in half precision.

    Raises:
        BadInput: it holds something else, or numbers that are not finite.
    """
    value = unpickled(path)
    if not isinstance(value, dict) or not value:
        raise BadInput(f"{path}: expected arrays by name; this is no file of a DeepFaceLab model")
    is_half = any(isinstance(array, np.ndarray) and array.dtype == np.float16 for array in value.values())
    return {key: _checked_array(array, key, path) for key, array in value.items()}, is_half


def as_original_reads(arrays: Arrays, expected: Mapping[str, Shape]) -> int:
    """Give arrays of other shapes and as many numbers the shapes expected, in place; return how many there were."""
    others = [key for key, shape in expected.items() if key in arrays and arrays[key].shape != shape]
    fitting = [key for key in others if arrays[key].size == prod(expected[key])]
    for key in fitting:
        arrays[key] = arrays[key].reshape(expected[key])
    return len(fitting)


def _checked_array(array: Any, key: str, path: Path) -> Any:
    if not isinstance(array, np.ndarray | np.generic):
        raise BadInput(f"{path}: {key} is a {type(array).__name__}; expected an array")
    if key == UPDATES:
        if array.size != 1 or array.dtype.kind not in "iu" or not 0 <= int(array.item()) < 1 << 62:
            raise BadInput(f"{path}: {key} is {array.dtype} {list(array.shape)}; expected one number of updates")
        return np.int64(array.item())
    if not isinstance(array, np.ndarray) or array.dtype not in (np.float32, np.float16):
        raise BadInput(f"{path}: {key} is {array.dtype}; expected float32, which the original trains in, or float16")
    if not np.isfinite(array).all():
        raise BadInput(f"{path}: {key} holds NaN or infinities: the model is broken; {_way_back(path)}")
    return np.asarray(array, np.float32, order="C")


def summary(title: str, iteration: int, options: Mapping[str, Any]) -> str:
    """The box.

    Args:
        title: name and kind, "new_SAEHD".
        iteration: updates done.
        options: shown one a line.
    """
    rows = {"Model name": title, "Current iteration": str(iteration)}
    shown = {key: str(value) for key, value in options.items()}
    left = max(map(len, (*rows, *shown)))
    right = max(map(len, (*rows.values(), *shown.values())))
    inner = left + right + 4

    def row(key: str, value: str) -> str:
        return f"== {key:>{left}}: {value:<{right}} =="

    empty = f"=={'':{inner}}=="
    first, second = (row(key, value) for key, value in rows.items())
    lines = [f"{' Model Summary ':=^{inner + 4}}", empty, first, empty, second, empty]
    lines += [f"=={' Model Options ':-^{inner}}==", empty, *(row(key, value) for key, value in shown.items()), empty]
    return "\n".join([*lines, "=" * (inner + 4)])


TEMPORARY = ".unfinished"


def model_name(requested: str) -> str:
    """A name as DeepFaceLab has it.

    Raises:
        BadInput: it cannot be part of a file name.
    """
    name = requested.replace("_", " ").strip()
    if not name or any(c in '<>:"/\\|?*' or not c.isprintable() for c in name):
        raise BadInput(
            f'--name {requested!r}: expected a name that can stand in a file name, without < > : " / \\ | ? *'
        )
    return name


def check_free(folder: Path, name: str, kind: ModelKind = SAEHD, *, replace: bool) -> None:
    """Refuse a folder that holds a model of that name, unless it shall be replaced.

    Raises:
        BadInput: it does, or is no folder.
    """
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder}: is a file; expected a folder for the model, such as WORKSPACE/model")
    if (there := _there(folder, _names(name, kind))) and not replace:
        raise BadInput(
            f"{folder}: holds {there[0].name} already; choose another --name or folder, or add --replace (replace=True "
            f"in Python), which moves the old files to {backup_of(folder, file_name(name, '', kind)).name} in it"
        )


def write_model(folder: Path, model: LerasModel, *, replace: bool = False) -> Path | None:
    """Write a model's files; no file is there before it is whole.

    Everything is written beside its place first. Then the files of an old model of that name are moved away, all of
    them, and the new ones take their places.

    Args:
        folder: made if missing.
        model: its name goes through `model_name` before.
        replace: a model of that name may be there.

    Returns:
        Where the old model's files are now; None: there were none.

    Raises:
        BadInput: a model of that name is there and shall not be replaced.
        OSError: the disk is full or the folder cannot be written; an old model is untouched then.
    """
    check_free(folder, model.name, model.kind, replace=replace)
    contents = ((file_name(model.name, what, model.kind), content) for what, content in _contents(model))
    return write_files(folder, contents, _names(model.name, model.kind), file_name(model.name, "", model.kind))


def write_files(folder: Path, contents: Iterable[tuple[str, bytes]], old: Collection[str], mark: str) -> Path | None:
    """Write files beside their places first; then old ones are moved away, all of them, and the new ones take theirs.

    Args:
        folder: made if missing.
        contents: name and content of each file.
        old: names of files that are moved away where they are there.
        mark: beginning of the files' names, which the folder of the old ones has too.

    Returns:
        Where the old files are now; None: there were none.

    Raises:
        OSError: the disk is full or the folder cannot be written; old files are untouched then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    beside: list[Path] = []
    try:
        for name, content in contents:
            beside.append(folder / f"{name}{TEMPORARY}")
            write_flushed(beside[-1], content)
        backup = _move_away(folder, old, mark)
        for path in beside:
            path.replace(path.with_name(path.name.removesuffix(TEMPORARY)))
    finally:
        for path in beside:
            path.unlink(missing_ok=True)
    return backup


def _contents(model: LerasModel) -> Iterator[tuple[str, bytes]]:
    """Yield the ends of files' names, and their content; one at a time, because some are large."""
    for stem, arrays in (*model.networks.items(), *model.optimizers.items()):
        yield f"{stem}.npy", dump_pickle(arrays)
    data: dict[str, Any] = {
        "iter": model.iteration,
        "options": model.options,
        "loss_history": model.loss_history,
        "sample_for_preview": model.sample_for_preview,
        "choosed_gpu_indexes": None,  # of the machine that opens it
    }
    yield DATA, dump_pickle(data)
    title = f"{model.name}_{model.kind.title}"
    yield SUMMARY, summary(title, model.iteration, model.options).encode("utf-8")


def _names(name: str, kind: ModelKind) -> list[str]:
    return [file_name(name, what, kind) for what in kind.files]


def _there(folder: Path, names: Iterable[str]) -> list[Path]:
    return [path for name in names if (path := folder / name).exists()]


def backup_of(folder: Path, mark: str) -> Path:
    """Return the folder, not there yet, that files whose names begin with `mark` would be moved to."""
    number = 1
    while (path := folder / f"{mark}replaced_{number:02d}").exists():
        number += 1
    return path


def _move_away(folder: Path, names: Iterable[str], mark: str) -> Path | None:
    if not (old := _there(folder, names)):
        return None
    backup = backup_of(folder, mark)
    backup.mkdir()
    for path in old:
        path.replace(backup / path.name)
    return backup
