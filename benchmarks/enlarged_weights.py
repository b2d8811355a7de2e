"""A discriminator for pictures twice as wide, which learns what a smaller one sees in the same pictures halved.

    python benchmarks/enlarged_weights.py OUT.safetensors [--small RECIPE|FILE] [--large RECIPE] [--steps N]
        [--pictures N]

Layers that both discriminators have are taken over. Then the larger one learns to see in drawn pictures of the kinds
that the weights know what the smaller one sees in them halved; half of the pictures are spoilt as those of generators
are: mixed, blurred and noisy. The file, in half precision, is for --init.
"""

import argparse
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frugan.data.digits import as_tensors
from frugan.families.biggan.networks import Discriminator
from frugan.recipe.loading import load_recipe
from frugan.recipes import shipped_weights
from frugan.setup.networks import Weights, build, load, save
from picture_sets.known import picture_set
from starters import LICENCE, many_kinds

BATCH = 16
RATE = 7e-4
LARGEST_NORM = 1.0
"""Of the gradient."""
BATCHES_OF_SCALE = 20
"""Of which it is measured how much each channel varies."""
LEAST_SCALE = 0.1
"""Of a channel, as a share of the mean of all: some never vary."""
SAID_EVERY = 20


def main() -> None:
    """Enlarge a recipe's discriminator and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--small", default="biggan-small-64", help="recipe with weights that ship, or a file")
    parser.add_argument("--large", default="biggan-small-128")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--pictures", type=int, default=200, help="of each kind")
    given = parser.parse_args()
    small = Weights.open(shipped_weights(given.small) or given.small)
    words = [f"networks.classes={len(small.class_names)}"]
    recipe = load_recipe(given.large, words)
    teacher, taught = (cast(Discriminator, of["D"]) for of in (load(small.path), build(given.large, words)))
    print(f"new layers: {', '.join(take_over(taught, teacher))}", flush=True)
    drawn = picture_set(many_kinds(given.pictures, recipe.resolution), recipe.resolution)
    if drawn.class_names != small.class_names:
        raise SystemExit(f"{given.small}: knows {small.class_names}, and these are drawn: {drawn.class_names}")
    torch.manual_seed(0)
    teach(taught, teacher, as_tensors(drawn)[0], given.steps)
    save({"D": taught.half()}, recipe, given.out, small.class_names, step=small.step, licence=LICENCE)


@torch.no_grad()
def take_over(network: nn.Module, teacher: nn.Module) -> list[str]:
    """Copy what fits; return the names of what does not."""
    known, new = teacher.state_dict(), []
    for name, value in network.state_dict().items():
        if name in known and known[name].shape == value.shape:
            value.copy_(known[name])
        else:
            new.append(name)
    return new


def teach(taught: Discriminator, teacher: Discriminator, pictures: Tensor, steps: int) -> None:
    """Train a discriminator in place on pictures [N, C, 2R, 2R], with a rate that falls to nothing.

    Only what tells the pictures of a batch apart is compared: a relativistic loss compares nothing else.
    """
    taught.train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(taught.parameters(), RATE)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    with torch.no_grad():
        seen = torch.cat([_seen(teacher, _halved(_some(pictures))) for _ in range(BATCHES_OF_SCALE)])
    spread = _apart(seen).std((0, 2, 3))
    scale = spread.clamp_min(LEAST_SCALE * spread.mean().item())[:, None, None]  # [D, 1, 1]
    for step in range(1, steps + 1):
        some = _some(pictures)
        with torch.no_grad():
            wanted = _apart(_seen(teacher, _halved(some))) / scale
        optimizer.zero_grad()
        got = _apart(_seen(taught, some)) / scale
        loss = F.smooth_l1_loss(got, wanted)
        loss.backward()
        nn.utils.clip_grad_norm_(taught.parameters(), LARGEST_NORM)
        optimizer.step()
        rates.step()
        if step % SAID_EVERY == 0:
            left = (got - wanted).square().mean() / wanted.square().mean()
            print(f"{step} of {steps}: {100 * (1 - left.item()):.0f}% of what varies is seen", flush=True)


def _seen(network: Discriminator, pictures: Tensor) -> Tensor:
    """Last features of pictures [B, C, R, R]: [B, D, 4, 4]."""
    kept = list[Tensor]()
    hook = cast(nn.ModuleList, network.blocks[-1])[-1].register_forward_hook(
        lambda _module, _given, out: kept.append(out)
    )
    network(pictures, torch.zeros(len(pictures), dtype=torch.int64))
    hook.remove()
    return F.relu(kept[0])


def _apart(features: Tensor) -> Tensor:
    """Features less their mean over the batch."""
    return features - features.mean(0, keepdim=True)


def _halved(pictures: Tensor) -> Tensor:
    return F.avg_pool2d(pictures, 2)


def _some(pictures: Tensor) -> Tensor:
    """A batch [B, C, R, R], of which the second half is spoilt."""
    some = pictures[torch.randint(len(pictures), (BATCH,))]
    half, side = BATCH // 2, pictures.shape[-1]
    spoilt, others = some[:half], pictures[torch.randint(len(pictures), (half,))]

    # Some are mixed with another, here more of the one and there of the other.
    share = F.interpolate(torch.rand(half, 1, 4, 4), size=side, mode="bicubic").sub(0.5).mul(8).add(0.5).clamp(0, 1)
    spoilt = torch.lerp(spoilt, others, share * (torch.rand(half, 1, 1, 1) < 0.5))

    # Half of them are blurred, all as strongly.
    strength = 2 ** int(torch.randint(0, 5, ()))
    blurred = F.interpolate(F.avg_pool2d(spoilt[: half // 2], strength), size=side, mode="bilinear")
    spoilt = torch.cat([blurred, spoilt[half // 2 :]])

    # Most get noise of one fineness, each of another strength.
    cells = 2 ** int(torch.randint(2, side.bit_length(), ()))
    noise = F.interpolate(torch.randn(half, pictures.shape[1], cells, cells), size=side, mode="bilinear")
    noisy = torch.rand(half, 1, 1, 1) * 0.6 * (torch.rand(half, 1, 1, 1) < 0.6)
    return torch.cat([some[half:], (spoilt + noise * noisy).clamp(-1, 1)])


if __name__ == "__main__":
    main()
