"""Small recipes on many sets of pictures in equal time: which one does best, and which one stops learning.

    python benchmarks/equal_time.py RESULT.json [--recipes NAME,...] [--sets NAME,...] [--side 32|64|128]
        [--minutes 5,15] [--pace SECONDS] [--seeds 0-2] [--archives DIR]
    python benchmarks/equal_time.py RESULT.json --table
    python benchmarks/equal_time.py RESULT.json --floors [--sets NAME,...] [--side 64]
    python benchmarks/equal_time.py RESULT.json --again --keep DIR [--recipes NAME,...] [--sets NAME,...] [--side 64]
        [--minutes 5,15] [--seeds 0-2] [--archives DIR]
    python benchmarks/equal_time.py RESULT.json --keep DIR --picture OUT.webp [--recipes NAME] [--sets NAME,...]
        [--side 64] [--minutes 15] [--seeds 0]

Each run gets the same time of one processor core, start-up aside. How many steps that is, is found once for each
machine, recipe and size, on the first set, by short runs of all recipes in turn, of which the middle one counts: then
the same minutes are the same steps on every set, whatever else the machine does meanwhile. (The fastest would flatter
recipes that move more memory than they compute: one was a quarter slower whenever others used the memory.) Schedules
are stretched to it. What a run took is kept beside what it was given. A set's last quarter is not trained on; scores
compare with it. "creatures/300" trains on 300 of the others alone. What a result has already is not run again, it
is written after each run, and with --keep a run that Ctrl-C stopped goes on where it was: let it run for as many nights
as it takes. Seeds come last, so that an unfinished result says something of every set.

A recipe with "init=RECIPE" or "init=FILE" behind it starts from these weights, in as many steps.

With --again, kept runs that came to their end are measured once more, as when a score has changed.

The picture shows the upper left corner of the last grid of each run that was kept, with its set's name; where several
recipes are named, these side by side, by what they change.
"""

import argparse
import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from shutil import rmtree
from statistics import fmean, median, stdev
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from frugan.contract.family import GridRequest
from frugan.data.batches import random_order
from frugan.data.digits import as_tensors
from frugan.data.formats.picture_set import PictureSet
from frugan.engine.run.checkpoint import EMA_FILE
from frugan.engine.run.events import read_events
from frugan.metrics.two_sample import Judge
from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe
from frugan.reporting.grids import grid_width
from frugan.training.run import TrainingOptions
from frugan.training.starting_weights import CLASSES_OF_SHIPPED
from frugan.training.training import train
from machine import describe_machine
from picture_sets import CHOSEN_ON, load_set, part_of
from quality import drawn, score_classes, score_pictures
from stacked_digits import COUNTED, count_kinds, stacked_digits
from stacked_digits import NAME as STACKED

RECIPES = {
    32: ("biggan-small-32", "stylegan2-small-64", "r3gan-small-32"),
    64: ("biggan-small-64", "stylegan2-small-64", "r3gan-small-64"),
    128: ("biggan-small-128", "stylegan2-small-64", "r3gan-small-64"),
}
"""Side -> recipes; one made for another side is asked for this one."""
BETWEEN = r",(?![^\[]*\])"
"""Recipes: a comma that is not in a list of numbers."""
GENERATED = 1000
TRIED_STEPS = (8, 40)
TRIES = 5
LAST_STEPS = 100
"""Over which a loss is averaged."""
SHOWN_PIXELS = 320
"""Side of the corner of a grid that the picture shows."""
START = "init="
"""Begins the word of a recipe that says from which weights it starts; none: noise."""
TITLE = 22
"""Pixels for what stands over a grid."""
SCORES = ("two_sample", "recall", "trained_on_generated")
REAL_SCORES = ("two_sample_real", "recall_real", "trained_on_real")
"""Of a table, of generated pictures and of real ones."""
FEATURE_SIDE = 16
"""Of the grey pictures whose neighbours precision and recall look at."""
Entry = dict[str, Any]


