"""Features and moments of real pictures: computed once, kept as a file, and when they are out of date."""

import json
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frugan.data.batches import random_order
from frugan.data.digits import SPLIT_SEED, as_tensors, digits_set, split_digits
from frugan.data.formats.picture_set import PictureSet
from frugan.engine.run.tensor_files import digest, read_tensors, write_tensors
from frugan.errors import BadInput
from frugan.files import Folders
from frugan.metrics.digit_classifier import DigitClassifier
from frugan.metrics.feature_network import (
    INCEPTIONS,
    FeatureNetwork,
    Features,
    NoFeatures,
    PixelFeatures,
    RowStore,
    load_inception,
    load_named,
)
from frugan.metrics.moments_file import FileMoments
from frugan.metrics.provenance import WITHOUT_WEIGHTS
from frugan.metrics.public_weights import MissingWeights
from frugan.metrics.scores import Moments, Normal, StreamingMoments, ball_radii
from frugan.metrics.vision_transformers import TRANSFORMERS, file_of, load_transformer
from frugan.progress import Say
from frugan.wording import network_in_words

if TYPE_CHECKING:  # one process needs no torch.distributed
    from frugan.engine.ranks.group import RankGroup


@dataclass(frozen=True)
class DigitFeatures:
    """The demo's classifier as a feature network: its ten scores, as features alone.

    They are no logits, and no class probabilities are made of them for an inception score: taken as logits, unseen real
    digits score 9.4 and ten pictures that repeat 9.9; with a temperature that cross-validation inside the fit half
    chose, 9.7 and 9.99. Where a classifier is nearly always sure, that score rises with sameness.
    """

    classifier: DigitClassifier  # fitted to the demo's training half
    digest: str  # digest of the weights
    name: str = "digits"
    resizer: str = "area to 8"

    def to(self, device: torch.device) -> None:
        """See `FeatureNetwork`: where pictures are, they are looked at."""

    def __call__(self, pictures: Tensor) -> Features:
        """Features of uint8 pictures [N, 1 or 3, R, R]: scores [N, 10]."""
        return Features(self.classifier.scores(pictures.float() / 127.5 - 1).float(), None)


def choose_network(name: str, file: Path | None, device: torch.device, say: Say) -> FeatureNetwork:
    """A feature network by name.

    Args:
        file: of its weights; None: where they usually are.

    Raises:
        MissingWeights: its weights are not there.
        BadInput: there is none of this name, its weights are others, or it takes none from a file.
    """
    if file is not None and name not in (*INCEPTIONS, *TRANSFORMERS):
        raise BadInput(f"--network-file {file}: goes with --network {', '.join((*INCEPTIONS, *TRANSFORMERS))}")
    if name in INCEPTIONS:
        network: FeatureNetwork = load_inception(name, file, Folders.from_environment().cache, device)
    elif name in TRANSFORMERS:
        network = load_transformer(TRANSFORMERS[name], file, device)
    elif name == "digits":
        fit_on, _ = split_digits(SPLIT_SEED)
        digits = digits_set(32, fit_on)
        network = DigitFeatures(DigitClassifier.fit(*as_tensors(digits)), sha256(digits.digest.encode()).hexdigest())
    elif name == PixelFeatures.name:
        network = PixelFeatures()
    else:
        network = load_named(name, device)
    weights = "" if network.name in WITHOUT_WEIGHTS else f", weights {network.digest[:8]}, {network.resizer}"
    say(f"scores compare {network_in_words(network.name)}{weights}")
    return network


NEEDS_NONE = (
    "Without weights: --metrics two-sample (a judge learns to tell generated from real), or --network pixels --metrics "
    "pr,dc,two-sample (precision, recall, density and coverage of grey copies)"
)
"""Scores that nothing has to be fetched for, for messages."""
WITHOUT_FEATURES = frozenset(("two-sample", "ppl", "eqt", "eqt-frac", "eqr"))
"""Metrics that look at the pictures themselves."""


def network_for(
    metrics: Collection[str] | None, name: str, file: Path | None, device: torch.device, say: Say
) -> FeatureNetwork:
    """The feature network that metrics need, by name; none is loaded where they need none.

    Args:
        metrics: None: the usual ones.

    Raises:
        BadInput: as `choose_network`.
    """
    if metrics is not None and not {*metrics} - WITHOUT_FEATURES:
        return NoFeatures()
    try:
        return choose_network(name, file, device, say)
    except MissingWeights as error:
        raise MissingWeights(f"{error}. {NEEDS_NONE}") from error


def missing_weights(name: str) -> str | None:
    """Return the message for a feature network whose weights are not on this machine; None: they are, or it needs
    none."""
    try:
        if name in INCEPTIONS:
            INCEPTIONS[name][0].found(None, Folders.from_environment().cache)
        elif name in TRANSFORMERS:
            file_of(TRANSFORMERS[name], None)
    except MissingWeights as error:
        return str(error)
    return None


