"""Generated pictures as the metrics see them: drawn by one process, or a part by each of several."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from frugan.accelerator.device import ran_out_of_memory
from frugan.accelerator.precision import resolve_precision
from frugan.engine.plan import Plan
from frugan.errors import BadInput, TrainingFailed
from frugan.evaluation.reference import FEATURES_AT_ONCE
from frugan.metrics.feature_network import FeatureNetwork, NoFeatures, RowStore, temporary_rows
from frugan.metrics.scores import Moments, StreamingInceptionScore, StreamingMoments
from frugan.metrics.two_sample import seen_by_judge
from frugan.recipe.recipe import Recipe
from frugan.sampling.generation import Sampler, generating
from frugan.sampling.requests import DrawRequest

if TYPE_CHECKING:  # one process needs no torch.distributed
    from frugan.engine.ranks.group import RankGroup

PASSED_ROWS = 2048
"""Rows in one message, which are 16 MiB of Inception's features."""


@dataclass(frozen=True)
class FeatureTask:
    """Pictures to draw, and what to gather from them."""

    request: DrawRequest  # pictures to draw
    samples: int  # number of pictures
    dimensions: int  # dimensions of the features
    inception: bool  # whether class scores are gathered
    rows: bool  # whether features are kept, and not their moments alone
    pictures: bool = False  # whether pictures are kept, as a judge sees them, and no features are gathered


@dataclass
class GatheredFeatures:
    """Features and statistics of generated pictures."""

    moments: Moments  # moments of the features
    inception: StreamingInceptionScore | None  # inception score, if it was requested
    labels: NDArray[np.int64]  # class of each picture [n]
    standing_size: int  # samples in a batch of standing statistics
    pictures_not_finite: int  # pictures with values that are not finite
    features_not_finite: int  # pictures with features that are not finite
    pictures: Tensor | None = None  # the pictures as a judge sees them, uint8 [n, C, S, S], if they were requested

    def add(self, next_part: "GatheredFeatures") -> None:
        """Take over what another rank has gathered of the pictures that follow."""
        self.moments = self.moments.merged(next_part.moments)
        if self.inception is None:
            self.inception = next_part.inception
        elif next_part.inception is not None:
            self.inception.merge(next_part.inception)
        self.labels = np.concatenate([self.labels, next_part.labels])
        pictures = [part for part in (self.pictures, next_part.pictures) if part is not None]
        self.pictures = torch.cat(pictures) if pictures else None
        self.pictures_not_finite += next_part.pictures_not_finite
        self.features_not_finite += next_part.features_not_finite


