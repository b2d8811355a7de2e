"""Whole trainings on a card, as a command starts them: by two ranks as by one, and scored there as on the processor."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from frugan.data.digits import digits_set
from frugan.data.export import png
from frugan.doctor.cards import CardTools
from frugan.doctor.finding import Finding, judged, left_out, out_of_time
from frugan.engine.run.events import read_events
from frugan.evaluation.evaluation import evaluate
from frugan.evaluation.scorer import EvaluationOptions
from frugan.metrics.inception import Inception
from frugan.progress import quiet
from frugan.stepmemory.cards import Card
from frugan.stepmemory.work import MacCounter
from frugan.training.run import TrainingOptions
from frugan.training.training import train

RECIPE = "biggan-digits-32"
OVERRIDES = ("training.duration=2 steps", "training.precision=fp32", "training.batch=48", "saving.report_every=1 steps")
RANKS = "two ranks train as one"
SCORES = "scores as on the processor"
FEATURES = "features of pictures"
REASON = re.compile(r"(bad input|training stopped|failed|[\w.]*(Error|Exception)):")
"""Beginning of the line that says why a rank ended, which comes before its launcher's traceback."""
RUN_SECONDS = 60.0
"""A guess for a command that trains two steps, with the start of Python and torch."""
RANKS_APART = 1e-3
"""Relative, of losses and gradient norms of the first step in fp32: sums run in another order."""
SCORES_APART = 0.02
"""Relative: a card's own random numbers draw other noise, never other latents or classes."""
SCORED_PICTURES = 256
FEATURE_PICTURES, COMPARED = 256, 8
LEAST_PICTURES = 16
SHARE = 0.2
"""Share of the time that is left, counted by products alone, which is far too little for convolutions of few
channels."""
FEATURES_APART = 1e-3
"""Allowed difference of features on card and processor, as a share of the largest."""


@contextmanager
def _picture_folder(count: int = 96) -> Iterator[Path]:
    """Digits in PNG files, a folder for each class, in a folder that goes with the block."""
    digits = digits_set(32)
    with TemporaryDirectory(prefix="frugan-doctor-", ignore_cleanup_errors=True) as folder:
        for number in range(count):
            kind = Path(folder) / "pictures" / digits.class_names[digits.labels[number]]
            kind.mkdir(parents=True, exist_ok=True)
            (kind / f"{number:04d}.png").write_bytes(png(digits.pictures[number], compress_level=1))
        yield Path(folder)


def two_ranks(card: CardTools, left_seconds: float) -> list[Finding]:
    """The first step of a training by two cards, against that by one."""
    accelerator = card.card
    if (there := accelerator.count()) < 2:
        return [left_out(RANKS, RECIPE, f"it takes two cards, and {there} is here")]
    if left_seconds < 2 * RUN_SECONDS:
        return [out_of_time(RANKS, RECIPE, 2 * RUN_SECONDS, left_seconds)]
    with _picture_folder() as folder:
        first = {ranks: _first_step(folder, ranks, accelerator.kind) for ranks in (1, 2)}
    said = [f"{ranks} of them ended with: {ended}" for ranks, ended in first.items() if isinstance(ended, str)]
    if said:
        return [judged(RANKS, RECIPE, "; ".join(said), passed=False)]
    one, two = (_figures(ended) for ended in first.values() if not isinstance(ended, str))
    apart = {name: abs(value - two[name]) / max(abs(value), 1e-6) for name, value in one.items()}
    where = max(apart, key=lambda name: apart[name])
    line = f"losses and gradient norms of the first step within {apart[where]:.1e} ({where})"
    return [judged(RANKS, RECIPE, line, passed=apart[where] <= RANKS_APART, apart=apart, limit=RANKS_APART)]


def _first_step(folder: Path, ranks: int, kind: str) -> Mapping[str, Any] | str:
    """The event of a command's first step, or the last thing that it said before it failed."""
    out = folder / f"by-{ranks}"
    starts = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"]
    words = ["frugan", "train", RECIPE, *OVERRIDES, "--data", str(folder / "pictures"), "--out", str(out)]
    kept = {"FRUGAN_PREPARED": str(folder / "prepared")}
    try:
        done = subprocess.run(
            [*starts, *words, "--device", kind],
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_SECONDS * 2,
            env={**os.environ, **kept},
        )
    except subprocess.TimeoutExpired:
        return f"no end after {RUN_SECONDS * 2:.0f} s"
    if done.returncode:
        lines = done.stderr.splitlines() or ["nothing"]
        return next((line for line in lines if REASON.match(line)), lines[-1]).strip()[:300]
    return next(event for event in read_events(out / "events.jsonl") if event.get("event") == "step")


