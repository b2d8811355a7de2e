"""What a score was measured with: numbers never stand alone."""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Literal, Self

Statistics = Literal["running", "standing", "batch"]
"""What batch normalisation uses: the averages that training left, averages made for the evaluation, or each batch's."""

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
)
"""Fields in which two cards must agree for their scores to be compared."""

NONE = "none"
"""In place of a name or a digest: there was no such thing."""


@dataclass(frozen=True)
class Provenance:
    """How scores were measured.

    Attributes:
        network, network_digest: of features.
        resizer: how pictures came to the network's size.
        samples: generated pictures.
        data, data_digest, real: the real pictures: where, which, how many; "none" and 0: moments alone were given.
        reference, reference_digest: file of moments that the Fréchet distance is measured to, and its digest; "none":
            those of the real pictures.
        rows: real pictures that KID, precision and scores within classes compare with.
        classes: generated ("all", or their numbers).
        split: of the data ("all", "unseen").
        seed: of the samples.
        ema: whether the averaged networks made them.
        truncation: standard deviation of the latents.
        statistics: of batch normalisation; with the batches that they were gathered from, if standing.
        precision: of the generator.
        weights: where they come from.
        step: steps that they were trained for.
        psi, psi_layers: how far styles lie from the mean one, and in how many of the first layers; None: all.
        noise: what layers add: their own, another for each picture, or none.
    """

    network: str
    network_digest: str
    resizer: str
    samples: int
    data: str
    data_digest: str
    real: int
    rows: int
    classes: str
    split: str
    seed: int
    ema: bool
    truncation: float
    statistics: str
    precision: str
    weights: str
    step: int
    reference: str = NONE
    reference_digest: str = NONE
    psi: float = 1.0
    psi_layers: int | None = None
    noise: str = "const"

    @property
    def compared_with(self) -> str:
        """What generated pictures are compared with, in words."""
        real = f"{self.real:,} real pictures of {self.data} ({self.split})" if self.real else "no real pictures"
        if self.reference == NONE:
            return real
        return f"{real}, FID to {self.reference} {self.reference_digest[:8]}"

    def as_json(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """What `as_json` gave."""
        known = {each.name: each.default for each in fields(cls) if each.default is not MISSING}  # since older versions
        return cls(**{each.name: {**known, **values}[each.name] for each in fields(cls)})
