"""Which folder of a picture's name is its class."""

from collections.abc import Collection, Sequence

import numpy as np

from frugan.data.classes import Classes, unlabelled
from frugan.data.wording import count, first_names, shown
from frugan.errors import BadInput


def in_class_order(names: list[str]) -> list[str]:
    """Return names ("class/…/file") sorted part by part, so that classes and pictures come in the same order."""
    return sorted(names, key=lambda name: name.split("/"))


def classes_from_folders(names: Sequence[str], where: str, folders: Collection[str] = ()) -> Classes:
    """Return the classes of N pictures by the first folder of their names.

    Classes are in the order of Python's `sorted` (torchvision's ImageFolder numbers them the same way: "10" comes
    before "9"). No folder, or only one, means one class, unlabelled. Where the first level is nothing but an index by
    initials (Places-365: "a/airfield/1.jpg", "a/apartment_building/outdoor/1.jpg"), the class is all of the folders:
    "a/airfield".

    Args:
        names: N names with "/" between folders.
        where: what to call the place in errors.
        folders: all first folders there are, those without pictures too.

    Raises:
        BadInput: loose pictures beside class folders, or a class folder without pictures.
    """
    if _by_initials(names):
        return _whole_folders(names)
    first = [name.partition("/")[0] if "/" in name else "" for name in names]
    class_names = tuple(sorted(set(first) - {""}))
    loose = [name for name in names if "/" not in name]
    if loose and class_names:
        raise BadInput(
            f"{where} holds both {count(len(loose), 'loose picture')} ({first_names(loose, 3)}) and class folders "
            f"({first_names(class_names, 3)}). Expected one or the other: move the loose pictures into a class folder, "
            "or all pictures into one folder."
        )
    if not class_names:
        return unlabelled(len(names), "no class folders: all pictures form one class, unlabelled")
    if empty := sorted(set(folders) - set(class_names)):
        raise BadInput(
            f"{where}: {'this class folder has' if len(empty) == 1 else 'these class folders have'} no pictures: "
            f"{first_names(empty)}. Put pictures there, or remove it."
        )
    numbers = {name: number for number, name in enumerate(class_names)}
    line = f"{count(len(class_names), 'class')} from the first folder level: {first_names(class_names)}"
    if len(class_names) == 1:
        line = f"all pictures lie in the one folder {shown(class_names[0])!r}: one class, unlabelled"
    labels = np.array([numbers[folder] for folder in first], np.int64)
    return Classes(labels, class_names, len(class_names) > 1, (line, *_deeper(names)))


def _by_initials(names: Sequence[str]) -> bool:
    """Whether every picture lies in a folder below one that is named by its initial."""
    parts = [name.split("/") for name in names]
    return bool(parts) and all(len(p) > 2 and len(p[0]) == 1 and p[1][:1].lower() == p[0].lower() for p in parts)


def _whole_folders(names: Sequence[str]) -> Classes:
    folders = [name.rpartition("/")[0] for name in names]
    class_names = tuple(in_class_order(list(set(folders))))
    numbers = {name: number for number, name in enumerate(class_names)}
    line = (
        f"{count(len(class_names), 'class')} from the folders that hold the pictures, as the first level is their "
        f"initials: {first_names(class_names)}"
    )
    labels = np.array([numbers[folder] for folder in folders], np.int64)
    return Classes(labels, class_names, len(class_names) > 1, (line,))


def _deeper(names: Sequence[str]) -> tuple[str, ...]:
    """Say it when pictures lie deeper: a wrong level makes every picture one class, and nobody notices."""
    deeper = next((name for name in names if name.count("/") > 1), None)
    if deeper is None:
        return ()
    first = deeper.partition("/")[0]
    return (
        f"pictures lie deeper than the class folders ({shown(deeper)}); deeper levels are ignored. If those are the "
        f"classes, give the path of the folder {shown(first)!r}",
    )
