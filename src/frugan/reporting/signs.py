"""Signs that a training goes wrong, read from its events: each with its number, and with what people do about it."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean, median
from types import MappingProxyType
from typing import Any

from frugan.wording import by_fixed_features, count, judge_in_words

SATURATION_STEPS = 200
SATURATED_LOSS = 0.05
"""A hinge discriminator that is unsure loses about 2 on real and fake together; one that tells all apart, nothing."""
RECOVERED_LOSS = 0.2
JUMP = 2.0
"""A largest singular value that doubles between reports, beside the median of the reports before."""
JUMP_REPORTS = 5
LEAST_VARIETY = 0.65
"""Distance between two samples of a class, generated over real, as a mean over the classes, below which we warn. Runs
whose classes each showed one way of writing a digit had 0.35 to 0.6 of it; real pictures in the samples' places had at
least 0.89, in 3,600 draws of 32 from digits, drawn faces, letters, icons and parts of a photograph."""
LEAST_NEIGHBOUR_DISTANCE = 0.4
"""Distance between a sample and its nearest neighbour, generated over real, below which we warn of few pictures that
come again and again. Real pictures had at least 0.66, drawn with repetition from classes of a few dozen."""
LEAST_VARIETY_OF_ONE = 0.4
"""Least variety of a single class, where the others vary; real pictures had at least 0.52."""
VARIETY_RECOVERED = 1.15
"""Factor on the least variety from which on a warning may come again."""
NOTABLY_LESS = 0.75
"""Factor on the variety of the last warning below which another one is due, as for twice as many classes."""
MOST_CLASSES_NAMED = 5
EQUILIBRIUM: Mapping[str, float] = MappingProxyType(
    {"relativistic": math.log(2), "non-saturating": 2 * math.log(2), "hinge": 2.0}
)
"""Loss -> its value for a discriminator that finds all pictures alike, of a pair, or of real and fake added up."""
AT_EQUILIBRIUM = 0.03
"""Largest relative distance of a loss from this value, averaged over `SATURATION_STEPS`, that counts as guessing: 0.003
in a training whose penalty left the discriminator flat, at least 0.12 at any time in ten that went well or failed in
other ways."""
NOWHERE = 1e6
"""Distance from equilibrium of a loss whose equilibrium is not known."""
TOLD_APART = 0.8
"""Share of pictures that a fresh network is right about, from which on a discriminator has much to see."""
BETTER = 0.1
"""Difference from which on a score is surely better than the one before: from 500 samples each is known to 0.05 or so
(apart from differences so faint that only some networks see them). That a discriminator guesses is no proof:
drawn fish were told apart 100 times in 100 after 600 steps and 75 times after 1,200, while theirs guessed all the time
between. Where pictures stayed bad: maps 100 and 100, sprites of a game 98 and 89."""
ALL_TOLD_APART = 0.99
ALL_BY_FEATURES = 1.0
"""Right answers of a judge of fixed features, which must not be wrong once. Of damaged pictures that a network is right
about 80 to 99 times in 100, fixed features at 120 pictures are right 99 times or more in a quarter of the cases, such
as digits that are blurred by a pixel; and 80 times or more in nine of ten, so that `TOLD_APART` holds for both.
Judgements of the same pictures then differ by 0.01, at 30 pictures by 0.04, so that `BETTER` does too
(benchmarks/judges.py)."""
SCORES_IN_A_ROW = 3
"""Number of such scores after which a generator has given up, as at first every generator's pictures are told apart."""


