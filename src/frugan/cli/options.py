"""Options of a command as a dataclass, and those that several have: lists of numbers, classes by number or name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from frugan.cli.output import say
from frugan.errors import BadInput
from frugan.wording import first_names

if TYPE_CHECKING:
    from frugan.contract.family import StyleMixing

Command = TypeVar("Command", bound=Callable[..., None])


def options(declared: type) -> Callable[[Command], Command]:
    """Declare the fields of a dataclass as arguments and options of a command that takes keywords.

    A field is written as typer expects a parameter: `Annotated` with an option or argument, and its default.
    """

    def taking(command: Command) -> Command:
        vars(command)["__signature__"] = signature(declared)  # what typer reads
        return command

    return taking


MOST_NUMBERS = 10_000_000
MOST_DIGITS = 18


def parse_numbers(text: str, option: str) -> tuple[int, ...]:
    """Read "0,3,7-9".

    Raises:
        BadInput: not numbers, a range that goes down, or far more than anyone looks at.
    """
    chosen: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not _is_number(first) or (dash and not (_is_number(last) and int(last) >= int(first))):
            raise BadInput(f"{option} {text[:80]}: expected numbers and ranges, such as 0,3,7-9")
        if len(chosen) + int(last or first) - int(first) >= MOST_NUMBERS:
            raise BadInput(f"{option} {text[:80]}: more than {MOST_NUMBERS:,} numbers")
        chosen.extend(range(int(first), int(last or first) + 1))
    return tuple(chosen)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS


def parse_cells(text: str) -> tuple[int, int]:
    """Read "3x2": cells across and down.

    Raises:
        BadInput: not two numbers from 1 to 100.
    """
    wide, _, high = text.partition("x")
    if not all(_is_number(word) and 1 <= int(word) <= 100 for word in (wide, high)):
        raise BadInput(f"--loop {text[:80]}: expected cells across and down, such as 1x1 or 3x2, at most 100x100")
    return int(wide), int(high)


def parse_morphs(text: str) -> tuple[float, ...]:
    """Read "0,0.25,1".

    Raises:
        BadInput: not numbers.
    """
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise BadInput(
            f"--morph {text[:80]}: expected shares of the source's face from 0 to 1, such as 0,0.25,0.5,0.75,1"
        ) from error


def parse_translation(text: str) -> tuple[float, float]:
    """Read "0.3,-0.1": picture widths to the right, and heights down.

    Raises:
        BadInput: not two numbers.
    """
    across, comma, down = text.partition(",")
    try:
        return float(across), float(down) if comma else 0.0
    except ValueError as error:
        raise BadInput(
            f"--translate {text[:80]}: expected shares of the picture to the right and down, such as 0.3,-0.1"
        ) from error


def parse_mixing(text: str) -> StyleMixing:
    """Read "rows=85,100 cols=55 layers=0-6".

    Raises:
        BadInput: not these three, or not numbers.
    """
    from frugan.contract.family import StyleMixing

    parts = [part.partition("=") for part in text.split()]
    values = {name: value for name, _, value in parts}
    if len(parts) != len(values) or set(values) != {"rows", "cols", "layers"}:
        raise BadInput(
            f"--style-mixing {text[:80]!r}: expected rows, cols and layers, such as "
            "'rows=85,100 cols=55,821 layers=0-6'"
        )
    rows, columns, layers = (parse_numbers(values[n], f"--style-mixing {n}") for n in ("rows", "cols", "layers"))
    return StyleMixing(rows, columns, layers)


def parse_moves(words: Sequence[str]) -> dict[str, float | tuple[float, float]]:
    """Read "smile=2" and "age=-3..3".

    Raises:
        BadInput: no number or two of them behind a name, or a name twice.
    """
    moves: dict[str, float | tuple[float, float]] = {}
    for word in words:
        name, equals, amount = word.rpartition("=")
        low, dots, high = amount.partition("..")
        try:
            move = (float(low), float(high)) if dots else float(amount)
        except ValueError:
            equals = ""
        if not (name and equals):
            raise BadInput(f"--move {word[:80]}: expected a direction and standard deviations: smile=2, or smile=-3..3")
        if name in moves:
            raise BadInput(f"--move {name[:80]}: is given twice")
        moves[name] = move
    return moves


MOST_CLASS_DIGITS = 7
EVERY_CLASS = "all"
LIKE = 0.7
"""Likeness from which on a class is taken for a misspelt one."""
FEW_NAMES = 12
"""So many are named where none is near."""


@dataclass(frozen=True)
class ClassChoice:
    """Requested classes, before the names that the weights give them are known."""

    text: str  # the whole of it
    numbers: Mapping[str, tuple[int, ...]]  # word -> numbers, for the words that are numbers or ranges of them

    @classmethod
    def parse(cls, text: str) -> ClassChoice:
        """Read "0,3,7-9", "cat,dog", both, or "all".

        Raises:
            BadInput: not numbers, or a range that goes down.
        """
        return cls(text, {word: _numbers(word, text) for word in _words(text) if _looks_like_numbers(word)})

    def among(self, names: Sequence[str], known: int) -> tuple[int, ...]:
        """Return the labels of the classes by the names in the weights; numbers are labels themselves.

        Args:
            names: by number; may be empty.
            known: how many classes there are.

        Raises:
            BadInput: no class is called so, or has such a number.
        """
        text = self.text
        chosen: list[int] = []
        for word in [text] if text in names else _words(text):  # a name with a comma in it
            if word in self.numbers:
                self._refuse_beyond(word, names, known)
                chosen.extend(self.numbers[word])
                _tell_of_other(word, self.numbers[word], names)
            elif word in names:
                chosen.append(names.index(word))
                if word == EVERY_CLASS:
                    say(f"class {word}: the one that is called so; 0-{known - 1} are all of them")
            elif word == EVERY_CLASS:
                chosen.extend(range(known))
            else:
                raise BadInput(f"--classes {text[:80]}: {_unknown(word, names, known)}")
        return tuple(chosen)

    def _refuse_beyond(self, word: str, names: Sequence[str], known: int) -> None:
        if known == 1 or all(0 <= number < known for number in self.numbers[word]):
            return  # a network without classes refuses them all
        hint = f"; the class called {word!r} is number {names.index(word)}" if word in names else ""
        raise BadInput(f"--classes {self.text[:80]}: expected 0 to {known - 1}; this network has {known} classes{hint}")


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


def _unknown(word: str, names: Sequence[str], known: int) -> str:
    if not names and known == 1:
        return "this run has no classes; leave --classes out"
    if not names:
        return f"{word[:80]!r}: these weights keep no class names; expected numbers and ranges, such as 0,3,7-9"
    by_lower = {name.lower(): name for name in reversed(names)}
    near = get_close_matches(word.lower(), by_lower, n=1, cutoff=LIKE)
    if near:
        return f"no class is called {word[:80]!r}; did you mean {by_lower[near[0]]!r}?"
    return (
        f"no class is called {word[:80]!r}; the classes are {first_names(names, FEW_NAMES)}; or give numbers and "
        "ranges, such as 0,3,7-9"
    )


Recipe = Annotated[str, typer.Argument(help="name of a built-in recipe, path of a .toml file, or a run folder")]
RecipeOrNone = Annotated[
    str | None,
    typer.Argument(
        metavar="[RECIPE]",
        help="name of a built-in recipe, path of a .toml file, or a run folder; none: frugan chooses one for --data",
    ),
]
ForTime = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="TIME",
        help="how long training takes, such as 30min or 1h30, start, grids and scores included; default: without "
        "RECIPE 30min, else as many steps as it says",
    ),
]


def _tell_of_repeated(words: list[str] | None) -> list[str] | None:
    """Say which value holds of a field that is given twice, as scripts do that add to others' words."""
    values: dict[str, str] = {}
    for word in words or ():
        key, _, value = word.partition("=")
        if (before := values.get(key, value)) != value:
            say(f"{key}: given twice, {before} and {value}; the last one holds")
        values[key] = value
    return words


Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="recipe fields to override", callback=_tell_of_repeated),
]
AsJson = Annotated[bool, typer.Option("--json", help="print the result as JSON")]
WeightsFrom = Annotated[Path, typer.Argument(help="run folder, checkpoint or weights file")]
Psi = Annotated[
    float, typer.Option(help="StyleGAN2: truncation; 1 as trained, nearer to 0 less variety, below 0 opposites")
]
PsiLayers = Annotated[int | None, typer.Option(help="apply --psi to this many first layers only")]
Noise = Annotated[
    Literal["const", "random", "none"],
    typer.Option(help="StyleGAN2: the same noise for all pictures, new for each, or none"),
]
Statistics = Literal["running", "standing", "batch"]
Rounding = Literal["nearest", "bf16"]
"""What batch normalisation uses."""
StandingSize = Annotated[
    int | None, typer.Option(help="samples in each of these batches; default: training.normalisation_batch")
]
Seed = Annotated[int, typer.Option(help="random seed of the latents")]
MicroBatch = Annotated[
    int | None,
    typer.Option(help="samples per forward pass; changes memory, not the result; default: at most as in training"),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N")]


def recipe_and_fields(recipe: str | None, overrides: Sequence[str] | None) -> tuple[str | None, list[str]]:
    """Return recipe and overrides: without a recipe the first override is parsed in its place."""
    fields = list(overrides or [])
    if recipe is not None and "=" in recipe and not Path(recipe).exists():
        return None, [recipe, *fields]
    return recipe, fields
