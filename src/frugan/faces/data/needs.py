"""Aligned faces as a kind of data: what a family asks for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from frugan.contract.data import SourceOptions, Workers
from frugan.contract.settings import DataSettings
from frugan.errors import BadInput
from frugan.faces.data.face import SampleSettings
from frugan.faces.data.faceset import SOURCES, Faceset, find_facesets, open_faceset

if TYPE_CHECKING:
    from frugan.faces.data.batches import FaceBatches

FP32_BYTES = 4


@dataclass(frozen=True)
class FaceNeeds:
    """Requirements of a family on a source of aligned faces.

    "warped" and "target" [n, 3, R, R], "mask" and perhaps "eyes_mouth" [n, 1, R, R]; fp32 in [0, 1], BGR.
    """

    samples: SampleSettings  # how they are made of the faces
    colours_of: str | None = None  # the source that colours are taken from
    uniform_yaw: bool = False  # show every direction of view as often
    mixed_types: bool = False  # sources may be extracted as different face types

    @property
    def resolution(self) -> int:
        """Side of the square faces in pixels."""
        return self.samples.resolution

    @property
    def classes(self) -> None:
        """Faces have no labels."""

    @property
    def given(self) -> bool:
        """True: samples show what the networks make of faces."""
        return True

    @property
    def sample_bytes(self) -> int:
        """Bytes of all tensors of a sample."""
        return FP32_BYTES * sum(self.samples.channels.values()) * self.resolution**2

    def check_settings(self, settings: DataSettings) -> None:
        """Refuse settings for sets of pictures.

        Raises:
            ValueError: they are not as they are by themselves.
        """
        if settings != DataSettings(pretrain=settings.pretrain, masks=settings.masks):
            raise ValueError(
                "data: these settings are for sets of pictures; faces are sampled as the objective says "
                "(objective.random_src_flip, objective.random_dst_flip)"
            )

    def locate(self, path: Path, names: Sequence[str]) -> dict[str, Path] | None:
        """Both sides in a DeepFaceLab workspace, for a family that reads "src" and "dst".

        Raises:
            BadInput: it is no workspace.
        """
        return find_facesets(path) if set(names) == set(SOURCES) else None

    def open(self, name: str, path: Path, options: SourceOptions) -> Faceset:
        """Open a folder of aligned faces or a faceset.pak.

        Raises:
            BadInput: no faces, or too many that cannot be read.
        """
        faces = open_faceset(path)
        options.say(f"data {name}: {len(faces.faces):,} faces in {faces.path}")
        for line in faces.lines:
            options.say(f"data {name}: {line}")
        return faces

    def fitted(self, name: str, where: str, source: Faceset, options: SourceOptions) -> Faceset:
        """The faces, if they show as much of the head as is wanted.

        Raises:
            BadInput: naming the first that does not, or they are no faces.
        """
        if not isinstance(source, Faceset):
            raise BadInput(f"{where}: expected a set of aligned faces, not {type(source).__name__}")
        wanted = self.samples.face_type
        for face in source.faces:
            if face.face_type < wanted:
                raise BadInput(
                    f"{name} {source.path}: {face.name} was extracted as {face.face_type.in_files}, the recipe wants "
                    f"{wanted.in_files}, which shows more; extract the faces again as {wanted.in_files}"
                    + (f", or set networks.face_type={face.face_type.option}" if face.face_type.is_option else "")
                )
        return source

    def check_together(self, sources: Mapping[str, Faceset]) -> None:
        """Refuse sides that were extracted as different face types: faces that show more are enlarged, and look softer.

        Raises:
            BadInput: naming the types of each side.
        """
        types = {name: {face.face_type for face in faceset.faces} for name, faceset in sources.items()}
        if not self.mixed_types and len({frozenset(side_types) for side_types in types.values()}) > 1:
            words = "; ".join(
                f"{name} was extracted as {', '.join(kind.in_files for kind in sorted(kinds))}"
                for name, kinds in types.items()
            )
            raise BadInput(
                f"{words}: expected the same face type on both sides. Extract one side again, or set "
                "objective.mixed_face_types=true to have each face cut to what the recipe wants"
            )

    def class_names(self, source: Faceset) -> tuple[str, ...]:
        """Faces have no labels."""
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
    ) -> "FaceBatches":
        """Samples, made by processes that all streams of a run share, if there are any."""
        from frugan.faces.data.batches import FaceBatches  # noqa: PLC0415  (a plan asks what samples are and makes none)
        from frugan.faces.data.sample_processes import SampleProcesses  # noqa: PLC0415

        references = sources[self.colours_of] if self.colours_of else None
        processes = None
        if workers is not None and workers.count > 0:
            processes = workers.shared(SampleProcesses, SampleProcesses.close)
        batches = FaceBatches(
            source,
            self.samples,
            seed=seed,
            name=stream,
            uniform_yaw=self.uniform_yaw,
            references=references if isinstance(references, Faceset) else None,
            processes=processes,
        )
        if workers is not None:
            workers.at_end(batches.close)
        return batches

    def blank(self, count: int) -> dict[str, Tensor]:
        """Return grey faces."""
        side = self.resolution
        return {name: torch.full((count, c, side, side), 0.5) for name, c in self.samples.channels.items()}