def main() -> None:
    """Run what a result lacks, or print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path)
    parser.add_argument(
        "--recipes", help="each with key=value words behind it, or not; default: the small ones of this side"
    )
    parser.add_argument("--sets", default=",".join(CHOSEN_ON))
    parser.add_argument("--side", type=int, default=64, choices=sorted(RECIPES))
    parser.add_argument("--minutes", default="15", help="of one core")
    parser.add_argument("--pace", type=float, help="CPU seconds of a step of all recipes; default: they are timed")
    parser.add_argument("--seeds", default="0-2")
    parser.add_argument("--archives", type=Path, help="folder with the packages that some sets are in")
    parser.add_argument("--keep", type=Path, help="folder that the runs are left in")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--floors", action="store_true", help="write what real pictures of the sets score instead")
    parser.add_argument("--again", action="store_true", help="measure kept runs once more instead")
    parser.add_argument("--picture", type=Path, help="draw the grids of kept runs instead")
    given = parser.parse_args()
    if (given.again or given.picture) and given.keep is None:
        parser.error("--again and --picture look at kept runs: name their folder with --keep")
    entries: list[Entry] = json.loads(given.result.read_text("utf-8")) if given.result.is_file() else []
    recipes = re.split(BETWEEN, given.recipes) if given.recipes else RECIPES[given.side]
    minutes = [float(each) for each in given.minutes.split(",")]
    first, _, last = given.seeds.partition("-")
    seeds, sets = range(int(first), int(last or first) + 1), given.sets.split(",")
    if given.picture:
        several = given.recipes is not None and len(recipes) > 1
        kept = {
            f"{of}, {(recipe.partition(' ')[2] or recipe).replace(START, 'from the weights of ')}"
            if several
            else of: given.keep / _folder(recipe, of, given.side, minutes[0], seeds[0])
            for of, recipe in product(sets, recipes if several else recipes[:1])
        }
        across = len(recipes) if several else next((n for n in (4, 3) if len(kept) % n == 0), 2)
        picture_of(kept, given.side, across).save(given.picture, quality=85)
        return
    if given.floors:
        for of in sets:
            print(json.dumps({"set": of, "side": given.side} | floors(*_pictures(of, given.side, given.archives))))
        return
    if given.again:
        for seed, of, minute, recipe in product(seeds, sets, minutes, recipes):
            weights = _last_weights(given.keep / _folder(recipe, of, given.side, minute, seed))
            scores = measure(weights, *_pictures(of, given.side, given.archives))
            asked = {"recipe": recipe, "set": of, "side": given.side, "minutes": minute, "seed": seed}
            entries.append(asked | {score: round(value, 4) for score, value in scores.items()})
            entries[-1] |= {"judge": str(Judge()), "machine": describe_machine()}
            _write(given.result, entries)
        return
    if not given.table:
        if given.pace is None:
            paces = _paces(recipes, sets[0], given.side, entries, given.archives)
        else:
            paces = dict.fromkeys(recipes, given.pace)
        for seed, of, minute, recipe in product(seeds, sets, minutes, recipes):
            if any(_is_of(entry, recipe, of, given.side, minute, seed) for entry in entries):
                continue
            entries.append(run(recipe, of, given.side, minute, seed, paces[recipe], given.archives, given.keep))
            _write(given.result, entries)
    for line in table(entries):
        print(line)


def _write(result: Path, entries: Sequence[Entry]) -> None:
    print(json.dumps({k: v for k, v in entries[-1].items() if k != "machine"}), flush=True)
    result.write_text("[\n" + ",\n".join(json.dumps(each) for each in entries) + "\n]\n", "utf-8")


def _is_of(entry: Entry, recipe: str, of: str, side: int, minutes: float, seed: int) -> bool:
    asked = {"recipe": recipe, "set": of, "side": side, "minutes": minutes, "seed": seed}
    return asked.items() <= entry.items()


def run(
    name: str,
    of: str,
    side: int,
    minutes: float,
    seed: int,
    pace: float,
    archives: Path | None,
    keep: Path | None,
) -> Entry:
    """Train once and measure.

    Args:
        minutes: of one core.
        pace: seconds of a step.
        archives: folder of the packages that some sets are in.
        keep: folder that the run is left in; None: it is deleted.
    """
    fit, unseen = _pictures(of, side, archives)
    settings = _settings(name, side, seed, len(fit.class_names))
    with tempfile.TemporaryDirectory() as temporary:
        steps = max(1, int(minutes * 60 / pace))
        recipe = settings(steps)
        folder = keep / _folder(name, of, side, minutes, seed) if keep else Path(temporary) / "run"
        took = _train(recipe, fit, folder, _start(name))
        weights = _last_weights(folder)
        scores = measure(weights, fit, unseen)
        if of == STACKED:
            scores |= count_kinds(drawn(weights, fit, count=COUNTED)[0])
        events = list(read_events(folder / "events.jsonl"))
    return {
        "recipe": name,
        "set": of,
        "side": side,
        "minutes": minutes,
        "seed": seed,
        "steps": steps,
        **{score: round(value, 4) for score, value in (scores | _losses(events)).items()},
        "judge": str(Judge()),
        "given_up": sum("has given up" in event["line"] for event in events if event["event"] == "warning"),
        "trained_on": len(fit),
        "classes": len(fit.class_names),
        "cpu_seconds": round(took, 1),
        "pace": pace,
        "machine": describe_machine(),
    }


def _pictures(of: str, side: int, archives: Path | None) -> tuple[PictureSet, PictureSet]:
    """To train on, of which a number behind the set's name lets some alone through, and others."""
    of, _, most = of.partition("/")
    fit, unseen = stacked_digits(side) if of == STACKED else load_set(of, side, archives)
    return (part_of(fit, random_order(f"few/{of}", len(fit))[: int(most)]) if most else fit), unseen


