"""What passed at which commit: runs that take an hour are done in parts, and go on where they were interrupted."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]

Part = tuple[int, int]
"""Which, from 1, of how many."""


def part_of(text: str) -> Part:
    """A part as it is written: 3/8.

    Raises:
        SystemExit: it is none.
    """
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise SystemExit(f"part {text!r}: expected which one of how many, such as 3/8")
    return int(number), int(count)


def share(seconds: Mapping[str, float], part: Part) -> list[str]:
    """Names of one part, in their order: every name is in one part, and parts take about as long."""
    number, count = part
    loads, mine = [0.0] * count, set()
    for name in sorted(seconds, key=lambda name: (-seconds[name], name)):
        lightest = loads.index(min(loads))
        loads[lightest] += seconds[name]
        if lightest == number - 1:
            mine.add(name)
    return [name for name in seconds if name in mine]


def commit_of(root: Path) -> str | None:
    """The commit that a working tree is at; None if it differs from it in any file, or there is no git."""
    said = []
    for words in (("status", "--porcelain"), ("rev-parse", "HEAD")):
        try:
            done = subprocess.run(
                ["git", "--no-optional-locks", *words], cwd=root, capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError):
            return None
        said.append(done.stdout.strip())
    changes, commit = said
    return None if changes else commit


class Passed:
    """What passed at the commit of a working tree; of one with changes nothing is kept.

    Args:
        kind: of runs, which do not count for each other.

    Attributes:
        seconds: name -> how long it took; several processes may add to it, each knows what was there when it began.
    """

    def __init__(self, kind: str, root: Path = ROOT) -> None:
        self._root = root
        self.commit = commit_of(root)
        self._file = root / "build" / "passed" / f"{kind}-{self.commit}.jsonl"
        lines = self._file.read_text("utf-8").splitlines() if self.commit and self._file.exists() else []
        self.seconds: dict[str, float] = dict(json.loads(line) for line in lines)

    def keep(self, name: str, seconds: float) -> None:
        """Remember that something passed, unless the tree has changed since this began."""
        if self.commit is None or commit_of(self._root) != self.commit:
            return
        self.seconds[name] = seconds
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps([name, seconds]) + "\n")

    def left(self, seconds: Mapping[str, float], count: int) -> str:
        """How much has not passed yet, in which parts."""
        if self.commit is None:
            return "nothing is remembered: the working tree has changes that are not committed, or there is no git"
        names = {number: share(seconds, (number, count)) for number in range(1, count + 1)}
        missing = {number: sum(name not in self.seconds for name in part) for number, part in names.items()}
        where = ", ".join(f"{many} in part {number}/{count}" for number, many in missing.items() if many)
        return f"left at {self.commit[:10]}: {where or 'nothing'}"
