"""Trains a small face model to its end, in several ways, on two drawn people, and measures the swap along the way.

    python -m tools.draw_faces RUNS/crowd --crowd 12 --faces 20
    python benchmarks/long_faces.py RUNS RESULT.json [--ways plain,fp32,...]
    python benchmarks/long_faces.py RUNS RESULT.json --picture OUT.webp [--ways plain]
    python benchmarks/long_faces.py RUNS RESULT.json --seeds 3

30,000 steps of `saehd-demo-64` each. Every thousand, the swap of unseen moments is held against what was drawn of one
person in the other's place. RUNS is a folder for the runs and their data: what is there already goes on, and is not
trained again. The picture shows unseen faces, a row each: as they are, swapped after some numbers of steps, and as the
swap should be. `--seeds` says what chance does: 3,000 steps for each seed in bf16 and in fp32, all on bent pictures.

- plain: bent pictures for 20,000 steps, straight ones for the rest;
- fp32: the same in full precision;
- finish: as plain until step 20,000 (a copy of that run, if it is there), then true face and dropout of learning rates,
  and the patch discriminator for the last 5,000;
- pretrained: 10,000 of the steps go to faces of twelve other people first.
"""

import argparse
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from PIL import Image

from frugan.engine.run.events import read_events
from frugan.faces.data.drawn_faces import write_drawn_faces
from frugan.recipe.loading import load_recipe, recipe_with
from frugan.recipe.recipe import Recipe
from frugan.reporting.grids import write_grid
from frugan.setup.networks import Weights
from frugan.training.demo_faces import swap_unseen
from frugan.training.run import TrainingOptions
from frugan.training.training import train
from machine import describe_machine

STEPS, BENT, LAST = 30_000, 20_000, 25_000
"""Of a training; those on bent pictures; the step that the patch discriminator joins at."""
PRETRAINED, SHORT = 10_000, 3_000
EVERY = 1_000
SHOWN = (1_000, 3_000, 10_000, STEPS)
FACES = 5
CROWD = "crowd"
"""Folder in RUNS with faces of other people."""
PLAIN = ({"at": f"{BENT} steps", "set": {"objective.random_warp": False}},)
DROPOUT = {"optimizers.default.dropout": 0.3, "optimizers.default.period": 500}
WAYS: Mapping[str, tuple[tuple[str, ...], int, tuple[dict[str, Any], ...]]] = MappingProxyType(
    {
        "plain": ((), STEPS, PLAIN),
        "fp32": (("training.precision=fp32",), STEPS, PLAIN),
        "finish": (
            (),
            STEPS,
            (
                {
                    "at": f"{BENT} steps",
                    "set": {"objective.random_warp": False, "objective.true_face_power": 0.01, **DROPOUT},
                },
                {"at": f"{LAST} steps", "set": {"objective.gan_power": 0.1}},
            ),
        ),
        "pretrained": (
            (),
            STEPS - PRETRAINED,
            ({"at": f"{BENT - PRETRAINED} steps", "set": {"objective.random_warp": False}},),
        ),
    }
)
"""Name -> fields, steps and stages."""
Entry = dict[str, Any]


