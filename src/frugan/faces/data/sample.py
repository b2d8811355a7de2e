"""From an aligned picture to what training takes: the face bent and not, its mask, and its eyes and mouth."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from frugan.data.formats.source import refuse_many_lost
from frugan.errors import BadInput
from frugan.faces.data.colour_transfer import transfer_colour
from frugan.faces.data.face import Face, FaceType, SampleSettings
from frugan.faces.data.faceset import Faceset
from frugan.faces.data.geometry import alignment_matrix, eyes_mouth_mask, face_mask, opencv
from frugan.wording import shown

# The random change of shape of a training sample: a bent grid, a turn, a scale, a shift and a mirror image.
#
# Source: DeepFaceLab's behaviour, whose draws are kept bit for bit: numpy's RandomState is a frozen generator (NEP 19).

Picture = NDArray[np.float32]

_ROTATION_DEGREES = 10.0
_SHIFT = 0.05  # sides of the picture
_FLIPS_IN_TEN = 4
_BEND = 0.24  # cells
_NOISE_LIMIT = 2.5  # standard deviations


@dataclass(frozen=True, eq=False)
class Warp:
    """One draw, for pictures of side `size`."""

    size: int  # pixels
    # float32 [size, size]: where a pixel of the bent picture comes from; y comes from its transpose
    map_x: NDArray[np.float32]
    affine: NDArray[np.float64]  # float64 [2, 3]: turn, scale and shift, from the old picture to the new one
    flip: bool  # mirror left to right, after all else

    def bend_picture(self, picture: Picture) -> Picture:
        """Return a picture, float32 [size, size, 3], with its grid bent; black where nothing comes from inside."""
        cv2 = opencv()
        map_y = np.ascontiguousarray(self.map_x.T)
        bent: Picture = cv2.remap(picture, self.map_x, map_y, cv2.INTER_CUBIC)
        return bent

    def move_picture(self, picture: Picture) -> Picture:
        """Return a picture, float32 [size, size, 3], turned, scaled, shifted and perhaps mirrored; borders repeat."""
        cv2 = opencv()
        size = (self.size, self.size)
        return self._mirrored(
            cv2.warpAffine(picture, self.affine, size, flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
        )

    def move_mask(self, mask: Picture, *, cubic: bool = False) -> Picture:
        """Return a mask, float32 [size, size], moved as `move_picture` does; 0 beyond its borders."""
        cv2 = opencv()
        flags = cv2.INTER_CUBIC if cubic else cv2.INTER_LINEAR
        return self._mirrored(cv2.warpAffine(mask, self.affine, (self.size, self.size), flags=flags))

    def _mirrored(self, picture: Picture) -> Picture:
        mirrored: Picture = opencv().flip(picture, 1) if self.flip else picture
        return mirrored


def draw_warp(
    size: int,
    random: np.random.RandomState,
    random_of_grid: np.random.RandomState,
    *,
    may_flip: bool,
    scale: float,
    degrees: float = _ROTATION_DEGREES,
    shift: float = _SHIFT,
) -> Warp:
    """Draw one change of shape.

    Args:
        size: side of the pictures in pixels, a multiple of 16.
        random: of all but the bent grid, drawn first; it may be drawn from further.
        random_of_grid: may be the same.
        may_flip: draw also whether to mirror, which happens 4 times in 10.
        scale: most of the scale; 1 / scale is the least.
        degrees: most of the turn, to either side.
        shift: most of the shift in both directions, in sides of the picture.

    Raises:
        BadInput: OpenCV is not installed.
    """
    cv2 = opencv()
    rotation = random.uniform(-degrees, degrees)
    size_drawn = random.uniform(1 / scale, scale)
    shift_x = random.uniform(-shift, shift)
    shift_y = random.uniform(-shift, shift)
    flip = may_flip and bool(random.randint(10) < _FLIPS_IN_TEN)
    affine = cv2.getRotationMatrix2D((size // 2, size // 2), rotation, size_drawn)
    affine[:, 2] += (shift_x * size, shift_y * size)
    return Warp(size, _bent_grid(size, random_of_grid), affine, flip)


def _bent_grid(size: int, random: np.random.RandomState) -> NDArray[np.float32]:
    """Return where the bent picture's pixels come from along x, float32 [size, size].

    The displacements along y are the transpose: the two are mirror images of each other, not independent.
    """
    cv2 = opencv()
    cell = (size // 2, size // 4, size // 8)[random.randint(3)]
    count = size // cell + 1
    # rounded to float32, as the original's: else the last bit of the map differs
    noise = _limited_normal(2 * (count - 2) ** 2, random).reshape(2, count - 2, count - 2) * np.float32(cell * _BEND)
    grid = np.tile(np.linspace(0, size, count), (count, 1))  # [count, count]
    grid[1:-1, 1:-1] += noise[0]
    grid[1:-1, 1:-1] += noise[1].T
    wide = cv2.resize(grid, (size + cell, size + cell))
    half = cell // 2
    return np.ascontiguousarray(wide[half : half + size, half : half + size], np.float32)


def _limited_normal(count: int, random: np.random.RandomState) -> NDArray[np.float32]:
    """Return `count` normal numbers without those beyond ±2.5, divided by 2.5: within ±1."""
    kept = np.empty(0)
    while len(kept) < count:
        drawn = random.standard_normal(count - len(kept))  # no more than the original, which draws one by one
        kept = np.concatenate([kept, drawn[np.abs(drawn) <= _NOISE_LIMIT]])
    return (kept[:count] / _NOISE_LIMIT).astype(np.float32)


# One sample of a face.
#
# Source: DeepFaceLab's behaviour; the random numbers are drawn in the original's order.

_LEAST_SIZE = 64  # smaller samples are made at this size, then made smaller


@dataclass(frozen=True, eq=False)
class FaceSample:
    """One sample; all four show the face in the same place."""

    warped: Picture  # what the network sees, BGR within [0, 1], float32 [R, R, 3]
    target: Picture  # what it should give back, likewise
    mask: Picture  # 1 on the face, float32 [R, R, 1]
    eyes_mouth: Picture | None  # greatest on eyes and mouth, where it is 1, float32 [R, R, 1]


def make_sample(
    face: Face,
    picture: NDArray[np.uint8],
    settings: SampleSettings,
    seed: int,
    reference: NDArray[np.uint8] | None = None,
) -> FaceSample:
    """Make one sample; it depends on the arguments alone.

    Args:
        face: what is known of the picture.
        picture: uint8 BGR [H, W, 3].
        settings: how.
        seed: 0 to 2^32 - 1.
        reference: uint8 BGR [h, w, 3], whose colours are taken, unless `settings.colour_transfer` is "none".

    Raises:
        BadInput: the picture shows less of the head than the settings want, its mask cannot be decoded, or OpenCV is
            not installed.
        ValueError: colours are to be transferred, but there is no reference.
    """
    if settings.face_type > face.face_type:  # the numbers grow with what is shown
        raise BadInput(
            f"{face.name}: extracted as {face.face_type.in_files}, the recipe wants {settings.face_type.option}, which "
            f"shows more: extract again as {settings.face_type.in_files}, or set networks.face_type to what is there"
        )
    size = max(settings.resolution, _LEAST_SIZE)
    random = np.random.RandomState(seed)
    warp = draw_warp(size, random, np.random.RandomState(seed), may_flip=settings.random_flip, scale=settings.scale)

    target = _aligned(face, _unit(picture), settings.face_type, size, cubic=True)
    if settings.colour_transfer != "none":
        if reference is None:
            raise ValueError(f"colour transfer {settings.colour_transfer!r} without a reference picture")
        colours = opencv().resize(_unit(reference), (size, size))
        # a stream of its own: the original draws from a global one, so there is no order to keep
        target = transfer_colour(settings.colour_transfer, target, colours, np.random.RandomState([seed, 1]))
    warped = _shift_hsv(target, settings.hsv_power, random) if settings.hsv_power else target
    if settings.random_warp:
        warped = warp.bend_picture(warped)

    mask = _whole_mask(face, *picture.shape[:2])
    eyes_mouth = None
    if settings.eyes_mouth:
        parts = eyes_mouth_mask(face.landmarks, *picture.shape[:2])
        parts *= mask != 0
        eyes_mouth = _up_to_one(_placed_mask(face, parts, settings, warp))
    placed_target = _placed_picture(target, settings, warp)
    return FaceSample(
        warped=placed_target if warped is target else _placed_picture(warped, settings, warp),
        target=placed_target,
        mask=_placed_mask(face, mask, settings, warp),
        eyes_mouth=eyes_mouth,
    )


def aligned_picture(face: Face, picture: NDArray[np.uint8], settings: SampleSettings) -> Picture:
    """Return a picture, uint8 BGR [H, W, 3], as a sample that is neither turned nor bent: float32 [R, R, 3] in [0, 1].

    Raises:
        BadInput: OpenCV is not installed, or the landmarks are those of no face.
    """
    aligned = _aligned(face, _unit(picture), settings.face_type, settings.resolution, cubic=True)
    return aligned.clip(0, 1)


def _placed_picture(picture: Picture, settings: SampleSettings, warp: Warp) -> Picture:
    """Return a picture, float32 [size, size, 3], turned and so on: [R, R, 3]."""
    moved = _resized(warp.move_picture(picture), settings.resolution, cubic=True)
    return moved.clip(0, 1, out=moved)


def _placed_mask(face: Face, mask: Picture, settings: SampleSettings, warp: Warp) -> Picture:
    """Return a mask of the whole picture, float32 [H, W], cut to the face, turned and so on: [R, R, 1]."""
    moved = warp.move_mask(_aligned(face, mask, settings.face_type, warp.size, cubic=False))
    return _resized(moved, settings.resolution, cubic=False)[..., None]


def _whole_mask(face: Face, height: int, width: int) -> Picture:
    """Return the mask that came with the picture, at its size, else that from landmarks: float32 [height, width]."""
    if face.xseg_mask is None:
        return face_mask(face.landmarks, height, width, face.eyebrows_expand_mod)
    cv2 = opencv()
    mask = cv2.imdecode(np.frombuffer(face.xseg_mask, np.uint8), cv2.IMREAD_GRAYSCALE)
    if mask is None:
        raise BadInput(f"{face.name}: its XSeg mask cannot be decoded; expected a PNG or a JPEG: make the mask again")
    if mask.shape == (height, width):
        return _unit(mask)
    resized: Picture = cv2.resize(_unit(mask), (width, height), interpolation=cv2.INTER_CUBIC)
    return resized.clip(0, 1, out=resized)


def _aligned(face: Face, picture: Picture, face_type: FaceType, size: int, *, cubic: bool) -> Picture:
    """Return a picture, float32 [H, W, 3], or mask, [H, W], cut to the face type: [size, size, 3] or [size, size]."""
    if face.face_type is face_type:
        return _resized(picture, size, cubic=cubic)
    cv2 = opencv()
    try:
        matrix = alignment_matrix(face.landmarks, size, face_type)
    except BadInput as error:
        raise BadInput(f"{face.name}: {error}") from error
    cut: Picture = cv2.warpAffine(
        picture,
        matrix,
        (size, size),
        flags=cv2.INTER_CUBIC if cubic else cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_REPLICATE if cubic else cv2.BORDER_CONSTANT,
    )
    return cut


def _resized(picture: Picture, size: int, *, cubic: bool) -> Picture:
    """Return a picture, float32 [H, W, 3], or mask, [H, W], at a size: [size, size, 3] or [size, size]."""
    if picture.shape[:2] == (size, size):
        return picture
    cv2 = opencv()
    resized: Picture = cv2.resize(picture, (size, size), interpolation=cv2.INTER_CUBIC if cubic else cv2.INTER_LINEAR)
    return resized


def _shift_hsv(picture: Picture, power: float, random: np.random.RandomState) -> Picture:
    """Return the picture with hue turned by up to ±180 `power` degrees, saturation and value by up to ±`power` / 2."""
    cv2 = opencv()
    hue, saturation, value = cv2.split(cv2.cvtColor(picture, cv2.COLOR_BGR2HSV))  # hue in degrees
    degrees = max(1, int(180 * power))
    hue = (hue + random.randint(-degrees, degrees + 1)) % 360
    saturation = (saturation + (random.random_sample() - 0.5) * power).clip(0, 1)
    value = (value + (random.random_sample() - 0.5) * power).clip(0, 1)
    shifted: Picture = cv2.cvtColor(cv2.merge([hue, saturation, value]), cv2.COLOR_HSV2BGR)
    return shifted.clip(0, 1, out=shifted)


def _up_to_one(mask: Picture) -> Picture:
    """Return a mask divided by its greatest value, unless that is 0."""
    greatest = mask.max()
    return mask / greatest if greatest else mask


def _unit(picture: NDArray[np.uint8]) -> Picture:
    """Return bytes as float32 within [0, 1]."""
    unit: Picture = picture.astype(np.float32)
    unit /= 255
    return unit


# Samples by their place in a stream; faces that cannot be read or used give way to others.

Lost = Mapping[str, str]
"""Where a face was that cannot be read or used -> why."""
Used = TypeVar("Used")
Arrays = Mapping[str, NDArray[np.float32]]
"""The parts of n samples by name, each [n, C, R, R]."""


class Wanted(NamedTuple):
    """One sample of the stream: which face, the seed of its random numbers, and which reference lends its colours."""

    face: int
    seed: int
    reference: int


class Maker(Protocol):
    """Settings shared by all samples of a source, and how one is made of them; pickled for other processes."""

    @property
    def faceset(self) -> Faceset:
        """Faces that samples are made of."""

    @property
    def references(self) -> Faceset | None:
        """Faces that lend something to each sample; None: samples are made of one face alone."""

    def shapes(self, count: int) -> dict[str, tuple[int, int, int, int]]:
        """Return the shapes of the parts of `count` samples, [count, C, R, R]."""

    def make(self, wanted: Wanted, into: Arrays, place: int) -> Lost:
        """Make one sample into `place` of the parts; return the faces that gave way to others.

        Raises:
            BadInput: too many faces in a row cannot be read or used.
        """


@dataclass(frozen=True, eq=False)
class SampleMaker:
    """Settings shared by all samples of a source; pickled for other processes."""

    faceset: Faceset  # the faces
    settings: SampleSettings  # how samples are made
    references: Faceset | None  # faces that lend their colours, if the settings transfer them

    def shapes(self, count: int) -> dict[str, tuple[int, int, int, int]]:
        """Return the shapes of the parts of `count` samples, [count, C, R, R]."""
        side = self.settings.resolution
        return {name: (count, channels, side, side) for name, channels in self.settings.channels.items()}

    def make(self, wanted: Wanted, into: Arrays, place: int) -> Lost:
        """Make one sample; a face that cannot be read or used gives way to the next that can.

        Args:
            wanted: which one.
            into: the parts of n samples, [n, C, R, R].
            place: 0 to n - 1.

        Returns:
            The faces that gave way.

        Raises:
            BadInput: too many faces in a row cannot be read or used.
        """
        lost: dict[str, str] = {}
        reference = None
        if self.references is not None:
            reference = first_usable(self.references, wanted.reference, lost, self.references.picture)
        sample = first_usable(self.faceset, wanted.face, lost, lambda face: self._sample(face, wanted.seed, reference))
        for name, array in into.items():
            array[place] = getattr(sample, name).transpose(2, 0, 1)  # [R, R, C] to [C, R, R]
        return lost

    def _sample(self, index: int, seed: int, reference: NDArray[np.uint8] | None) -> FaceSample:
        face, picture = self.faceset.faces[index], self.faceset.picture(index)
        with naming(self.faceset, face):
            return make_sample(face, picture, self.settings, seed, reference)


@contextmanager
def naming(faceset: Faceset, face: Face) -> Iterator[None]:
    """Name the set and the face that no sample can be made of.

    Raises:
        BadInput: for what is raised within.
    """
    where = shown(str(faceset.path))
    try:
        yield
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from error
    except (opencv().error, np.linalg.LinAlgError) as error:
        raise BadInput(f"{where}: {shown(face.name)}: no sample can be made of it ({error}); take it out") from error


def first_usable(faceset: Faceset, first: int, lost: dict[str, str], use: Callable[[int], Used]) -> Used:
    """Return `use(index)` of the first usable face, from index `first` on.

    Args:
        lost: is given each face that cannot be read or used, with the reason.

    Raises:
        BadInput: too many faces in a row cannot be read or used.
    """
    indices = [index % len(faceset) for index in range(first, first + len(faceset))]
    in_a_row: dict[str, str] = {}
    for index in indices[:-1]:
        try:
            return use(index)
        except BadInput as error:
            in_a_row[faceset.places[index][0] + ": " + faceset.faces[index].name] = str(error)
            lost |= in_a_row
            refuse_many_lost(in_a_row, len(faceset))
    return use(indices[-1])
