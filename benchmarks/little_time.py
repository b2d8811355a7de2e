"""What might make more of little time from the weights that ship, at 32 pixels: as many seconds of a core for each.

    python benchmarks/little_time.py features FEATURES.safetensors [--minutes 3.5]
    python benchmarks/little_time.py run RESULT.json [--features FEATURES.safetensors] [--variants "NAME;..."]
        [--sets NAME,...] [--seconds 150] [--pace SECONDS] [--seed 0] [--archives DIR] [--init FILE]

`features` trains a small network to tell kinds of drawn pictures apart, and what is on them; three kinds are left out,
to measure on them. `run` times a step of each variant that a result lacks, and trains it for as many as fit; schedules
end with them. Beside the usual `two_sample`, against pictures that were not trained on, stands `sharp`,
against all of the set, from which the judge has more to learn. Nothing here is part of frugan: what a variant changes
is put in its place while that trains.
"""

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from frugan.augment.diffaugment import DiffAugment
from frugan.contract.phase import MicroBatch, Networks, PhaseState, Terms
from frugan.data.digits import as_tensors
from frugan.data.formats.picture_set import PictureSet
from frugan.data.picture_needs import real_pictures
from frugan.engine.run.checkpoint import EMA_FILE
from frugan.engine.run.events import read_events
from frugan.families.biggan import phases
from frugan.families.biggan.config import BOTTOM, GENERATOR, BigGANNetworks
from frugan.families.biggan.family import BigGANFamily
from frugan.families.biggan.networks import Discriminator, Generator
from frugan.metrics.scores import precision_recall
from frugan.metrics.two_sample import two_sample
from frugan.nn.spectral_norm import SNConv2d
from frugan.objectives import hinge_fake, hinge_generator, hinge_real, relativistic
from frugan.progress import quiet
from frugan.recipe.loading import load_recipe
from frugan.training.run import TrainingOptions
from frugan.training.starting_weights import CLASSES_OF_SHIPPED
from frugan.training.training import train
from machine import describe_machine
from picture_sets import load_set
from picture_sets.kinds import KINDS
from quality import drawn

RECIPE, SIDE = "biggan-small-32", 32
GENERATED, LOOKED_AT_SIDE = 1000, 16
TIMED_STEPS = (4, 16)
LAST_STEPS = 60
"""Over which a loss is averaged."""

# Features that have seen pictures.

LEFT_OUT = ("creatures", "plants", "badges")
"""Kinds that may be chosen on, and that the features have not seen."""
DRAWN, DRAWN_SEED = 1200, 77
WIDTH = 24
BATCH, RATE, WEIGHT_DECAY, WARM_STEPS = 96, 2e-3, 0.02, 50


