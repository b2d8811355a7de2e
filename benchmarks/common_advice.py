"""Advice that circulates about training large generators on small cards, each piece measured where no card is needed.

    python benchmarks/common_advice.py          # 5 minutes; writes results/common-advice.json, prints the tables

What is printed stands in docs/common-advice.md. Memory and arithmetic are predicted by running the training step on
tensors without data, as `frugan plan` does; the rest is computed.
"""

import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from frugan.accelerator.precision import Precision
from frugan.contract.dssim import blur
from frugan.data.digits import digits_set, split_digits
from frugan.engine.plan import Plan
from frugan.faces.data.drawn_faces import SIDE_PIXELS
from frugan.nn.spectral_norm import SpectralNorm, power_iteration
from frugan.objectives import gaussian_blur
from frugan.planning.prediction import predict
from frugan.progress import quiet
from frugan.recipe.loading import load_recipe
from frugan.setup.networks import Weights, networks_from
from frugan.setup.recipe_setup import training_of
from frugan.stepmemory.cards import PUBLISHED
from frugan.training.run import TrainingOptions
from frugan.training.training import train
from frugan.wording import GIB
from machine import describe_machine

RECORD = Path(__file__).parent / "results" / "common-advice.json"
C2 = 0.03**2
WINDOWS = (5, 11, 23, 47)
FACES = 16
RATE = 0.00006666666
"""The learning rate that the question was about."""
TRAINED_STEPS = 300
RECIPES = {"biggan-imagenet-128": 32, "saehd-df-ud-512": 4}
"""Recipe -> micro-batch that it is run with."""
NO_KEPT_PRODUCTS = ("saehd-df-ud-512",)
"""Torch refuses it there: an activation in place would change what is kept."""
FULL, HALF = Precision("fp32", torch.float32, "benchmark"), Precision("bf16", torch.bfloat16, "benchmark")


def main() -> None:
    """Measure everything, write the record, print the tables."""
    results = {
        "machine": describe_machine(),
        "dssim": dssim_in_half(),
        "memory": memory_savings(),
        "released": gradients_released_by_default(),
        "accumulation": accumulated_batch_norm(),
        "units": half_over_full(),
        "rate": rate_in_half(),
        "file": file_and_memory(),
        "power_iterations": power_iterations(),
    }
    RECORD.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    print(json.dumps(results, indent=1))


def dssim_in_half() -> list[dict[str, Any]]:
    """Where SSIM's second denominator, a variance plus 0.0009, comes out at zero or below: fp16, bf16 and fp32.

    Between drawn faces and the same a little blurred, as a network gives them back. Every result is rounded to the
    type; sums are in fp32, as matrix units have them.
    """
    faces = _faces()  # [FACES, 3, S, S]
    again = gaussian_blur(faces, 1.0)
    rows = []
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for window in WINDOWS:
            denominator, largest = _denominator(faces, again, window, dtype)
            rows.append(
                {
                    "dtype": str(dtype).removeprefix("torch."),
                    "window": window,
                    "at_or_below_zero": float((denominator <= 0).float().mean()),
                    "least": float(denominator.min()),
                    "largest_value": largest,
                }
            )
    return rows


def _denominator(a: Tensor, b: Tensor, window: int, dtype: torch.dtype) -> tuple[Tensor, float]:
    """Variance of both pictures in each window plus C2, and the largest value met on the way."""
    met: list[float] = []

    def rounded(x: Tensor) -> Tensor:
        x = x.to(dtype).float()
        met.append(float(x.abs().max()))
        return x

    at = torch.arange(window) - (window - 1) / 2
    kernel = rounded(torch.softmax(-at.square() / (2 * 1.5**2), 0))

    def mean(x: Tensor) -> Tensor:
        return rounded(blur(x, kernel, 0))

    a, b = rounded(a), rounded(b)
    squares = rounded(rounded(mean(a).square()) + rounded(mean(b).square()))
    both = mean(rounded(rounded(a.square()) + rounded(b.square())))
    return rounded(rounded(both - squares) + C2), max(met)


def _faces() -> Tensor:
    """Drawn faces that ship with the package, in [0, 1]."""
    import frugan.faces.data  # noqa: PLC0415  (for its place)

    archive = ZipFile(Path(frugan.faces.data.__file__).parent / "drawn_faces.zip")
    names = sorted(name for name in archive.namelist() if "data_dst" in name and name.endswith(".jpg"))[:FACES]
    opened = [np.asarray(Image.open(BytesIO(archive.read(name))).convert("RGB")) for name in names]
    assert opened[0].shape == (SIDE_PIXELS, SIDE_PIXELS, 3)
    return torch.from_numpy(np.stack(opened)).permute(0, 3, 1, 2).float() / 255


def memory_savings() -> list[dict[str, Any]]:
    """What half precision and recompute, in full and with products kept, take at the peak, and what they cost."""
    rows = []
    for name, micro_batch in RECIPES.items():
        training = training_of(load_recipe(name))
        blocks = training.recomputable(training.build("meta"))
        plans = {
            "fp32": Plan(micro_batch, FULL),
            "half": Plan(micro_batch, HALF),
            "half, recompute": Plan(micro_batch, HALF, blocks),
        }
        if name not in NO_KEPT_PRODUCTS:
            plans["half, keep-products"] = Plan(micro_batch, HALF, blocks, keep_products=True)
        predictions = {saving: predict(training, plan, "card", training.stages[0]) for saving, plan in plans.items()}
        plain = predictions["half"]
        for saving, each in predictions.items():
            rows.append(
                {
                    "recipe": name,
                    "micro_batch": micro_batch,
                    "plan": saving,
                    "extra_macs": each.work.macs / plain.work.macs - 1,
                    "extra_bytes_moved": each.work.bytes_moved / plain.work.bytes_moved - 1,
                    "live_gib": each.live_bytes / GIB,
                    "at_the_peak_gib": {key: value / GIB for key, value in each.categories.items()},
                }
            )
    return rows


