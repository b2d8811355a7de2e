"""Two judges beside each other on the same generated pictures: a network with many, fixed features with few.

    python benchmarks/judges.py RESULT.json

Warnings while training go by the two-sample score, and their thresholds were found with the network that learns from
500 pictures. Sets with fewer than that are judged by fixed features (`metrics/leave_one_out.py`): here generators are
trained on a few hundred drawn pictures, and at every checkpoint their samples are judged both ways.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from frugan.data.formats.picture_set import PictureSet
from frugan.engine.run.checkpoint import list_checkpoints
from frugan.metrics.leave_one_out import leave_one_out
from frugan.metrics.two_sample import two_sample
from frugan.progress import quiet
from frugan.sampling.requests import DrawRequest
from frugan.sampling.sampling import draw
from frugan.training.run import TrainingOptions
from frugan.training.scores import JUDGE_WHILE_TRAINING
from frugan.training.training import train
from machine import describe_machine
from picture_sets import load_set, part_of

SETS = ("fish", "maps", "houses")
RECIPES = {"biggan-small-32": "networks.classes=1", "r3gan-small-32": "networks.classes=none"}
"""Recipe -> what it takes for pictures without classes."""
SEEDS = (0, 1)
SIDE, DRAWN = 32, 1200
LEARNT_FROM = 240
"""Pictures to train on, which are also those that are judged against, as in a training."""
STEPS, CHECKPOINTS = 300, 6
WITH_NETWORK = 500
WITH_FEATURES = (30, 60, 120)
PARTS = 3
"""Other parts of the same samples, for the spread of a judgement."""


def images(pictures: PictureSet) -> Tensor:
    """All pictures of a set."""
    return torch.from_numpy(np.array(pictures[np.arange(len(pictures))]))


def judgements(samples: Tensor, known: Tensor, others: Tensor) -> dict[str, object]:
    """Both judges' scores of some samples.

    Args:
        samples: generated, uint8 [N, C, R, R].
        known: those that were learnt from, for the few.
        others: of the same kind, for the many.
    """
    network = two_sample(others[:WITH_NETWORK], samples[:WITH_NETWORK], JUDGE_WHILE_TRAINING)
    few = {}
    for count in WITH_FEATURES:
        parts = [samples[part * count : (part + 1) * count] for part in range(PARTS)]
        found = [leave_one_out(known[:count], part) for part in parts]
        few[count] = {"scores": [one.mean for one in found], "half_width": found[0].half_width}
    return {"network": network.mean, "fixed features": few}


def of_run(folder: Path, known: Tensor, others: Tensor) -> dict[int, object]:
    """Judgements at each checkpoint of a run."""
    found: dict[int, object] = {}
    for checkpoint in list_checkpoints(folder / "checkpoints"):
        with TemporaryDirectory() as out:
            (file,) = draw(
                checkpoint.path, out, DrawRequest(micro_batch=100), npz=WITH_NETWORK, device="cpu", say=quiet
            )
            samples = torch.from_numpy(np.load(file)["x"])
        found[checkpoint.step] = judgements(samples, known, others)
    return found


def main() -> None:
    """Train and judge all, and write after each run."""
    result = Path(sys.argv[1])
    rows: list[dict[str, object]] = []
    for seed in SEEDS:
        for name in SETS:
            fit, _ = load_set(name, SIDE, None, DRAWN)
            order = np.random.default_rng(seed).permutation(len(fit))
            known, others = part_of(fit, order[:LEARNT_FROM]), part_of(fit, order[LEARNT_FROM:])
            for recipe, classes in RECIPES.items():
                with TemporaryDirectory() as out:
                    words = [
                        *(f"training.duration={STEPS} steps", f"training.seed={seed}", "evaluation.every=none"),
                        *(f"saving.checkpoint_every={STEPS // CHECKPOINTS} steps", "saving.keep_checkpoints=100"),
                        classes,
                    ]
                    options = TrainingOptions(device="cpu", tensorboard=False)
                    train(recipe, {"images": known}, out, overrides=words, options=options)
                    found = of_run(Path(out), images(known), images(others))
                rows.append({"set": name, "recipe": recipe, "seed": seed, "at": found})
                print(name, recipe, seed, found, flush=True)
                result.write_text(json.dumps({"machine": describe_machine(), "runs": rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
