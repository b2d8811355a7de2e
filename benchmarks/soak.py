"""Trains the demo model for long, and looks whether memory and open files stay as they were.

    python benchmarks/soak.py [STEPS] [--ranks 2] [RESULT.json]

As many checkpoints and gradient tables as two hours of the demo make, in minutes of CPU time: its networks are narrower
and its batch is smaller, and what is written between steps comes 10 to 20 times as often. A report of the run renews
itself beside it. With --ranks torchrun starts so many processes, which share each normalisation group and the
optimizers' state; the first one looks at all of them.
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frugan.data.digits import digits_set
from frugan.engine.run.events import Event
from frugan.reporting.report import page, readers_of
from frugan.training.run import TrainingOptions
from frugan.training.training import train
from machine import describe_machine

STEPS = 2500
MOST_DRIFT = 0.02
"""Of resident memory, and none of open files."""
NARROW = (
    *("networks.generator_channels=2", "networks.discriminator_channels=2", "networks.latent_size=32"),
    *("networks.shared_embedding=8", "training.batch=8", "training.normalisation_batch=8", "objective.r1_every=16"),
    *("saving.checkpoint_every=50 steps", "saving.snapshot_every=250 steps", "saving.report_every=25 steps"),
)
LOOK_EVERY = 20
"""Steps."""


@dataclass
class Watch:
    """Looks at this process while it trains, and at the others that train with it."""

    run: Path  # is shown by a report that renews itself
    ranks: int = 1  # how many processes there are; they leave their numbers beside the run
    steps: list[int] = field(default_factory=list)  # of every look
    # resident_bytes, open_files: of every process, at every look
    resident_bytes: list[list[int]] = field(default_factory=list)
    open_files: list[list[int]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)  # events by kind
    # looks when a kind of event came for the first time, the last such kind: what is made once is there
    all_seen: int = 0

    def look(self, event: Event) -> None:
        """Take in an event."""
        kind = str(event["event"])
        if kind not in self.counts and kind != "stop":
            self.all_seen = len(self.steps)
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if kind == "snapshot":
            self._renew()
        if kind == "step" and event["step"] % LOOK_EVERY == 0:
            gc.collect()
            self.steps.append(int(event["step"]))
            places = [Path("/proc", _process_file(self.run, rank).read_text()) for rank in range(self.ranks)]
            pages = [int((place / "statm").read_text().split()[1]) for place in places]
            self.resident_bytes.append([count * os.sysconf("SC_PAGE_SIZE") for count in pages])
            self.open_files.append([len(os.listdir(place / "fd")) for place in places])

    def _renew(self) -> None:
        if not hasattr(self, "_readers"):
            self._readers = readers_of([self.run])
        page(self._readers, live=True)

    def summary(self, rank: int) -> dict[str, Any]:
        """Of a process: at the start, once everything has run once, and at the end: medians of a tenth of the looks."""
        tenth = max(1, len(self.steps) // 10)
        begin = max(tenth, self.all_seen + 2)  # the measurement of variety comes first after about 1,250 steps
        start, end = slice(begin, begin + tenth), slice(-tenth, None)
        resident, opened = ([look[rank] for look in looks] for looks in (self.resident_bytes, self.open_files))
        before, after = (statistics.median(resident[part]) for part in (start, end))
        files = [statistics.median(opened[part]) for part in (start, end)]
        return {
            "from_step": self.steps[begin],
            "resident_bytes_at_start": before,
            "resident_bytes_at_end": after,
            "drift": round(after / before - 1, 4),
            "resident_mebibytes_by_tenths": [
                round(statistics.median(resident[at : at + tenth]) / 2**20, 1)
                for at in range(0, len(self.steps) - tenth + 1, tenth)
            ],
            "open_files_at_start": files[0],
            "open_files_at_end": files[1],
        }


def _process_file(run: Path, rank: int) -> Path:
    """Where a rank leaves its process's number."""
    return run.with_name(f"{run.name}-{rank}.pid")


def _holds(figures: Mapping[str, Any]) -> bool:
    return bool(abs(figures["drift"]) <= MOST_DRIFT and figures["open_files_at_start"] == figures["open_files_at_end"])


def soak(folder: Path, steps: int, ranks: int, targets: Sequence[str]) -> bool:
    """Train, look, and say whether it holds; one of several ranks does so where torchrun has started it."""
    rank = int(os.environ.get("RANK", "0"))
    began, cpu = time.perf_counter(), time.process_time()
    watch = Watch(folder / "run", ranks)
    _process_file(watch.run, rank).write_text(str(os.getpid()))
    train(
        "biggan-digits-32",
        {"images": digits_set(32)},
        watch.run,
        overrides=(*NARROW, f"training.duration={steps} steps"),
        options=TrainingOptions(device="cpu", shard_optimizer=ranks > 1),
        show=watch.look,
    )
    if rank != 0:
        return True
    figures = [watch.summary(each) for each in range(ranks)]
    holds = all(map(_holds, figures))
    result = {
        "command": f"python benchmarks/soak.py {steps}" + (f" --ranks {ranks}" if ranks > 1 else ""),
        "steps": steps,
        "events": dict(sorted(watch.counts.items())),
        **(figures[0] if ranks == 1 else {"ranks": figures}),
        "holds": holds,
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "machine": describe_machine(),
    }
    text = json.dumps(result, indent=1)
    print(text)
    for target in targets:
        Path(target).write_text(text + "\n", "utf-8")
    return holds


def main() -> None:
    """Exits 1 where it does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="STEPS RESULT.json")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="of the run, which the ranks are told")
    asked = parser.parse_intermixed_args()
    steps = next((int(word) for word in asked.words if word.isdigit()), STEPS)
    targets = [word for word in asked.words if word.endswith(".json")]
    if asked.folder is not None:
        sys.exit(0 if soak(asked.folder, steps, asked.ranks, targets) else 1)
    with tempfile.TemporaryDirectory() as folder:
        if asked.ranks == 1:
            sys.exit(0 if soak(Path(folder), steps, 1, targets) else 1)
        launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={asked.ranks}"]
        words = [str(steps), *targets, f"--ranks={asked.ranks}", f"--folder={folder}"]
        sys.exit(subprocess.run([*launcher, __file__, *words], check=False).returncode)


if __name__ == "__main__":
    main()
