"""Batches of samples of aligned faces, as a pure function of position."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from frugan.data.batches import random_order
from frugan.data.formats.source import refuse_many_lost
from frugan.errors import BadInput
from frugan.faces.data.face import SampleSettings
from frugan.faces.data.faceset import Faceset
from frugan.faces.data.sample import Maker, SampleMaker, Wanted
from frugan.faces.data.sample_processes import SampleBlock, SampleProcesses

YAW_BINS = 128
MOST_YAW = 1.2  # radians; faces turned further stand with those
SEEDS = 1 << 31

Order = NDArray[np.int64]


def yaw_bins(yaws: ArrayLike) -> Order:
    """Return in which of 128 equal ranges of -yaw over ±1.2 each face lies, int64 [N] (as DeepFaceLab does).

    Args:
        yaws: in radians, [N].
    """
    turned = -np.asarray(yaws, np.float64)
    return np.floor((turned + MOST_YAW) * (YAW_BINS / (2 * MOST_YAW))).clip(0, YAW_BINS - 1).astype(np.int64)


class FaceOrder:
    """Gives the face at every position, from `number` of them.

    Each face stands in each epoch once, in an order drawn per epoch. With yaws, epochs give way to rounds: a round
    visits every range of yaw that has faces once, in an order drawn per round, and takes the next face of each, which
    go round in an order of their own. So a face among few of its direction is seen as much oftener.

    Args:
        number: of faces, N, at least 1.
        seed: the recipe's seed.
        name: of the stream ("src"), so that two differ in their order.
        yaws: of the faces in radians, finite, [N], to show every direction as often.
    """

    def __init__(self, number: int, *, seed: int, name: str, yaws: ArrayLike | None = None) -> None:
        self._seed = seed
        self._name = name
        bins = np.zeros(number, np.int64) if yaws is None else yaw_bins(yaws)
        self._bins = [(int(which), np.flatnonzero(bins == which)) for which in np.unique(bins)]
        self._round: tuple[int, Order] | None = None  # the last one asked for
        self._epochs: dict[int, tuple[int, Order]] = {}  # of each bin, likewise

    def places(self, position: int, count: int) -> tuple[Order, Order]:
        """Return the faces from `position` on, int64 [count], and the seeds of their samples, int64 [count] below 2^31.

        Raises:
            ValueError: a negative position or count.
        """
        positions = self._positions(position, count)
        faces = np.array([self._face(p) for p in positions], np.int64)
        return faces, np.array([self._word("sample", p) % SEEDS for p in positions], np.int64)

    def partners(self, position: int, count: int, number: int) -> Order:
        """Return for each sample from `position` on one of `number` other faces, int64 [count].

        Raises:
            ValueError: a negative position or count.
        """
        return np.array([self._word("partner", p) % number for p in self._positions(position, count)], np.int64)

    def _positions(self, position: int, count: int) -> range:
        if position < 0 or count < 0:
            raise ValueError(f"position {position}, count {count}: expected both at least 0")
        return range(position, position + count)

    def _word(self, purpose: str, position: int) -> int:
        text = f"{self._seed}/{purpose}/{self._name}/{position}"
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")

    def _face(self, position: int) -> int:
        visit, place = divmod(position, len(self._bins))
        which, members = self._bins[self._round_order(visit)[place]]
        epoch, place = divmod(visit, len(members))  # a round visits each bin once
        return int(members[self._epoch_order(which, epoch, len(members))[place]])

    # What is known is replaced, not changed: a prefetching thread and its caller may both be here.

    def _round_order(self, number: int) -> Order:
        known = self._round
        if known is None or known[0] != number:
            known = number, random_order(f"{self._seed}/round/{self._name}/{number}", len(self._bins))
            self._round = known
        return known[1]

    def _epoch_order(self, which: int, epoch: int, faces: int) -> Order:
        known = self._epochs.get(which)
        if known is None or known[0] != epoch:
            known = epoch, random_order(f"{self._seed}/order/{self._name}/{which}/{epoch}", faces)
            self._epochs[which] = known
        return known[1]


class SampleBatches:
    """An endless stream of samples.

    What stands at a position depends on the maker, `seed` and `name` alone: neither on how the stream is cut into
    batches nor on the number of processes. For one caller at a time.

    Args:
        maker: makes them of N faces.
        seed: the recipe's seed.
        name: of the stream ("src"), so that two differ.
        yaws: of the faces, to show every direction of view as often, instead of every face.
        processes: that make the samples; they may serve other batches too. None: samples are made within `take`.

    Raises:
        BadInput: OpenCV is missing.
    """

    def __init__(
        self,
        maker: Maker,
        *,
        seed: int,
        name: str,
        yaws: ArrayLike | None = None,
        processes: SampleProcesses | None = None,
    ) -> None:
        self._side = name.partition("/")[0]
        self._references = maker.references
        self._order = FaceOrder(len(maker.faceset), seed=seed, name=name, yaws=yaws)
        self._maker = maker
        self._block: SampleBlock | None = None
        self._faces = len(maker.faceset) + (len(self._references) if self._references is not None else 0)
        self._lost: dict[str, str] = {}
        self._rewritten = 0
        self._processes = processes
        self._number = processes.add(maker) if processes is not None else 0

    def take(self, position: int, count: int) -> dict[str, torch.Tensor]:
        """Return the `count` samples from `position` on.

        Args:
            position: of the first sample, counted since the start of training, from 0.
            count: how many.

        Returns:
            The parts that the maker makes, float32 [count, C, R, R]; pictures are BGR within [0, 1].

        Raises:
            BadInput: too many faces cannot be read or used; the side is named.
            TrainingFailed: a process that makes samples has ended by itself.
            ValueError: a negative position or count.
        """
        try:
            return self._take(position, count)
        except BadInput as error:
            raise BadInput(f"data {self._side}: {error}") from error

    def _take(self, position: int, count: int) -> dict[str, torch.Tensor]:
        wanted = self._wanted(position, count)
        faceset = self._maker.faceset
        if not self._rewritten and any(faceset.has_changed(one.face) for one in wanted):
            self._rewritten = sum(map(faceset.has_changed, range(len(faceset))))
        shapes = self._maker.shapes(count)
        if self._processes is None or not wanted:
            arrays = {part: np.empty(shape, np.float32) for part, shape in shapes.items()}
            for place, one in enumerate(wanted):
                self._take_in(self._maker.make(one, arrays, place))
            return {part: torch.from_numpy(array) for part, array in arrays.items()}
        if self._block is None or self._block.shapes != shapes:
            self.close()
            self._block = SampleBlock(shapes)
        self._take_in(self._processes.fill(self._number, self._block, wanted))
        return {part: torch.from_numpy(array).clone() for part, array in self._block.arrays.items()}

    @property
    def passed_over(self) -> Mapping[str, str]:
        """Faces that cannot be read or used -> why; others stand in their places."""
        return self._lost

    @property
    def rewritten(self) -> int:
        """Faces whose files had been written since the start, when the first of them was met; 0: none was."""
        return self._rewritten

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


class FaceBatches(SampleBatches):
    """An endless stream of samples of the faces of a set: bent, as they shall be, and their masks.

    Args:
        faceset: N faces.
        settings: how samples are made of them.
        seed: see `SampleBatches`, and `name` and `processes` too.
        uniform_yaw: show every direction of view as often, instead of every face.
        references: faces that lend their colours, if the settings transfer them.

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
        maker = SampleMaker(faceset, settings, references if transfers else None)
        super().__init__(maker, seed=seed, name=name, yaws=faceset.yaws if uniform_yaw else None, processes=processes)
