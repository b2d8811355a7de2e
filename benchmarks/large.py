"""What many pictures and long runs cost: python benchmarks/large.py RUN [RESULT.json]

Sets: zips of so many pictures of 32 pixels in 3,000 classes, prepared, and opened again; each in a process of its own.
Runs: RUN's steps again and again until there are so many, of which `frugan report` makes its page. Seconds are those
of the processor, which a busy machine lengthens less.
"""

import argparse
import io
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from itertools import cycle
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from PIL import Image

from frugan.contract.data import SourceOptions
from frugan.contract.settings import DataSettings
from frugan.data.batches import Batches
from frugan.data.picture_needs import open_pictures
from machine import describe_machine

PICTURES = (10_000, 100_000, 1_000_000)
STEPS = (1_000, 10_000, 100_000)
CLASSES, SIDE, BATCH = 3_000, 32, 64
DIFFERENT = 500
"""Pictures that are drawn; the others are these again under other names."""


def write_zip(path: Path, count: int) -> None:
    """Write so many pictures, in folders of classes."""
    random, encoded = np.random.default_rng(0), []
    for _ in range(DIFFERENT):
        coarse = Image.fromarray(random.integers(0, 256, (4, 4, 3), dtype=np.uint8))
        file = io.BytesIO()
        coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(file, "png")
        encoded.append(file.getvalue())
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for number in range(count):
            archive.writestr(f"{number % CLASSES:04d}/{number:07d}.png", encoded[number % DIFFERENT])


def opened(path: Path, prepared: Path) -> dict[str, float]:
    """What it takes to open a set, and to take batches from all over it."""
    options = SourceOptions(DataSettings(), prepared, lambda _: None, None, {})
    began = time.process_time()
    pictures = open_pictures(path, SIDE, options)
    open_seconds = time.process_time() - began
    batches = Batches(pictures, seed=0, name="images")
    began = time.process_time()
    batches.take(0, BATCH)
    first_seconds, began = time.process_time() - began, time.process_time()
    for number in range(1, 101):
        batches.take(number * BATCH, BATCH)
    return {
        "open_seconds": round(open_seconds, 2),
        "first_batch_ms": round(1000 * first_seconds, 1),
        "batch_ms": round(10 * (time.process_time() - began), 2),
        "most_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def sets(scratch: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield figures of each set, prepared and then opened again."""
    for count in PICTURES:
        path, prepared = scratch / f"{count}.zip", scratch / f"prepared-{count}"
        write_zip(path, count)
        figures: dict[str, float] = {}
        for when in ("prepared", "again"):
            with get_context("spawn").Pool(1) as pool:
                taken = pool.apply(opened, (path, prepared))
            figures |= {f"{when}: {name}": value for name, value in taken.items()}
        shutil.rmtree(prepared)
        path.unlink()
        yield count, figures


def reports(run: Path, scratch: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield figures of a report of each length."""
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text("utf-8").splitlines()]
    steps = [line for line in lines if line["event"] == "step"]
    others = [line for line in lines if line["event"] != "step"]
    for count in STEPS:
        longer = scratch / f"run-{count}"
        shutil.copytree(run, longer, ignore=shutil.ignore_patterns("checkpoints", "report.html"))
        with (longer / "events.jsonl").open("w", encoding="utf-8") as file:
            for line in others:
                file.write(json.dumps(line) + "\n")
            for number, line in zip(range(1, count + 1), cycle(steps), strict=False):
                file.write(json.dumps(line | {"step": number}) + "\n")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        words = [sys.executable, "-m", "frugan", "report", str(longer), "--out", str(scratch / "report.html")]
        subprocess.run(words, check=True, capture_output=True, env={**os.environ, "FRUGAN_BASE": str(scratch)})
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        size_bytes = (scratch / "report.html").stat().st_size
        yield count, {"report_seconds": round(seconds, 2), "report_mb": round(size_bytes / 1e6, 2)}
        shutil.rmtree(longer)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("result", nargs="?", type=Path)
    arguments = parser.parse_args()
    results: dict[str, dict[int, dict[str, float]]] = {"steps of a run": {}, "pictures of a set": {}}
    with tempfile.TemporaryDirectory() as scratch:
        for count, figures in reports(arguments.run, Path(scratch)):
            results["steps of a run"][count] = figures
            print(count, "steps", json.dumps(figures), flush=True)
        for count, figures in sets(Path(scratch)):
            results["pictures of a set"][count] = figures
            print(count, "pictures", json.dumps(figures), flush=True)
    if arguments.result is not None:
        told = {"machine": describe_machine(), **results}
        arguments.result.write_text(json.dumps(told, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
