"""What it saves to start from a trained model.

    python benchmarks/fine_tuning.py RECIPE --first SET[:CLASSES] --then SET[:CLASSES] [--pictures N]
    [--init-classes copy|mean|fresh] [--seeds 0-2] [--steps N] [--share 0.2] [--every N] [--archive FILE.tgz]
    [--tuned key.sub=value]... [--keep FOLDER] [--out RESULT.json] [key.sub=value ...]

A model is trained on the classes of the first set. Then, for each seed, two runs of the same recipe learn the classes
of the second: one from nothing, and one from the first model's weights in a share of the steps (--share), over which
its learning rate falls as the other's does over all. Both are measured along the way, on pictures that neither has
seen. SET is one of benchmarks/picture_sets/known.py; CLASSES are names, as in handwritten:3,5,6,8,9. With `copy` each
class begins as that of the same name. --tuned sets a field of the second run alone: in a fifth of the steps the average
has to be over a fifth as many. With --keep, runs stay in a folder, and those that are finished there are not trained
again.
"""

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from frugan.data.batches import random_order
from frugan.data.formats.picture_set import PictureSet, picture_digest
from frugan.engine.run.checkpoint import EMA_FILE
from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe
from frugan.training.run import TrainingOptions
from frugan.training.training import train
from machine import describe_machine
from picture_sets import load_set
from quality import JUDGE_SIDE, measure

COMPARED = ("class_accuracy", "trained_on_generated", "diversity")

Curve = dict[int, dict[str, float]]
"""Step -> scores."""


@dataclass(frozen=True)
class Part:
    """Some classes of a set."""

    name: str  # as it was asked for
    # fit, unseen: what is learnt from, and what is measured on
    fit: PictureSet
    unseen: PictureSet
    side: int  # at which the judge looks


def part(words: str, resolution: int, archive: Path | None, most: int | None) -> Part:
    """Read SET:CLASSES; of what is learnt from at most so many pictures."""
    name, _, classes = words.partition(":")
    fit, unseen = load_set(name, resolution, archive)
    chosen = classes.split(",") if classes else list(fit.class_names)
    if unknown := [each for each in chosen if each not in fit.class_names]:
        raise SystemExit(f"{words}: no classes {', '.join(unknown)}; there are {', '.join(fit.class_names)}")
    return Part(words, _only(fit, chosen, most), _only(unseen, chosen, None), JUDGE_SIDE.get(name, 16))


def _only(pictures: PictureSet, chosen: list[str], most: int | None) -> PictureSet:
    numbers = [pictures.class_names.index(name) for name in chosen]
    members = np.flatnonzero(np.isin(pictures.labels, numbers))
    if most is not None:
        members = np.sort(members[random_order("fine-tuning", len(members))[:most]])
    labels = np.array([numbers.index(label) for label in pictures.labels[members]], np.int64)
    kept = np.ascontiguousarray(pictures.pictures[members])
    return PictureSet(kept, labels, tuple(chosen), True, picture_digest(kept, labels))


def trained(recipe: Recipe, of: Part, folder: Path, every: int, **start: str | None) -> Curve:
    """Train a run, and measure its backups and its end."""
    if not (folder / f"checkpoints/step-{recipe.training.duration.amount:09.0f}").is_dir():
        options = TrainingOptions(device="cpu")
        train(recipe, {"images": of.fit}, folder, options=options, **start)  # type: ignore[arg-type]
    saved = [*folder.glob("backups/step-*"), *folder.glob("checkpoints/step-*")]
    steps = {int(each.name.removeprefix("step-")): each for each in saved}
    wanted = {step: each for step, each in sorted(steps.items()) if step and step % every == 0}
    return {step: measure(each / EMA_FILE, of.fit, of.unseen, of.side) for step, each in wanted.items()}


def reached(curve: Curve, score: str, goal: float) -> int | None:
    """The first step at which a score is as good as that."""
    return next((step for step, scores in curve.items() if scores[score] >= goal), None)