def _figures(event: Mapping[str, Any]) -> dict[str, float]:
    return {
        f"{phase}/{name}": float(value)
        for phase, entry in event["phases"].items()
        for name, value in {**entry["terms"], "gradient norm": entry["gradient_norm"]}.items()
    }


def scores(card: CardTools, left_seconds: float) -> list[Finding]:
    """Pictures of a run that this card has trained, scored by the digits' network, against the processor's scores."""
    if left_seconds < RUN_SECONDS:
        return [out_of_time(SCORES, RECIPE, RUN_SECONDS, left_seconds)]
    by_device: dict[str, Mapping[str, float]] = {}
    seconds: dict[str, float] = {}
    with TemporaryDirectory(prefix="frugan-doctor-", ignore_cleanup_errors=True) as folder:
        out = Path(folder) / "run"
        options, before = TrainingOptions(device=str(card.device)), card.card.limit_bytes
        try:
            train(RECIPE, {"images": digits_set(32)}, out, overrides=OVERRIDES, options=options, say=quiet)
        finally:
            card.card.limit(before)  # a training holds a card to its budget, and leaves it so
        for device in (str(card.device), "cpu"):
            evaluation_options = EvaluationOptions(("fid", "kid"), SCORED_PICTURES, "digits", device=device)
            began = time.perf_counter()
            by_device[device] = evaluate(out, "digits", evaluation_options, say=lambda _: None).scores
            seconds[device] = time.perf_counter() - began
    here, there = by_device.values()
    apart = abs(here["fid"] - there["fid"]) / max(abs(there["fid"]), 1e-6)
    return [
        judged(
            SCORES,
            RECIPE,
            f"Fréchet distance of {SCORED_PICTURES} pictures {here['fid']:.5g}, on the processor {there['fid']:.5g}",
            passed=apart <= SCORES_APART,
            on_the_card=dict(here),
            on_the_processor=dict(there),
            apart=apart,
            limit=SCORES_APART,
            seconds=list(seconds.values()),
        )
    ]


def features(card: CardTools, figures: Card, left_seconds: float) -> list[Finding]:
    """Features by a network of Inception's layers with random weights, and how many pictures a second it takes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Inception()
    pictures = torch.randint(256, (FEATURE_PICTURES, 3, 64, 64), generator=torch.Generator().manual_seed(0)).byte()
    with MacCounter() as counter:
        expected = network(pictures[:COMPARED])["2048"]
    macs = counter.macs() / COMPARED
    fits = int(left_seconds * SHARE * figures.macs_per_s["fp32"] / macs)
    count = min(FEATURE_PICTURES, fits)
    if count < LEAST_PICTURES:
        needed = LEAST_PICTURES * macs / figures.macs_per_s["fp32"] / SHARE
        return [out_of_time(FEATURES, "Inception", needed, left_seconds)]
    network.to(card.device)
    of_card = network(pictures[:COMPARED].to(card.device))["2048"].cpu()
    apart = float((of_card - expected).abs().max() / expected.abs().max())
    card.wait()
    began = time.perf_counter()
    for part in pictures[:count].split(32):
        network(part.to(card.device))
    card.wait()
    measured = count / (time.perf_counter() - began)
    predicted = figures.macs_per_s["fp32"] / macs
    off = predicted / measured - 1
    return [
        judged(
            FEATURES,
            "Inception",
            f"{apart:.1e} apart from the processor's; {measured:.0f} pictures a second, predicted {predicted:.0f} by "
            f"their products alone ({off:+.0%})",
            passed=apart <= FEATURES_APART,
            apart=apart,
            limit=FEATURES_APART,
            pictures=count,
            predicted_pictures_per_s=predicted,
            measured_pictures_per_s=measured,
            off=off,
        )
    ]
