"""Batches of face samples as a pure function of position: to resume, a counter is enough."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from frugan.data.faces.faceset import Faceset
from frugan.data.faces.sample import SampleSettings
from frugan.data.faces.sample_block import SampleBlock
from frugan.data.faces.sample_maker import SampleMaker, Wanted
from frugan.data.faces.sample_processes import SampleProcesses
from frugan.data.faces.stream import FaceOrder
from frugan.data.lost import refuse_many_lost


class FaceBatches:
    """An endless stream of samples of the faces of a set.

    What stands at a position depends on the faces, the settings, `seed` and `name` alone: neither on how the stream is
    cut into batches nor on the number of processes. For one caller at a time.

    Args:
        faceset: N faces.
        settings: how samples are made of them.
        seed: the recipe's seed.
        name: of the stream ("src"), so that two differ.
        uniform_yaw: show every direction of view as often, instead of every face.
        references: faces that lend their colours, if the settings transfer them.
        processes: that make the samples; they may serve other batches too. None: samples are made within `take`.

    Raises:
        BadInput: OpenCV is missing.
        ValueError: colours are to be transferred, but there are no references.
    """

    def __init__(
        self,
        faceset: Faceset,
        settings: SampleSettings,
        *,
        seed: int,
        name: str,
        uniform_yaw: bool = False,
        references: Faceset | None = None,
        processes: SampleProcesses | None = None,
    ) -> None:
        transfers = settings.colour_transfer != "none"
        if transfers and references is None:
            raise ValueError(f"colour transfer {settings.colour_transfer!r} without references")
        yaws = faceset.yaws if uniform_yaw else None
        self._references = references if transfers else None
        self._order = FaceOrder(len(faceset), seed=seed, name=name, yaws=yaws)
        self._maker = SampleMaker(faceset, settings, self._references)
        self._block: SampleBlock | None = None
        self._faces = len(faceset) + (len(self._references) if self._references is not None else 0)
        self._lost: dict[str, str] = {}
        self._processes = processes
        self._number = processes.add(self._maker) if processes is not None else 0

    def take(self, position: int, count: int) -> dict[str, torch.Tensor]:
        """Return the `count` samples from `position` on.

        Args:
            position: of the first sample, counted since the start of training, from 0.
            count: how many.

        Returns:
            float32 BGR within [0, 1]: "warped" and "target" [count, 3, R, R], "mask" and, if the settings ask for it,
            "eyes_mouth" [count, 1, R, R].

        Raises:
            BadInput: a face cannot be read or used.
            TrainingFailed: a process that makes samples has ended by itself.
            ValueError: a negative position or count.
        """
        wanted = self._wanted(position, count)
        shapes = self._maker.shapes(count)
        if self._processes is None or not wanted:
            made = {part: np.empty(shape, np.float32) for part, shape in shapes.items()}
            for place, one in enumerate(wanted):
                self._take_in(self._maker.make(one, made, place))
            return {part: torch.from_numpy(array) for part, array in made.items()}
        if self._block is None or self._block.shapes != shapes:
            self.close()
            self._block = SampleBlock(shapes)
        self._take_in(self._processes.fill(self._number, self._block, wanted))
        return {part: torch.from_numpy(array).clone() for part, array in self._block.arrays.items()}

    @property
    def passed_over(self) -> Mapping[str, str]:
        """Faces that cannot be read any more -> why; others stand in their places."""
        return self._lost

    def _take_in(self, lost: Mapping[str, str]) -> None:
        self._lost |= lost
        refuse_many_lost(self._lost, self._faces)

    def close(self) -> None:
        """Give back the memory that processes fill; the processes stay."""
        if self._block is not None:
            self._block.close()
        self._block = None

    def _wanted(self, position: int, count: int) -> Sequence[Wanted]:
        faces, seeds = self._order.places(position, count)
        others = len(self._references) if self._references is not None else 1
        partners = self._order.partners(position, count, others)
        return [Wanted(*one) for one in zip(faces.tolist(), seeds.tolist(), partners.tolist(), strict=True)]
