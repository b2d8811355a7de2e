"""Two-sample test: the accuracy of small networks that tell two sets of pictures apart, without labels and weights.

Source: Lopez-Paz and Oquab 2017 (arXiv 1610.06545).
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, stdev

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frugan.progress import Progress

FEWEST_PICTURES = 60
"""Least pictures of each set: fewer leave the judge too little to learn from, and the interval too wide."""
MOST_PICTURES = 2000
"""Most pictures of each set; more hardly change the accuracy."""
SIDE_PIXELS = 64
"""Larger pictures are reduced to it by area averaging."""
CHANNELS = (16, 32, 64)
LEARNING_RATE, WEIGHT_DECAY = 5e-3, 1e-2
BETA2 = 0.95
"""Adam's beta2: the average of squares must fit a judge's few hundred steps."""
STATISTICS = 0.05
"""Share of a batch in the running means and variances that unseen pictures are judged with."""
SHIFT_PIXELS = 2
"""Pictures are moved by up to so many pixels while the judge learns, so that it does not learn them by heart."""


@dataclass(frozen=True)
class Judge:
    """Effort of a judgement, which is a mean over several networks with their own halves, weights and batches."""

    networks: int = 3  # number of networks, with the seeds 0, 1 ..., on which alone the result depends
    steps: int = 400  # steps that each network learns for
    batch: int = 32  # pictures in a batch

    def __str__(self) -> str:
        several = "1 network" if self.networks == 1 else f"{self.networks} networks"
        return f"{several}, {self.steps} steps of {self.batch}, values centred, batch norm"


@dataclass(frozen=True)
class TwoSample:
    """Accuracy of networks that have learnt from halves of two sets, on the other halves.

    Attributes:
        accuracies: one for each seed, each with its own halves and its own network; 0.5 cannot tell, 1 always can.
        pictures: of each set.
        by_chance: standard deviation of an accuracy where labels are shuffled; None: of guessing.
    """

    accuracies: tuple[float, ...]
    pictures: int
    by_chance: float | None = None

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return fmean(self.accuracies)

    @property
    def half_width(self) -> float:
        """Half of a 95 % interval of the mean: of the seeds' spread, and at least that of guessing so many pictures.

        Each network judges a half of both sets, another one for each, so that several judge many pictures twice. In 80
        judgements by three networks, of 500 generated pictures against 500 real ones, 77 intervals held the mean of 40.
        """
        judged = 2 * self.pictures * (1 - 0.5 ** len(self.accuracies))  # by one network at least
        guessing = 0.5 / judged**0.5 if self.by_chance is None else self.by_chance
        seeds = stdev(self.accuracies) / len(self.accuracies) ** 0.5 if len(self.accuracies) > 1 else 0.0
        return float(1.96 * max(guessing, seeds))

    @property
    def tells_apart(self) -> bool:
        """Whether that is more than chance."""
        return self.mean - self.half_width > 0.5


def two_sample(
    first: Tensor, second: Tensor, judge: Judge | None = None, progress: Progress | None = None
) -> TwoSample:
    """Let a small network learn to tell two sets apart on halves of them; count how often it is right on the others.

    Of the larger set as many pictures are used as the smaller has, and at most `MOST_PICTURES`, others for each seed.

    Args:
        first, second: [N, C, R, R] and [M, C, R, R], uint8 or in [-1, 1], alike but for their number; R at least 8.
        judge: how much it takes; None: the usual.
        progress: (steps that networks have learnt for, of how many).

    Raises:
        ValueError: other shapes, too few pictures, or pictures that are not finite.
    """
    first, second = two_alike(first, second, FEWEST_PICTURES)
    count = min(len(first), len(second), MOST_PICTURES) // 2 * 2
    judge = judge or Judge()
    learnt = itertools.count(1)

    def stepped() -> None:
        if progress is not None:
            progress(next(learnt), judge.networks * judge.steps)

    accuracies = (_accuracy(first, second, count, judge, seed, stepped) for seed in range(judge.networks))
    return TwoSample(tuple(accuracies), count)


def two_alike(first: Tensor, second: Tensor, fewest: int) -> tuple[Tensor, Tensor]:
    """Bring two sets of pictures to fp32 on the host, in [-1, 1], at most `SIDE_PIXELS` a side.

    Raises:
        ValueError: they cannot be compared, or are fewer.
    """
    for name, pictures in {"first": first, "second": second}.items():
        if pictures.ndim != 4 or pictures.shape[1:] != first.shape[1:] or pictures.shape[2] != pictures.shape[3]:
            raise ValueError(f"{name} pictures {list(pictures.shape)}: expected [N, C, R, R], alike in C and R")
        if len(pictures) < fewest:
            raise ValueError(f"{len(pictures)} {name} pictures: expected at least {fewest}")
        if not bool(torch.isfinite(pictures).all()):
            raise ValueError(f"{name} pictures hold values that are not finite: did the training diverge?")
    return _in_fp32(first), _in_fp32(second)


def seen_by_judge(pictures: Tensor) -> Tensor:
    """Bytes of pictures [N, C, R, R] as a judge sees them: on the host, at most `SIDE_PIXELS` a side."""
    pictures = pictures.cpu()
    if pictures.shape[-1] <= SIDE_PIXELS:
        return pictures
    return F.adaptive_avg_pool2d(pictures.float(), SIDE_PIXELS).round().to(torch.uint8)


def _in_fp32(pictures: Tensor) -> Tensor:
    """[N, C, R, R] on the host, in [-1, 1], at most `SIDE_PIXELS` a side."""
    values = pictures.detach().cpu().float()
    values = values / 127.5 - 1 if pictures.dtype == torch.uint8 else values
    return values if values.shape[-1] <= SIDE_PIXELS else F.adaptive_avg_pool2d(values, SIDE_PIXELS)


def _accuracy(first: Tensor, second: Tensor, count: int, judge: Judge, seed: int, stepped: Callable[[], None]) -> float:
    """On the halves that the judge has not seen; `stepped` is called after each step."""
    random = torch.Generator().manual_seed(seed)
    halves = [
        pictures[torch.randperm(len(pictures), generator=random)[:count]].chunk(2) for pictures in (first, second)
    ]
    (learn, unseen) = (torch.cat(parts) for parts in zip(*halves, strict=True))  # each [count, C, S, S]
    # Where most of a picture never changes: with batch norm alone a judge saw faint noise in the rest less often.
    mean = learn.mean(0)  # [C, S, S]
    learn, unseen = learn - mean, unseen - mean
    labels = torch.arange(2).repeat_interleave(count // 2)  # [count]
    network = _network(learn.shape[1], random)
    optimizer = torch.optim.AdamW(network.parameters(), LEARNING_RATE, (0.9, BETA2), weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, judge.steps)
    with torch.enable_grad():
        for _ in range(judge.steps):
            chosen = torch.randint(count, (judge.batch,), generator=random)
            logits = network(_shifted(learn[chosen], random))  # [batch, 2]
            optimizer.zero_grad()
            F.cross_entropy(logits, labels[chosen]).backward()
            optimizer.step()
            schedule.step()
            stepped()
    network.eval()
    with torch.no_grad():
        right = [
            (network(part).argmax(1) == of).sum() for part, of in zip(unseen.split(256), labels.split(256), strict=True)
        ]
    return float(sum(right)) / count


def _network(channels: int, random: torch.Generator) -> nn.Sequential:
    """Three strided convolutions and a mean over places; weights by He et al. 2015.

    With batch norm (Ioffe and Szegedy 2015): without it a judge learned too slowly to see in so few steps that
    streaks are no hills (benchmarks/results/equal-time-again.json).
    """
    widths = (channels, *CHANNELS)
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):  # layers begin with weights from torch's own stream, which is not ours
        for before, after in zip(widths, CHANNELS, strict=False):
            layers += [
                nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(after, momentum=STATISTICS),
                nn.LeakyReLU(0.2),
            ]
        network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS[-1], 2))
    for module in network:
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight, 0.2, generator=random)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
    return network


def _shifted(pictures: Tensor, random: torch.Generator) -> Tensor:
    """A batch moved by a few pixels, its edges repeated; all alike, which a mean over places does not mind."""
    down, across = (int(v) for v in torch.randint(2 * SHIFT_PIXELS + 1, (2,), generator=random))
    side = pictures.shape[-1]
    padded = F.pad(pictures, [SHIFT_PIXELS] * 4, mode="replicate")
    return padded[:, :, down : down + side, across : across + side]
