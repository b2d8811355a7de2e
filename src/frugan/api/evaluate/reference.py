"""Features and moments of real pictures: computed once, kept as a file, and when they are out of date."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frugan.api.devices import use_device
from frugan.api.progress import Progress, Say
from frugan.contract.data import SourceOptions
from frugan.contract.settings import DataSettings
from frugan.data.digits import SPLIT_SEED, digits_set, split_digits
from frugan.data.formats.source import local_path
from frugan.data.picture_needs import open_pictures
from frugan.data.picture_set import PictureSet, open_prepared
from frugan.data.set_file import is_prepared
from frugan.data.streams import random_order
from frugan.engine.device import pin_arithmetic
from frugan.engine.tensor_files import read_tensors, write_tensors
from frugan.errors import BadInput
from frugan.files import Folders
from frugan.metrics.digit_classifier import DigitClassifier
from frugan.metrics.feature_network import FeatureNetwork, Features, RowStore, load_inception, load_named
from frugan.metrics.moments_file import FileMoments, write_moments
from frugan.metrics.scores import Moments, Normal, StreamingMoments


@dataclass(frozen=True)
class DigitFeatures:
    """The demo's classifier as a feature network: its ten scores, as features alone.

    They are no logits, and no class probabilities are made of them for an inception score: taken as logits, unseen real
    digits score 9.4 and ten pictures that repeat 9.9; with a temperature that cross-validation inside the fit half
    chose, 9.7 and 9.99. Where a classifier is nearly always sure, that score rises with sameness.
    """

    classifier: DigitClassifier  # fitted to the demo's training half
    digest: str  # of its weights
    name: str = "digits"
    resizer: str = "area to 8"

    def __call__(self, pictures: Tensor) -> Features:
        """Features of uint8 pictures [N, 1 or 3, R, R]: scores [N, 10]."""
        return Features(self.classifier.scores(pictures.float() / 127.5 - 1).float(), None)


def choose_network(name: str, file: Path | None, device: torch.device, say: Say) -> FeatureNetwork:
    """A feature network by name.

    Raises:
        BadInput: there is none of this name, or its weights are missing or others.
    """
    if name == "inception":
        network: FeatureNetwork = load_inception(file, Folders.from_environment().cache, device)
    elif name == "digits":
        fit_on, _ = split_digits(SPLIT_SEED)
        digits = digits_set(32, fit_on)
        pictures = torch.from_numpy(digits.pictures.copy()).float() / 127.5 - 1
        classifier = DigitClassifier.fit(pictures, torch.from_numpy(digits.labels))
        network = DigitFeatures(classifier, sha256(digits.digest.encode()).hexdigest())
    else:
        network = load_named(name, device)
    say(f"features: {network.name}, {network.digest[:8]}, {network.resizer}")
    return network


MOST_ROWS = 50_000
"""Features of so many pictures are kept for KID and precision: 400 MB of 2048 fp32 each."""
FEATURES_AT_ONCE = 16
"""Pictures in one forward of the feature network, so that it takes little memory beside the generator."""
FORMAT = 1


@dataclass(frozen=True)
class Reference:
    """Real pictures as a feature network sees them."""

    moments: Moments | Normal  # of all of them, or from a file
    rows: NDArray[np.float32]  # features of up to `MOST_ROWS`, in a fixed random order [N, D], mapped from disk
    labels: NDArray[np.int64]  # class of each of these [N]

    @classmethod
    def of_file(cls, file: FileMoments) -> Self:
        """Moments alone, without any picture."""
        none = np.empty((0, len(file.normal.mean)), np.float32)
        return cls(file.normal, none, np.empty(0, np.int64))


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
    key = f"{pictures.digest[:16]}-{network.digest[:16]}"
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


def write_reference(
    pictures: str | Path,
    out: str | Path,
    *,
    resolution: int | None = None,
    data: DataSettings | None = None,
    network: str = "inception",
    network_file: Path | None = None,
    device: str = "auto",
    say: Say = print,
    progress: Progress | None = None,
) -> int:
    """Write the mean and covariance of the features of pictures into an .npz file, as `evaluate` and others read it.

    What `evaluate` keeps of these pictures is kept too, so that `--data` with them is as quick.

    Args:
        pictures: anything that `train` takes.
        out: the file, .npz; never overwritten.
        resolution: side to which pictures are brought; None: they are a prepared set, and have one.
        data: how they are brought to it; None: as recipes do.
        network, network_file: of features, as for `evaluate`.
        device: "auto", "cpu", "cuda" or "cuda:1".

    Returns:
        How many pictures there are.

    Raises:
        BadInput: no such pictures, fewer than two, no feature network, or `out` exists or is called otherwise.
    """
    source, file = local_path(pictures), Path(out)
    if file.suffix != ".npz":
        raise BadInput(f"{file}: moments go into an .npz file; give it that ending")
    if file.exists():
        raise BadInput(f"{file}: exists already; delete it, or choose another name")
    if resolution is None and not is_prepared(source):
        raise BadInput("--resolution is missing: the side in pixels of the generated pictures that will be compared")
    side = resolution if resolution is not None else open_prepared(source).resolution
    where, why = use_device(device)
    say(f"device: {where} ({why})")
    features = choose_network(network, network_file, where, say)
    folders = Folders.from_environment()
    real = open_pictures(source, side, SourceOptions(data or DataSettings(), folders.prepared, say, progress, {}))
    if len(real) < 2:
        raise BadInput(f"{source}: one picture has no covariance; expected at least 2, and better thousands")
    pin_arithmetic()
    moments = reference_of(real, features, folders.moments, batch=FEATURES_AT_ONCE, progress=progress).moments
    assert isinstance(moments, Moments)
    if moments.count <= len(moments.mean):
        say(
            f"warning: {moments.count:,} pictures for {len(moments.mean)} feature dimensions: their covariance is "
            "singular and distances to it are far too high"
        )
    about: dict[str, str | int] = {"pictures": moments.count, "resolution": side, "data_digest": real.digest}
    about |= {"network": features.name, "network_digest": features.digest, "resizer": features.resizer}
    write_moments(file, moments, about)
    return moments.count
