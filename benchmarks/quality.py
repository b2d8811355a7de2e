"""Trains a recipe on a set of pictures, several seeds, and measures what comes out: fidelity and variety.

    python benchmarks/quality.py RECIPE SET [key.sub=value ...] [--seeds 0-4] [--split validation|test]
        [--archive FILE.tgz] [--drawn N] [--pictures N] [--every "400 steps"] [--statistics running,standing,batch]
        [--name NAME] [--out RESULT.json] [--keep RUNS [--picture OUT.webp --steps 1000,3000,10000]]

SET is digits, inked, shapes, icons, handwritten, photographs or a kind that is drawn (see picture_sets/known.py). With
`--split validation`, for choosing, a fifth of what may be learnt from is left out, another fifth for each seed;
`--split test` trains on all of it and measures on pictures that no choice may be made on. `--every` measures along the
way. Results are added to a file that is there already. The Fréchet distance is of a small classifier's scores, which
was fitted to the set's classes. `--picture` draws the last seed's kept run instead: a row of pictures for each class,
three for each of the steps, and three real ones.
"""

import argparse
import json
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from statistics import fmean, stdev

import torch
from PIL import Image
from torch import Tensor

from frugan.data.batches import random_order
from frugan.data.digits import as_tensors
from frugan.data.formats.picture_set import PictureSet
from frugan.engine.plan import Layout
from frugan.engine.run.checkpoint import EMA_FILE
from frugan.engine.run.events import read_events
from frugan.metrics.digit_classifier import DigitClassifier, class_accuracy, trained_on_generated
from frugan.metrics.diversity import ratios, within_class
from frugan.metrics.scores import Moments, Statistics, frechet_distance, precision_recall
from frugan.metrics.two_sample import two_sample
from frugan.progress import quiet
from frugan.recipe.loading import load_recipe
from frugan.reporting.grids import write_grid
from frugan.sampling.generation import generating
from frugan.sampling.requests import DrawRequest
from frugan.setup.networks import Weights, networks_from
from frugan.training.run import TrainingOptions
from frugan.training.training import train
from half_products import HalfProducts
from machine import describe_machine
from picture_sets import DRAWN, fold_of, load_set, part_of

JUDGE_SIDE = {"digits": 8}
"""Side at which a set's classifier looks; others: 16."""
GENERATED = 2000
SHOWN = 3
"""Pictures of a class in a row of a sheet."""
MICRO_BATCH = 96
MOST_FITTED = 6000
SCORES = (
    "class_accuracy",
    "trained_on_generated",
    "trained_on_real",
    "diversity",
    "diversity_nearest",
    "diversity_features",
    "frechet",
    "frechet_real",
    "precision",
    "recall",
    "recall_real",
    "recall_blurred",
    "two_sample",
    "two_sample_real",
)


