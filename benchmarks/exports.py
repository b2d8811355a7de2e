"""What exporting generators takes and gives: python benchmarks/exports.py RESULT.json [RECIPE ...]

Each recipe's generator, with its first weights, is exported by the command in a process of its own, in fp32 and in
fp16. Told are the seconds and the peak memory of that, the size of the file, how far its pictures are from torch's in
fp32 (of a range of 2), and the seconds that onnxruntime takes for one picture on one thread.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from onnxruntime import InferenceSession, SessionOptions

from frugan.engine.streams import derive_seed
from frugan.recipe.loading import load_recipe
from frugan.setup.networks import save
from frugan.setup.recipe_setup import build_networks
from machine import describe_machine

RECIPES = (
    "biggan-digits-32",
    "stylegan2-small-64",
    "r3gan-small-64",
    "biggan-imagenet-128",
    "biggan-deep-imagenet-128",
    "sagan-imagenet-128",
    "stylegan2-ffhq-256",
    "stylegan2-ffhq-1024",
    "stylegan3-small-64",
    "stylegan3-t-256",
    "r3gan-ffhq-256",
)


def exported(recipe: str, half: bool, folder: Path) -> dict[str, object]:
    """Export, and draw one picture."""
    loaded = load_recipe(recipe)
    source, path = folder / "weights.safetensors", folder / f"model-{half}.onnx"
    if not source.exists():
        built = build_networks(loaded)
        loaded.kind.initialise(loaded.networks, built, lambda name: derive_seed(0, "weights", name))
        save({"G": built["G"]}, loaded, source)
    words = [sys.executable, "-m", "frugan", "export", str(source), str(path), "--json", *(["--fp16"] if half else [])]
    began = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(words)} failed: {status}")
    seconds, facts = time.perf_counter() - began, json.loads(said)
    return {
        "recipe": recipe,
        "precision": "fp16" if half else "fp32",
        "file_mb": round(facts["bytes"] / 1e6, 1),
        "difference": float(f"{facts['difference']:.2g}"),
        "mean_difference": float(f"{facts['mean_difference']:.2g}"),
        "export_seconds": round(seconds, 1),
        "export_cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "export_peak_gib": round(usage.ru_maxrss / 2**20, 2),
        "picture_seconds": picture_seconds(path),
    }


def picture_seconds(path: Path) -> float:
    """The fastest of five pictures."""
    options = SessionOptions()
    options.intra_op_num_threads = 1
    session = InferenceSession(str(path), options)
    inputs = {
        given.name: np.zeros([1 if side == "n" else side for side in given.shape], np.float32)
        for given in session.get_inputs()
    }
    times = []
    for _ in range(5):
        began = time.perf_counter()
        session.run(None, inputs)
        times.append(time.perf_counter() - began)
    return float(f"{min(times):.2g}")


def main() -> None:
    """Export, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("recipes", nargs="*", default=RECIPES)
    asked = parser.parse_args()
    rows = []
    for recipe in asked.recipes:
        with tempfile.TemporaryDirectory() as folder:
            for half in (False, True):
                rows.append(exported(recipe, half, Path(folder)))
                print(json.dumps(rows[-1]), flush=True)
    asked.result.write_text(json.dumps({"machine": describe_machine(), "exports": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
