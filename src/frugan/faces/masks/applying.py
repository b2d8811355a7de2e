"""Changes that `frugan masks` makes to a faceset: masks of a trained XSeg, and labels to and from other programs."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from frugan.errors import BadInput
from frugan.faces.data.dfl_jpeg import Label, read_face_jpeg
from frugan.faces.data.face import Face, FaceType
from frugan.faces.data.faceset import Faceset, open_faceset
from frugan.faces.data.relabel import (
    LABELLED_SUFFIX,
    encoded_mask,
    fetch_labelled,
    new_place,
    no_labels,
    relabel,
    without,
)
from frugan.faces.masks.label_files import LabelFormat, read_labels, written
from frugan.faces.xseg.config import XSegNetworks
from frugan.faces.xseg.leras import DATA, is_original
from frugan.faces.xseg.masking import Masker, found_masks
from frugan.faces.xseg.phases import NETWORK
from frugan.files import atomic_folder, refuse_full
from frugan.progress import Progress, Say
from frugan.setup.devices import use_device
from frugan.setup.masks import mask_network
from frugan.wording import count, family_name, first_names, shown

AS_IT_IS = "same"
"""The original's word for pictures that are taken as they are."""
MOST_GROWTH = 1024.0


@dataclass(frozen=True)
class MaskOptions:
    """How masks are found."""

    face_type: str | None = None  # that the network knows: h, mf, f, wf, head or same; None: as it was trained
    grow: float = 0.0  # see `Masker`
    as_original: bool = False  # see `Masker`
    device: str = "auto"


def open_masker(source: Path, options: MaskOptions, say: Say) -> Masker:
    """Open a run, a checkpoint, a weights file, or the original's XSeg: its folder or its XSeg_256.npy.

    Raises:
        BadInput: there is none, it is of another family or draws grey pictures, or an option is no such.
    """
    if not abs(options.grow) <= MOST_GROWTH:
        raise BadInput(f"--grow {options.grow:g}: expected pixels from -{MOST_GROWTH:g} to {MOST_GROWTH:g}")
    device, _ = use_device(options.device)
    network = mask_network(str(source), device, say)
    if not isinstance(network.networks, XSegNetworks):
        raise BadInput(f"{source}: weights of {family_name(network.family)}; expected those of XSeg")
    if network.pretrains:
        raise BadInput(f"{source}: this XSeg is being pretrained and finds no masks yet; train it on labels first")
    is_known = not is_original(source) or (network.file.parent / DATA).is_file()
    word = options.face_type or (network.networks.face_type if is_known else AS_IT_IS)
    if not is_known and options.face_type is None:
        say(f"{DATA} is not there: pictures are taken as they are; another face type: --face-type wf")
    face_type = None if word == AS_IT_IS else FaceType.from_option(word)
    return Masker(network.built[NETWORK], network.networks.resolution, face_type, options.grow, options.as_original)


def apply_masks(
    source: Path, weights: Path, out: Path | None, options: MaskOptions, say: Say, progress: Progress | None
) -> tuple[Path, int]:
    """Store the mask that a network finds in each face.

    Args:
        source: faceset.
        weights: see `open_masker`.
        out: a new place; None: in place.
        options: how.
        say: is given lines.
        progress: gets (faces done, faces in all).

    Returns:
        Where, and how many faces have a mask now.

    Raises:
        BadInput: nothing to read, `out` is there already, or no face could be used.
    """
    faceset = opened(source, say)
    if out is not None:
        new_place(faceset, out)
    masker, lost, done = open_masker(weights, options, say), dict[str, str](), 0
    faceset = with_frames(faceset, masker)
    without_landmarks = sum(masker.guesses(face) for face in faceset.faces)
    if without_landmarks:
        say(
            f"{count(without_landmarks, 'face')} of another type without landmarks in the frame: the picture's are "
            "taken, which gives the same but for rounding"
        )

    def changed() -> Iterator[tuple[int, Face]]:
        nonlocal done
        for index, found in found_masks(faceset, masker, lost):
            if progress is not None:
                progress(index + 1, len(faceset))
            done += 1
            yield index, replace(faceset.faces[index], xseg_mask=encoded_mask(found.mask))
        if not done:
            raise BadInput(f"{shown(str(source))}: no face could be used. The first: {next(iter(lost.values()))}")

    path = relabel(faceset, "xseg_mask", changed(), out, None)
    if lost:
        say(f"{count(len(lost), 'face')} left as they were ({first_names(list(lost))}): {next(iter(lost.values()))}")
    return path, done


