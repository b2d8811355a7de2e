"""Classes that a person asks for, by number or by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from frugan.cli.numbers import parse_numbers
from frugan.cli.output import say
from frugan.errors import BadInput

MOST_CLASS_DIGITS = 7
FEW_NAMES = 12
"""So many are named where none is near."""


@dataclass(frozen=True)
class ClassChoice:
    """Classes as they were asked for, before it is known what they are called.

    Attributes:
        text: the whole of it.
        numbers: word -> numbers, for the words that are numbers or ranges of them.
    """

    text: str
    numbers: Mapping[str, tuple[int, ...]]

    @classmethod
    def parse(cls, text: str) -> "ClassChoice":
        """Read "0,3,7-9", "cat,dog" or both.

        Raises:
            BadInput: not numbers, or a range that goes down.
        """
        return cls(text, {word: _numbers(word, text) for word in _words(text) if _looks_like_numbers(word)})

    def among(self, names: Sequence[str]) -> tuple[int, ...]:
        """Numbers of the classes, by the names that the weights keep of them; what is a number counts as one.

        Raises:
            BadInput: no class is called so.
        """
        text = self.text
        chosen: list[int] = []
        for word in [text] if text in names else _words(text):  # a name with a comma in it
            if word in self.numbers:
                chosen.extend(self.numbers[word])
                _tell_of_other(word, self.numbers[word], names)
            elif word in names:
                chosen.append(names.index(word))
            else:
                raise BadInput(f"--classes {text[:80]}: {_unknown(word, names)}")
        return tuple(chosen)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def _looks_like_numbers(word: str) -> bool:
    return bool(word) and set(word) <= set("0123456789-")


def _numbers(word: str, text: str) -> tuple[int, ...]:
    if any(len(number) > MOST_CLASS_DIGITS for number in word.split("-")):
        raise BadInput(f"--classes {text[:80]}: no network has so many classes")
    return parse_numbers(word, "--classes")


def _tell_of_other(word: str, numbers: tuple[int, ...], names: Sequence[str]) -> None:
    """A class that is called "1" and is not number 1 may have been meant."""
    if len(numbers) == 1 and word in names and names.index(word) != numbers[0] < len(names):
        say(
            f"class {word}: number {word}, which is called {names[numbers[0]]!r}; "
            f"the one called {word!r} is number {names.index(word)}"
        )


def _unknown(word: str, names: Sequence[str]) -> str:
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
