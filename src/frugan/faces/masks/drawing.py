"""Labels drawn by hand, face by face: those without any of which a network is least sure come first."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any

from frugan.errors import BadInput
from frugan.faces.data.face import Face, Polygon
from frugan.faces.data.faceset import Faceset, open_faceset, write_loose
from frugan.faces.data.relabel import relabel
from frugan.faces.masks.applying import MaskOptions, open_masker, opened, with_frames
from frugan.faces.masks.label_files import key_of, points_of
from frugan.faces.masks.sheet import to_label_first
from frugan.faces.xseg.masking import found_masks
from frugan.progress import Progress, Say
from frugan.wording import shown

MOST_POLYGONS = 1000


@dataclass
class Drawing:
    """Faces of a folder whose polygons are shown and replaced one face at a time."""

    faceset: Faceset  # of loose files
    doubts: Mapping[int, float] = field(default_factory=dict)  # index of a face -> see `FoundMask`

    def __post_init__(self) -> None:
        self._faces = list(self.faceset.faces)
        self._lock = Lock()

    @property
    def folder(self) -> str:
        """Name of where they are."""
        return self.faceset.path.resolve().name

    def pictures(self) -> list[dict[str, Any]]:
        """Faces to draw on, those of which the network is least sure first, spread over the film."""
        doubts = {index: self.doubts.get(index, 0.0) for index in range(len(self._faces))}
        return [
            {
                "index": index,
                "name": key_of(self._faces[index]),
                "labelled": bool(self._faces[index].polygons),
                "bits": self.doubts.get(index),
            }
            for index in to_label_first(self.faceset.faces, doubts)
        ]

    def labelled(self) -> int:
        """How many faces have polygons."""
        return sum(bool(face.polygons) for face in self._faces)

    def picture(self, index: int) -> bytes:
        """The JPEG of a face, as it is by now."""
        self._face(index)
        return Path(self.faceset.places[index][0]).read_bytes()

    def label(self, index: int) -> dict[str, Any]:
        """A face's size and polygons, whose points are in its pixels."""
        face = self._face(index)
        polygons = [{"include": one.include, "points": one.points.tolist()} for one in face.polygons]
        return {"width": face.width, "height": face.height, "polygons": polygons}

    def save(self, index: int, polygons: Any) -> None:
        """Give a face other polygons, as `label` has them, in its file.

        Raises:
            BadInput: one has fewer than three points or is none, or they do not fit into a JPEG.
        """
        face = self._face(index)
        if not isinstance(polygons, list) or len(polygons) > MOST_POLYGONS:
            raise BadInput(f"polygons: expected a list of at most {MOST_POLYGONS}")
        found = tuple(_polygon(one, f"{shown(face.name)}: polygon {n}", face) for n, one in enumerate(polygons, 1))
        changed = replace(face, polygons=found)
        with self._lock:
            relabel(self.faceset, "polygons", [(index, changed)], None, None)
            self._faces[index] = changed

    def _face(self, index: int) -> Face:
        if not 0 <= index < len(self._faces):
            raise BadInput(f"face {index}: expected one of {len(self._faces)}, from 0")
        return self._faces[index]


def _polygon(value: Any, what: str, face: Face) -> Polygon:
    if not isinstance(value, dict) or not isinstance(value.get("include"), bool):
        raise BadInput(f"{what}: expected include, true or false, and points")
    return Polygon(value["include"], points_of(value.get("points"), what, face))


def open_drawing(
    source: Path, out: Path | None, weights: Path | None, options: MaskOptions, say: Say, progress: Progress | None
) -> Drawing:
    """Open a faceset to draw on.

    Args:
        source: faceset.
        out: a new folder, into which all faces are copied first; None: they are changed where they are.
        weights: of XSeg, see `open_masker`, which says in what order; None: as the files are called.
        options: of the network.
        say: is given lines.
        progress: gets (faces done, faces in all).

    Raises:
        BadInput: nothing to read, `out` is there already, or a faceset.pak would have to be written anew for each face.
    """
    faceset = opened(source, say)
    if out is None and faceset.path.is_file():
        raise BadInput(
            f"{shown(str(faceset.path))}: a pak would be written anew for each label; draw on loose files: --out NEW"
        )
    doubts: dict[int, float] = {}
    if weights is not None:
        masker, lost = open_masker(weights, options, say), dict[str, str]()
        for index, found in found_masks(with_frames(faceset, masker), masker, lost):
            doubts[index] = found.doubt
            if progress is not None:
                progress(index + 1, len(faceset))
        for reason in list(lost.values())[:3]:
            say(f"the network has no mask: {reason}")
    if out is not None:
        write_loose(out, faceset, map(faceset.encoded, range(len(faceset))), None)
        by_key = {key_of(face): doubts[index] for index, face in enumerate(faceset.faces) if index in doubts}
        faceset = open_faceset(out)
        doubts = {n: by_key[key] for n, face in enumerate(faceset.faces) if (key := key_of(face)) in by_key}
    return Drawing(faceset, doubts)
