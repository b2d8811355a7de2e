"""Record of a run's data: digests of the pictures, and the names of its classes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from frugan.contract.data import Labelled, OpenedSource, RunData
from frugan.data.formats.picture_set import PictureSet, relabelled
from frugan.errors import BadInput
from frugan.wording import count, first_names


def read_run_data(saved: Mapping[str, Any]) -> dict[str, RunData]:
    """Return every data source of a checkpoint, by name, from its JSON state."""
    return {name: RunData.read(entry) for name, entry in saved.get("data", {}).items()}


def class_names(data: Mapping[str, RunData]) -> tuple[str, ...]:
    """Return the class names of a run's labels; empty: its networks have no classes."""
    return next((source.class_names for source in data.values() if source.class_names), ())


def other_pictures(name: str, known: RunData, now: OpenedSource) -> str | None:
    """Describe how pictures differ from those that the run began with or last used; None: they do not.

    Args:
        known: what the run was trained on before.
        now: the pictures that it goes on with.
    """
    digest, labels = now.digest, now.label_digests if isinstance(now, Labelled) else None
    if digest == known.first_digest:
        return (
            None if digest == known.digest else f"the pictures of {name!r} are again those that the run was begun with"
        )
    if labels is not None and (changed := labels.changed_since(known.labels)):
        of_all = count(len(labels.each), "face")
        return f"data {name}: {changed:,} of {of_all} have new masks or labels; the faces are those of last time"
    if digest == known.digest and labels is not None and labels.without == known.first_without_labels:
        return f"data {name}: the faces that the run was begun with, with the masks and labels of last time"
    ones = "those of last time" if digest == known.digest else "the new ones"
    return f"the pictures of {name!r} are not those the run was begun with: it goes on with {ones}"


BY_NAME = "by-name"
"""Word of `--map-class` where names are right and only their order differs."""


def parse_class_map(words: Sequence[str]) -> dict[str, str] | None:
    """Read the words of `--map-class`: OLD=NEW, or by-name.

    Returns:
        Class of the pictures -> its name in the run; None: no words.

    Raises:
        BadInput: another form, or a class of the pictures twice.
    """
    if not words:
        return None
    renamed: dict[str, str] = {}
    for word in words:
        old, equals, new = word.partition("=")
        if word == BY_NAME:
            continue
        if not (old and equals and new):
            raise BadInput(
                f"--map-class {word}: expected OLD=NEW, a class of the run and its name in the pictures now, or "
                f"{BY_NAME}: every class by its name, in whatever order"
            )
        if renamed.get(new, old) != old:
            raise BadInput(f"--map-class {word}: {new} is mapped to {renamed[new]} already; a class has one label")
        renamed[new] = old
    return renamed


def as_in_run(
    where: str, pictures: PictureSet, classes: int | None, known: RunData, map_classes: Mapping[str, str] | None
) -> PictureSet:
    """Give pictures the labels that their classes have in a run.

    Args:
        where: name and place of the pictures, for messages.
        classes: of the recipe; None: labels are not read.
        known: what the run was trained on; its own mapping holds where none is given.
        map_classes: class of the pictures -> its name in the run; classes not named keep theirs; None: as before.

    Raises:
        BadInput: classes were renamed, added, taken away or put in another order, and no mapping says which is which.
    """
    if classes is None:
        return pictures
    names, now = known.class_names, pictures.class_names if pictures.labelled else ()
    if not names and now and classes == 1:
        raise BadInput(
            f"{where}: {count(len(now), 'class')} ({first_names(now)}), and the run was begun without classes; give it "
            "one folder without class folders, or choose another --out"
        )
    if not names:
        return pictures  # begun before names were kept
    if not now:
        raise BadInput(
            f"{where}: one class (a flat folder, no labels), and the run has {count(len(names), 'class')} "
            f"({first_names(names)}); put the pictures of each in a folder of its name, or choose another --out"
        )
    if map_classes is not None:
        _check_map(where, names, now, map_classes)
    mapping = known.mapping if map_classes is None else map_classes
    if mapping is None:
        if names != now:
            raise BadInput(_difference(where, names, now, now))
        return pictures
    called = {name: mapping.get(name, name) for name in now}
    if set(called.values()) != set(names):
        raise BadInput(_difference(where, names, now, tuple(called.values())))
    return relabelled(pictures, names, called)


