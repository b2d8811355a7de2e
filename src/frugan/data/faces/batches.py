"""Batches of faces."""

import torch

from frugan.data.faces.faceset import Faceset
from frugan.data.faces.sample import SampleSettings


class FaceBatches:
    """Samples."""

    def __init__(
        self,
        faceset: Faceset,
        settings: SampleSettings,
        *,
        seed: int,
        name: str,
        uniform_yaw: bool = False,
        references: Faceset | None = None,
        workers: int = 0,
    ) -> None:
        raise NotImplementedError

    def take(self, position: int, count: int) -> dict[str, torch.Tensor]:
        """Take."""
        raise NotImplementedError

    def close(self) -> None:
        """Close."""
