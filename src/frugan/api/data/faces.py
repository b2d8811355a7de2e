"""Facesets for a run: opened, checked against the recipe, and what their samples shall be."""

from collections.abc import Mapping
from pathlib import Path

from frugan.api.progress import Progress, Say
from frugan.data.faces.face_type import FaceType
from frugan.data.faces.faceset import Faceset, open_faceset, pack_faceset
from frugan.data.faces.sample import SampleSettings
from frugan.errors import BadInput
from frugan.phase import FaceNeeds


def open_faces(name: str, path: Path, say: Say) -> Faceset:
    """Open a folder of aligned faces or a faceset.pak.

    Raises:
        BadInput: no faces, or too many that cannot be read.
    """
    faces = open_faceset(path)
    say(f"data {name}: {len(faces.faces):,} faces in {faces.path}")
    if faces.passed_over:
        shown = ", ".join(faces.passed_over[:4]) + (" ..." if len(faces.passed_over) > 4 else "")
        say(f"data {name}: {len(faces.passed_over)} files without face metadata passed over: {shown}")
    return faces


def pack(source: Path, out: Path, say: Say, progress: Progress | None) -> int:
    """Pack a folder of aligned faces into one file that DeepFaceLab reads too.

    Returns:
        How many faces.

    Raises:
        BadInput: no faces, or `out` exists.
    """
    faces = open_faces("faces", source, say)
    out.parent.mkdir(parents=True, exist_ok=True)
    pack_faceset(faces, out, progress)
    return len(faces)


def check_faces(name: str, faces: Faceset, needs: FaceNeeds) -> None:
    """Refuse faces that show less of the head than the recipe wants.

    Raises:
        BadInput: naming the first such face.
    """
    wanted = FaceType.from_option(needs.face_type)
    for face in faces.faces:
        if face.face_type < wanted:
            raise BadInput(
                f"{name} {faces.path}: {face.name} was extracted as {face.face_type.in_files}, the recipe wants "
                f"{wanted.in_files}, which shows more; extract the faces again as {wanted.in_files}"
                + (f", or set networks.face_type={face.face_type.option}" if face.face_type.is_option else "")
            )


def check_alike(faces: Mapping[str, Faceset]) -> None:
    """Refuse sides that were extracted as different face types: faces that show more are enlarged, and look softer.

    Args:
        faces: by source.

    Raises:
        BadInput: naming the types of each side.
    """
    types = {name: {face.face_type for face in faceset.faces} for name, faceset in faces.items()}
    if len({frozenset(found) for found in types.values()}) > 1:
        words = "; ".join(
            f"{name} was extracted as {', '.join(kind.in_files for kind in sorted(kinds))}"
            for name, kinds in types.items()
        )
        raise BadInput(
            f"{words}: expected the same face type on both sides. Extract one side again, or set "
            "objective.mixed_face_types=true to have each face cut to what the recipe wants"
        )


def sample_settings(needs: FaceNeeds) -> SampleSettings:
    """How samples of a source are made."""
    return SampleSettings(
        resolution=needs.resolution,
        face_type=FaceType.from_option(needs.face_type),
        random_warp=needs.random_warp,
        random_flip=needs.random_flip,
        hsv_power=needs.hsv_power,
        colour_transfer=needs.colour_transfer,
        eyes_mouth=needs.eyes_mouth,
    )