def _folder(recipe: str, of: str, side: int, minutes: float, seed: int) -> str:
    return f"{recipe}-{of.replace('/', '-')}-{side}-{minutes:g}-{seed}"


def _last_weights(run: Path) -> Path:
    return max((run / "checkpoints").glob("step-*")) / EMA_FILE


def picture_of(runs: Mapping[str, Path], side: int, across: int) -> Image.Image:
    """The last grids of runs, so many in a row, each under its name: a corner of `SHOWN_PIXELS`."""
    corner = grid_width(SHOWN_PIXELS // side, side)
    tall = corner + TITLE
    across, rows = min(across, len(runs)), -(-len(runs) // across)
    sheet = Image.new("RGB", (across * (corner + TITLE) - TITLE, rows * (tall + TITLE) - TITLE), "white")
    draw = ImageDraw.Draw(sheet)
    fonts = [ImageFont.load_default(size) for size in range(16, 8, -1)]
    for number, (name, run) in enumerate(runs.items()):
        left, top = number % across * (corner + TITLE), number // across * (tall + TITLE)
        fitting = next((font for font in fonts if draw.textlength(name, font) <= corner), fonts[-1])
        draw.text((left, top), name, "black", fitting)
        with Image.open(max((run / "samples").glob("step-*-samples.png"))) as grid:
            # to the left of a grid stand the names of its rows, if they have any
            names = grid.width - grid_width(GridRequest().columns, side)
            sheet.paste(grid.crop((names, 0, names + corner, corner)), (left, top + TITLE))
    return sheet


def _settings(name: str, side: int, seed: int, classes: int) -> Callable[[int], Recipe]:
    """Steps -> a recipe whose schedules end with them."""
    name, *changes = _without_start(name).split()
    plain = load_recipe(name)

    def settings(steps: int) -> Recipe:
        words = [f"training.seed={seed}", f"training.duration={steps} steps", f"networks.resolution={side}"]
        words += ["saving.snapshot_every=1000000 steps", "saving.checkpoint_every=1000000 steps"]
        words += ["saving.report_every=20 steps"]
        words += [f"networks.classes={classes if classes > 1 or plain.family == 'biggan' else 'none'}"]
        return load_recipe(name, [*words, *changes])

    return settings


def _without_start(name: str) -> str:
    """A recipe and what is changed, without the weights that it starts from."""
    return " ".join(word for word in name.split() if not word.startswith(START))


def _start(name: str) -> str | None:
    """Weights that a recipe starts from; None: noise."""
    return next((word.removeprefix(START) for word in name.split() if word.startswith(START)), None)


def _paces(
    recipes: Sequence[str], of: str, side: int, before: Sequence[Entry], archives: Path | None
) -> dict[str, float]:
    """Recipe -> CPU seconds of a step: as a result has it already, else the middle one of some tries.

    The recipes take turns, so that a busy minute of the machine is nobody's alone.
    """
    here = (side, describe_machine())
    paces = {
        _without_start(entry["recipe"]): float(entry["pace"])
        for entry in before
        if (entry["side"], entry["machine"]) == here
    }
    unknown = [recipe for recipe in dict.fromkeys(map(_without_start, recipes)) if recipe not in paces]
    if unknown:
        fit, _ = _pictures(of, side, archives)
        tried: dict[str, list[float]] = {recipe: [] for recipe in unknown}
        for _, recipe in product(range(TRIES), unknown):
            with tempfile.TemporaryDirectory() as folder:
                tried[recipe].append(_timed(_settings(recipe, side, 0, len(fit.class_names)), fit, Path(folder)))
        paces |= {recipe: round(median(seconds), 4) for recipe, seconds in tried.items()}
    return {recipe: paces[_without_start(recipe)] for recipe in recipes}


def _timed(settings: Callable[[int], Recipe], fit: PictureSet, folder: Path) -> float:
    """CPU seconds a step."""
    took = [_train(settings(steps), fit, folder / f"tried-{steps}") for steps in TRIED_STEPS]
    return (took[1] - took[0]) / (TRIED_STEPS[1] - TRIED_STEPS[0])


def _train(recipe: Recipe, fit: PictureSet, folder: Path, init: str | None = None) -> float:
    """Train to the end, from where a stopped run left off; CPU seconds of all its parts.

    Raises:
        SystemExit: it was stopped. (Two such runs were once scored as if they had come to their end.)
    """
    parts = folder / "cpu-seconds.json"
    before: list[float] = json.loads(parts.read_text("utf-8")) if parts.is_file() else []
    if not before and folder.exists():
        rmtree(folder)  # it was not stopped but killed, and what it took is unknown
    began = time.process_time()
    result = train(
        recipe,
        {"images": fit},
        folder,
        init=init,
        init_classes=None if init is None else CLASSES_OF_SHIPPED,
        options=TrainingOptions(device="cpu"),
        say=_quiet,
    )
    took = [*before, time.process_time() - began]
    if not result.finished:
        parts.write_text(json.dumps(took), "utf-8")
        raise SystemExit(f"{folder.name}: stopped at step {result.step}; it is not counted until it goes on to its end")
    return sum(took)


def _quiet(_: str) -> None:
    """Say nothing."""


def measure(weights: Path, fit: PictureSet, unseen: PictureSet) -> dict[str, float]:
    """Scores of a generator, beside pictures that it was not trained on."""
    made, asked = drawn(weights, fit, count=GENERATED)
    scores = score_pictures(made, fit, unseen, FEATURE_SIDE)
    if len(fit.class_names) > 1:
        scores |= score_classes(made, asked, fit, unseen, FEATURE_SIDE)
    return scores


def floors(fit: PictureSet, unseen: PictureSet) -> dict[str, float]:
    """What pictures that could be trained on score beside others, as they are and blurred."""
    real, _ = as_tensors(fit)
    some = real[random_order("floors", len(real))[:GENERATED]]
    scores = score_pictures(some, fit, unseen, FEATURE_SIDE)
    return {name: round(score, 3) for name, score in scores.items() if name not in ("recall_real",)}


def _losses(events: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The discriminator's own terms over the last steps: at their equilibrium it has given up."""
    steps = [event["phases"]["D"]["terms"] for event in events if event["event"] == "step"]
    last = [terms for terms in steps[-LAST_STEPS:] if terms]
    return {f"loss_{term}": fmean(float(terms[term]) for terms in last) for term in (last[-1] if last else ())}


def table(entries: Sequence[Entry]) -> Iterator[str]:
    """A Markdown table of each kind of machine: a row for each set and time, scores of each recipe, over the seeds.

    They are two-sample, recall, and how often a classifier trained on generated pictures is right where there are
    classes. As many minutes are not as many steps on another machine, so what they give is not averaged.
    """
    kinds: dict[str, list[Entry]] = {}
    for entry in entries:
        kinds.setdefault(_machine(entry), []).append(entry)
    for kind, members in kinds.items():
        yield f"\n{kind}:\n"
        yield from _table(members)


def _machine(entry: Entry) -> str:
    machine = entry["machine"]
    bf16 = "AMX" if machine["amx"] else "faster in bf16" if machine["bf16_units"] else "not faster in bf16"
    return f"{machine['processor']}, {bf16}"


def _table(entries: Sequence[Entry]) -> Iterator[str]:
    recipes = sorted({entry["recipe"] for entry in entries})
    yield "| set | side | minutes | real | " + " | ".join(recipes) + " |"
    yield "|---" * (4 + len(recipes)) + "|"
    groups: dict[tuple[str, int, float], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry["set"], entry["side"], entry["minutes"]), []).append(entry)
    for (of, side, minutes), members in sorted(groups.items()):
        cells = [_scores([member for member in members if member["recipe"] == recipe], SCORES) for recipe in recipes]
        yield f"| {of} | {side} | {minutes:g} | {_scores(members[:1], REAL_SCORES)} | " + " | ".join(cells) + " |"


def _scores(entries: Sequence[Entry], names: Sequence[str]) -> str:
    return "; ".join(_spread(entries, name) for name in names if entries and name in entries[0])


def _spread(entries: Sequence[Entry], score: str) -> str:
    values = [float(entry[score]) for entry in entries]
    return f"{fmean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


if __name__ == "__main__":
    main()