def main() -> None:
    """Run all seeds, and print curves and where they meet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*", metavar="key.sub=value")
    parser.add_argument("--first", required=True)
    parser.add_argument("--then", required=True)
    parser.add_argument("--init-classes", default="copy", choices=("copy", "mean", "fresh"))
    parser.add_argument("--seeds", default="0-2")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--share", type=float, default=0.2)
    parser.add_argument("--every", type=int, default=40)
    parser.add_argument("--tuned", action="append", default=[], metavar="key.sub=value")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--pictures", type=int, help="of the second set to learn from; default: all")
    parser.add_argument("--archive", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_intermixed_args()

    def recipe(of: Part, seed: int, *words: str) -> Recipe:
        quiet = ["saving.snapshot_every=1000000 steps", "saving.checkpoint_every=1000000 steps"]
        own = [f"networks.classes={len(of.fit.class_names)}", f"training.seed={seed}", *quiet]
        return load_recipe(given.recipe, [*own, *given.overrides, *words])

    plain = load_recipe(given.recipe, given.overrides)
    needs = next(iter(plain.kind.sources(plain.networks, plain.objective).values()))
    first, then = (
        part(words, needs.resolution, given.archive, most)
        for words, most in ((given.first, None), (given.then, given.pictures))
    )
    low, _, high = given.seeds.partition("-")
    began = time.process_time()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        trained(recipe(first, 0), first, folder / "first", given.steps)
        classes = given.init_classes
        if classes == "copy":
            (folder / "classes.txt").write_text("".join(f"{name} = {name}\n" for name in then.fit.class_names))
            classes = f"copy={folder / 'classes.txt'}"
        seeds: list[dict[str, object]] = []
        for seed in range(int(low), int(high or low) + 1):
            along = f"saving.backup_every={given.every} steps"
            short = round(given.share * given.steps)
            curves = {
                "fresh": trained(
                    recipe(then, seed, f"training.duration={given.steps} steps", along),
                    then,
                    folder / f"fresh-{seed}",
                    given.every,
                ),
                "fine-tuned": trained(
                    recipe(then, seed, f"training.duration={short} steps", along, *given.tuned),
                    then,
                    folder / f"tuned-{seed}",
                    given.every,
                    init=str(folder / "first"),
                    init_classes=classes,
                ),
            }
            ends = {way: curve[max(curve)] for way, curve in curves.items()}
            last = {score: ends["fine-tuned"][score] for score in COMPARED}
            reaches = {score: reached(curves["fresh"], score, last[score]) for score in COMPARED}
            seeds.append({"seed": seed, "fresh_reaches_at": reaches, "curves": curves})
            print(json.dumps({"seed": seed, "ends": ends, "fresh reaches the tuned one's at": reaches}), flush=True)
    result = {
        "recipe": [given.recipe, *given.overrides],
        "first": given.first,
        "then": given.then,
        "fitted_on": len(then.fit),
        "init_classes": given.init_classes,
        "of_the_fine_tuned_alone": given.tuned,
        "steps": {"fresh": given.steps, "fine-tuned": round(given.share * given.steps)},
        "seeds": seeds,
        "cpu_seconds": round(time.process_time() - began),
        "machine": describe_machine(),
    }
    for line in table(seeds):
        print(line)
    if given.out is not None:
        given.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


def table(seeds: list[dict[str, object]]) -> list[str]:
    """Both curves as a Markdown table, means over the seeds."""
    lines = ["| step | " + " | ".join(f"{score}: fresh, fine-tuned" for score in COMPARED) + " |"]
    lines.append("|---" * (1 + len(COMPARED)) + "|")
    curves: list[dict[str, Curve]] = [each["curves"] for each in seeds]  # type: ignore[misc]
    for step in curves[0]["fresh"]:
        ways = [way for way in ("fresh", "fine-tuned") if step in curves[0][way]]
        cells = [
            ", ".join(f"{fmean(each[way][step][score] for each in curves):.3f}" for way in ways) for score in COMPARED
        ]
        lines.append(f"| {step} | " + " | ".join(cells) + " |")
    return lines


if __name__ == "__main__":
    main()