def gradients_released_by_default() -> bool:
    """Whether `zero_grad()` without arguments releases gradients."""
    weight = nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    torch.optim.SGD([weight], 0.1).zero_grad()
    return weight.grad is None


def accumulated_batch_norm() -> dict[str, float]:
    """How far gradients of an accumulated batch lie from those of the whole one, with batch norm and without.

    A small convolutional classifier, batch 64 as 4 times 16, in float64: mean over 5 seeds of the relative distance.
    """

    def distance(norm: Callable[[int], nn.Module], seed: int) -> float:
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Conv2d(3, 16, 3), norm(16), nn.ReLU(), nn.Conv2d(16, 16, 3), norm(16), nn.Flatten())
        net = net.append(nn.Linear(16 * 12 * 12, 10)).double()
        x, y = torch.randn(64, 3, 16, 16, dtype=torch.float64), torch.randint(0, 10, (64,))

        def gradient(size: int) -> Tensor:
            net.zero_grad()
            for i in range(0, 64, size):
                (nn.functional.cross_entropy(net(x[i : i + size]), y[i : i + size]) * size / 64).backward()
            return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])

        whole, split = gradient(64), gradient(16)
        return float((whole - split).norm() / whole.norm())

    kinds: dict[str, Callable[[int], nn.Module]] = {
        "batch norm": nn.BatchNorm2d,
        "group norm": lambda channels: nn.GroupNorm(4, channels),
        "no normalisation": lambda _: nn.Identity(),
    }
    return {name: fmean(distance(kind, seed) for seed in range(5)) for name, kind in kinds.items()}


def half_over_full() -> dict[str, float]:
    """Published peak of half-precision products over that of fp32 ones, by card."""
    return {name: round(card.half / card.fp32, 1) for name, card in PUBLISHED.items() if card.like is None}


def rate_in_half() -> dict[str, dict[str, float]]:
    """A learning rate of 1/15,000 in half precision, and the smallest weight that adding it leaves as it was."""

    def of(dtype: torch.dtype) -> dict[str, float]:
        stored = torch.tensor(RATE, dtype=dtype)
        weights = torch.tensor([2.0**-power for power in range(20)], dtype=dtype)
        lost = weights[weights + stored == weights]
        return {
            "stored": float(stored),
            "relative_error": abs(float(stored) - RATE) / RATE,
            "lost_from": float(lost.min()),
        }

    return {"fp16": of(torch.float16), "bf16": of(torch.bfloat16)}


def file_and_memory() -> list[dict[str, Any]]:
    """What a recipe's networks take in a file in fp32, and in a step in half precision, in multiples of the file."""
    rows = []
    for name, micro_batch in RECIPES.items():
        training = training_of(load_recipe(name))
        networks = training.build("meta")
        file_bytes = sum(each.nbytes for network in networks.values() for each in network.state_dict().values())
        held = predict(training, Plan(micro_batch, HALF), "card", training.stages[0]).categories
        kept = ("parameters", "working weights", "gradients", "optimizer", "averages")
        rows.append(
            {
                "recipe": name,
                "file_gib": file_bytes / GIB,
                **{category: held.get(category, 0) / file_bytes for category in kept},
            }
        )
    return rows


def power_iterations() -> list[dict[str, Any]]:
    """How far the largest singular value is off that spectral norm divides by, in a short training on digits.

    By one iteration a step from where the last step ended, which is what training does, by eight from there, and by one
    and eight from random vectors, as in the first step.
    """
    rows = []
    with TemporaryDirectory() as folder:
        words = [f"training.duration={TRAINED_STEPS} steps"]
        digits, _ = split_digits(0)
        data = {"images": digits_set(32, digits)}
        run = Path(folder) / "run"
        train("biggan-digits-32", data, run, overrides=words, options=TrainingOptions(device="cpu"), say=quiet)
        networks = networks_from(Weights.open(run).trained)
    random = torch.Generator().manual_seed(0)
    layers = [each for network in networks.values() for each in network.modules() if isinstance(each, SpectralNorm)]
    for begins in ("from the last step", "from random vectors"):
        for iterations in (1, 8):
            errors = []
            for layer in layers:
                matrix = layer.weight.detach().flatten(1)
                left = [layer.u0 if begins == "from the last step" else torch.randn(layer.u0.shape, generator=random)]
                for _ in range(iterations):
                    left, right = power_iteration(matrix, left, layer.eps)
                largest = torch.linalg.svdvals(matrix)[0]
                errors.append(float(1 - (right[0] @ matrix.T @ left[0].T).reshape(()) / largest))
            rows.append(
                {
                    "begins": begins,
                    "iterations": iterations,
                    "layers": len(layers),
                    "mean_error": fmean(errors),
                    "largest_error": max(errors),
                }
            )
    return rows


if __name__ == "__main__":
    main()
