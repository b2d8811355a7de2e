"""How many pictures a second training can be given: from a prepared set, and decoded on the fly.

    python benchmarks/loader.py [--pictures 2000] [--side 128] [--original 256] [--out RESULT.json]

Pictures are JPEGs of quality 90, made from smooth random fields with noise, so that they pack about as photographs do.
Batches of 64 are taken in training's own order, mirrored at random. Both by the clock and by processor time: on a busy
machine the second is what counts.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from frugan.contract.data import SourceOptions
from frugan.contract.settings import DataSettings
from frugan.data.batches import Batches
from frugan.data.picture_needs import open_pictures
from machine import describe_machine

BATCH = 64
SECONDS = 5.0


def main() -> None:
    """Measure both, print a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=2000)
    parser.add_argument("--side", type=int, default=128)
    parser.add_argument("--original", type=int, default=256)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    results: dict[str, Any] = {"machine": describe_machine(), **{k: v for k, v in vars(given).items() if k != "out"}}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "pictures"
        results["jpeg_bytes"] = write_pictures(folder, given.pictures, given.original)
        for stored in ("pixels", "encoded"):
            settings = DataSettings.model_validate({"stored": stored, "flip": True})
            options = SourceOptions(settings, Path(temporary) / "prepared", lambda _: None, None, {})
            began = time.perf_counter()
            pictures = open_pictures(folder, given.side, options)
            opened = time.perf_counter() - began
            results[stored] = {"opened_seconds": opened, **measure(Batches(pictures, seed=0, name="images", flip=True))}
            print(stored, json.dumps(results[stored]))
    if given.out is not None:
        given.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


def write_pictures(folder: Path, count: int, side: int) -> float:
    """Write JPEGs; returns their mean size in bytes."""
    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(count):
        coarse = Image.fromarray(random.integers(0, 256, (12, 12, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC), np.float32)
        noisy = np.clip(smooth + random.normal(0, 6, smooth.shape), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(folder / f"{number:06d}.jpg", quality=90)
    return float(np.mean([path.stat().st_size for path in folder.iterdir()]))


def measure(batches: Batches) -> dict[str, float]:
    """Pictures a second, by the clock and by processor time, over an epoch already seen once in part."""
    batches.take(0, BATCH)
    position, began, cpu = BATCH, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < SECONDS:
        batches.take(position, BATCH)
        position += BATCH
    taken = position - BATCH
    return {
        "images_per_second": taken / (time.perf_counter() - began),
        "images_per_cpu_second": taken / (time.process_time() - cpu),
    }


if __name__ == "__main__":
    main()