def main() -> None:
    """Run all seeds and print one line for each measurement, then means and spreads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("set")
    parser.add_argument("overrides", nargs="*", metavar="key.sub=value")
    parser.add_argument("--seeds", default="0-4")
    parser.add_argument("--split", choices=("validation", "test"), default="validation")
    parser.add_argument("--archive", type=Path)
    parser.add_argument("--drawn", type=int, default=DRAWN, help="pictures of a kind that is drawn")
    parser.add_argument("--pictures", type=int, help="train on so many of the set's pictures; default: all")
    parser.add_argument("--every")
    parser.add_argument("--statistics", default="running", help="of batch normalisation: running, standing, batch")
    parser.add_argument("--name", help="of these settings; default: the recipe's")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", type=Path, help="folder that the runs are left in")
    parser.add_argument("--picture", type=Path, help="draw what the run in --keep makes after --steps, and end")
    parser.add_argument("--steps", help="that were kept, such as 1000,3000")
    given = parser.parse_intermixed_args()
    first, _, last = given.seeds.partition("-")
    if given.picture is not None:
        draw(given, given.keep / f"{given.name or given.recipe}-{given.set}-{last or first}")
        return
    for seed in range(int(first), int(last or first) + 1):
        with tempfile.TemporaryDirectory() as temporary:
            folder = given.keep or Path(temporary)
            results = run(given, seed, folder / f"{given.name or given.recipe}-{given.set}-{seed}")
        for entry in results:
            print(json.dumps(entry), flush=True)
        if given.out is not None:
            _add(given.out, results)
    if given.out is not None:
        for line in summary(json.loads(given.out.read_text("utf-8"))):
            print(line)


def run(given: argparse.Namespace, seed: int, folder: Path) -> list[dict[str, object]]:
    """Train once and measure at the end, and along the way if that is asked for."""
    every = given.every or "1000000 steps"
    rarely = ["saving.snapshot_every=1000000 steps", "saving.checkpoint_every=1000000 steps"]
    words = [f"training.seed={seed}", f"saving.backup_every={every}", *rarely, *given.overrides]
    recipe = load_recipe(given.recipe, words)
    needs = next(iter(recipe.kind.sources(recipe.networks, recipe.objective).values()))
    fit, unseen = load_set(given.set, needs.resolution, given.archive, given.drawn)
    if given.split == "validation":
        fit, unseen = fold_of(fit, seed)
    if given.pictures is not None:
        fit = part_of(fit, random_order(f"quality/fewer/{seed}", len(fit))[: given.pictures])
    classes = len(fit.class_names) if len(fit.class_names) > 1 or recipe.family == "biggan" else None
    if recipe.networks.classes != classes:  # type: ignore[attr-defined]
        recipe = load_recipe(given.recipe, [*words, f"networks.classes={classes or 'none'}"])
    began, began_cpu = time.perf_counter(), time.process_time()
    with HalfProducts() if recipe.training.precision == "fp16" else nullcontext():  # as a card's, on a processor
        train(recipe, {"images": fit}, folder, options=TrainingOptions(device="cpu"), say=quiet)
    took, took_cpu = time.perf_counter() - began, time.process_time() - began_cpu
    checkpoints = sorted((folder / "backups").glob("step-*")) + sorted((folder / "checkpoints").glob("step-*"))[-1:]
    return [
        {
            "name": given.name or given.recipe,
            "recipe": given.recipe,
            "set": given.set,
            "split": given.split,
            "overrides": given.overrides,
            "seed": seed,
            "step": int(checkpoint.name.removeprefix("step-")),
            "steps": recipe.training.duration.steps(recipe.training.batch),
            "statistics": statistics,
            **measure(checkpoint / EMA_FILE, fit, unseen, JUDGE_SIDE.get(given.set, 16), statistics),
            "fitted_on": len(fit),
            "measured_on": len(unseen),
            "seconds": round(took, 1),
            "cpu_seconds": round(took_cpu, 1),
            "trained_seconds": trained_seconds(folder),
            "machine": describe_machine(),
        }
        for checkpoint in {checkpoint.name: checkpoint for checkpoint in checkpoints}.values()
        for statistics in given.statistics.split(",")
    ]


def trained_seconds(run: Path) -> float:
    """Of a run's steps, those before it was interrupted and went on included."""
    return float([event["seconds"] for event in read_events(run / "events.jsonl") if event["event"] == "step"][-1])


def draw(given: argparse.Namespace, run: Path) -> None:
    """What a run makes after some steps, beside real pictures; a row for each class, one of them for each column."""
    steps = [int(step) for step in given.steps.split(",")]
    checkpoints = [run / "backups" / f"step-{step:09d}" / EMA_FILE for step in steps]
    recipe = Weights.open(checkpoints[0]).recipe
    _, unseen = load_set(given.set, recipe.resolution, given.archive, given.drawn)
    sides = [drawn(weights, unseen, count=len(unseen)) for weights in checkpoints] + [as_tensors(unseen)]
    rows = [
        torch.cat([pictures[labels == number][:SHOWN] for pictures, labels in sides])
        for number in range(len(unseen.class_names))
    ]
    titles = [f"{title}" for title in (*(f"{step:,}" for step in steps), "real") for _ in range(SHOWN)]
    path = given.picture.with_suffix(".png")
    write_grid(torch.stack(rows), path, titles=titles)
    with Image.open(path) as picture:
        picture.save(given.picture, quality=85)
    path.unlink()


def drawn(
    weights: Path, like: PictureSet, statistics: Statistics = "running", count: int = GENERATED
) -> tuple[Tensor, Tensor]:
    """Pictures [count, C, R, R] in [-1, 1], classes as often as in a set, and these classes."""
    read = Weights.open(weights)
    classes = like.labels.tolist() if len(like.class_names) > 1 or read.recipe.family == "biggan" else None
    request = DrawRequest(seed=3, classes=classes, statistics=statistics, micro_batch=MICRO_BATCH)
    with generating(read.recipe, networks_from(read), Layout(), request) as sampler:
        pictures, labels = zip(*sampler.draw(0, count), strict=True)
    return torch.cat(pictures) / 127.5 - 1, torch.cat(labels)


def measure(
    weights: Path, fit: PictureSet, unseen: PictureSet, side: int, statistics: Statistics = "running"
) -> dict[str, float]:
    """All scores of one generator.

    Args:
        weights: of the averaged generator.
        fit: what it was trained on; also what the judge is fitted to, and whose variety is compared with.
        unseen: what a classifier fitted to generated pictures is tested on, and what recall looks for.
        side: at which the judge looks.
        statistics: of batch normalisation, to draw with.
    """
    made, asked = drawn(weights, fit, statistics)
    scores = score_pictures(made, fit, unseen, side)
    if len(fit.class_names) > 1:
        scores |= score_classes(made, asked, fit, unseen, side)
    return {name: round(score, 4) for name, score in scores.items()}


