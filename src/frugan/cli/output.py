"""Output of commands: messages on stderr and tables for people, JSON on stdout for programs."""

import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from frugan.errors import BadInput
from frugan.progress import LINE_SECONDS
from frugan.wording import duration


def say(line: str) -> None:
    """Print one line on stderr."""
    Console(stderr=True, highlight=False).print(line, markup=False, soft_wrap=True, style="dim")


def program() -> str:
    """Return what to type for this program in the shell that started it: `frugan` where the shell finds it."""
    called = Path(sys.argv[0]).absolute()
    on_windows = os.name == "nt"
    if called.name == "__main__.py":
        return f"{command_word(_from_here(Path(sys.executable)), on_windows=on_windows)} -m frugan"
    found = None if (name := shutil.which("frugan")) is None else Path(name)
    # a launcher on Windows ends in .exe, and says its name without that
    if found is not None and found.stem == called.stem and found.parent.samefile(called.parent):
        return "frugan"
    return command_word(_from_here(called), on_windows=on_windows)


def command_word(path: str, *, on_windows: bool) -> str:
    """Return a program's path as the first word of a command; PowerShell calls no program in quotes but with an &."""
    if not on_windows:
        return shlex.quote(path)
    return f'& "{path}"' if " " in path else path


def _from_here(path: Path) -> str:
    """Return the path from the folder that a shell is in, where it lies below that."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def named_paths(words: list[str]) -> dict[str, str] | str:
    """Read `--data` words: one plain path, or NAME=PATH for each source. A path may hold "=" itself.

    Raises:
        BadInput: several paths without names, or a name twice.
    """
    named: dict[str, str] = {}
    plain: list[str] = []
    for word in words:
        name, equals, path = word.partition("=")
        if equals and name.isidentifier() and not Path(word).exists():
            if name in named:
                raise BadInput(f"--data {name}=... is given twice")
            named[name] = path
        else:
            plain.append(word)
    if len(plain) == 1 and not named:
        return plain[0]
    if plain:
        raise BadInput(f"--data {plain[0]}: several sources need names: --data NAME=PATH")
    return named


def print_json(value: Any) -> None:
    """Print JSON on stdout."""
    print(json.dumps(value, ensure_ascii=False))


class Bar:
    """A progress bar on stderr: shows from the first call until all is done; lines where that is no terminal.

    Args:
        title: what is going on.
        every_seconds: between two lines.
        clock: seconds from any start.
    """

    def __init__(
        self, title: str, every_seconds: float = LINE_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._title = title
        self._progress: Progress | None = None
        self._every, self._clock = every_seconds, clock
        self._printed_at = self._began_at = clock()
        self._done = 0

    def begin(self, title: str) -> None:
        """Say what goes on from here, whose end is not known yet."""
        self.close()
        self._title, self._began_at, self._done = title, self._clock(), 0
        if not self._shown(0, None):
            self._line(title)

    def __call__(self, done: int, of: int) -> None:
        """Move the bar to `done` of `of`."""
        if done < self._done:  # it begins anew, such as the next of several networks
            self._began_at = self._clock()
        self._done = done
        if not self._shown(done, of) and self._clock() - self._printed_at >= self._every:
            left = (self._clock() - self._began_at) * (of - done) / max(1, done)
            in_words = f", about {duration(left)} left" if left >= self._every else ""
            self._line(f"{self._title}: {done:,} of {of:,}{in_words}")
        if done >= of:
            self.close()

    def _shown(self, done: int, of: int | None) -> bool:
        """Move the bar, and return whether there is a terminal to see it on."""
        if self._progress is None:
            console = Console(stderr=True)
            if not console.is_terminal:
                return False
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._progress = Progress(*columns, console=console, transient=True)
            self._progress.add_task(self._title, total=of)
            self._progress.start()
        self._progress.update(self._progress.task_ids[0], completed=done, total=of)
        return True

    def _line(self, line: str) -> None:
        say(line)
        self._printed_at = self._clock()

    def close(self) -> None:
        """Remove the bar from the terminal."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
