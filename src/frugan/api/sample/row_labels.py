"""What stands before the rows of a sheet."""

from collections.abc import Sequence

from frugan.contract.family import SheetRequest


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