def other_classes(names: Sequence[str], pictures: PictureSet) -> str | None:
    """Describe how the classes of pictures differ from those that a run was trained on.

    Args:
        names: the run's, in the order of its labels; empty: nobody knows, or it has none.

    Returns:
        One sentence; None: they are the same, or one of the two has none.
    """
    now = pictures.class_names if pictures.labelled else ()
    if not names or not now or tuple(names) == tuple(now):
        return None
    means = "FID, KID, precision and recall compare whole sets, intra-fid class by class in the order of the labels"
    if set(names) == set(now):
        at = next(i for i, pair in enumerate(zip(names, now, strict=True)) if pair[0] != pair[1])
        return (
            f"the pictures have the run's classes in another order (label {at} is {names[at]} in the run and {now[at]} "
            f"in the pictures): {means}"
        )
    return (
        f"the classes of the pictures ({first_names(now)}) are not those that the run was trained on "
        f"({first_names(names)}): {means}"
    )


def _check_map(where: str, names: tuple[str, ...], now: tuple[str, ...], map_classes: Mapping[str, str]) -> None:
    for new, old in map_classes.items():
        if old not in names:
            raise BadInput(f"--map-class {old}={new}: the run has no class {old}; it has {first_names(names)}")
        if new not in now:
            raise BadInput(f"--map-class {old}={new}: {where} has no class {new}; it has {first_names(now)}")


def _difference(where: str, names: tuple[str, ...], now: tuple[str, ...], called: tuple[str, ...]) -> str:
    """Describe how the classes of a run and of the pictures (`called`: by a mapping) differ, and what to do."""
    missing = [name for name in names if name not in called]
    new = [mine for mine, other in zip(now, called, strict=True) if other not in names]
    lines = [
        f"{where}: its classes are not those of the run, whose labels keep their meaning",
        f"  in the run: {first_names(names)}",
        f"  now: {first_names(now)}",
    ]
    if missing or new:
        parts = [f"{what}: {first_names(classes)}" for what, classes in (("missing", missing), ("new", new)) if classes]
        lines.append(f"  {'; '.join(parts)}")
    else:
        at = next(i for i, pair in enumerate(zip(names, now, strict=True)) if pair[0] != pair[1])
        lines.append(f"  the same names in another order: label {at} was {names[at]}, and would be {now[at]}")
    return "\n".join([*lines, _cure(missing, new)])


def _cure(missing: Sequence[str], new: Sequence[str]) -> str:
    other = "or choose another --out"
    if not missing and not new:
        return f"use --map-class {BY_NAME}, which gives each class the label that its name has in the run, {other}"
    if not new:
        return f"put the pictures of {first_names(missing)} back, {other}"
    if not missing:
        return (
            f"take {first_names(new)} away, say of which class of the run its pictures are (--map-class "
            f"CLASS={new[0]}), {other}"
        )
    old = missing[0] if len(missing) == 1 else "OLD"
    return (
        f"if a class has only been renamed, say so: --map-class {old}={new[0] if len(new) == 1 else 'NEW'}; else give "
        f"the classes their names back, {other}"
    )


def spoilt_by_change(part: float | str | None, known: Iterable[RunData]) -> str | None:
    """Return a warning that test pictures may have been trained on; None: they were not.

    Test pictures that are drawn by what they show stay where they are, whatever comes and goes beside them.

    Args:
        part: the recipe's `data.holdout`.
        known: data of the run.
    """
    if not isinstance(part, int | float):
        return None
    if all(data.digest == data.first_digest or data.held_out_below is not None for data in known):
        return None
    return (
        f"the run's pictures have changed since it began, and with them which are held out (data.holdout={part}): it "
        "was trained on some of these before, so scores against them flatter; a new run, or a folder of test pictures, "
        "gives honest ones"
    )
