"""Classes that a person asks for, by number or by name."""

from difflib import get_close_matches
from pathlib import Path

from frugan.api.progress import quiet
from frugan.cli.numbers import parse_numbers
from frugan.cli.output import say
from frugan.errors import BadInput

MOST_CLASS_DIGITS = 7
FEW_NAMES = 12
"""So many are named where none is near."""


def choose_classes(text: str, source: Path) -> tuple[int, ...]:
    """Read "0,3,7-9", "cat,dog" or both, by the names that the weights keep of their classes.

    Args:
        text: numbers, ranges of numbers and names, with commas; what is a number counts as one.
        source: run, checkpoint or weights file.

    Raises:
        BadInput: no such class name, not numbers, a range that goes down, or no such weights.
    """
    words = [word.strip() for word in text.split(",")]
    numbers = {word: _numbers(word, text) for word in words if _looks_like_numbers(word)}
    names = _class_names(source)
    if text in names:  # one with a comma in it, or a number: then it is looked at below
        words = [text]
    chosen: list[int] = []
    for word in words:
        if word in numbers:
            chosen.extend(numbers[word])
            _tell_of_other(word, numbers[word], names)
        elif word in names:
            chosen.append(names.index(word))
        else:
            raise BadInput(f"--classes {text[:80]}: {_unknown(word, names)}")
    return tuple(chosen)


def _class_names(source: Path) -> tuple[str, ...]:
    from frugan.api.weights import class_names_of, weights_file

    return class_names_of(weights_file(source, say=quiet))  # damage is told of when the weights are opened


def _looks_like_numbers(word: str) -> bool:
    return bool(word) and set(word) <= set("0123456789-")


def _numbers(word: str, text: str) -> tuple[int, ...]:
    if any(len(number) > MOST_CLASS_DIGITS for number in word.split("-")):
        raise BadInput(f"--classes {text[:80]}: no network has so many classes")
    return parse_numbers(word, "--classes")


def _tell_of_other(word: str, numbers: tuple[int, ...], names: tuple[str, ...]) -> None:
    """A class that is called "1" and is not number 1 may have been meant."""
    if len(numbers) == 1 and word in names and names.index(word) != numbers[0] < len(names):
        say(
            f"class {word}: number {word}, which is called {names[numbers[0]]!r}; "
            f"the one called {word!r} is number {names.index(word)}"
        )


def _unknown(word: str, names: tuple[str, ...]) -> str:
    if not names:
        return f"{word[:80]!r}: these weights keep no class names; expected numbers and ranges, such as 0,3,7-9"
    by_lower = {name.lower(): name for name in reversed(names)}
    near = get_close_matches(word.lower(), by_lower, n=1)
    if near:
        return f"no class is called {word[:80]!r}; did you mean {by_lower[near[0]]!r}?"
    more = f" and {len(names) - FEW_NAMES:,} more" if len(names) > FEW_NAMES else ""
    return (
        f"no class is called {word[:80]!r}; the classes are {', '.join(names[:FEW_NAMES])}{more}; or give numbers and "
        "ranges, such as 0,3,7-9"
    )