def with_frames(faceset: Faceset, masker: Masker) -> Faceset:
    """Faces of a pak with their landmarks in the frame, which only the JPEGs in it have."""
    if not faceset.path.is_file() or not any(map(masker.guesses, faceset.faces)):
        return faceset
    faces = list(faceset.faces)
    for index, face in enumerate(faces):
        try:
            inside = read_face_jpeg(faceset.encoded(index), face.name)
        except BadInput:  # the index of the pak knows all else
            continue
        faces[index] = replace(face, source_landmarks=inside.source_landmarks)
    return replace(faceset, faces=tuple(faces))


def opened(source: Path, say: Say) -> Faceset:
    """Open a faceset and tell what is odd about it."""
    faceset = open_faceset(source)
    for line in faceset.lines:
        say(f"data: {line}")
    return faceset


def take_out(source: Path, label: Label, out: Path | None, say: Say, progress: Progress | None) -> tuple[Path, int]:
    """Take masks or polygons out of a faceset.

    Returns:
        Where it was written, and how many faces had some.

    Raises:
        BadInput: no face has one, or `out` is there already.
    """
    faceset = opened(source, say)
    changed = tuple(without(faceset, label))
    if not changed:
        what = "polygons" if label == "polygons" else "a mask"
        raise BadInput(f"{shown(str(source))}: none of its {len(faceset):,} faces has {what}: there is nothing to do")
    return relabel(faceset, label, changed, out, progress), len(changed)


def fetch_labels(source: Path, out: Path | None, say: Say, progress: Progress | None) -> tuple[Path, int]:
    """Copy the faces that have polygons, by default beside the folder; see `fetch_labelled`."""
    faceset = opened(source, say)
    folder = out
    if folder is None:
        there = (faceset.path.parent if faceset.path.is_file() else faceset.path).absolute()
        folder = there.with_name(there.name + LABELLED_SUFFIX)
    return folder, fetch_labelled(faceset, folder, progress)


def import_labels(
    source: Path, labels: Path, out: Path | None, say: Say, progress: Progress | None
) -> tuple[Path, int]:
    """Give faces the polygons that files of other programs hold; see `read_labels`.

    Returns:
        Where the faceset was written, and how many faces got polygons.

    Raises:
        BadInput: no label is of one of the faces, one cannot be used, or `out` is there already.
    """
    faceset = opened(source, say)
    found = read_labels(labels, faceset.faces)
    changed = [(index, replace(faceset.faces[index], polygons=polygons)) for index, polygons in sorted(found.items())]
    return relabel(faceset, "polygons", changed, out, progress), len(found)


def export_labels(source: Path, out: Path, kind: LabelFormat, say: Say) -> int:
    """Write the labels of faces, else their applied masks, for other programs: a new folder, whole or not at all.

    Returns:
        How many files.

    Raises:
        BadInput: no face has any, or `out` holds something.
    """
    faceset = opened(source, say)
    if not any(face.polygons or face.xseg_mask is not None for face in faceset.faces):
        raise no_labels(faceset)
    refuse_full(out, "the labels")
    pictures = faceset.path if faceset.path.is_dir() else faceset.path.parent
    number = 0
    with atomic_folder(out.absolute()) as beside:
        for name, content in written(faceset.faces, kind, os.path.relpath(pictures.absolute(), out.absolute())):
            path = beside / name
            if not path.resolve().is_relative_to(beside.resolve()):
                raise BadInput(f"{shown(str(faceset.path))}: a face is called {shown(name)!r}, no name for a file")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            number += 1
    return number
