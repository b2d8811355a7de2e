"""How small a damage of real pictures scores without weights see, and how often they see one where there is none.

    python benchmarks/seen_damages.py RESULT.json

Of each set and seed one part is damaged and judged against another. The sets are kinds that no setting was chosen
on, and the digits. Also counted: copies that are named, and unseen pictures that are.
"""

import json
import sys
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from frugan.data.formats.picture_set import PictureSet, picture_digest
from frugan.evaluation.judged import PixelTest
from frugan.metrics.control import DAMAGES, Control, control_of
from frugan.metrics.diversity import nearest_pictures
from frugan.metrics.leave_one_out import leave_one_out
from frugan.metrics.two_sample import Judge, TwoSample, two_sample
from frugan.sampling.sampling import COPIED
from frugan.training.scores import JUDGE_WHILE_TRAINING
from machine import describe_machine
from picture_sets import load_set

SETS = ("houses", "digits", "cells")
SEEDS = 3
DRAWN = 1000
SIDES = {"digits": 32}
USUAL_SIDE = 64
FEATURES_AT, NETWORK_AT, PIXELS_AT = (30, 60, 126), (126, 250), (126, 450)
REPEATS = 10
"""Judgements of real pictures against others, to count those that are sure."""
NOISE_LEVELS = 12
COPIES, KNOWN = 100, 400


def judged(first: Tensor, second: Tensor, judge: Judge | None) -> TwoSample:
    """Judge by fixed features, or by a network."""
    return leave_one_out(first, second) if judge is None else two_sample(first, second, judge)


def parts(pictures: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Two parts of so many pictures."""
    order = torch.randperm(len(pictures), generator=torch.Generator().manual_seed(seed))
    return pictures[order[:count]], pictures[order[count : 2 * count]]


def control(pictures: Tensor, count: int, judge: Judge | None, seed: int) -> Control:
    """Damages that are seen at this number."""
    first, second = parts(pictures, count, seed)
    return control_of(lambda damaged: judged(first, damaged, judge).tells_apart, second)


def summary(controls: list[Control]) -> dict[str, object]:
    """Smallest strength of each damage that was seen, by seed, and the share of seeds that are blind."""
    seen = {name: [found.seen[name] for found in controls] for name in DAMAGES}
    return {"seen": seen, "blind": fmean(found.blind for found in controls)}


def sure_of_nothing(pictures: Tensor, count: int) -> dict[str, float]:
    """Real pictures against others, by fixed features: accuracy, half of its interval, share that is sure."""
    found = [leave_one_out(*parts(pictures, count, 100 + seed)) for seed in range(REPEATS)]
    values = {"mean": [one.mean for one in found], "half_width": [one.half_width for one in found]}
    return {name: fmean(of) for name, of in values.items()} | {"sure": fmean(one.tells_apart for one in found)}


def as_set(pictures: Tensor, seed: int) -> PictureSet:
    """Pictures in an order of their own."""
    order = torch.randperm(len(pictures), generator=torch.Generator().manual_seed(seed))
    array, labels = pictures[order].numpy(), np.zeros(len(pictures), np.int64)
    return PictureSet(array, labels, ("pictures",), True, picture_digest(array, labels))


def copies(pictures: Tensor) -> dict[str, float]:
    """Shares that are named as copies: of unseen pictures, and of known ones with noise."""
    known, unseen = pictures[:KNOWN], pictures[KNOWN : KNOWN + COPIES]
    random = torch.Generator().manual_seed(0)
    noise = NOISE_LEVELS * torch.randn(known[:COPIES].shape, generator=random)
    again = (known[:COPIES].float() + noise).clamp(0, 255).byte()
    of = {"unseen": unseen, "copies": again}
    return {
        name: float((nearest_pictures(queries, known.numpy(), 1).ratios < COPIED).float().mean())
        for name, queries in of.items()
    }


def main() -> None:
    """Measure all, and write after each set."""
    result = Path(sys.argv[1])
    found: dict[str, object] = {}
    for name in SETS:
        side = SIDES.get(name, USUAL_SIDE)
        fit, unseen = load_set(name, side, None, DRAWN)
        chosen = [unseen] if name == "digits" else [fit, unseen]  # digits that no recipe was tuned on
        pictures = torch.cat([torch.from_numpy(np.array(part[np.arange(len(part))])) for part in chosen])
        found[name] = {
            "pictures": len(pictures),
            "chance": {count: sure_of_nothing(pictures, count) for count in FEATURES_AT},
            "fixed features": {
                count: summary([control(pictures, count, None, seed) for seed in range(SEEDS)]) for count in FEATURES_AT
            },
            "network": {
                count: summary([control(pictures, count, JUDGE_WHILE_TRAINING, seed) for seed in range(SEEDS)])
                for count in NETWORK_AT
            },
            "precision and recall by pixels": {
                count: summary(
                    [
                        t.control
                        for seed in range(SEEDS)
                        if (t := PixelTest.of(as_set(pictures, seed), count, ("pr",))) is not None
                    ]
                )
                for count in PIXELS_AT
            },
            "named as copies": copies(pictures),
        }
        about = {"machine": describe_machine(), "damages": {key: of.strengths for key, of in DAMAGES.items()}}
        result.write_text(json.dumps({**about, "sets": found}, indent=1) + "\n", "utf-8")
        print(name, flush=True)


if __name__ == "__main__":
    main()
