"""The command and the Python lines that make a picture again, which it carries."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any

from frugan.contract.family import GridRequest, StyleMixing
from frugan.sampling.requests import DrawRequest
from frugan.setup.networks import Weights

NOT_TOLD = frozenset({"micro_batch", "pictures", "masked", "titles", "rounding"})
"""Fields that change nothing of a picture, or that no command has."""


def retold(source: str | Path, out: str | Path, request: GridRequest, step: int) -> dict[str, str]:
    """Texts for a grid: the command and the Python lines that make it again.

    Args:
        source, out: as they were given.
        step: of training; a run that goes on draws other pictures.
    """
    chosen = _given(request)
    words = ["frugan", "sample", str(source), "--out", str(out), *_options(chosen)]
    return _both(words, _lines(source, out, chosen), step)


def retold_drawn(
    source: Path, out: str | Path, request: GridRequest, step: int, choice: Mapping[str, Any]
) -> dict[str, str]:
    """Return the command and the call that draw the same random pictures.

    Args:
        choice: npz, pngs and sheet, see `frugan.draw`.
    """
    chosen = {name: value for name, value in choice.items() if value is not None}
    drawn = {name: value for name, value in _given(request).items() if name not in ("rows", "columns")}
    options = _options({**drawn, **{name: value for name, value in chosen.items() if name != "sheet"}})
    if "sheet" in chosen:
        rows, columns = chosen["sheet"]
        options += ["--random", "--rows", str(rows), "--columns", str(columns)]
    words = ["frugan", "sample", str(source), "--out", str(out), *options]
    return _both(words, _lines(source, out, drawn, "draw", chosen), step)


def retold_film(source: Path, path: Path, request: GridRequest, step: int) -> dict[str, str]:
    """Return the command and the call that draw the same animation."""
    chosen = _given(request)
    options = _options({name: value for name, value in chosen.items() if name != "columns"})
    options += ["--animate", path.name, "--frames", str(request.columns)]
    words = ["frugan", "sample", str(source), "--out", str(path.parent), *options]
    return _both(words, _lines(source, path, chosen, "animate"), step)


def retold_projection(
    source: Path, pictures: Sequence[Path], out: str | Path, step: int, choice: Mapping[str, Any]
) -> dict[str, str]:
    """Return the command and the call that repeat a projection.

    Args:
        choice: space, steps and features.
    """
    chosen = {name: value for name, value in choice.items() if value is not None}
    words = ["frugan", "sample", str(source), "--out", str(out)]
    words += [word for picture in pictures for word in ("--project", str(picture))]
    arguments = "".join(f", {name}={value!r}" for name, value in chosen.items())
    call = f"frugan.project({str(source)!r}, {list(map(str, pictures))}, {str(out)!r}{arguments})"
    return _both([*words, *_options(chosen)], ["import frugan", call], step)


def named(source: str | Path | Weights) -> Path:
    """Return the path as it was named; for weights that were open already, their folder or file."""
    return Path(source) if not isinstance(source, Weights) else source.named or source.checkpoint or source.path


def _both(words: Sequence[str], lines: Sequence[str], step: int) -> dict[str, str]:
    note = f"  # step {step:,}" if step else ""
    return {"Command": shlex.join(words) + note, "Python": "\n".join(lines) + note}


def _given(request: GridRequest) -> dict[str, Any]:
    """Field -> value where it is not the usual one."""
    usual = DrawRequest()
    return {
        field.name: value
        for field in fields(request)
        if field.name not in NOT_TOLD and (value := getattr(request, field.name)) != getattr(usual, field.name)
    }


def _options(options: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in options.items():
        if name == "mixing":
            told = f"rows={numbers(value.rows)} cols={numbers(value.columns)} layers={numbers(value.layers)}"
            words += ["--style-mixing", told]
        elif name == "moves":
            words += [word for direction, move in value.items() for word in ("--move", move_word(direction, move))]
        elif name == "morphs":
            words += ["--morph", ",".join(f"{morph:g}" for morph in value)]
        elif name == "loop":
            words += ["--loop", "{}x{}".format(*value)]
        elif name == "latents":
            words += [word for path in value for word in ("--latents", str(path))]
        elif value is True:
            words.append(f"--{name.replace('_', '-')}")
        else:
            option, text = f"--{name.replace('_', '-')}", _text(name, value)
            words += [f"{option}={text}"] if text.startswith("-") else [option, text]
    return words


def _text(name: str, value: Any) -> str:
    if name in ("seeds", "classes"):
        return numbers(value)
    if name == "translate":
        return "{:g},{:g}".format(*value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def numbers(values: Sequence[int]) -> str:
    """Numbers as commands take them: "0,3,7-9"."""
    runs = [[v for _, v in run] for _, run in groupby(enumerate(values), lambda pair: pair[1] - pair[0])]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def move_word(direction: str, move: float | tuple[float, float]) -> str:
    """A move as `--move` takes it."""
    return f"{direction}={move[0]:g}..{move[1]:g}" if isinstance(move, tuple) else f"{direction}={move:g}"


def _lines(
    source: str | Path,
    out: str | Path,
    options: Mapping[str, Any],
    verb: str = "sample",
    more: Mapping[str, Any] = MappingProxyType({}),
) -> list[str]:
    told = {name: _plain(value) for name, value in options.items()}
    mixed = ["from frugan.contract.family import StyleMixing"] if "mixing" in told else []
    request = ", ".join(f"{name}={value}" for name, value in told.items())
    further = "".join(f", {name}={value!r}" for name, value in more.items())
    call = f"frugan.{verb}({str(source)!r}, {str(out)!r}, frugan.DrawRequest({request}){further})"
    return ["import frugan", *mixed, call]


def _plain(value: Any) -> str:
    if isinstance(value, StyleMixing):
        return f"StyleMixing({tuple(value.rows)}, {tuple(value.columns)}, {tuple(value.layers)})"
    if isinstance(value, Path):
        return repr(str(value))
    if isinstance(value, Mapping):
        return repr(dict(value))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return repr(tuple(str(item) if isinstance(item, Path) else item for item in value))
    return repr(value)