@dataclass
class CollapseSigns:
    """Watches the events of one training; one that goes back to an earlier step is judged by what led up to that.

    Attributes:
        retry: gives the command line that begins the run anew with a slower generator; None: there is none.
        given_up: phases whose discriminator was told to have given up.
        guessed: phase -> step and value of the last score, of those whose discriminator guessed then.
        standing: what is warned of -> its lines, until it is over.
        over: lines of warnings that the last event has shown to be over.
    """

    retry: Callable[[], str | None] = lambda: None
    _losses: dict[str, "_Losses"] = field(default_factory=dict)
    _newest: int = 0  # step that was seen
    _saturated: set[str] = field(default_factory=set)
    given_up: set[str] = field(default_factory=set)
    guessed: dict[str, tuple[int, float]] = field(default_factory=dict)
    standing: dict[str, list[str]] = field(default_factory=dict)
    over: list[str] = field(default_factory=list)
    _recipe: Mapping[str, Any] = field(default_factory=dict)  # recipe of the training, from the event of its start
    # step, two-sample score
    _judged: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=SCORES_IN_A_ROW))
    _judge: object = None  # who took the last one, by its provenance; None: it does not say
    _values: dict[str, deque[float]] = field(default_factory=dict)
    _alike: "_Alike | None" = None

    def look(self, event: Mapping[str, Any]) -> Iterator[str]:
        """Lines to warn with at an event of a step, of scores or of variety; then `over` tells what has ended."""
        self.over = []
        if event.get("event") == "start":
            self._recipe = event.get("recipe", self._recipe)
        if event.get("event") in ("start", "resume"):
            self._go_back_to(int(event["step"]))
        if event.get("event") == "metrics" and isinstance(share := event["scores"].get("two_sample"), float):
            self._judged.append((int(event["step"]), share))
            measured = event.get("provenance")
            self._judge = measured.get("judge") if isinstance(measured, Mapping) else None
            for phase, losses in self._losses.items():
                if losses.enough:
                    yield from self._discriminator_gave_up(phase, losses.mean, int(event["step"]), share)
                    yield from self._generator_gave_up(phase, losses.mean)
        if event.get("event") == "variety" and event["mean"]:
            yield from self._variety(event["mean"], event["nearest"])
        if event.get("event") != "step":
            return
        self._newest = int(event["step"])
        for phase, entry in event["phases"].items():
            yield from self._saturation(phase, int(event["step"]), entry["terms"])
        yield from self._jumps(event.get("singular_values", {}))

    def _began(self, about: str, line: str) -> str:
        self.standing.setdefault(about, []).append(line)
        return line

    def _ended(self, about: str) -> None:
        self.over += self.standing.pop(about, [])

    def _go_back_to(self, step: int) -> None:
        """Forget later steps, which are trained anew."""
        if step < self._newest:
            for losses in self._losses.values():
                losses.cut(step)
            self._saturated, self._alike, self._values, self.standing = set(), None, {}, {}
        self._newest = step
        while self._judged and self._judged[-1][0] > step:
            self._judged.pop()
        self.guessed = {phase: score for phase, score in self.guessed.items() if score[0] <= step}
        self.given_up &= self.guessed.keys()

    def _saturation(self, phase: str, step: int, terms: Mapping[str, Any]) -> Iterator[str]:
        paired = "relativistic" in terms
        if not paired and not {"real", "fake"} <= terms.keys():
            return
        sides = [terms["relativistic"]] if paired else [terms["real"], terms["fake"]]
        if not all(isinstance(side, float) for side in sides):
            return  # not finite: told as a skipped update
        losses = self._losses.setdefault(phase, _Losses())
        losses.add(step, sum(sides), EQUILIBRIUM.get(str(self._objective.get("loss", "relativistic"))))
        mean = losses.mean
        if mean > RECOVERED_LOSS:
            self._saturated.discard(phase)
            self._ended(f"saturated {phase}")
        if paired:
            return  # near 0 for a while at the start of trainings that go well: scores decide
        if losses.enough and mean < SATURATED_LOSS and phase not in self._saturated:
            self._saturated.add(phase)
            yield self._began(
                f"saturated {phase}",
                f"{phase}: its losses on real and fake add up to {mean:.3f}, averaged over {SATURATION_STEPS} steps: "
                "it tells real from generated without effort, so the generator has nothing to learn from. What people "
                "do: lower its learning rate, train it fewer times per step, or add pictures",
            )

    def _discriminator_gave_up(self, phase: str, mean: float, step: int, share: float) -> Iterator[str]:
        """Warn of a discriminator that only guesses where a fresh network does not, while pictures get no better."""
        before = self.guessed.pop(phase, None)
        guesses = self._away(phase) <= AT_EQUILIBRIUM
        if guesses:
            self.guessed[phase] = (step, share)
        if not guesses or share < TOLD_APART:
            self.given_up.discard(phase)
            self._ended(f"guesses {phase}")
        elif before is not None and share > before[1] - BETTER and phase not in self.given_up:
            self.given_up.add(phase)
            command = self.retry()
            yield self._began(
                f"guesses {phase}",
                f"{phase} has given up: at this score and the one before, its loss stood at that of guessing "
                f"({mean:.3f}, averaged over {SATURATION_STEPS} steps), while {judge_in_words(self._judge)} that was "
                f"trained afresh told real from generated {100 * before[1]:.0f} and now {100 * share:.0f} times in "
                "100: the generator learns little from it. What people do: begin anew with "
                f"{', '.join(self._against_guessing())}"
                + ("" if command is None else f". With half the generator's rate, in a new run: {command}"),
            )

    @property
    def _objective(self) -> Mapping[str, Any]:
        objective: Mapping[str, Any] = self._recipe.get("objective", {})
        return objective

    @property
    def _penalty(self) -> str:
        """Name of the penalty on the discriminator's gradient in the recipe, in brackets; empty: there is none."""
        names = [f"objective.{name}" for name in ("gamma", "r1_gamma") if name in self._objective]
        return f" ({names[0]})" if names else ""

    def _against_guessing(self) -> Iterator[str]:
        yield "a lower learning rate of the generator"
        if "discriminator_steps" in self._objective:
            yield "more steps of the discriminator for each of the generator's (objective.discriminator_steps)"
        yield f"a weaker penalty on its gradient{self._penalty}"
        other = "biggan-small-64" if self._recipe.get("family") == "stylegan2" else "stylegan2-small-64"
        yield f"or another recipe, such as {other}"

    @property
    def _for_variety(self) -> str:
        if "gamma" in self._objective:
            return "Try another objective.gamma, three times as much or a third"
        normed = ", and networks.spectral_norm=false" * bool(self._recipe.get("networks", {}).get("spectral_norm"))
        return (
            "What helped most in our runs is objective.loss=relativistic with an R1 penalty (objective.r1_gamma)"
            f"{normed}, as biggan-small-64 has them"
        )

    def _away(self, phase: str) -> float:
        """Relative distance of the losses of a phase from that of guessing; 0: too few are known."""
        losses = self._losses.get(phase)
        return losses.away if losses is not None and losses.enough else 0.0

    def _generator_gave_up(self, phase: str, mean: float) -> Iterator[str]:
        """Whoever looks tells its pictures from real ones, and goes on doing so."""
        least = min((share for _, share in self._judged), default=0.0)
        all_told_apart = ALL_BY_FEATURES if by_fixed_features(self._judge) else ALL_TOLD_APART
        if len(self._judged) < SCORES_IN_A_ROW or least < all_told_apart:
            return
        if mean < SATURATED_LOSS and phase not in self._saturated:
            self._saturated.add(phase)
            yield self._began(
                f"saturated {phase}",
                f"the generator has given up: in the last {SCORES_IN_A_ROW} scores {judge_in_words(self._judge)} that "
                f"was trained afresh told real from generated at least {100 * least:.0f} times in 100, and {phase} "
                f"does so without effort: its loss is {mean:.3f}, averaged over {SATURATION_STEPS} steps. What people "
                "do: look at the samples, then begin anew with a lower learning rate of the discriminator, a stronger "
                f"penalty on its gradient{self._penalty}, or a higher learning rate of the generator",
            )

    def _jumps(self, values: Mapping[str, Any]) -> Iterator[str]:
        jumped = []
        for layer, value in values.items():
            if not isinstance(value, float):
                continue
            before = self._values.setdefault(layer, deque(maxlen=JUMP_REPORTS))
            if len(before) == JUMP_REPORTS and value > JUMP * median(before) > 0:
                jumped.append((value / median(before), layer, median(before), value))
            before.append(value)
        if jumped:
            _, layer, usual, now = max(jumped)
            yield (
                f"largest singular value of {layer} jumped from {usual:.3g} to {now:.3g}"
                + (f", and of {len(jumped) - 1} more layers" if len(jumped) > 1 else "")
                + ": in BigGAN an early sign of collapse. What people do: go back to an earlier checkpoint, lower the "
                "learning rates, or stop, because the best pictures came before it"
            )

    def _variety(self, mean: Mapping[str, float], nearest: Mapping[str, float]) -> Iterator[str]:
        """Told once; again when it gets notably worse, or when it comes back.

        Args:
            mean, nearest: class -> ratios, see `frugan.metrics.diversity`.
        """
        overall, neighbours = fmean(mean.values()), fmean(nearest.values())
        share = _share(overall, neighbours)
        alike = {name: _share(mean[name], nearest[name]) for name in mean if mean[name] < LEAST_VARIETY_OF_ONE}
        if share < 1:
            shares = {name: _share(mean[name], nearest[name]) for name in mean}
            alike |= {name: value for name, value in shares.items() if value < 1}
        elif not alike:
            if share > VARIETY_RECOVERED:
                self._alike = None
                self._ended("variety")
            return
        now = _Alike(len(alike), fmean(alike.values()))
        if self._alike is not None and not now.notably_worse(self._alike):
            return
        self._alike = now
        lowest = sorted(alike, key=lambda name: mean[name])
        named = ", ".join(f"{name} {mean[name]:.2f}" for name in lowest[:MOST_CLASSES_NAMED])
        yield self._began(
            "variety",
            f"samples of {len(alike)} of {len(mean)} classes are more alike than real pictures: the generator is "
            "losing variety, which no single picture shows. Mean distance between samples of a class, divided by that "
            f"between real pictures (1: as varied): {overall:.2f}, to the nearest neighbour {neighbours:.2f}; lowest: "
            f"{named}. {self._for_variety}; others add more pictures or augmentation, use a larger batch, or go back "
            "to an earlier checkpoint; see docs/training-well.md",
        )