@dataclass(frozen=True)
class FeatureCollector:
    """Draws pictures with networks and looks at them with a feature network; a part of them where there are ranks."""

    recipe: Recipe  # recipe of the networks
    # gives the networks that draw, and the one of features; asked once there is something to draw
    tools: Callable[[], tuple[Mapping[str, nn.Module], FeatureNetwork]]
    device: torch.device  # device of the networks
    progress: Callable[[int, int], None] | None = None  # (pictures done, of how many)
    ranks: "RankGroup | None" = None  # ranks that share the work; None: this process does all of it
    most: int | None = None  # largest number of samples in one forward for which there is room; None: no limit

    def draw(self, draw: FeatureTask, store: RowStore) -> GatheredFeatures:
        """On the first rank: draw, every rank a part, and gather what all of them found.

        Args:
            draw: what is wanted.
            store: takes the features of all pictures.

        Raises:
            BadInput: a rank could not draw its part: its memory ran out, or the request makes no sense.
        """
        if self.ranks is None:
            return self._part(draw, range(draw.samples), store)
        drawn = self._together(self.ranks.broadcast(draw), self._share(draw), store)
        assert drawn is not None  # this is the first rank
        return drawn

    @contextmanager
    def helped(self) -> Iterator[None]:
        """On the first rank: draw inside; behind the block no other rank waits for what does not come."""
        try:
            yield
        except TrainingFailed:  # a rank is lost, and nothing reaches the others any more
            raise
        except BaseException:
            self._dismiss()
            raise
        self._dismiss()

    def _dismiss(self) -> None:
        if self.ranks is not None:
            self.ranks.broadcast(None)

    def help(self) -> None:
        """On any rank but the first: draw parts of what that one wants, until it wants no more."""
        assert self.ranks is not None
        wanted: FeatureTask | None = None  # the first rank's counts
        while (draw := self.ranks.broadcast(wanted)) is not None:
            if self.most is not None:
                request = replace(draw.request, micro_batch=min(draw.request.micro_batch, self.most))
                draw = replace(draw, request=request)
            mine = self._share(draw)
            with temporary_rows(len(mine), draw.dimensions) as rows:
                self._together(draw, mine, rows)

    def _share(self, draw: FeatureTask) -> range:
        """Numbers of this rank's pictures: whole blocks, so that it draws nothing that another one needs."""
        assert self.ranks is not None
        block = Sampler.block_of(self.recipe, draw.request)
        blocks = -(-draw.samples // block)
        rank, size = self.ranks.rank, self.ranks.size
        bounds = [min(draw.samples, blocks * boundary // size * block) for boundary in (rank, rank + 1)]
        return range(*bounds)

    def _together(self, draw: FeatureTask, mine: range, store: RowStore) -> GatheredFeatures | None:
        """Draw a part, and bring all parts to the first rank; None on the others.

        A rank that fails says so before anything is passed on: no other waits for what does not come.
        """
        ranks = self.ranks
        assert ranks is not None
        parts = ranks.to_first(self._part_or_failure(draw, mine, store))
        names = ranks.watch.names[: len(parts)]
        failed = [f"{name}: {part}" for name, part in zip(names, parts, strict=True) if isinstance(part, str)]
        if ranks.broadcast(bool(failed)):
            if ranks.rank == 0:
                raise BadInput("; ".join(failed))
            return None
        if draw.rows:
            pieces = map(torch.from_numpy, _pieces(store)) if ranks.rank != 0 and mine else ()
            _append_all(store, ranks.pass_rows(pieces, draw.dimensions))
        drawn: GatheredFeatures | None = None
        for part in parts:
            assert isinstance(part, GatheredFeatures)
            if drawn is None:
                drawn = part
            else:
                drawn.add(part)
        return drawn

    def _part_or_failure(self, draw: FeatureTask, mine: range, store: RowStore) -> GatheredFeatures | str:
        """A part, or in words why it could not be drawn; not where the training itself has failed."""
        try:
            return self._part(draw, mine, store)
        except TrainingFailed:
            raise
        except (BadInput, OSError) as error:
            return str(error)
        except RuntimeError as error:
            return f"{'memory ran out' if ran_out_of_memory(error) else type(error).__name__}: {error}"

    def _part(self, draw: FeatureTask, mine: range, store: RowStore) -> GatheredFeatures:
        """Generate pictures of these numbers and gather features as they come."""
        networks, network = self.tools()
        network = NoFeatures() if draw.pictures else network
        precision = resolve_precision(self.recipe.training.precision, self.device)
        layout = Plan(draw.request.micro_batch, precision).layout(self.device)
        gathered = StreamingMoments(draw.dimensions)
        inception: StreamingInceptionScore | None = None
        labels: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
        kept: list[Tensor] = []
        done = features_not_finite = 0
        with generating(self.recipe, networks, layout, draw.request) as generator:
            blocks = generator.draw(mine.start, len(mine))
            for pictures, classes in ((p, y) for block in blocks for p, y in _split(*block)):
                features = network(pictures)
                if draw.inception:
                    assert features.logits is not None
                    inception = inception or StreamingInceptionScore(
                        draw.samples, features.logits.shape[1], min(10, draw.samples), mine.start
                    )
                    inception.update(features.logits)
                gathered.update(features.pooled)
                if draw.rows:
                    store.append(features.pooled)
                features_not_finite += int((~torch.isfinite(features.pooled)).any(1).sum())
                labels.append(classes.numpy())
                if draw.pictures:
                    kept.append(seen_by_judge(pictures))
                done += len(pictures)
                if self.progress is not None:
                    self.progress(done * draw.samples // len(mine), draw.samples)
            return GatheredFeatures(
                moments=gathered.finish(),
                inception=inception,
                labels=np.concatenate(labels),
                standing_size=generator.standing_size,
                pictures_not_finite=generator.not_finite,
                features_not_finite=features_not_finite,
                pictures=torch.cat(kept) if kept else None,
            )


def _split(pictures: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """A block in pieces that the feature network takes at once."""
    yield from zip(pictures.split(FEATURES_AT_ONCE), labels.split(FEATURES_AT_ONCE), strict=True)


def _append_all(store: RowStore, pieces: Iterable[Tensor]) -> None:
    """Keep what others pass on, and where there is no room let them come to their end all the same.

    Raises:
        OSError: the disk is full.
    """
    full: OSError | None = None
    for piece in pieces:
        if full is None:
            try:
                store.append(piece)
            except OSError as error:
                full = error
    if full is not None:
        raise full


def _pieces(store: RowStore) -> Iterator[NDArray[np.float32]]:
    rows = store.rows()
    for first in range(0, len(rows), PASSED_ROWS):
        yield np.array(rows[first : first + PASSED_ROWS])  # of its own: the file is mapped read-only
