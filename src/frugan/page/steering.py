"""Actions on the runs of a folder: save, preview, stop, resume (with other values too), and start a new run."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from frugan.accelerator.choice import kinds_of_cards
from frugan.engine.durations import Duration
from frugan.engine.requests import KEYS
from frugan.errors import BadFields, BadInput
from frugan.page.queue import Queue
from frugan.page.runs import Runs
from frugan.progress import quiet
from frugan.recipe.loading import load_recipe, recipe_fields
from frugan.recipes import built_in
from frugan.training.candidates import THRESHOLDS
from frugan.training.kept_time import refuse_spent_length, with_length_by_hand, with_time
from frugan.training.recovery import NOTED, changed_fields, preliminary_that_is_over
from frugan.wording import parse_size

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
SECTIONS = ("training", "optimizers", "ema", "objective", "saving", "evaluation", "data")
"""Sections of a recipe in the order in which the page lists them."""
KEPT = frozenset({"--device", "--memory"})
"""Options of a training that are given again when it goes on, besides its pictures. Others, such as where it writes,
are not taken from events: a run may come from elsewhere."""


@dataclass(frozen=True)
class Steering:
    """Turns wishes into files and entries of the queue; the same wish again changes nothing."""

    runs: Runs
    queue: Queue

    def ask(self, name: str, wish: str) -> None:
        """Ask a training that goes on for something, as its keys do.

        Raises:
            NoRun: there is none of this name.
            BadInput: the wish is none, or nobody trains there.
        """
        if wish not in KEYS.values():
            raise BadInput(f"{wish!r}: expected one of {', '.join(KEYS.values())}")
        folder = self.runs.folder(name)
        if self.runs.owners.process(folder.path) is None:
            raise BadInput(f"{name} is not being trained, so there is nobody to ask")
        folder.requests.mkdir(exist_ok=True)
        with suppress(FileExistsError):  # it was asked for, and is still to be seen
            (folder.requests / wish).open("xb").close()

    def fields(self, name: str) -> list[dict[str, str]]:
        """Fields of a run's recipe that it may go on with other values of.

        Raises:
            NoRun: there is none of this name.
            BadInput: its recipe cannot be read.
        """
        fields = recipe_fields(load_recipe(str(self.runs.folder(name).path)), SECTIONS)
        return [asdict(field) for field in fields if field.changeable and field.key != NOTED]

    def go_on(self, name: str, changes: Mapping[str, str], data: str) -> str:
        """Let a run go on, with other values of some fields; one that is being trained saves and stops first.

        Returns:
            What else changes by it, for the person who asked for it; empty: nothing does.

        Args:
            changes: field -> value, as it would be typed.
            data: where its pictures are, a line for each source; empty: where they were.

        Raises:
            NoRun: there is none of this name.
            BadFields: a value is none, or a length that the run is beyond.
            BadInput: a field is none, or may not change; or it is not known where the pictures are, or they are gone.
        """
        folder = self.runs.folder(name)
        owned = self.runs.owners.process(folder.path) is not None
        # one that the queue has just begun has no owner until its pictures are open
        entry = self.queue.entry(name)
        running = owned or (entry is not None and entry.state == "running")
        overrides = [f"{key}={value}" for key, value in changes.items()]
        if running and not overrides:
            raise BadInput(f"{name} is being trained already")
        _refuse_options(overrides)
        path = str(folder.path.resolve())
        recipe, changed = load_recipe(path), load_recipe(path, overrides)
        fields = changed_fields(recipe, changed, folder.path)
        if preliminary_that_is_over(recipe, changed) is None:  # before it is stopped
            reached = self.runs.last(name, "step")
            step, seconds = int(reached.get("step", 0)), float(reached.get("seconds", 0.0))
            refuse_spent_length(folder.path, changed, fields, step, seconds)
        time, told = recipe.training.time, ""
        if time is not None and with_length_by_hand(changed, folder, overrides, quiet).training.time is None:
            length = changed.training.duration
            told = f"{name} no longer keeps its time of {time}: it trains {length}, however long that takes."
        data_words = [*_data_words(data)] if data.strip() else []
        before = [*_kept(self.runs.last(name, "start"), without_data=bool(data_words))]
        if not any(word == "--data" for word in (*data_words, *before)):
            raise BadInput(f"{name}: where are its pictures? Its events do not tell; give their folder")
        again = entry is not None and entry.state == "waiting" and entry.at_once  # it was clicked twice
        words = [path, *overrides, *data_words, *before]
        self.queue.add(name, words, first=True, at_once=running or again)
        if running:
            folder.requests.mkdir(exist_ok=True)
            (folder.requests / "stop").touch()
        self.queue.ensure_runner()
        return told

    def start(self, name: str, recipe: str, fields: str, data: str, for_time: str, options: Mapping[str, str]) -> None:
        """Let a new run be trained once the queue comes to it.

        Args:
            name: of its folder.
            recipe: built-in name or the path of a TOML file; empty: frugan chooses.
            fields: `key=value` words, as they would be typed.
            data: where its pictures are, a line for each source.
            for_time: how long training shall take; empty: as the recipe says, or as usual.
            options: "device" and "memory".

        Raises:
            BadFields: one of these cannot be used; options by their own names, and the time as "for".
            BadInput: the recipe cannot be trained in the time.
        """
        with _of_field("name"):
            if not NAME.fullmatch(name):
                raise BadInput(
                    f"{name[:80]!r}: a run's name has letters from a to z, digits, dots, dashes and underscores"
                )
            out = self.runs.path.resolve() / name
            if out.exists():
                raise BadInput(f"{name}: is there already; choose another name, or let it go on")
        recipe_words = _recipe_words(recipe, fields, for_time, options)
        with _of_field("data"):
            words = [*recipe_words, *_data_words(data)]
        if for_time:
            words += ["--for", for_time]
        for option in ("device", "memory"):
            if value := options.get(option, ""):
                words += [f"--{option}", value]
        words += ["--out", str(out)]
        # the same click again changes nothing; another run of this name would take the first one's place
        entry = self.queue.entry(name)
        with _of_field("name"):
            if entry is not None and entry.state == "waiting" and entry.words != tuple(words):
                raise BadInput(f"{name}: waits in the queue already; choose another name, or take it out first")
        self.queue.add(name, words)
        self.queue.ensure_runner()


@contextmanager
def _of_field(field: str) -> Iterator[None]:
    """Raise BadFields for a field of the form in place of BadInput."""
    try:
        yield
    except BadFields as error:
        reason = "; ".join(f"{key}: {reason}" if key else reason for key, reason in error.reasons.items())
        raise BadFields(str(error), {field: reason}) from error
    except BadInput as error:
        raise BadFields(str(error), {field: str(error)}) from error


def _recipe_words(recipe: str, fields: str, for_time: str, options: Mapping[str, str]) -> list[str]:
    """Words for a recipe, if one is named, and its overrides.

    Raises:
        BadFields: they cannot be used, or the time or an option cannot.
        BadInput: the recipe cannot be trained in the time.
    """
    with _of_field("fields"):
        try:
            overrides = shlex.split(fields)
        except ValueError as error:
            raise BadInput(f"{fields[:80]!r}: {error}; expected key=value words as they would be typed") from error
        _refuse_options(overrides)
    for field, value in {"recipe": recipe, "for": for_time, **options}.items():
        with _of_field(field):
            _refuse_options([value])
    _check_options(for_time, memory=options.get("memory", ""), device=options.get("device", ""))
    if not recipe:
        with _of_field("fields"):
            _check_fields(overrides)
        return overrides
    if recipe not in built_in():
        recipe = str(Path(recipe).expanduser().resolve())
    with _of_field("recipe"):
        load_recipe(recipe)
    with _of_field("fields"):
        load_recipe(recipe, overrides)
    if for_time:
        load_recipe(recipe, with_time(recipe, overrides, for_time, quiet)[1])
    return [recipe, *overrides]


def _check_fields(overrides: Sequence[str]) -> None:
    """Refuse fields that go with none of the recipes that frugan may choose, with what the first of them says."""
    refused: list[BadInput] = []
    for candidate in THRESHOLDS.candidates:
        try:
            candidate.loaded(overrides)
        except BadInput as error:
            refused.append(error)
        else:
            return
    raise refused[0]


def _check_options(for_time: str, memory: str, device: str) -> None:
    """Refuse a time, a memory or a device that is not empty and cannot be used."""
    if for_time:
        try:
            Duration.time(for_time)
        except ValueError as error:
            raise BadFields(f"time {for_time[:40]!r}: {error}", {"for": str(error)}) from error
    with _of_field("memory"):
        if memory:
            parse_size(memory)
    kinds = ("auto", "cpu", *kinds_of_cards())
    with _of_field("device"):
        if device and device.partition(":")[0] not in kinds:
            raise BadInput(f"{device[:80]!r}: expected a device such as {', '.join(kinds)}")


def _refuse_options(words: Sequence[str]) -> None:
    for word in words:
        if word.startswith("-"):
            raise BadInput(f"{word[:80]!r}: an option does not belong there")


def _data_words(data: str) -> Iterator[str]:
    """`--data` words of lines.

    Raises:
        BadInput: there are none, or nothing is there.
    """
    lines = [line.strip() for line in data.splitlines() if line.strip()]
    if not lines:
        raise BadInput("where are the pictures? Give their folder; for faces src=FOLDER and dst=FOLDER, a line each")
    for line in lines:
        source, equals, place = line.partition("=")
        named = bool(equals) and source.isidentifier() and not Path(line).exists()
        path = Path(place if named else line).expanduser().resolve()
        if not path.exists():
            raise BadInput(f"{path}: there is nothing; expected a folder or file of pictures on this machine")
        yield "--data"
        yield f"{source}={path}" if named else str(path)


def _kept(start: Mapping[str, Any], *, without_data: bool) -> Iterator[str]:
    """Options that a run was trained with, from the event of its last start.

    Raises:
        BadInput: several processes trained it, or its pictures are gone.
    """
    command, directory = start.get("command"), start.get("directory")
    if not isinstance(command, str) or not isinstance(directory, str):
        return
    program, *words = shlex.split(command)
    if program != "frugan":
        raise BadInput(f"several processes train it together; let it go on from where they can be started: {command}")
    for option, value in pairwise(words):
        if option == "--data" and not without_data:
            source, equals, place = value.partition("=")
            named = bool(equals) and source.isidentifier()
            path = Path(directory) / Path(place if named else value).expanduser()
            if not path.exists():
                raise BadInput(f"{path}: its pictures are no longer there; say where they are now, beside the button")
            yield from (option, f"{source}={path}" if named else str(path))
        elif option in KEPT:
            yield from (option, value)