@dataclass
class _Losses:
    """A phase's last losses, with sums that go along: there are millions of steps."""

    _known: deque[tuple[int, float, float]] = field(default_factory=deque)  # step, loss, distance from guessing
    _sum: float = 0.0
    _sum_away: float = 0.0
    _added: int = 0

    def add(self, step: int, loss: float, level: float | None) -> None:
        """Add a loss; `level` is that of guessing, None if unknown."""
        if len(self._known) == SATURATION_STEPS:
            _, oldest, away = self._known.popleft()
            self._sum, self._sum_away = self._sum - oldest, self._sum_away - away
        away = NOWHERE if level is None else abs(loss - level) / level
        self._known.append((step, loss, away))
        self._sum, self._sum_away = self._sum + loss, self._sum_away + away
        self._added += 1
        if self._added % SATURATION_STEPS == 0:  # one huge loss would leave its rounding behind for good
            self._add_up()

    def cut(self, step: int) -> None:
        """Forget losses of later steps."""
        while self._known and self._known[-1][0] > step:
            self._known.pop()
        self._add_up()

    def _add_up(self) -> None:
        self._sum, self._sum_away = (math.fsum(sample[at] for sample in self._known) for at in (1, 2))

    @property
    def enough(self) -> bool:
        """Return whether there are enough losses to judge by."""
        return len(self._known) == SATURATION_STEPS

    @property
    def mean(self) -> float:
        return self._sum / max(1, len(self._known))

    @property
    def away(self) -> float:
        """Distance of the mean loss from that of guessing, as a share of it."""
        return self._sum_away / max(1, len(self._known))


