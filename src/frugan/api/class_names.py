"""Names of the classes that a network draws, and what stands before the rows of its sheets."""

from collections.abc import Mapping, Sequence

from frugan.api.sources import Source
from frugan.data.picture_set import PictureSet
from frugan.phase import SheetRequest


def class_names_of(sources: Mapping[str, Source]) -> tuple[str, ...]:
    """Names of the classes of opened sources, by number; empty where none are known."""
    for source in sources.values():
        if isinstance(source, PictureSet) and source.labelled:
            return source.class_names
    return ()


def row_labels(request: SheetRequest, rows: int, names: Sequence[str]) -> tuple[str, ...]:
    """What stands before each row of a sheet: its class by name, or by number where it has none.

    Args:
        request: that the sheet was made by.
        rows: of the sheet.
        names: of the classes, by number; may be empty.

    Returns:
        Empty where rows are no classes: interpolations, faces.
    """
    if request.classes is None or request.interpolate is not None or len(request.classes) != rows:
        return ()
    if set(request.classes) == {0} and len(names) <= 1:
        return ()  # a network without classes
    return tuple(names[number] if number < len(names) else f"class {number}" for number in request.classes)
