"""Trains the demo model for long, and looks whether memory and open files stay as they were.

    python benchmarks/soak.py [STEPS] [RESULT.json]

As many checkpoints and gradient tables as two hours of the demo make, in minutes of CPU time: its networks are narrower
and its batch is smaller, and what is written between steps comes 10 to 20 times as often. A report of the run renews
itself beside it.
"""

import gc
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frugan.api.report.run_report import page, readers_of
from frugan.api.train.options import TrainingOptions
from frugan.api.train.training import train
from frugan.data.digits import digits_set
from frugan.engine.events import Event
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
    """Looks at this process while it trains.

    Attributes:
        run: is shown by a report that renews itself.
        steps, resident_bytes, open_files: of every look.
        counts: events by kind.
        all_seen: looks when a kind of event came for the first time, the last such kind: what is made once is there.
    """

    run: Path
    steps: list[int] = field(default_factory=list)
    resident_bytes: list[int] = field(default_factory=list)
    open_files: list[int] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
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
            self.resident_bytes.append(
                int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            )
            self.open_files.append(len(os.listdir("/proc/self/fd")))

    def _renew(self) -> None:
        if not hasattr(self, "_readers"):
            self._readers = readers_of([self.run])
        page(self._readers, live=True)

    def summary(self) -> dict[str, Any]:
        """At the start, once everything has run once, and at the end: medians of a tenth of the looks."""
        tenth = max(1, len(self.steps) // 10)
        begin = max(tenth, self.all_seen + 2)  # the measurement of variety comes first after about 1,250 steps
        start, end = slice(begin, begin + tenth), slice(-tenth, None)
        before, after = (statistics.median(self.resident_bytes[part]) for part in (start, end))
        files = [statistics.median(self.open_files[part]) for part in (start, end)]
        return {
            "from_step": self.steps[begin],
            "resident_bytes_at_start": before,
            "resident_bytes_at_end": after,
            "drift": round(after / before - 1, 4),
            "resident_mebibytes_by_tenths": [
                round(statistics.median(self.resident_bytes[at : at + tenth]) / 2**20, 1)
                for at in range(0, len(self.steps) - tenth + 1, tenth)
            ],
            "open_files_at_start": files[0],
            "open_files_at_end": files[1],
        }


def main() -> None:
    """Train, look, and say whether it holds; exits 1 where it does not."""
    words = sys.argv[1:]
    steps = next((int(word) for word in words if word.isdigit()), STEPS)
    began, cpu = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        watch = Watch(Path(folder) / "run")
        overrides = (*NARROW, f"training.duration={steps} steps")
        options = TrainingOptions(device="cpu")
        train(
            "biggan-digits-32",
            {"images": digits_set(32)},
            watch.run,
            overrides=overrides,
            options=options,
            show=watch.look,
        )
    found = watch.summary()
    holds = abs(found["drift"]) <= MOST_DRIFT and found["open_files_at_start"] == found["open_files_at_end"]
    result = {
        "command": f"python benchmarks/soak.py {steps}",
        "steps": steps,
        "events": dict(sorted(watch.counts.items())),
        **found,
        "holds": holds,
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "machine": describe_machine(),
    }
    text = json.dumps(result, indent=1)
    print(text)
    for target in (word for word in words if word.endswith(".json")):
        Path(target).write_text(text + "\n", "utf-8")
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
