"""Stands in for frugan: works a queue off, and "trains" as its words say, without torch.

python made_up_program.py page RUNS --work-off
python made_up_program.py train [until=FILE] [end=CODE] [say=LINE] --out RUN
"""

import os
import sys
import time
from pathlib import Path

HERE = Path(__file__)


def main(words: list[str]) -> int:
    command, *rest = words
    if command == "page":
        from frugan.page.queue import Queue  # noqa: PLC0415  (a training does without)

        folder = Path(rest[0])
        _note(folder / "workers", str(os.getpid()))
        Queue(folder, program(sys.executable)).work_off()
        return 0
    out = Path(rest[rest.index("--out") + 1])
    asked = dict(word.split("=", 1) for word in rest if "=" in word)
    _note(out.parent / "trained", out.name)
    print(asked.get("say", "").encode().decode("unicode_escape"), flush=True)
    end = time.monotonic() + 120  # whatever became of the test
    while "until" in asked and not Path(asked["until"]).exists() and time.monotonic() < end:
        time.sleep(0.02)
    _note(out.parent / "ended", out.name)
    return int(asked.get("end", "0"))


def _note(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(line + "\n")


def program(python: str) -> tuple[str, ...]:
    """How it is called."""
    return python, "-P", str(HERE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
