"""Writes a model folder that DeepFaceLab reads and goes on with. Source: DeepFaceLab's behaviour."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from frugan.errors import BadInput
from frugan.families.saehd.files.leras import DATA, MARK, NETWORKS, OPTIMIZERS, LerasModel, file_name
from frugan.families.saehd.files.leras_summary import summary
from frugan.pickles.writer import dump_pickle

SUMMARY = "summary.txt"
FILES = (DATA, SUMMARY, *(f"{stem}.npy" for stem in (*NETWORKS, *OPTIMIZERS)))
"""What belongs to a model, after its name; what DeepFaceLab makes of it (history, backups, DFM) stays untouched."""

TEMPORARY = ".unfinished"


def model_name(asked: str) -> str:
    """A name as DeepFaceLab has it.

    Raises:
        BadInput: it cannot be part of a file name.
    """
    name = asked.replace("_", " ").strip()
    if not name or any(c in '<>:"/\\|?*' or not c.isprintable() for c in name):
        raise BadInput(f'--name {asked!r}: expected a name that can stand in a file name, without < > : " / \\ | ? *')
    return name


def check_free(folder: Path, name: str, *, replace: bool) -> None:
    """Refuse a folder that holds a model of that name, unless it shall be replaced.

    Raises:
        BadInput: it does, or is no folder.
    """
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder}: is a file; expected a folder for the model, such as WORKSPACE/model")
    if (there := _there(folder, name)) and not replace:
        raise BadInput(
            f"{folder}: holds {there[0].name} already; choose another --name or folder, or add --replace, which moves "
            f"the old files to {_backup(folder, name).name} in it"
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
    check_free(folder, model.name, replace=replace)
    folder.mkdir(parents=True, exist_ok=True)
    beside: list[Path] = []
    try:
        for what, content in _contents(model):
            beside.append(folder / f"{file_name(model.name, what)}{TEMPORARY}")
            _write(beside[-1], content)
        backup = _move_away(folder, model.name)
        for path in beside:
            path.replace(path.with_name(path.name.removesuffix(TEMPORARY)))
    finally:
        for path in beside:
            path.unlink(missing_ok=True)
    return backup


def _contents(model: LerasModel) -> Iterator[tuple[str, bytes]]:
    """What follows the name in a file's name, and the file; one at a time, because some are large."""
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
    title = f"{model.name}{MARK.rstrip('_')}"
    yield SUMMARY, summary(title, model.iteration, model.options).encode("utf-8")


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _there(folder: Path, name: str) -> list[Path]:
    return [path for what in FILES if (path := folder / file_name(name, what)).exists()]


def _backup(folder: Path, name: str) -> Path:
    number = 1
    while (path := folder / file_name(name, f"replaced_{number:02d}")).exists():
        number += 1
    return path


def _move_away(folder: Path, name: str) -> Path | None:
    if not (old := _there(folder, name)):
        return None
    backup = _backup(folder, name)
    backup.mkdir()
    for path in old:
        path.replace(backup / path.name)
    return backup
