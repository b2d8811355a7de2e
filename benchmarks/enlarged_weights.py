"""Weights for pictures twice as wide, which begin with what a smaller recipe's weights know.

    python benchmarks/enlarged_weights.py SMALL LARGE OUT.safetensors [--steps N] [--pictures N]

SMALL is a recipe with weights that ship, or a file; LARGE a recipe of the same family. Layers that both have are taken
over. Then the larger generator learns to make what the smaller one makes, enlarged, and the larger discriminator to
judge pictures as the smaller one judges them halved: drawn ones of the kinds that the weights know, and generated ones.
From there `benchmarks/starters.py train LARGE RUN --init OUT.safetensors` goes on.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frugan.data.digits import as_tensors
from frugan.engine.state.working_weights import set_normalisation_batch
from frugan.families.biggan.networks import Generator
from frugan.recipe.loading import load_recipe
from frugan.recipes import shipped_weights
from frugan.setup.networks import Weights, build, load, save
from picture_sets.known import picture_set
from starters import LICENCE, many_kinds

BATCH = 16
RATE = 1e-3
SAID_EVERY = 50


def main() -> None:
    """Enlarge a recipe's weights and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("small")
    parser.add_argument("large")
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=300, help="for each network")
    parser.add_argument("--pictures", type=int, default=300, help="of each kind")
    given = parser.parse_args()
    small = Weights.open(shipped_weights(given.small) or given.small)
    words = [f"networks.classes={len(small.class_names)}"]
    words += [f"training.batch={BATCH}", f"training.normalisation_batch={BATCH}"]
    recipe = load_recipe(given.large, words)
    taught, teachers = build(given.large, words), load(small.path)
    for name, network in taught.items():
        print(f"{name}: new: {', '.join(take_over(network, teachers[name]))}", flush=True)
    drawn = picture_set(many_kinds(given.pictures, recipe.resolution), recipe.resolution)
    if drawn.class_names != small.class_names:
        raise SystemExit(f"{given.small}: knows {small.class_names}, and these are drawn: {drawn.class_names}")
    torch.manual_seed(0)
    enlarging = Enlarging(cast(Generator, taught["G"]), cast(Generator, teachers["G"]))
    learn("G", taught["G"], enlarging.loss, given.steps)
    pictures, labels = as_tensors(drawn)

    def judged_otherwise() -> Tensor:
        some = torch.randint(len(pictures), (BATCH // 2,))
        z, asked = enlarging.latents_and_classes()
        made = enlarging.enlarged(z, asked)[: BATCH // 2]
        x, y = torch.cat([pictures[some], made]), torch.cat([labels[some], asked[: BATCH // 2]])
        with torch.no_grad():
            judgement = teachers["D"](F.avg_pool2d(x, 2), y)
        return F.mse_loss(taught["D"](x, y), judgement)

    learn("D", taught["D"], judged_otherwise, given.steps)
    halves = {name: network.half() for name, network in taught.items()}
    save(halves, recipe, given.out, small.class_names, step=small.step, licence=LICENCE)


@torch.no_grad()
def take_over(network: nn.Module, teacher: nn.Module) -> list[str]:
    """Copy what fits; return the names of what does not.

    A map of a chunk of latents, which is longer in the smaller network, loses its last columns.
    """
    known, new = teacher.state_dict(), []
    for name, value in network.state_dict().items():
        old = known.get(name)
        if old is not None and old.ndim == value.ndim == 2 and len(old) == len(value):
            old = old[:, : value.shape[1]]
        if old is None or old.shape != value.shape:
            new.append(name)
        else:
            value.copy_(old)
    return new


class Enlarging:
    """A generator's pictures beside those that a smaller one makes of the same latents, shorter by a chunk."""

    def __init__(self, large: Generator, small: Generator) -> None:
        self.large, self.small = large, small
        # both normalise by the statistics of the same batch, so that its mixture of kinds is no noise between them
        set_normalisation_batch(small.train(), BATCH)

    def latents_and_classes(self) -> tuple[Tensor, Tensor]:
        """Latents of the larger generator [B, latent_size], classes [B]."""
        return torch.randn(BATCH, self.large.latent_size), torch.randint(self.large.classes, (BATCH,))

    @torch.no_grad()
    def enlarged(self, z: Tensor, y: Tensor) -> Tensor:
        """The smaller generator's pictures, twice as wide: [B, C, 2R, 2R]."""
        slots = self.small.latent_size // self.small.chunk
        chunks = z.unflatten(1, (-1, self.large.chunk))[:, :slots]  # [B, slots, chunk]
        filled = F.pad(chunks, (0, self.small.chunk - self.large.chunk)).flatten(1)
        made = self.small(filled, self.small.embed(y))
        return F.interpolate(made, scale_factor=2, mode="bilinear", align_corners=False)

    def loss(self) -> Tensor:
        """Mean squared difference of the two."""
        z, y = self.latents_and_classes()
        return F.mse_loss(self.large(z, self.large.embed(y)), self.enlarged(z, y))


def learn(name: str, network: nn.Module, loss: Callable[[], Tensor], steps: int) -> None:
    """Train a network in place, with a rate that falls to nothing."""
    network.train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(network.parameters(), RATE)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        rates.step()
        if step % SAID_EVERY == 0:
            print(f"{name}: {step} of {steps}: {value.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
