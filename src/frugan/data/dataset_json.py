"""Labels from the `dataset.json` of NVlabs data sets."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from frugan.data.classes import MOST_CLASSES, Classes, numbered, unlabelled
from frugan.data.wording import count, first_names, shown
from frugan.errors import BadInput

MOST_JSON_BYTES = 512 << 20  # ImageNet's 1.28 million labels take 50 MB
FORM = '{"labels": [["00000/img00000000.png", 3], …]} or {"labels": null}'


def classes_from_json(text: bytes, names: Sequence[str], where: str) -> Classes:
    """Return the classes of N pictures by the text of a `dataset.json`.

    Args:
        text: the file.
        names: N names of pictures, relative to the file, with "/" between folders.
        where: what to call the file in errors.

    Raises:
        BadInput: not such a file, labels that are not class numbers, or pictures without a label.
    """
    rows = _rows(text, where)
    if rows is None:
        return unlabelled(len(names), f"{where} gives no labels: one class, unlabelled")
    _refuse_mixed(rows, where)
    pairs = [_pair(row, where) for row in rows]
    known = dict(pairs)
    if twice := [name for name, label in pairs if known[name] != label]:
        raise BadInput(f"{where} gives several labels to {first_names(twice)}. Expected one class for each picture.")
    there = set(names)
    if lost := [name for name in known if name not in there]:
        raise BadInput(
            f"{where} names {count(len(known), 'picture')}, of which {len(lost):,} {'is' if len(lost) == 1 else 'are'} "
            f"not there: {first_names(lost)}. Add them, or take their labels out."
        )
    missing = [name for name in names if name not in known]
    if missing:
        raise BadInput(
            f"{where} has no label for {len(missing):,} of {len(names):,} pictures: {first_names(missing)}. "
            'Label every picture, or none ("labels": null).'
        )
    return numbered(np.array([known[name] for name in names], np.int64), where)


def _rows(text: bytes, where: str) -> list[Any] | None:
    """The list of labels, of anything; None: there are none."""
    if len(text) > MOST_JSON_BYTES:
        raise BadInput(f"{where} is larger than {MOST_JSON_BYTES >> 20} MiB; expected {FORM}")
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{where} is not JSON ({error}); expected {FORM}. Make the set again.") from error
    if not isinstance(content, dict) or not isinstance(content.get("labels"), list | None):
        raise BadInput(f"{where}: expected {FORM}")
    return content.get("labels")


def _pair(row: Any, where: str) -> tuple[str, int]:
    if not (isinstance(row, list) and len(row) == 2 and isinstance(row[0], str)):
        raise BadInput(f"{where}: expected {FORM}; found {shown(repr(row))[:80]} among the labels")
    name, label = row
    if isinstance(label, list):
        label = _of_one_hot(label, name, where)
    if isinstance(label, float):
        raise BadInput(
            f"{where}: {shown(name)} has the label {shown(repr(label))[:40]}; fractions cannot be used. "
            "Expected one class number per picture."
        )
    if not isinstance(label, int) or isinstance(label, bool) or not 0 <= label < MOST_CLASSES:
        raise BadInput(
            f"{where}: {shown(name)} has the label {shown(repr(label))[:40]}; expected a class number from 0 to "
            f"{MOST_CLASSES - 1:,}."
        )
    return name, label


def _refuse_mixed(rows: list[Any], where: str) -> None:
    """Refuse labels of several lengths; a number has none."""
    lengths = {
        len(row[1]) if isinstance(row[1], list) else None for row in rows if isinstance(row, list) and len(row) == 2
    }
    if len(lengths) > 1:
        found = sorted("a number" if length is None else f"a vector of {length}" for length in lengths)
        raise BadInput(f"{where}: the labels are not of one kind: {', '.join(found)}. Make all of them class numbers.")


def _of_one_hot(label: list[Any], name: str, where: str) -> int:
    """The class of a vector of zeros and a single one."""
    if sorted(label, key=repr) != [*([0] * (len(label) - 1)), 1] or any(isinstance(value, bool) for value in label):
        raise BadInput(
            f"{where}: {shown(name)} has the label {shown(repr(label))[:40]}; of vectors only those of zeros and a "
            "single 1 can be used. Expected one class number per picture."
        )
    return label.index(1)
