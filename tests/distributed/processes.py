"""Starts real processes that train together over gloo, and lets them do a piece of work."""

import importlib
import json
import os
import socket
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
CONTEXT = get_context("fork") if sys.platform == "linux" else get_context("spawn")
"""To load torch anew takes a process longer than most of its work here."""
SECONDS = 240
AFTER_SECONDS = 60
"""For the others, once the first rank has ended: none waits longer for one that is lost."""


def environment() -> dict[str, str]:
    """What a process needs to find the package and the tests, and to leave cores to others."""
    path = os.pathsep.join(str(ROOT / part) for part in ("src", "tests"))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def train_by_shares(
    folder: Path, run: str, shares: str, steps: int, optimizer: str = "whole", group: int = 2
) -> list[str]:
    """Train the recipe in a folder on two ranks by the Python interface; what each of them said.

    Args:
        shares: as `--shares` has them; empty: not given.
        optimizer: "whole", or "shared out".
        group: training.normalisation_batch.
    """
    words = (run, shares, str(steps), optimizer, str(group))
    for rank, done in enumerate(together(2, "train-by-shares", folder, *words)):
        assert done.returncode == 0, f"rank {rank}:\n{done.stdout}"
    return ["\n".join(json.loads((folder / f"{run}-{steps}-{rank}.json").read_text())) for rank in (0, 1)]


def together(
    size: int, work: str, folder: Path, *words: str, module: str = "distributed.rank_work"
) -> list["subprocess.CompletedProcess[str]"]:
    """Run a piece of a module's work on so many ranks, and wait for all of them.

    Args:
        folder: where each leaves what it found.
    """
    places = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1"}
    places |= {"MASTER_PORT": str(free_port()), "OTHER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    said = [folder / f"said-{rank}.txt" for rank in range(size)]
    started = []
    for rank in range(size):
        place = {**places, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        started.append(CONTEXT.Process(target=_as_rank, args=(module, [work, str(folder), *words], place, said[rank])))
        started[-1].start()
    try:
        started[0].join(SECONDS)
        for each in started[1:]:
            each.join(AFTER_SECONDS)
    finally:
        for each in started:
            each.kill()
            each.join()
    return [
        subprocess.CompletedProcess([module, work], each.exitcode or 0, path.read_text("utf-8"))
        for each, path in zip(started, said, strict=True)
    ]


def speak_into(said: Path) -> None:
    """Let what this process says from here on be added to a file."""
    written = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(written, stream)
    sys.stdout, sys.stderr = (os.fdopen(stream, "w", buffering=1, closefd=False) for stream in (1, 2))


def _as_rank(module: str, words: list[str], place: dict[str, str], said: Path) -> None:
    """What a process does that is started as one of several."""
    os.environ.update(place)
    said.unlink(missing_ok=True)
    speak_into(said)
    torch.set_num_threads(1)  # a pool of threads does not come along in a fork, and would be waited for
    importlib.import_module(module).main(words)
