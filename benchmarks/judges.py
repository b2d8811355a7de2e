"""Two judges beside each other on the same damaged pictures: a network with many, fixed features with few.

    python benchmarks/judges.py RESULT.json

Warnings while training go by the two-sample score (`reporting/signs.py`). Their thresholds were found with the network
that learns from 500 pictures; sets with fewer than that are judged by fixed features (`metrics/leave_one_out.py`). Here
real pictures, drawn ones and digits, are damaged from hardly to badly, and both judge them; each few in several parts.
"""

import json
import sys
from itertools import product
from pathlib import Path
from statistics import fmean, pstdev

import numpy as np
import torch
from torch import Tensor

from frugan.metrics.control import DAMAGES
from frugan.metrics.leave_one_out import leave_one_out
from frugan.metrics.two_sample import two_sample
from frugan.training.scores import JUDGE_WHILE_TRAINING
from machine import describe_machine
from picture_sets import load_set

SETS = ("digits", "fish", "houses", "maps")
SIDE, DRAWN = 32, 900
SEEDS = (0, 1)
NETWORK_AT = 400
FEATURES_AT = (30, 60, 120)
PARTS = 3
"""Parts of the same pictures that fixed features judge, for the spread of a judgement."""
SHARES = (0.5, 1.0)
"""Shares of the pictures that are damaged; the others are whole."""
STRENGTHS = {"blur": (0.5, 1.0), "blend": (0.1, 0.4), "colour": (8, 32)}


def partly(pictures: Tensor, damage: str, strength: float, share: float, seed: int) -> Tensor:
    """Pictures, a share of them damaged, in an order of their own."""
    count = round(share * len(pictures))
    mixed = torch.cat([DAMAGES[damage].apply(pictures[:count], strength), pictures[count:]])
    return mixed[torch.randperm(len(mixed), generator=torch.Generator().manual_seed(seed))]


def judged(real: Tensor, others: Tensor) -> dict[str, object]:
    """Both judges' scores of some pictures against real ones."""
    row: dict[str, object] = {"network": two_sample(real, others, JUDGE_WHILE_TRAINING).mean}
    for count in FEATURES_AT:
        parts = [slice(part * count, (part + 1) * count) for part in range(PARTS)]
        found = [leave_one_out(real[part], others[part]) for part in parts]
        row[str(count)] = {
            "scores": [round(one.mean, 4) for one in found],
            "half_width": round(fmean(one.half_width for one in found), 4),
        }
    return row


def summary(rows: list[dict[str, object]]) -> dict[str, object]:
    """What fixed features say where the network is hardly wrong, mostly right, and at a loss."""
    about: dict[str, object] = {}
    for count in map(str, FEATURES_AT):
        bands = {}
        for name, (least, most) in {"0.99": (0.99, 1.01), "0.8": (0.8, 0.99), "below": (0.0, 0.8)}.items():
            scores = [row[count]["scores"] for row in rows if least <= row["network"] < most]  # type: ignore[index, operator]
            flat = np.array([score for part in scores for score in part])
            if len(flat):
                bands[name] = {
                    "rows": len(scores),
                    "mean": round(float(flat.mean()), 3),
                    "quantiles 5, 50, 95": [round(float(v), 3) for v in np.quantile(flat, (0.05, 0.5, 0.95))],
                    "at least 0.8": round(float((flat >= 0.8).mean()), 3),
                    "at least 0.95": round(float((flat >= 0.95).mean()), 3),
                    "at least 0.99": round(float((flat >= 0.99).mean()), 3),
                    "spread of the same": round(fmean(pstdev(part) for part in scores), 3),
                }
        about[count] = bands
    return about


def main() -> None:
    """Judge all, and write after each set and seed."""
    result = Path(sys.argv[1])
    rows: list[dict[str, object]] = []
    for seed, name in product(SEEDS, SETS):
        fit, test = load_set(name, SIDE, None, DRAWN)
        pictures = torch.cat([torch.from_numpy(np.array(part[np.arange(len(part))])) for part in (fit, test)])
        pictures = pictures[torch.randperm(len(pictures), generator=torch.Generator().manual_seed(seed))]
        real, others = pictures[:NETWORK_AT], pictures[NETWORK_AT : 2 * NETWORK_AT]
        for damage, strengths in STRENGTHS.items():
            for strength, share in product(strengths, SHARES):
                of = {"set": name, "seed": seed, "damage": damage, "strength": strength, "share": share}
                rows.append(of | judged(real, partly(others, damage, strength, share, seed)))
        print(name, seed, json.dumps(summary(rows)), flush=True)
        found = {"machine": describe_machine(), "summary": summary(rows), "rows": rows}
        result.write_text(json.dumps(found) + "\n", "utf-8")


if __name__ == "__main__":
    main()