@dataclass(frozen=True)
class _Alike:
    """Warning of samples that are alike: number of classes, and their mean share of the least variety."""

    classes: int
    share: float

    def notably_worse(self, than: "_Alike") -> bool:
        return self.classes >= 2 * than.classes or self.share < NOTABLY_LESS * than.share


def _share(mean: float, nearest: float) -> float:
    """Variety as a share of the least that it should have; below 1: alike."""
    return min(mean / LEAST_VARIETY, nearest / LEAST_NEIGHBOUR_DISTANCE)


BUSY_ENOUGH = 0.6
"""Share of the time from which on a card counts as busy enough."""
FIRST_STEPS = 10
"""First steps after a start or a resumption, which compile, choose algorithms and draw the first grids."""
LEAST_SAMPLES = 30
"""Fewest samples of the card, one a second, before it is judged."""
MUCH_BY_OTHERS = 0.1
"""Share of the time from which on other programs are named."""


@dataclass
class _CardTime:
    """Seconds of a card's use since a start, from its samples."""

    seconds: float = 0.0
    busy: float = 0.0
    by_others: float = 0.0
    others: float = 0.0  # programs times seconds
    took: float = 0.0  # duration of the steps
    waited: float = 0.0  # part of it that was spent waiting for data

    @property
    def share(self) -> float:
        """Share of the time in which it ran this training's kernels, as far as its driver tells them apart."""
        return max(0.0, self.busy - self.by_others) / self.seconds


@dataclass
class IdleCardSigns:
    """Watches the events of one training; says once after each start when the card is busy too little, and why."""

    _from: int | None = None  # step from which on it counts; None: no step was seen since the start
    _told: bool = False
    _time: _CardTime = field(default_factory=_CardTime)

    @property
    def busy(self) -> float | None:
        """Share of the time in which the card ran this training's kernels; None: too little is known."""
        return self._time.share if self._told else None

    def look(self, event: Mapping[str, Any]) -> Iterator[str]:
        """Yield warnings at an event."""
        if event.get("event") == "start":
            self._from, self._told, self._time = None, False, _CardTime()
        if event.get("event") != "step" or self._told:
            return
        if self._from is None:
            self._from = int(event["step"]) + FIRST_STEPS
        if int(event["step"]) < self._from:
            return
        time, card = self._time, event.get("card", {})
        time.took += event["took_seconds"]
        time.waited += event["data_seconds"]
        if "busy" in card:
            time.seconds += card["samples"]
            time.busy += card["samples"] * card["busy"]
            time.by_others += card["samples"] * card.get("others_busy", 0.0)
            time.others += card["samples"] * card.get("others", 0.0)
        if time.seconds >= LEAST_SAMPLES:
            self._told = True
            if time.share < BUSY_ENOUGH:
                yield _idle(time)


