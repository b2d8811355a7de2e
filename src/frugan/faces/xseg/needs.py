"""Labelled faces as a kind of data: what XSeg learns from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from frugan.contract.data import LabelDigests, SourceOptions, Workers
from frugan.contract.settings import DataSettings
from frugan.errors import BadInput
from frugan.faces.data.face import FaceType
from frugan.faces.data.faceset import ALIGNED, SOURCES, Faceset, open_faceset
from frugan.faces.xseg.samples import XSegMaker, labelled, parts

if TYPE_CHECKING:
    from frugan.faces.data.batches import SampleBatches

FP32_BYTES = 4


@dataclass(frozen=True)
class XSegNeeds:
    """Requirements on aligned faces with labels, or without while pretraining.

    "picture" [n, 3, R, R], BGR, about [0, 1]; and "mask" [n, 1, R, R], 0 or 1, unless pretraining. fp32.
    """

    resolution: int  # side of the square faces in pixels
    face_type: FaceType  # of the network
    pretrain: bool  # no labels are needed
    as_original: bool = False  # see `XSegObjective`

    @property
    def classes(self) -> None:
        """Faces have no classes."""

    @property
    def given(self) -> bool:
        """True: samples show what the network makes of faces."""
        return True

    @property
    def sample_bytes(self) -> int:
        """Bytes of all tensors of a sample."""
        return FP32_BYTES * sum(parts(pretrain=self.pretrain).values()) * self.resolution**2

    def check_settings(self, settings: DataSettings) -> None:
        """Refuse settings for sets of pictures.

        Raises:
            ValueError: they are not as they are by themselves.
        """
        if settings != DataSettings(pretrain=settings.pretrain):
            raise ValueError("data: these settings are for sets of pictures; XSeg changes its samples in its own ways")

    def locate(self, path: Path, names: Sequence[str]) -> dict[str, Path] | None:
        """There is one source, of which a workspace holds both halves."""
        return None

    def open(self, name: str, path: Path, options: SourceOptions) -> Faceset:
        """Open a folder of aligned faces, a faceset.pak, or all aligned faces of a DeepFaceLab workspace.

        Raises:
            BadInput: no faces, or too many that cannot be read.
        """
        folders = [path / folder / ALIGNED for folder in SOURCES.values() if (path / folder / ALIGNED).is_dir()]
        faces = reduce(_joined, map(open_faceset, folders)) if folders else open_faceset(path)
        options.say(f"data {name}: {len(faces.faces):,} faces in {path}")
        for line in faces.lines:
            options.say(f"data {name}: {line}")
        return replace(faces, path=path)

    def fitted(self, name: str, where: str, source: Faceset, options: SourceOptions) -> Faceset:
        """The faces with labels; while pretraining all, if they show as much of the head as is wanted.

        Raises:
            BadInput: no face has a label, one shows too little, or they are no faces.
        """
        if not isinstance(source, Faceset):
            raise BadInput(f"{where}: expected a set of aligned faces, not {type(source).__name__}")
        if self.pretrain:
            for face in source.faces:
                if face.face_type < self.face_type:
                    raise BadInput(
                        f"{where}: {face.name} was extracted as {face.face_type.in_files}, the recipe wants "
                        f"{self.face_type.in_files}, which shows more; extract the faces again as "
                        f"{self.face_type.in_files}, or name another networks.face_type"
                    )
            return source
        kept, kind = labelled(source.faces)
        if not kept:
            raise BadInput(
                f"{where}: none of its {len(source.faces):,} faces has a label, expected polygons around the face in "
                "ten or more of them: draw them (`frugan masks draw`), or bring them in from labelme (`frugan masks "
                "import`) or DeepFaceLab's mask editor, or pretrain without (objective.pretrain=true)"
            )
        options.say(f"data {name}: {len(kept):,} faces labelled by {kind}")
        return replace(
            source, faces=tuple(source.faces[at] for at in kept), places=tuple(source.places[at] for at in kept)
        )

    def check_together(self, sources: Mapping[str, Faceset]) -> None:
        """One source is alone."""

    def class_names(self, source: Faceset) -> tuple[str, ...]:
        """Faces have no classes."""
        return ()

    def advice(self, source: Faceset) -> tuple[str, ...]:
        """Return no advice."""
        return ()

    def reader(
        self,
        source: Faceset,
        sources: Mapping[str, object],
        *,
        seed: int,
        stream: str,
        settings: DataSettings,
        workers: Workers | None,
    ) -> "SampleBatches":
        """Samples, made by processes that all streams of a run share, if there are any."""
        from frugan.faces.data.batches import SampleBatches  # noqa: PLC0415  (a plan makes no samples)
        from frugan.faces.data.sample_processes import SampleProcesses  # noqa: PLC0415

        processes = None
        if workers is not None and workers.count > 0:
            processes = workers.shared(SampleProcesses, SampleProcesses.close)
        _, kind = labelled(source.faces)
        maker = XSegMaker(source, self.face_type, self.resolution, kind == "polygons", self.pretrain, self.as_original)
        batches = SampleBatches(maker, seed=seed, name=stream, processes=processes)
        if workers is not None:
            workers.at_end(batches.close)
        return batches

    def blank(self, count: int) -> dict[str, Tensor]:
        """Return grey faces, half masked."""
        side, channels = self.resolution, parts(pretrain=self.pretrain)
        return {name: torch.full((count, wide, side, side), 0.5) for name, wide in channels.items()}


def _joined(first: Faceset, other: Faceset) -> Faceset:
    return Faceset(
        (*first.faces, *other.faces),
        sha256(f"{first.digest}/{other.digest}".encode()).hexdigest(),
        first.path,
        (*first.places, *other.places),
        (*first.passed_over, *other.passed_over),
        first.damaged | other.damaged,
        (*first.notes, *other.notes),
        _joined_labels(first.label_digests, other.label_digests),
    )


def _joined_labels(first: LabelDigests | None, other: LabelDigests | None) -> LabelDigests | None:
    if first is None or other is None:
        return None
    without = sha256(f"{first.without}/{other.without}".encode()).hexdigest()
    return LabelDigests(without, (*first.each, *other.each))
