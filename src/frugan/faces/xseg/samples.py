"""Samples that XSeg is trained on: a face with its mask, from labels, changed at random.

Source: DeepFaceLab's behaviour; the random numbers are drawn in the original's order. There they come from one stream
of the process, here each sample has a seed of its own, and which face lends its background is drawn with it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from frugan.errors import BadInput
from frugan.faces.data.face import Face, FaceType, Polygon, SampleSettings
from frugan.faces.data.faceset import Faceset
from frugan.faces.data.geometry import alignment_matrix, opencv
from frugan.faces.data.sample import Arrays, Lost, Wanted, Warp, draw_warp, first_usable, make_sample, naming
from frugan.faces.xseg.augment import Mask, Picture, behind, change_colours, degrade, glow, one_of_two
from frugan.wording import shown

_SCALE = 1.05
_BACKGROUND_DEGREES, _BACKGROUND_SCALE, _BACKGROUND_SHIFT = 180.0, 1.1, 0.1


def labelled(faces: Sequence[Face]) -> tuple[list[int], str]:
    """Return which faces XSeg can learn from, and by what: polygons, or else masks where no face has a polygon."""
    drawn = [at for at, face in enumerate(faces) if any(len(polygon.points) for polygon in face.polygons)]
    if drawn:
        return drawn, "polygons"
    return [at for at, face in enumerate(faces) if face.xseg_mask is not None], "applied masks"


def polygon_mask(polygons: Sequence[Polygon], height: int, width: int) -> NDArray[np.float32]:
    """Fill polygons: first those that include, then those that exclude. 0 or 1, float32 [height, width].

    Points are cut to whole pixels, and the outline is filled too.
    """
    cv2 = opencv()
    mask = np.zeros((height, width), np.float32)
    for polygon in sorted(polygons, key=lambda polygon: not polygon.include):
        if len(polygon.points):
            cv2.fillPoly(mask, [polygon.points.astype(np.int32)], 1.0 if polygon.include else 0.0)
    return mask


def decoded_mask(face: Face) -> NDArray[np.float32]:
    """Return the mask that was applied to a face, 0 or 1, float32 [h, w]; its size may differ from the picture's.

    Raises:
        BadInput: it cannot be decoded.
    """
    cv2 = opencv()
    encoded = np.frombuffer(face.xseg_mask or b"", np.uint8)
    mask = cv2.imdecode(encoded, cv2.IMREAD_GRAYSCALE) if len(encoded) else None
    if mask is None:
        raise BadInput(f"{shown(face.name)}: its XSeg mask cannot be decoded; expected a PNG or a JPEG: apply it again")
    binary: NDArray[np.float32] = (mask.astype(np.float32) / 255 >= 0.5).astype(np.float32)
    return binary


def label_of(face: Face, *, by_polygons: bool, as_original: bool = False) -> NDArray[np.float32]:
    """Return a face's mask for training at the size of its picture, float32 [H, W], 0 or 1.

    Args:
        by_polygons: it is what the face's polygons fill, else the applied mask.
        as_original: leave an applied mask at its own size.

    Raises:
        BadInput: it cannot be decoded.
    """
    if by_polygons:
        return polygon_mask(face.polygons, face.height, face.width)
    mask = decoded_mask(face)
    if mask.shape != (face.height, face.width) and not as_original:
        mask = opencv().resize(mask, (face.width, face.height), interpolation=opencv().INTER_LINEAR)
        mask = (mask >= 0.5).astype(np.float32)
    return mask


def aligned(face: Face, picture: NDArray[np.float32], face_type: FaceType, side: int) -> NDArray[np.float32]:
    """Cut a picture, [H, W, 3], or mask, [H, W], to the face type: [R, R, 3] or [R, R]; Lanczos may overshoot.

    Raises:
        BadInput: the landmarks are those of no face.
    """
    cv2 = opencv()
    if face.face_type is face_type:
        if picture.shape[1] == side:
            return picture
        resized: NDArray[np.float32] = cv2.resize(picture, (side, side), interpolation=cv2.INTER_LANCZOS4)
        return resized
    try:
        matrix = alignment_matrix(face.landmarks, side, face_type)
    except BadInput as error:
        raise BadInput(f"{shown(face.name)}: {error}") from error
    cut: NDArray[np.float32] = cv2.warpAffine(picture, matrix, (side, side), flags=cv2.INTER_LANCZOS4)
    return cut


@dataclass(frozen=True, eq=False)
class Labelled:
    """A face and its mask, as they come and as a sample."""

    picture: Picture  # float32 BGR [R, R, 3]
    mask: Mask  # float32 [R, R, 1]; of another side where it is misplaced as the original does


def read_labelled(
    face: Face,
    picture: NDArray[np.uint8],
    face_type: FaceType,
    side: int,
    *,
    by_polygons: bool,
    as_original: bool = False,
) -> Labelled:
    """Return a face with its label, cut to the face type.

    Args:
        picture: uint8 BGR [H, W, 3].
        as_original: an applied mask of another size is cut as if it had the picture's, or, where the picture is taken
            as it is, stays at its own size.

    Raises:
        BadInput: its mask cannot be decoded, or its landmarks are those of no face.
    """
    mask = label_of(face, by_polygons=by_polygons, as_original=as_original)
    unit = picture.astype(np.float32) / np.float32(255.0)
    if face.face_type is not face_type or face.width != side:
        mask = aligned(face, mask, face_type, side)
    return Labelled(aligned(face, unit, face_type, side), mask[..., None])


def _moved(warp: Warp, one: Labelled, *, bent: bool) -> Labelled:
    picture, mask = one.picture, one.mask[..., 0]
    if bent:
        picture, mask = warp.bend_picture(picture), warp.bend_picture(mask)
    return Labelled(warp.move_picture(picture), warp.move_mask(mask, cubic=True)[..., None])


def make_labelled_sample(
    one: Labelled, background: Callable[[], Labelled], random: np.random.RandomState
) -> Labelled | None:
    """Make a training sample; its mask is 0 or 1.

    Args:
        one: the face.
        background: called if another face's surroundings are put behind it.
        random: the draws.

    Returns:
        The sample; None: surroundings were to be put behind a face whose mask has another size, which the original
        cannot do either, and drops.
    """
    side = len(one.picture)
    picture, mask = one.picture, one.mask
    if one_of_two(random):
        other = background()
        warp = draw_warp(
            side,
            random,
            random,
            may_flip=True,
            degrees=_BACKGROUND_DEGREES,
            scale=_BACKGROUND_SCALE,
            shift=_BACKGROUND_SHIFT,
        )
        other = _moved(warp, other, bent=False)
        surroundings = change_colours(other.picture * (1 - other.mask), random)
        if mask.shape != other.mask.shape:
            return None
        picture = behind(picture, mask, surroundings, other.mask, random)
    warp = draw_warp(side, random, random, may_flip=True, scale=_SCALE)
    moved = _moved(warp, Labelled(picture, mask), bent=True)
    picture, mask = moved.picture.clip(0, 1), (moved.mask >= 0.5).astype(np.float32)
    if one_of_two(random):
        picture = glow(picture, mask, random)
    if one_of_two(random):
        picture = glow(picture, 1 - mask, random)
    return Labelled(degrade(picture, random), mask)


@dataclass(frozen=True, eq=False)
class XSegMaker:
    """Settings shared by all samples of a set; pickled for other processes."""

    faceset: Faceset  # while pretraining all faces, else those with labels
    face_type: FaceType  # of the samples
    side: int  # R, of the samples in pixels
    by_polygons: bool  # labels are polygons, else applied masks
    pretrain: bool  # bent faces without masks
    as_original: bool = False  # see `read_labelled`

    @property
    def references(self) -> Faceset | None:
        """Faces whose surroundings may be put behind a sample's."""
        return None if self.pretrain else self.faceset

    def shapes(self, count: int) -> dict[str, tuple[int, int, int, int]]:
        """Return the shapes of the parts of `count` samples, [count, C, R, R]."""
        channels = parts(pretrain=self.pretrain)
        return {name: (count, wide, self.side, self.side) for name, wide in channels.items()}

    def make(self, wanted: Wanted, into: Arrays, place: int) -> Lost:
        """See `Maker`."""
        lost: dict[str, str] = {}
        if self.pretrain:
            picture = first_usable(self.faceset, wanted.face, lost, lambda face: self._bent(face, wanted.seed))
            into["picture"][place] = picture.transpose(2, 0, 1)
            return lost

        def background() -> Labelled:
            return first_usable(self.faceset, wanted.reference, lost, self._read)

        for dropped in count():  # in half of all draws none is dropped
            one = first_usable(self.faceset, wanted.face + dropped, lost, self._read)
            random = np.random.RandomState([wanted.seed, dropped] if dropped else wanted.seed)
            if (sample := make_labelled_sample(one, background, random)) is not None:
                into["picture"][place] = sample.picture.transpose(2, 0, 1)
                into["mask"][place] = sample.mask.transpose(2, 0, 1)
                break
        return lost

    def _bent(self, index: int, seed: int) -> Picture:
        settings = SampleSettings(
            self.side, self.face_type, random_warp=True, random_flip=True, eyes_mouth=False, scale=_SCALE
        )
        return make_sample(self.faceset.faces[index], self.faceset.picture(index), settings, seed).warped

    def _read(self, index: int) -> Labelled:
        face, picture = self.faceset.faces[index], self.faceset.picture(index)
        with naming(self.faceset, face):
            return read_labelled(
                face,
                picture,
                self.face_type,
                self.side,
                by_polygons=self.by_polygons,
                as_original=self.as_original,
            )


def parts(*, pretrain: bool) -> dict[str, int]:
    """Name of each tensor of a sample -> its channels."""
    return {"picture": 3} if pretrain else {"picture": 3, "mask": 1}