def _idle(time: _CardTime) -> str:
    """Why a card idles, of three causes: pictures, other programs, the host."""
    waited, by_others = time.waited / max(time.took, 1e-9), time.by_others / time.seconds
    busy = f"the card was busy with this training {100 * time.share:.0f} % of the time, over {time.seconds:.0f} s: "
    if waited >= (1 - time.share) / 2:
        return busy + (
            f"it waits for pictures, {100 * waited:.0f} % of each step. What helps: pictures stored as pixels "
            "(data.stored=pixels) on a faster disk; for faces more processes (--workers)"
        )
    if by_others >= MUCH_BY_OTHERS:
        return busy + (
            f"other programs compute on it, {100 * by_others:.0f} % of the time. What helps: end them "
            "(nvidia-smi names them), or choose another card (--device cuda:1)"
        )
    others = round(time.others / time.seconds)
    also = f"; {count(others, 'other program')} on it, too" if others else ""
    return busy + (
        f"the host does not start its many small kernels fast enough{also}. What helps: a larger micro-batch "
        "(--micro-batch, or more --memory), or a larger training.batch in a new run"
    )


MOSTLY = 0.5
"""Share of a network's gradients, by numbers, that are exact zeros: from here on it is warned of. In fp32 there
are some per cent: rows of a table of classes that were not in the batch, an attention that begins at zero."""
MOST_PARAMETERS_NAMED = 3


@dataclass
class GradientSigns:
    """Watches the events of one training; what it tells, it tells once."""

    sizes: Mapping[str, int] = field(default_factory=dict)  # parameter -> its numbers, from the event of the start
    _told: set[tuple[str, str]] = field(default_factory=set)

    def look(self, event: Mapping[str, Any]) -> Iterator[str]:
        """Yield warnings at an event."""
        if event.get("event") == "start":
            self.sizes = event.get("parameters", {})
        if event.get("event") != "step":
            return
        reported = {name: entry for name, entry in event["phases"].items() if "gradients" in entry}
        if event["step"] == 1:  # later ones may leave out a phase that is due now and then
            yield from _without(reported)
        for phase, entry in reported.items():
            if entry["loss_scale"] != 1:  # nothing is scaled in other precisions
                yield from self._lost(phase, entry)

    def _lost(self, phase: str, entry: Mapping[str, Any]) -> Iterator[str]:
        networks = dict.fromkeys(name.partition(".")[0] for name in entry["gradients"])
        for network in networks:
            shares = {n: float(s) for n, s in entry["zero_share"].items() if n.partition(".")[0] == network}
            sizes = {name: self.sizes.get(name, 1) for name in shares}
            share = sum(shares[name] * sizes[name] for name in shares) / sum(sizes.values())
            if share < MOSTLY or (network, phase) in self._told:
                continue
            self._told.add((network, phase))
            most = sorted(shares, key=lambda name: -shares[name] * sizes[name])
            yield (
                f"{100 * share:.0f} % of {network}'s gradients in phase {phase} are exact zeros, most of them in "
                f"{_named(most)}: values too small for fp16 become nothing, and weights that get nothing do not learn. "
                "Look at the heat map of exact zeros in `frugan report`; if it stays so, train with "
                "training.precision=fp32, or bf16 on a card that has it"
            )


def _without(reported: Mapping[str, Any]) -> Iterator[str]:
    """Tell of parameters to which no phase gave a gradient, in one line for each network."""
    reached = {name for entry in reported.values() for name in entry["gradients"]}
    missing = dict.fromkeys(name for entry in reported.values() for name in entry.get("without_gradient", ()))
    by_network: dict[str, list[str]] = {}
    for name in missing:
        if name not in reached:
            by_network.setdefault(name.partition(".")[0], []).append(name)
    for network, names in by_network.items():
        yield (
            f"{count(len(names), 'parameter')} of {network} got no gradient in any phase: {_named(names)}. No loss "
            "depends on what stands there, so training leaves it as it is. If that is not meant, look whether "
            f"{network}'s forward uses it, and whether something on the way to the losses detaches it"
        )


def _named(names: list[str]) -> str:
    more = len(names) - MOST_PARAMETERS_NAMED
    return ", ".join(names[:MOST_PARAMETERS_NAMED]) + (f" and {more} more" if more > 0 else "")
