"""A kind of data of its own: height maps in one file, read whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frugan.contract.data import SourceOptions, Workers
from frugan.contract.settings import DataSettings
from frugan.data.batches import random_order
from frugan.errors import BadInput

FP32_BYTES = 4


@dataclass(frozen=True, eq=False)
class HeightMaps:
    """Heights fp32 [N, R, R] in [-1, 1]."""

    heights: NDArray[np.float32]
    digest: str

    def __len__(self) -> int:
        return len(self.heights)


@dataclass(frozen=True)
class HeightReader:
    """One order, again and again."""

    maps: HeightMaps
    order: NDArray[np.int64]

    def take(self, position: int, count: int) -> dict[str, Tensor]:
        """Heights [count, 1, R, R] from a position on."""
        places = self.order[np.arange(position, position + count) % len(self.maps)]
        return {"heights": torch.from_numpy(self.maps.heights[places][:, None])}


@dataclass(frozen=True)
class HeightNeeds:
    """What the family expects: "heights" fp32 [n, 1, R, R]."""

    resolution: int  # side of the square maps

    @property
    def classes(self) -> None:
        """Height maps have none."""

    @property
    def given(self) -> bool:
        """False: samples are drawn from random inputs."""
        return False

    @property
    def sample_bytes(self) -> int:
        """Bytes of a map."""
        return FP32_BYTES * self.resolution**2

    def check_settings(self, settings: DataSettings) -> None:
        """Refuse what has no effect here.

        Raises:
            ValueError: mirroring is asked for.
        """
        if settings.flip:
            raise ValueError("data.flip: height maps are not mirrored")

    def locate(self, path: Path, names: Sequence[str]) -> None:
        """Each source is named by itself."""

    def open(self, name: str, path: Path, options: SourceOptions) -> HeightMaps:
        """Read a `.npy` file.

        Raises:
            BadInput: it is none, or holds no maps.
        """
        try:
            heights = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise BadInput(f"{name} {path}: no .npy file with heights ({error})") from error
        if heights.ndim != 3 or heights.dtype != np.float32 or not len(heights):
            raise BadInput(f"{name} {path}: {heights.dtype} {list(heights.shape)}; expected float32 [N, R, R]")
        options.say(f"data {name}: {len(heights):,} height maps in {path}")
        return HeightMaps(heights, sha256(heights.tobytes()).hexdigest())

    def fitted(self, name: str, where: str, source: HeightMaps, options: SourceOptions) -> HeightMaps:
        """The maps, if they are as large as is wanted.

        Raises:
            BadInput: they are not.
        """
        if source.heights.shape[1:] != (self.resolution, self.resolution):
            raise BadInput(f"{where}: maps of {source.heights.shape[1:]}; the recipe wants sides of {self.resolution}")
        return source

    def check_together(self, sources: Mapping[str, HeightMaps]) -> None:
        """There is one source only."""

    def class_names(self, source: HeightMaps) -> tuple[str, ...]:
        """None."""
        return ()

    def advice(self, source: HeightMaps) -> tuple[str, ...]:
        """A line where there are very few."""
        return (f"data: {len(source)} maps are few; they are learnt by heart",) if len(source) < 20 else ()

    def reader(
        self,
        source: HeightMaps,
        sources: Mapping[str, object],
        *,
        seed: int,
        stream: str,
        settings: DataSettings,
        workers: Workers | None,
    ) -> HeightReader:
        """Maps in an order drawn once."""
        return HeightReader(source, random_order(f"{seed}/{stream}", len(source)))

    def blank(self, count: int) -> dict[str, Tensor]:
        """Flat land."""
        return {"heights": torch.zeros(count, 1, self.resolution, self.resolution)}