class Features(nn.Module):
    """Small classifier's maps of pictures [B, 3, 32, 32]: at 16, 8 and 4 pixels; 0.65 million numbers."""

    widths = (2 * WIDTH, 4 * WIDTH, 8 * WIDTH)

    def __init__(self) -> None:
        super().__init__()
        self.stem = _layer(3, WIDTH, 1)
        self.stages = nn.ModuleList(
            nn.Sequential(_layer(width // 2, width, 2), _layer(width, width, 1)) for width in self.widths
        )

    def forward(self, pictures: Tensor) -> list[Tensor]:
        """[B, 3, 32, 32] in [-1, 1] -> [B, 48, 16, 16], [B, 96, 8, 8], [B, 192, 4, 4]."""
        maps = [self.stem(pictures)]
        for stage in self.stages:
            maps.append(stage(maps[-1]))
        return maps[1:]


def _layer(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.1))


def train_features(out: Path, minutes: float) -> None:
    """Train on drawn kinds, so long on one core, and write the network."""
    pictures, labels = _drawn_with_labels()
    random = torch.Generator().manual_seed(1)
    torch.manual_seed(1)
    features = Features()
    head = nn.Linear(sum(features.widths), int(labels.max()) + 1)
    parameters = [*features.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, RATE, weight_decay=WEIGHT_DECAY)
    began, step = time.process_time(), 0
    while (share := (time.process_time() - began) / (60 * minutes)) < 1:
        optimizer.param_groups[0]["lr"] = RATE * min(1, step / WARM_STEPS) * max(0.02, 1 - share)
        chosen = torch.randint(len(pictures), (BATCH,), generator=random)
        maps = features(_changed(pictures[chosen].float() / 127.5 - 1, random))
        logits = head(torch.cat([each.mean((2, 3)) for each in maps], 1))
        loss = F.cross_entropy(logits, labels[chosen], label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
    right = float((logits.argmax(1) == labels[chosen]).float().mean())
    print(f"{step:,} steps; right of the last batch, changed as it was: {right:.2f} of {len(head.bias)} labels")
    save_file(features.state_dict(), out)


def _drawn_with_labels() -> tuple[Tensor, Tensor]:
    """Pictures [N, 3, 32, 32] of all kinds that may be seen, and a label of kind and first named factor [N]."""
    pictures, labels, numbers = [], [], dict[str, int]()
    for name, kind in KINDS.items():
        if kind.held_out or name in LEFT_OUT:
            continue
        for each in kind.drawn(DRAWN_SEED, DRAWN, SIDE):
            named = [value for value in each.factors.values() if isinstance(value, str)]
            label = f"{name}/{named[0] if named and name != 'flags' else ''}"
            labels.append(numbers.setdefault(label, len(numbers)))
            pictures.append(_as_tensor(each.picture))
    return torch.stack(pictures), torch.tensor(labels)


def _as_tensor(picture: Image.Image) -> Tensor:
    """[3, 32, 32], uint8, on white where it is transparent."""
    whole = picture.convert("RGBA")
    on_white = Image.alpha_composite(Image.new("RGBA", whole.size, "white"), whole).convert("RGB")
    return torch.from_numpy(np.asarray(ImageOps.fit(on_white, (SIDE, SIDE))).transpose(2, 0, 1).copy())


def _changed(pictures: Tensor, random: torch.Generator) -> Tensor:
    """Part of each picture [B, 3, R, R], turned, stretched and mirrored, in other colours, with noise."""
    count = len(pictures)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(count, *shape, generator=random)

    scale, stretch = 0.6 + 0.5 * uniform(), torch.exp(0.3 * (uniform() - 0.5))
    turn, mirror = 0.4 * (uniform() - 0.5), torch.where(uniform() < 0.5, 1.0, -1.0)
    rows = [
        torch.stack([scale * stretch * turn.cos() * mirror, -scale * turn.sin()], 1),
        torch.stack([scale * turn.sin() * mirror, scale / stretch * turn.cos()], 1),
    ]
    moved = (2 * uniform(2) - 1) * (1.05 - scale).clamp_min(0)[:, None]
    places = F.affine_grid(
        torch.cat([torch.stack(rows, 1), moved[:, :, None]], 2), list(pictures.shape), align_corners=False
    )
    pictures = F.grid_sample(pictures, places, padding_mode="reflection", align_corners=False)
    mixed = torch.eye(3) + 0.25 * torch.randn(count, 3, 3, generator=random)
    pictures = torch.einsum("bij,bjhw->bihw", mixed, pictures) + 0.2 * torch.randn(count, 3, 1, 1, generator=random)
    return pictures + 0.05 * uniform(1, 1, 1) * torch.randn(pictures.shape, generator=random)


# Heads on the features, beside the discriminator.

HEAD_CHANNELS = 32
EXCITED = 2
"""Stages of the generator that are gated, the last ones."""


class WithHeads(Discriminator):
    """BigGAN's discriminator, and a head at each scale of the features.

    A head sees a fixed random mixture of a map's channels, of pictures changed by DiffAugment. Its weights are
    spectrally normalised.

    Source: Sauer et al. 2021 (arXiv 2111.01007), sections 3.1 and 3.2, without the mixing between scales.
    """

    features: Features
    mixtures: list[Tensor]

    def __init__(self, features: Features, config: BigGANNetworks) -> None:
        super().__init__(config)
        random = torch.Generator().manual_seed(5)
        # neither moves, so neither is part of this network's state
        object.__setattr__(self, "features", features)
        mixtures = [
            torch.randn(HEAD_CHANNELS, width, 1, 1, generator=random, device="cpu") * math.sqrt(2 / width)
            for width in features.widths
        ]
        object.__setattr__(self, "mixtures", mixtures)
        self.heads = nn.ModuleList(
            nn.ModuleDict(
                {
                    "hidden": SNConv2d(HEAD_CHANNELS, HEAD_CHANNELS, 3, padding=1),
                    "out": SNConv2d(HEAD_CHANNELS, 1, 1),
                    "classes": nn.Embedding(config.classes, HEAD_CHANNELS),
                }
            )
            for _ in features.widths
        )
        self.augment = DiffAugment(("colour", "translation", "cutout"))

    def by_heads(self, pictures: Tensor, classes: Tensor) -> list[Tensor]:
        """Outputs of each head, one for each place [B, places]."""
        shown = self.augment(pictures.float(), torch.rand(len(pictures), self.augment.uniforms), *2 * [torch.empty(0)])
        outputs = []
        for seen, mixture, head in zip(self.features(shown), self.mixtures, self.heads, strict=True):
            layers = cast(nn.ModuleDict, head)
            h = F.leaky_relu(layers["hidden"](F.conv2d(seen, mixture)), 0.2)  # [B, C, h, w]
            of_class = (h.mean((2, 3)) * layers["classes"](classes)).sum(1, keepdim=True)  # [B, 1]
            outputs.append(layers["out"](h).flatten(1) + of_class)
        return outputs


# A generator whose later stages are gated by its first map.


class Excited(Generator):
    """BigGAN's generator; its last two stages' channels are gated by the 4-pixel map, which at first changes nothing.

    Source: Liu et al. 2021 (arXiv 2101.04775), section 3.1, with a sigmoid of twice the size, so that 1 is its middle.
    """

    def __init__(self, config: BigGANNetworks) -> None:
        super().__init__(config)
        width = config.generator_channels * GENERATOR[SIDE][0][0]
        self.excite = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, BOTTOM), nn.LeakyReLU(0.1), nn.Conv2d(width, width, 1))
            for _ in range(EXCITED)
        )

    def forward(self, z: Tensor, condition: Tensor) -> Tensor:
        """As of BigGAN's."""
        first, conditions = self._first_map(z, condition)
        h, plain = first, len(self.blocks) - len(self.excite)
        for number, (stage, of_stage) in enumerate(zip(self.blocks, conditions, strict=True)):
            h = cast(nn.ModuleList, stage)[0](h, of_stage)
            if number >= plain:
                h = h * (2 * torch.sigmoid(self.excite[number - plain](first)))
        return torch.tanh(self.output_layer(h).float())


