"""Masks that XSeg finds in aligned faces of any type, as files store them.

Source: DeepFaceLab's behaviour.
"""

import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from frugan.errors import BadInput
from frugan.faces.data.face import Face, FaceType
from frugan.faces.data.faceset import Faceset
from frugan.faces.data.geometry import alignment_matrix, invert_affine, opencv, transform_points
from frugan.faces.data.relabel import MASK_SIDE, encoded_mask
from frugan.faces.xseg.samples import aligned
from frugan.files import atomic_file
from frugan.progress import Progress, Say
from frugan.wording import count, shown

AT_ONCE = 8
"""Faces in one forward pass."""
LEAST = 0.1
"""Smaller probabilities count as none."""


@dataclass(frozen=True, eq=False)
class FoundMask:
    """Mask that the network draws of one face, and how sure it is of it."""

    mask: NDArray[np.uint8]  # 0 or 255, [MASK_SIDE, MASK_SIDE]
    doubt: float  # mean entropy of its pixels in bits: 0 sure everywhere, 1 nowhere


@dataclass(frozen=True, eq=False)
class Masker:
    """A network with what it was trained for."""

    network: nn.Module  # pictures [B, 3, R, R], BGR -> logits [B, 1, R, R]
    resolution: int  # R
    face_type: FaceType | None  # that it knows; None: pictures are taken as they are
    grow: float = 0.0  # pixels of the picture by which masks are widened; below 0 they are narrowed
    as_original: bool = False  # cut pictures bilinearly, where the original asks for Lanczos and does not get it

    @torch.no_grad()
    def find(self, faces: Sequence[Face], pictures: Sequence[NDArray[np.uint8]]) -> list[FoundMask]:
        """Find the masks of some faces.

        Args:
            faces: their metadata.
            pictures: uint8 BGR [H, W, 3] each.

        Raises:
            BadInput: a face's landmarks are those of no face.
        """
        device = next(self.network.parameters()).device
        maps = [self._to_model(face) for face in faces]
        cut = [self._cut(*one) for one in zip(faces, pictures, maps, strict=True)]
        batch = torch.from_numpy(np.stack(cut)).permute(0, 3, 1, 2).contiguous().to(device)  # [n, 3, R, R]
        found = torch.sigmoid(self.network(batch)).float().clamp(0, 1)[:, 0].cpu().numpy()  # [n, R, R]
        return [
            FoundMask(self._stored(face, np.where(one < LEAST, np.float32(0), one), matrix), _entropy(one))
            for face, one, matrix in zip(faces, found, maps, strict=True)
        ]

    def check(self, face: Face) -> None:
        """Raise BadInput if the landmarks are those of no face, or a face of its type is not cut out."""
        self._to_model(face)

    def guesses(self, face: Face) -> bool:
        """Whether a face that is cut anew does not say where its landmarks were in the frame."""
        return self.face_type not in (None, face.face_type) and face.source_landmarks is None

    def _to_model(self, face: Face) -> NDArray[np.float64] | None:
        """The map from a picture to the square that the network knows, of the picture's width; None: they are one.

        It goes over the frame that both were cut from. A face that does not say where its landmarks were there has them
        in the picture, which gives the same square but for what was rounded.
        """
        if self.face_type is None or self.face_type is face.face_type:
            return None
        cv2, side = opencv(), face.width
        square = np.array([[0, 0], [side, 0], [0, side]], np.float32)
        try:
            if face.source_landmarks is None:
                corners = transform_points(
                    invert_affine(alignment_matrix(face.landmarks, side, self.face_type)), square
                )
            else:
                to_square, to_picture = (
                    alignment_matrix(face.source_landmarks, side, kind) for kind in (self.face_type, face.face_type)
                )
                corners = transform_points(to_picture, transform_points(invert_affine(to_square), square))
        except (ValueError, np.linalg.LinAlgError) as error:
            raise BadInput(f"{shown(face.name)}: {error}") from error
        matrix: NDArray[np.float64] = cv2.getAffineTransform(corners.astype(np.float32), square)
        return matrix

    def _cut(self, face: Face, picture: NDArray[np.uint8], matrix: NDArray[np.float64] | None) -> NDArray[np.float32]:
        """The network's square of a picture, float32 [R, R, 3]; Lanczos may overshoot."""
        cv2, unit = opencv(), picture.astype(np.float32) / np.float32(255)
        if matrix is not None:
            flags = cv2.INTER_LINEAR if self.as_original else cv2.INTER_LANCZOS4
            unit = cv2.warpAffine(unit, matrix, (face.width, face.width), flags=flags)
        return aligned(face, unit, face.face_type, self.resolution)

    def _stored(self, face: Face, found: NDArray[np.float32], matrix: NDArray[np.float64] | None) -> NDArray[np.uint8]:
        """The mask of the picture, from that of the network's square, [R, R]."""
        cv2 = opencv()
        if matrix is not None:
            side = (face.width, face.width)
            if found.shape != side:
                found = cv2.resize(found, side, interpolation=cv2.INTER_LANCZOS4)
            found = cv2.warpAffine(
                found, matrix, (face.width, face.height), flags=cv2.WARP_INVERSE_MAP | cv2.INTER_LANCZOS4
            )
        if found.shape != (MASK_SIDE, MASK_SIDE):
            found = cv2.resize(found, (MASK_SIDE, MASK_SIDE), interpolation=cv2.INTER_LANCZOS4)
        mask = (found >= 0.5).astype(np.uint8)
        stored: NDArray[np.uint8] = grown(mask, self.grow * MASK_SIDE / face.width) * np.uint8(255)
        return stored


