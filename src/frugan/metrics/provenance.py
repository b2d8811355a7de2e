"""What scores were measured with: numbers never stand alone."""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from types import MappingProxyType
from typing import Any, Literal, Self

from frugan.wording import BY_NEIGHBOURS, controls_in, network_in_words

Statistics = Literal["running", "standing", "batch"]
"""Statistics of batch normalisation: the averages of training, averages over new batches, or those of each batch."""
Rounding = Literal["nearest", "bf16"]
"""Rounding of pictures to bytes: to the nearest level, or like the R3GAN program, which computes 127.5·x + 128 in
bfloat16 and cuts off decimals, so that a third of all values are a level higher."""

# kinds of scored pictures
GENERATED = "generated"
REAL = "real"

SAME = (
    "network",
    "network_digest",
    "resizer",
    "samples",
    "data_digest",
    "reference_digest",
    "rows",
    "classes",
    "split",
    "judge",
    "neighbours",
)
"""Fields in which two cards must agree for their scores to be compared."""

ALIKE = "all"
"""Every class is drawn as often as any other; until November 30, 2026, wherever none were named."""
AS_REAL = "all, as often as the real pictures have them"
"""Every class is drawn, and the real pictures have some more often than others."""
WITHOUT_WEIGHTS = frozenset(("pixels", "digits"))
"""Feature networks whose weights are always the same ones."""
NONE = "none"
"""Stands for a missing name or digest."""


MOST_WITHOUT_REAL = 1000
"""Most samples of scores that need no real pictures: the mean length of so many paths is known to a few per cent, how
exactly pictures move to a tenth of a decibel or so."""
METRICS_BY_NEIGHBOURS: Mapping[str, str] = MappingProxyType(
    {score: metric for metric, scores in BY_NEIGHBOURS.items() for score in scores} | {"f_score": "pr"}
)
"""Score -> metric that it belongs to."""


def counts_of(score: str, measured: Mapping[str, Any]) -> tuple[int, int]:
    """Generated and real pictures that a score by features compares; 0: not known.

    Args:
        measured: its provenance, as JSON, perhaps of an older version.
    """
    samples, rows, side = (
        count if isinstance(count := measured.get(name), int) else 0 for name in ("samples", "rows", "neighbours")
    )
    return (side, side) if side and score in METRICS_BY_NEIGHBOURS else (samples, rows)


@dataclass(frozen=True)
class Measured:
    """Circumstances of a single score, in words."""

    samples: str  # how many it looked at
    compared_with: str
    judged_by: str


@dataclass(frozen=True)
class Provenance:
    """Circumstances in which scores were measured."""

    network: str  # name of the feature network
    network_digest: str  # digest of its weights
    resizer: str  # how pictures were brought to the network's size
    samples: int  # number of generated pictures
    data: str  # place of the real pictures; "none": moments alone were given
    data_digest: str  # digest of the real pictures; "none": moments alone were given
    real: int  # number of real pictures; 0: moments alone were given
    rows: int  # real pictures that KID, precision and scores within classes compare with
    classes: str  # generated classes: ALIKE, AS_REAL, or their numbers
    split: str  # split of the data ("all", "unseen")
    seed: int  # seed of the samples
    ema: bool  # whether the averaged networks drew them
    truncation: float  # standard deviation of the latents
    statistics: str  # statistics of batch normalisation; if standing, with their number of batches
    precision: str  # precision of the generator
    weights: str  # path of the weights
    step: int  # steps that they were trained for
    # file of moments that the Fréchet distance is measured to; "none": moments of the real pictures
    reference: str = NONE
    reference_digest: str = NONE  # digest of this file
    psi: float = 1.0  # place of styles between the mean style (0) and the sample's own (1)
    psi_layers: int | None = None  # number of first layers that psi applies to; None: all
    noise: str = "const"  # noise that layers add; see `frugan.contract.family.Noise`
    rounding: str = "nearest"  # see `Rounding`
    judge: str = NONE  # judge of two-sample, and the number of pictures that it saw
    # pictures on either side of precision, recall, density and coverage by pixels, whose control is one half of the
    # real ones against the other; 0: these compare all samples with all rows, as published ones do, or are not there
    neighbours: int = 0
    # how small a damage of real pictures two-sample, and precision and recall by pixels, see at this number; see
    # `frugan.metrics.control`
    control: str = NONE
    blind: str = NONE  # metrics that see none, and whose scores are left out therefore, with commas
    # kind of the scored pictures; REAL: a part of the real ones was scored against the rest, and the fields about
    # weights and samples mean nothing
    scored: str = GENERATED

    @property
    def is_of_real(self) -> bool:
        """Whether real pictures were scored instead of generated ones."""
        return self.scored == REAL

    @property
    def compared_with(self) -> str:
        """Reference of the scores, in words."""
        if self.reference == NONE:
            return self._pictures
        return f"{self._pictures}, FID to {self.reference} {self.reference_digest[:8]}"

    @property
    def _pictures(self) -> str:
        split = "" if self.split == "all" else f" ({self.split})"
        return f"{self.real:,} real pictures of {self.data}{split}" if self.real else "no real pictures"

    @property
    def measured_by(self) -> str:
        """Feature network and judge, in words."""
        weights = "" if self.network in WITHOUT_WEIGHTS else f", weights {self.network_digest[:8]}, {self.resizer}"
        features = f"features: {network_in_words(self.network)}{weights}" if self.network != NONE else ""
        features += f", neighbours among {self.neighbours:,} pictures on either side" if self.neighbours else ""
        judge = f"two-sample: {self.judge}" if self.judge != NONE else ""
        return "; ".join(filter(None, (features, judge)))

    def measured(self, score: str) -> Measured:
        """Return what one of the scores was measured with, which need not be what the others were."""
        few = f"{min(self.samples, MOST_WITHOUT_REAL):,}"
        if score == "ppl":
            return Measured(few, "no pictures", "features of random convolutions")
        if score.startswith("eq"):
            return Measured(few, "the same samples, moved", "their pixels")
        side, _, judge = self.judge.partition(" pictures on either side; ")
        if score == "two_sample" and judge:
            return Measured(side, f"{side} of {self._pictures}", judge.partition(", values")[0])
        if score in METRICS_BY_NEIGHBOURS and self.neighbours:
            side = f"{self.neighbours:,}"
            return Measured(side, f"{side} of {self._pictures}", network_in_words(self.network))
        return Measured(f"{self.samples:,}", self.compared_with, network_in_words(self.network))

    def control_of(self, score: str) -> str:
        """Return how small a damage of real pictures a score sees, in words; empty: it has no control."""
        metric = "two-sample" if score == "two_sample" else METRICS_BY_NEIGHBOURS.get(score)
        return next((seen for metrics, seen in controls_in(self.control).items() if metric in metrics.split(",")), "")

    def as_json(self) -> dict[str, Any]:
        """Return a dictionary for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what `as_json` returned."""
        known = {
            field.name: field.default for field in fields(cls) if field.default is not MISSING
        }  # since older versions
        return cls(**{field.name: {**known, **values}[field.name] for field in fields(cls)})