def score_classes(made: Tensor, asked: Tensor, fit: PictureSet, unseen: PictureSet, side: int) -> dict[str, float]:
    """Scores that need classes, of pictures [N, C, R, R] in [-1, 1] that were asked for by class [N]."""
    real, real_labels = _some(*as_tensors(fit))
    new, new_labels = as_tensors(unseen)
    judge = DigitClassifier.fit(real, real_labels, side)
    pixels = ratios(within_class(_small(made, side), asked), within_class(_small(real, side), real_labels))
    seen_made, seen_new = judge.scores(made), judge.scores(new)
    features = ratios(within_class(seen_made, asked), within_class(seen_new, new_labels))
    moments = Moments.of(seen_new)
    return {
        "class_accuracy": class_accuracy(judge, made, asked),
        "trained_on_generated": trained_on_generated(made, asked, new, new_labels, side),
        "trained_on_real": class_accuracy(judge, new, new_labels),
        "diversity": pixels.mean_overall,
        "diversity_nearest": pixels.nearest_overall,
        "diversity_features": features.mean_overall,
        "frechet": frechet_distance(Moments.of(seen_made), moments),
        "frechet_real": frechet_distance(Moments.of(judge.scores(_as_many(real, new))), moments),
    }


def score_pictures(made: Tensor, fit: PictureSet, unseen: PictureSet, side: int) -> dict[str, float]:
    """Scores that need no classes, and what real pictures reach, and these blurred, which recall cannot bear."""
    real, _ = _some(*as_tensors(fit))
    new, _ = as_tensors(unseen)
    compared = _small(new, side).numpy()
    precision, recall = precision_recall(_small(made, side).numpy(), compared)
    other = _as_many(real, made)
    judged = two_sample(made, new)
    return {
        "precision": precision,
        "recall": recall,
        "recall_real": precision_recall(_small(other, side).numpy(), compared)[1],
        "recall_blurred": precision_recall(_small(_blurred(other), side).numpy(), compared)[1],
        "two_sample": judged.mean,
        "two_sample_half_width": judged.half_width,
        "two_sample_real": two_sample(_as_many(real, new), new).mean,
    }


def _as_many(real: Tensor, others: Tensor) -> Tensor:
    return real[torch.randperm(len(real), generator=torch.Generator().manual_seed(1))[: len(others)]]


def _blurred(pictures: Tensor) -> Tensor:
    """Each pixel the mean of 3 x 3."""
    return torch.nn.functional.avg_pool2d(torch.nn.functional.pad(pictures, (1, 1, 1, 1), mode="replicate"), 3, 1)


def _some(pictures: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """At most MOST_FITTED of them: a kernel matrix grows with the square."""
    chosen = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))[:MOST_FITTED]
    return pictures[chosen], labels[chosen]


def _small(pictures: Tensor, side: int) -> Tensor:
    """What the judge sees: grey [N, side * side]."""
    grey = pictures.float().mean(1, keepdim=True)
    return torch.nn.functional.adaptive_avg_pool2d(grey, side).flatten(1)


def _add(path: Path, results: list[dict[str, object]]) -> None:
    before = json.loads(path.read_text("utf-8")) if path.is_file() else []
    path.write_text("[\n" + ",\n".join(json.dumps(entry) for entry in before + results) + "\n]\n", "utf-8")


def summary(entries: list[dict[str, object]]) -> list[str]:
    """A Markdown table: mean and spread over the seeds, a row for each of name, set, split and step."""
    groups: dict[tuple[object, ...], list[dict[str, object]]] = {}
    for entry in entries:
        groups.setdefault(
            tuple(entry.get(key, "running") for key in ("name", "set", "split", "step", "statistics")), []
        ).append(entry)
    lines = [
        "| settings | set | step | statistics | seeds | " + " | ".join(SCORES) + " |",
        "|---" * (5 + len(SCORES)) + "|",
    ]
    for (name, of, split, step, statistics), members in groups.items():
        cells = []
        for score in SCORES:
            values = [float(member[score]) for member in members if score in member]  # type: ignore[arg-type]
            spread = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
            cells.append(f"{fmean(values):.3f}{spread}" if values else "")
        lines.append(
            f"| {name} | {of} ({split}) | {step} | {statistics} | {len(members)} | " + " | ".join(cells) + " |"
        )
    return lines


if __name__ == "__main__":
    main()