def main() -> None:
    """Train and measure what is missing, or draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--seeds", type=int)
    given = parser.parse_args()
    ways = given.ways.split(",")
    if given.picture:
        draw(given.runs / ways[0], given.picture)
        return
    if given.seeds:
        short = [entry for seed in range(given.seeds) for entry in of_seed(seed, given.runs)]
        given.result.write_text("[\n" + ",\n".join(json.dumps(each) for each in short) + "\n]\n", "utf-8")
        return
    for way in ways:
        run = trained(way, given.runs)
        entries: list[Entry] = json.loads(given.result.read_text("utf-8")) if given.result.is_file() else []
        entries = [entry for entry in entries if entry["way"] != way] + measured(way, run)
        given.result.write_text("[\n" + ",\n".join(json.dumps(each) for each in entries) + "\n]\n", "utf-8")
        print(json.dumps(entries[-1]), flush=True)


def trained(way: str, runs: Path) -> Path:
    """The run of a way, trained to its end."""
    words, steps, stages = WAYS[way]
    if way == "finish" and (runs / "plain").is_dir() and not (runs / way).is_dir():
        begin_as_plain(runs / "plain", runs / way)
    workspace = runs / "faces"
    if not workspace.is_dir():
        write_drawn_faces(workspace)
    init = None
    if way == "pretrained":
        init = runs / "others"
        train(settings(PRETRAINED, ["objective.pretrain=true"], ()), runs / CROWD, init)
    train(settings(steps, words, stages), workspace, runs / way, init=init, options=TrainingOptions(device="cpu"))
    return runs / way


def of_seed(seed: int, runs: Path) -> list[Entry]:
    """Errors of a short training in each precision."""
    entries = []
    for precision in ("bf16", "fp32"):
        words = [f"training.precision={precision}", f"training.seed={seed}"]
        run = runs / f"seed-{precision}-{seed}"
        train(settings(SHORT, words, ()), runs / "faces", run, options=TrainingOptions(device="cpu"))
        entries += [{"precision": precision, "seed": seed, **entry} for entry in measured("short", run)[-1:]]
    return entries


def begin_as_plain(plain: Path, run: Path) -> None:
    """Take over the steps that are the same: a run at BENT, which goes on from there by a recipe of its own."""
    checkpoints = kept(plain)
    for step in checkpoints:
        if step <= BENT:
            shutil.copytree(checkpoints[step], run / "backups" / checkpoints[step].name)
    shutil.copytree(checkpoints[BENT], run / "checkpoints" / checkpoints[BENT].name)
    for name in ("recipe.json", "plan.json"):
        shutil.copy(plain / name, run / name)
    before = [event for event in read_events(plain / "events.jsonl") if event.get("step", 0) <= BENT]
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in before), "utf-8")


def settings(steps: int, words: tuple[str, ...] | list[str], stages: tuple[dict[str, Any], ...]) -> Recipe:
    """`saehd-demo-64` for so many steps."""
    asked = [f"training.duration={steps} steps", f"saving.backup_every={EVERY} steps"]
    asked += [f"saving.checkpoint_every={2 * EVERY} steps", f"saving.snapshot_every={EVERY} steps"]
    values = load_recipe("saehd-demo-64").model_dump(mode="json") | {"stages": list(stages)}
    return recipe_with(values, [*asked, f"saving.report_every={EVERY} steps", *words], "a long training")


def measured(way: str, run: Path) -> list[Entry]:
    """Errors after every so many steps."""
    first = PRETRAINED if way == "pretrained" else 0
    entries = []
    for step, checkpoint in kept(run).items():
        errors = swap_unseen(Weights.open(checkpoint)).errors()
        found = {name: round(value, 5) for name, value in errors._asdict().items()}
        entries.append({"way": way, "step": first + step, **found, "machine": describe_machine()})
    return entries


def kept(run: Path) -> dict[int, Path]:
    """Step -> its checkpoint."""
    folders = [*(run / "backups").glob("step-*"), max((run / "checkpoints").glob("step-*"))]
    return dict(sorted((int(folder.name.removeprefix("step-")), folder) for folder in folders))


def draw(run: Path, out: Path) -> None:
    """Unseen faces, their swaps after some numbers of steps, and what these should be."""
    checkpoints = kept(run)
    made = [swap_unseen(Weights.open(checkpoints[step])) for step in SHOWN]
    columns = (made[0].destination, *(each.swap for each in made), made[0].truth)
    grid = torch.stack([column[:FACES] for column in columns], 1)  # [FACES, columns, 3, R, R]
    titles = ("as it is", *(f"{step:,}" for step in SHOWN), "truth")
    path = out.with_suffix(".png")
    write_grid(grid, path, titles=titles)
    with Image.open(path) as picture:
        picture.resize((2 * picture.width, 2 * picture.height), Image.Resampling.LANCZOS).save(out, quality=90)
    path.unlink()


if __name__ == "__main__":
    main()
