"""How long scores take: moments and the Fréchet distance of 2048 features, and the report of a long run.

    python benchmarks/metrics.py [OUT.json]

Features are random; times are the least of three runs.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from frugan.engine.run.events import EventLog
from frugan.metrics.inception import Inception
from frugan.metrics.scores import Moments, StreamingMoments, frechet_distance, kernel_distance, precision_recall
from frugan.reporting.report import write_report
from machine import describe_machine

DIMENSIONS = 2048
EVENTS = 100_000


def seconds(call: Callable[[], object], repeats: int = 3) -> float:
    """Least time of a call."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


def long_run(folder: Path) -> Path:
    """A run of many steps, with 40 layers' singular values every hundredth."""
    with EventLog(folder / "events.jsonl") as log:
        log.write("start", step=0, frugan="", torch="", machine="", device="cpu", data={}, recipe={})
        for step in range(1, EVENTS + 1):
            entry = {"gradient_norm": 1 + 1 / step, "loss_scale": 1.0, "skipped": 0}
            phases = {
                "D": {"terms": {"real": 1 / step, "fake": 2 / step}, **entry},
                "G": {"terms": {"adversarial": step**0.1}, **entry},
            }
            values = {f"G.blocks.{i}.conv": 1.0 + i for i in range(40)} if step % 100 == 0 else None
            more = {} if values is None else {"singular_values": values}
            numbers = {"images": 64 * step, "seconds": 0.1 * step, "images_per_second": 640.0, "eta_seconds": 1.0}
            log.write("step", step=step, memory_bytes=2**30, phases=phases, **numbers, **more)
    return folder


def main() -> None:
    """Time, print, write."""
    random = torch.Generator().manual_seed(0)
    # correlated, as real features are
    mixing = torch.randn(DIMENSIONS, DIMENSIONS, generator=random) / DIMENSIONS**0.5
    rows = (torch.randn(10_000, DIMENSIONS, generator=random) @ mixing).relu()
    others = rows[torch.randperm(len(rows), generator=random)[:5000]] * 1.1

    def gather() -> Moments:
        gathered = StreamingMoments(DIMENSIONS)
        for part in rows.split(64):
            gathered.update(part)
        return gathered.finish()

    one, other = gather(), Moments.of(others)
    network = Inception()
    pictures = torch.zeros(16, 3, 128, 128, dtype=torch.uint8)
    results: dict[str, Any] = {
        "10,000 features to moments": seconds(gather),
        "Frechet distance of 2048 dimensions": seconds(lambda: frechet_distance(one, other)),
        "KID of 10,000 and 5,000 features": seconds(lambda: kernel_distance(rows.numpy(), others.numpy()), 1),
        "precision and recall of 5,000 and 5,000": seconds(
            lambda: precision_recall(rows[:5000].numpy(), others.numpy()), 1
        ),
        "Inception features of 16 pictures": seconds(lambda: network(pictures)),
    }
    with tempfile.TemporaryDirectory() as folder:
        run = long_run(Path(folder))
        results[f"report of {EVENTS:,} events"] = seconds(lambda: write_report([run]), 2)
        megabytes = (run / "report.html").stat().st_size / 1e6
    for name, took in results.items():
        print(f"{name}: {took:.2f} s")
    print(f"size of that report: {megabytes:.2f} MB")
    if len(sys.argv) > 1:
        values = {"machine": describe_machine(), "seconds": results, "report_megabytes": megabytes}
        Path(sys.argv[1]).write_text(json.dumps(values, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