def refuse_others(ranks: "RankGroup", file: Path, network: FeatureNetwork, name: str) -> None:
    """Refuse to draw by other weights than the first rank's, or to look by another network.

    Args:
        file: of the weights.
        name: that the network was asked for by.

    Raises:
        BadInput: this rank has others.
    """
    digests = (digest(file), network.digest)
    of_weights, of_network = ranks.broadcast(digests)
    if digests[0] != of_weights:
        raise BadInput(f"{ranks.name}: {file} holds other weights there than on the first rank")
    if digests[1] != of_network:
        raise BadInput(f"{ranks.name}: --network {name} is another network there than on the first rank")


MOST_ROWS = 50_000
"""Features of so many pictures are kept for KID and precision: 400 MB of 2048 fp32 each."""
FEATURES_AT_ONCE = 16
"""Pictures in one forward of the feature network, so that it takes little memory beside the generator."""
FORMAT = 1


@dataclass(frozen=True)
class Reference:
    """Real pictures as a feature network sees them."""

    moments: Moments | Normal  # moments of all pictures, or from a file
    rows: NDArray[np.float32]  # features of up to `MOST_ROWS`, in a fixed random order [N, D], mapped from disk
    labels: NDArray[np.int64]  # class of each of these [N]

    @cached_property
    def radii(self) -> Tensor:
        """Radii [N] of the balls around the rows that measure precision: N² distances, computed once."""
        return ball_radii(self.rows)

    @classmethod
    def of_file(cls, file: FileMoments) -> Self:
        """Make a reference of moments alone, without pictures."""
        none = np.empty((0, len(file.normal.mean)), np.float32)
        return cls(file.normal, none, np.empty(0, np.int64))

    @classmethod
    def without_features(cls) -> Self:
        """Make an empty reference, for metrics without features."""
        nothing = StreamingMoments(0).finish()
        return cls(nothing, np.empty((0, 0), np.float32), np.empty(0, np.int64))


def reference_of(
    pictures: PictureSet,
    network: FeatureNetwork,
    folder: Path,
    *,
    batch: int,
    progress: Callable[[int, int], None] | None = None,
) -> Reference:
    """Read a set's reference, or compute it and keep it.

    Args:
        folder: of references; a name in it holds the digests of pictures and network.
        batch: pictures in one forward.
    """
    key = _key(pictures, network)
    order = random_order(f"reference/{pictures.digest}", len(pictures))
    labels = pictures.labels[order[:MOST_ROWS]]
    kept = folder / f"{key}.safetensors", folder / f"{key}.npy"
    about = {"format": str(FORMAT), "data": pictures.digest, "network": f"{network.name} {network.digest}"}
    about["resizer"] = network.resizer
    if (moments := _kept(kept[0], about)) is not None and (rows := _kept_rows(kept[1])) is not None:
        return Reference(moments, rows, labels)
    folder.mkdir(parents=True, exist_ok=True)
    beside = folder / f".{key}.{os.getpid()}.npy"
    gathered: StreamingMoments | None = None
    store: RowStore | None = None
    try:
        for first in range(0, len(pictures), batch):
            at = order[first : first + batch]
            features = network(torch.from_numpy(np.ascontiguousarray(pictures[at]))).pooled
            if gathered is None or store is None:
                gathered = StreamingMoments(features.shape[1])
                store = RowStore(beside, len(labels), features.shape[1])
            gathered.update(features)
            store.append(features)
            if progress is not None:
                progress(min(first + batch, len(pictures)), len(pictures))
        assert gathered is not None
        assert store is not None
        moments = gathered.finish()
        store.close()
        tensors = {"mean": moments.mean, "scatter": moments.scatter, "count": torch.tensor(moments.count)}
        beside.replace(kept[1])
        write_tensors(kept[0], tensors, about)
    finally:
        beside.unlink(missing_ok=True)
    return Reference(moments, np.load(kept[1], mmap_mode="r", allow_pickle=False), labels)


def is_kept(pictures: PictureSet, network: FeatureNetwork, folder: Path) -> bool:
    """Return whether a set's reference was computed before, as far as the names of files tell."""
    return (folder / f"{_key(pictures, network)}.safetensors").exists()


def _key(pictures: PictureSet, network: FeatureNetwork) -> str:
    return f"{pictures.digest[:16]}-{network.digest[:16]}"


def _kept_rows(file: Path) -> NDArray[np.float32] | None:
    """Features from a file; None: there is none that can be read."""
    try:
        rows: NDArray[np.float32] = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return rows


def _kept(file: Path, about: dict[str, str]) -> Moments | None:
    """Moments from a file, if they are of these pictures and this network; else they can be made again."""
    try:
        tensors, metadata = read_tensors(file)
    except BadInput:
        return None
    if json.dumps(metadata, sort_keys=True) != json.dumps(about, sort_keys=True):
        return None
    return Moments(int(tensors["count"]), tensors["mean"], tensors["scatter"])
