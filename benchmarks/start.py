"""How long one waits: for words, for a plan, for the first step: python benchmarks/start.py [RESULT.json] [--rounds 2]

Each command runs in a process of its own. Plans are made with an empty cache, of recipes with one field overridden, so
that no shipped prediction answers. A training has its set prepared already, and its plan is cached; timed is from its
start to the line of its first step. Quoted are the least of all rounds: seconds by the clock, and of the processor,
which a busy machine lengthens less.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from frugan.data.digits import digits_set, split_digits
from frugan.reporting.sample_files import write_png
from machine import describe_machine

FRUGAN = [sys.executable, "-c", "from frugan.cli.main import run; run()"]

WORDS = {"help": ["--help"], "recipes": ["recipes"], "plan of a shipped recipe": ["plan", "biggan-imagenet-128"]}

PLANS = {
    "biggan-imagenet-128": ["networks.generator_channels=64"],
    "saehd-df-ud-512": ["networks.d_dims=80"],
    "stylegan2-ffhq-256": ["networks.channel_base=24576"],
    "biggan-deep-imagenet-256": ["networks.generator_channels=112"],
}
"""Recipe -> one field that is overridden."""

TRAININGS = ("biggan-digits-32", "stylegan2-digits-32")


def timed(words: list[str], folders: dict[str, str], cwd: Path) -> dict[str, float]:
    """Seconds of a whole command."""
    began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*FRUGAN, *words], env={**os.environ, **folders}, cwd=cwd, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return {"seconds": time.perf_counter() - began, "cpu_seconds": cpu}


def first_step(words: list[str], folders: dict[str, str], cwd: Path) -> dict[str, float]:
    """Seconds until a training says what its first step gave."""
    began = time.perf_counter()
    env = {**os.environ, **folders}
    with subprocess.Popen(
        [*FRUGAN, *words], env=env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("step 1 |"):
                seconds = {"seconds": time.perf_counter() - began, "cpu_seconds": _cpu_seconds(process.pid)}
                process.communicate()
                return seconds
    raise SystemExit(f"{' '.join(words)} came to no first step:\n{''.join(lines)}")


def _cpu_seconds(process: int) -> float:
    """That a process has used so far, as Linux counts them."""
    fields = Path(f"/proc/{process}/stat").read_text("ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def least(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Of each figure."""
    return {name: round(min(each[name] for each in rounds), 2) for name in rounds[0]}


def draw_digits(folder: Path) -> None:
    """Two hundred pictures in ten folders."""
    digits = digits_set(32, split_digits(0)[0])
    for number in range(200):
        write_png(digits.pictures[number], folder / digits.class_names[digits.labels[number]] / f"{number}.png", {})


def main() -> None:
    """Time all and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        cwd = Path(temporary)
        draw_digits(cwd / "digits")
        kept = {"FRUGAN_BASE": str(cwd / "base")}
        for name, words in WORDS.items():
            results[name] = least([timed(words, kept, cwd) for _ in range(given.rounds)])
        for recipe in TRAININGS:
            words = ["train", recipe, "--data", "digits", "training.duration=2 steps", "--out"]
            timed([*words, f"{recipe}-warm"], kept, cwd)
            rounds = [first_step([*words, f"{recipe}-{number}"], kept, cwd) for number in range(given.rounds)]
            results[f"first step of {recipe}"] = least(rounds)
        for recipe, override in PLANS.items():
            caches = [{"FRUGAN_BASE": str(cwd / f"empty-{recipe}-{number}")} for number in range(given.rounds)]
            words = ["plan", recipe, *override, "--memory", "6GiB"]
            results[f"plan of {recipe} {override[0]}"] = least([timed(words, cache, cwd) for cache in caches])
    text = json.dumps({"least": results, "machine": describe_machine()}, indent=1)
    print(text)
    if given.result is not None:
        given.result.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