# Variants of the training.


@dataclass(frozen=True)
class Variant:
    """One change of today's training.

    Attributes:
        words: overrides of the recipe.
        heads: weight of the hinge loss of heads on the features; 0: there are none.
        excited: the generator has skip-layer excitation.
    """

    words: tuple[str, ...] = ()
    heads: float = 0.0
    excited: bool = False

    @contextmanager
    def in_place(self, features: Features | None) -> Iterator[None]:
        """Let frugan's BigGAN be trained so."""
        with ExitStack() as changes:
            if self.heads:
                if features is None:
                    raise SystemExit("heads look at features: name them with --features FILE")
                changes.enter_context(patch.object(BigGANFamily, "discriminator_type", partial(WithHeads, features)))
                changes.enter_context(patch.object(phases, "_PairedGame", partial(Game, self.heads)))
            if self.excited:
                changes.enter_context(patch.object(BigGANFamily, "generator_type", Excited))
            if self.heads or self.excited:
                changes.enter_context(patch.object(BigGANFamily, "initialise", _initialise))
            yield


_initialise_plainly = BigGANFamily.initialise


def _initialise(family: BigGANFamily, networks: BigGANNetworks, built: Networks, seed: Callable[[str], int]) -> None:
    """As the family does, but what is added begins without an effect of its own."""
    _initialise_plainly(family, networks, built, seed)
    silent = [*getattr(built["D"], "heads", ()), *getattr(built["G"], "excite", ())]
    for layer in (each["classes"] if isinstance(each, nn.ModuleDict) else each[2] for each in silent):
        for parameter in layer.parameters():
            nn.init.zeros_(parameter)