def found_masks(faceset: Faceset, masker: Masker, lost: dict[str, str]) -> Iterator[tuple[int, FoundMask]]:
    """Find the masks of all faces, in order.

    Args:
        lost: is given each face that cannot be used, with the reason; it is passed over.
    """
    indices: list[int] = []
    for index in range(len(faceset)):
        indices.append(index)
        if len(indices) == AT_ONCE or index == len(faceset) - 1:
            yield from _of_some(faceset, masker, indices, lost)
            indices = []


def _of_some(
    faceset: Faceset, masker: Masker, indices: Sequence[int], lost: dict[str, str]
) -> Iterator[tuple[int, FoundMask]]:
    faces: list[tuple[int, Face]] = []
    pictures: list[NDArray[np.uint8]] = []
    for index in indices:
        face = faceset.faces[index]
        try:
            pictures.append(faceset.picture(index))
            masker.check(face)
        except BadInput as error:
            lost[face.name] = str(error)
            del pictures[len(faces) :]
            continue
        faces.append((index, face))
    if faces:
        found = masker.find([face for _, face in faces], pictures)
        yield from zip((index for index, _ in faces), found, strict=True)


def masked_faceset(faceset: Faceset, masker: Masker, kept: Path, say: Say, progress: Progress | None) -> Faceset:
    """Return a faceset whose faces have the masks that a network finds, in place of theirs; its files stay as they are.

    Args:
        kept: a file that holds the masks when they were found before, and is written otherwise.
        say: is given a line on faces that cannot be used, which stay as they are.
        progress: gets (faces done, faces in all).
    """
    if kept.is_file():
        with zipfile.ZipFile(kept) as file:
            masks = {int(name): file.read(name) for name in file.namelist()}
    else:
        lost, masks = dict[str, str](), {}
        for index, found in found_masks(faceset, masker, lost):
            masks[index] = encoded_mask(found.mask)
            if progress is not None:
                progress(index + 1, len(faceset))
        if lost:
            say(f"{count(len(lost), 'face')} without a mask of the network: {next(iter(lost.values()))}")
        kept.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(kept) as beside, zipfile.ZipFile(beside, "w") as file:
            for index, mask in masks.items():
                file.writestr(str(index), mask)
    faces = tuple(replace(face, xseg_mask=masks.get(at, face.xseg_mask)) for at, face in enumerate(faceset.faces))
    return replace(faceset, faces=faces)


def grown(mask: NDArray[np.uint8], pixels: float) -> NDArray[np.uint8]:
    """Widen a mask, uint8 [H, W] of 0 and 1, by so many pixels in every direction, or narrow it if that is below 0.

    The border of the picture does not count as an edge of the mask.
    """
    if not pixels:
        return mask
    cv2 = opencv()
    if pixels < 0:
        return 1 - grown(1 - mask, -pixels)
    if not mask.any():
        return mask
    away = cv2.distanceTransform(1 - mask, cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
    widened: NDArray[np.uint8] = (away <= pixels).astype(np.uint8)
    return widened


def _entropy(probability: NDArray[np.float32]) -> float:
    p = probability.astype(np.float64).clip(1e-7, 1 - 1e-7)
    return float(-(p * np.log2(p) + (1 - p) * np.log2(1 - p)).mean())
