"""How much of a checkpoint is hashed by the commands that open it: python benchmarks/opened_once.py [RESULT.json]

A run is trained for one step, whose checkpoint has about a gigabyte. Then each command runs in a process of its own;
counted are the bytes of that run that went through SHA-256, the seconds that this took, and those of the whole command.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from frugan.data.digits import digits_set, split_digits
from frugan.reporting.sample_files import write_png
from machine import describe_machine

RECIPE = "biggan-digits-32"
WIDE = [
    "networks.generator_channels=176",
    "networks.discriminator_channels=200",
    "training.batch=2",
    "training.normalisation_batch=2",
    "objective.r1_gamma=0",
    "training.duration=1 steps",
]
"""Gives networks, averages and optimizer state of a gigabyte."""
COUNTING = """
import atexit, hashlib, json, sys, time
from pathlib import Path
from frugan.cli.main import run
source, result, digest, counts = Path(sys.argv.pop(1)).resolve(), sys.argv.pop(1), hashlib.file_digest, [0, 0.0]
def counting(file, name):
    began = time.perf_counter()
    made = digest(file, name)
    if source in Path(file.name).resolve().parents:
        counts[0] += Path(file.name).stat().st_size
        counts[1] += time.perf_counter() - began
    return made
hashlib.file_digest = counting
atexit.register(lambda: Path(result).write_text(json.dumps(counts)))
run()
"""


def counted(words: list[str], source: Path) -> dict[str, float]:
    """Run a command: GB of `source` that it hashed, seconds that this took, and seconds in all."""
    result = source.parent / "counts.json"
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", COUNTING, str(source), str(result), *words], check=True, stdout=subprocess.DEVNULL
    )
    seconds = time.perf_counter() - began
    size, hashing = json.loads(result.read_text())
    return {"hashed_gb": round(size / 1e9, 3), "hashing_seconds": round(hashing, 2), "seconds": round(seconds, 1)}


def commands(run: Path, pictures: Path, out: Path) -> dict[str, list[str]]:
    """What is counted, by name."""
    classes, data = ["--classes", "3"], ["--data", str(pictures)]
    of_digits = ["--network", "digits", "--samples", "10"]
    return {
        "sample": ["sample", str(run), "--out", str(out / "a"), "--columns", "2", *classes],
        "sample --nearest": ["sample", str(run), "--out", str(out / "b"), "--nearest", "1", "--rows", "1", *data],
        "evaluate": ["evaluate", str(run), *data, *of_digits, *classes],
        "train --init": ["train", RECIPE, *WIDE, *data, "--out", str(out / "run"), "--init", str(run)],
        "convert --to biggan-pytorch": ["convert", str(run), str(out / "there"), "--to", "biggan-pytorch"],
    }


def main() -> None:
    """Count, and print or write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", nargs="?", type=Path)
    result = parser.parse_args().result
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        os.environ["FRUGAN_BASE"] = str(base / "frugan")
        run, pictures = base / "first", base / "pictures"
        digits = digits_set(32, split_digits(0)[0])
        for number in range(100):
            name = digits.class_names[digits.labels[number]]
            write_png(digits.pictures[number], pictures / name / f"{number}.png", {})
        words = ["train", RECIPE, *WIDE, "--data", str(pictures), "--out", str(run)]
        subprocess.run([sys.executable, "-m", "frugan", *words], check=True, stdout=subprocess.DEVNULL)
        (checkpoint,) = (run / "checkpoints").iterdir()
        size = sum(path.stat().st_size for path in checkpoint.iterdir())
        counts = {name: counted(words, run) for name, words in commands(run, pictures, base).items()}
    figures = {"machine": describe_machine(), "checkpoint_gb": round(size / 1e9, 3), "commands": counts}
    text = json.dumps(figures, indent=1)
    print(text)
    if result is not None:
        result.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
