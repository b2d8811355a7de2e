"""Features and moments of real pictures: computed once, and out of date when pictures or network change."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from frugan.data.picture_set import PictureSet
from frugan.data.streams import random_order
from frugan.engine.tensor_files import read_tensors, write_tensors
from frugan.errors import BadInput
from frugan.metrics.feature_network import FeatureNetwork
from frugan.metrics.moments import Moments, Normal, StreamingMoments
from frugan.metrics.moments_file import FileMoments
from frugan.metrics.row_store import RowStore

MOST_ROWS = 50_000
"""Features of so many pictures are kept for KID and precision: 400 MB of 2048 fp32 each."""
FEATURES_AT_ONCE = 16
"""Pictures in one forward of the feature network, so that it takes little memory beside the generator."""
FORMAT = 1


@dataclass(frozen=True)
class Reference:
    """Real pictures as a feature network sees them.

    Attributes:
        moments: of all of them, or from a file.
        rows: features of up to `MOST_ROWS`, in a fixed random order [N, D], mapped from disk.
        labels: class of each of these [N].
    """

    moments: Moments | Normal
    rows: NDArray[np.float32]
    labels: NDArray[np.int64]

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
            found = network(torch.from_numpy(np.ascontiguousarray(pictures[at]))).pooled
            if gathered is None or store is None:
                gathered = StreamingMoments(found.shape[1])
                store = RowStore(beside, len(labels), found.shape[1])
            gathered.update(found)
            store.append(found)
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
        found: NDArray[np.float32] = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return found


def _kept(file: Path, about: dict[str, str]) -> Moments | None:
    """Moments from a file, if they are of these pictures and this network; else they can be made again."""
    try:
        tensors, metadata = read_tensors(file)
    except BadInput:
        return None
    if json.dumps(metadata, sort_keys=True) != json.dumps(about, sort_keys=True):
        return None
    return Moments(int(tensors["count"]), tensors["mean"], tensors["scatter"])