class Game:
    """BigGAN's parts with the hinge loss of heads beside."""

    def __init__(self, weight: float, *of_plain: Any) -> None:
        self.weight, plain = weight, PLAIN_GAME(*of_plain)
        self.r1, self.r2 = plain.r1, plain.r2

    def discriminator(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        """Terms of D."""
        judge, labels, real = cast(WithHeads, networks["D"]), _labels(micro), real_pictures(micro)
        with torch.no_grad():
            made = _made(networks, micro)
        plain = relativistic(judge(real, labels), judge(made, labels))
        pairs = zip(judge.by_heads(real, labels), judge.by_heads(made, labels), strict=True)
        losses = [hinge_real(a) + hinge_fake(b) for a, b in pairs]
        return {"relativistic": plain, "heads": self.weight * torch.stack(losses).mean()}

    def generator(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        """Terms of G."""
        judge, labels = cast(WithHeads, networks["D"]), _labels(micro)
        with torch.no_grad():
            real = judge(real_pictures(micro), labels)
        made = _made(networks, micro)
        plain = relativistic(judge(made, labels), real)
        losses = [hinge_generator(outputs) for outputs in judge.by_heads(made, labels)]
        return {"adversarial": plain, "heads": self.weight * torch.stack(losses).mean()}


PLAIN_GAME = phases._PairedGame


def _labels(micro: MicroBatch) -> Tensor:
    return micro.pictures["images"]["labels"]


def _made(networks: Networks, micro: MicroBatch) -> Tensor:
    generator = cast(Generator, networks["G"])
    return cast(Tensor, generator(micro.draws["z"], generator.embed(_labels(micro))))


def _rates(times: float, networks: str = "DG") -> tuple[str, ...]:
    """Words for so many times the recipe's rates."""
    recipe = load_recipe(RECIPE)
    fields = product(networks, ("learning_rate", "final_learning_rate"))
    return tuple(
        f"optimizers.{name}.{field}={times * getattr(recipe.optimizers[name], field):g}" for name, field in fields
    )


def _batch(size: int) -> tuple[str, ...]:
    return (f"training.batch={size}", f"training.normalisation_batch={size}")


def _gamma(weight: float) -> tuple[str, ...]:
    return (f"objective.r1_gamma={weight}",)


def _average(share: float) -> tuple[str, ...]:
    return (f"ema.run_share={share}",)


def _momentum(beta1: float, networks: str = "DG") -> tuple[str, ...]:
    return (*_average(0.1), *(f"optimizers.{name}.beta1={beta1}" for name in networks))


STRONGER = (*_batch(16), *_gamma(2))
BESIDE = {
    "average over a tenth": _average(0.1),
    "average over a twentieth": _average(0.05),
    "rates to a tenth": (*_average(0.1), *(f"optimizers.{name}.final_learning_rate=1e-4" for name in "GD")),
    "D's rate half": (*_average(0.1), *_rates(0.5, "D")),
    "G's beta1 0.5": _momentum(0.5, "G"),
    "G's beta1 0.5, D's rate half": (*_momentum(0.5, "G"), *_rates(0.5, "D")),
    "G's beta1 0.8": _momentum(0.8, "G"),
    "beta1 0.5": _momentum(0.5),
}
"""Tried beside batches of 16 and an R1 of 2, from the third on with the average that frugan's choice takes."""

VARIANTS = {
    "the recipe's own": Variant(),
    "heads beside D": Variant(heads=0.5),
    "skip-layer excitation": Variant(excited=True),
    "D's rate 0.4 times": Variant(_rates(0.4, "D")),
    "rates twice": Variant(_rates(2)),
    "gamma 2": Variant(_gamma(2)),
    "batch 16": Variant(_batch(16)),
    "batch 16, rates 1.5 times": Variant((*_batch(16), *_rates(1.5))),
    "batch 16, G's rate twice": Variant((*_batch(16), *_rates(2, "G"))),
    "batch 16, gamma 0.1": Variant((*_batch(16), *_gamma(0.1))),
    "batch 16, gamma 2": Variant((*_batch(16), *_gamma(2))),
    "batch 16, gamma 8": Variant((*_batch(16), *_gamma(8))),
    "batch 16, gamma 4, G's rate twice": Variant((*_batch(16), *_gamma(4), *_rates(2, "G"))),
    "batch 8, gamma 2": Variant((*_batch(8), *_gamma(2))),
    **{f"batch 16, gamma 2, {name}": Variant((*STRONGER, *words)) for name, words in BESIDE.items()},
    "batch 8, gamma 2, average over a tenth": Variant((*_batch(8), *_gamma(2), *_average(0.1))),
}


def trained(
    variant: Variant, features: Features | None, fit: PictureSet, steps: int, seed: int, run: Path, init: str = RECIPE
) -> float:
    """Train from the weights that ship, or from others; CPU seconds, start-up included.

    Raises:
        SystemExit: it was stopped.
    """
    words = [f"training.seed={seed}", f"training.duration={steps} steps", "saving.report_every=20 steps"]
    words += ["saving.snapshot_every=1000000 steps", "saving.checkpoint_every=1000000 steps"]
    recipe = load_recipe(RECIPE, [*words, f"networks.classes={len(fit.class_names)}", *variant.words])
    torch.manual_seed(seed + 11)  # of what heads see: frugan itself draws nothing from this stream
    began = time.process_time()
    with variant.in_place(features):
        result = train(
            recipe,
            {"images": fit},
            run,
            init=init,
            init_classes=CLASSES_OF_SHIPPED,
            options=TrainingOptions(device="cpu"),
            say=quiet,
        )
    if not result.finished:
        raise SystemExit(f"stopped at step {result.step}: it is not counted")
    return time.process_time() - began


def pace_of(variant: Variant, features: Features | None, fit: PictureSet) -> float:
    """CPU seconds of a step."""
    with tempfile.TemporaryDirectory() as folder:
        took = [trained(variant, features, fit, steps, 0, Path(folder) / str(steps)) for steps in TIMED_STEPS]
    return (took[1] - took[0]) / (TIMED_STEPS[1] - TIMED_STEPS[0])


def measured(weights: Path, fit: PictureSet, unseen: PictureSet) -> dict[str, float]:
    """Scores of a generator."""
    made, _ = drawn(weights, fit, count=GENERATED)
    new, known = as_tensors(unseen)[0], as_tensors(fit)[0]
    looks = [F.adaptive_avg_pool2d(each.mean(1, keepdim=True), LOOKED_AT_SIDE).flatten(1) for each in (made, new)]
    precision, recall = precision_recall(looks[0].numpy(), looks[1].numpy())
    scores = {"two_sample": two_sample(made, new).mean, "sharp": two_sample(made, torch.cat([known, new])).mean}
    return scores | {"precision": precision, "recall": recall}


def main() -> None:
    """Train the features, or run what a result lacks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    seeing = commands.add_parser("features")
    seeing.add_argument("out", type=Path)
    seeing.add_argument("--minutes", type=float, default=3.5, help="of one core")
    running = commands.add_parser("run")
    running.add_argument("result", type=Path)
    running.add_argument("--features", type=Path)
    running.add_argument("--variants", default=";".join(VARIANTS), help="several with ; between them")
    running.add_argument("--sets", default="icons")
    running.add_argument("--seconds", type=float, default=150, help="of one core")
    running.add_argument("--pace", type=float, help="CPU seconds of a step; default: it is timed")
    running.add_argument("--seed", type=int, default=0)
    running.add_argument("--archives", type=Path, help="folder with the packages that some sets are in")
    running.add_argument("--init", type=Path, help="weights to start from; default: those that ship")
    given = parser.parse_args()
    if given.command == "features":
        train_features(given.out, given.minutes)
        return
    features = None if given.features is None else load_features(given.features)
    entries: list[dict[str, Any]] = json.loads(given.result.read_text("utf-8")) if given.result.is_file() else []
    for of, name in product(given.sets.split(","), given.variants.split(";")):
        asked = {"variant": name, "set": of, "seconds": given.seconds, "seed": given.seed}
        asked["start"] = RECIPE if given.init is None else given.init.stem
        if any(asked.items() <= entry.items() for entry in entries):
            continue
        fit, unseen = load_set(of, SIDE, given.archives)
        pace = given.pace or pace_of(VARIANTS[name], features, fit)
        steps = int(given.seconds / pace)
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            took = trained(VARIANTS[name], features, fit, steps, given.seed, run, str(given.init or RECIPE))
            with VARIANTS[name].in_place(features):  # its weights are of its own networks
                scores = measured(max((run / "checkpoints").glob("step-*")) / EMA_FILE, fit, unseen)
            terms = last_terms(run)
        rounded = {key: round(value, 3) for key, value in (scores | terms).items()}
        entries.append({**asked, "pace": round(pace, 4), "steps": steps, **rounded, "cpu_seconds": round(took)})
        entries[-1]["machine"] = describe_machine()
        print(json.dumps({key: value for key, value in entries[-1].items() if key != "machine"}), flush=True)
        given.result.write_text("[\n" + ",\n".join(json.dumps(each) for each in entries) + "\n]\n", "utf-8")


def load_features(path: Path) -> Features:
    """Features that a file has, frozen."""
    features = Features()
    features.load_state_dict(load_file(path))
    return features.requires_grad_(False).eval()


def last_terms(run: Path) -> dict[str, float]:
    """Each phase's terms, averaged over the last steps."""
    by_name: dict[str, list[float]] = {}
    for event in list(read_events(run / "events.jsonl")):
        for phase, seen in event["phases"].items() if event["event"] == "step" else ():
            for term, value in (seen["terms"] or {}).items():
                by_name.setdefault(f"{phase}_{term}", []).append(float(value))
    return {name: fmean(values[-LAST_STEPS:]) for name, values in by_name.items()}


if __name__ == "__main__":
    main()
