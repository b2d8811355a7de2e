"""Who is drawn: two imaginary people, in numbers."""

from dataclasses import dataclass

Colour = tuple[float, float, float]  # R, G, B: reflected share of linear light, 0 to 1


@dataclass(frozen=True)
class Bones:
    """The shape of a head, mm where nothing else is said.

    Attributes:
        width: of the skull, as a share of the usual.
        length: from the brows to the chin, as a share of the usual.
        face: half its width below the eyes.
        jaw: half the distance between the jaw's angles.
        chin: half the chin's width.
        chin_forward: how far the chin stands out.
        cheek: how far the cheekbones stand out.
        brow: how far the ridge above the eyes stands out.
        nose_width: half the distance between the wings of the nose.
        nose_tip: its radius.
        nose_length: how far the tip stands out.
        nose_drop: how far down the tip is.
        bridge: how far the nose's bridge stands out.
        neck: half the neck's width.
        shoulders: half their width.
    """

    width: float
    length: float
    face: float
    jaw: float
    chin: float
    chin_forward: float
    cheek: float
    brow: float
    nose_width: float
    nose_tip: float
    nose_length: float
    nose_drop: float
    bridge: float
    neck: float
    shoulders: float


@dataclass(frozen=True)
class Eyes:
    """The shape and colour of the eyes, mm.

    Attributes:
        apart: half the distance between their middles.
        width: half of it.
        height: of the open eye.
        tilt: how much higher the outer corner is than the inner.
        iris: its radius.
        colour: of the iris.
        ring: of its rim.
        lashes: how strong they are, 0 to 1.
    """

    apart: float
    width: float
    height: float
    tilt: float
    iris: float
    colour: Colour
    ring: Colour
    lashes: float


@dataclass(frozen=True)
class Brows:
    """The shape of the eyebrows, mm.

    Attributes:
        inner: distance of the inner end from the middle of the face.
        outer: distance of the outer end.
        above: height above the eyes.
        arch: how much higher the bend is than the line between the ends.
        slant: how much higher the outer end is than the inner one.
        thickness: at its thickest.
        colour: of the hairs.
    """

    inner: float
    outer: float
    above: float
    arch: float
    slant: float
    thickness: float
    colour: Colour


@dataclass(frozen=True)
class Lips:
    """The shape and colour of the closed mouth, mm.

    Attributes:
        width: half of it.
        upper: thickness of the upper lip.
        lower: thickness of the lower lip.
        bow: how deep the notch in the upper lip is.
        full: how far they stand out.
        colour: of both.
        gloss: how much they shine, 0 to 1.
    """

    width: float
    upper: float
    lower: float
    bow: float
    full: float
    colour: Colour
    gloss: float


@dataclass(frozen=True)
class Skin:
    """The colours of the skin.

    Attributes:
        colour: of most of it.
        blush: of cheeks, tip of the nose and ears.
        freckles: how many.
        beard: how dense, 0 (none) to 1.
    """

    colour: Colour
    blush: Colour
    freckles: int
    beard: float


@dataclass(frozen=True)
class Hair:
    """The cut and colour of the hair; outlines and directions are on the chart.

    Attributes:
        long: whether it falls to the jaw or is cut short.
        opening: outline of where no hair is, from the top round the right side of the picture to the bottom.
        opening_left: the same on the left.
        pole: direction from which the strands run.
        colour: of most of it.
        tips: of its lightest strands.
        wave: how far the strands swing, radians.
    """

    long: bool
    opening: tuple[tuple[float, float], ...]
    opening_left: tuple[tuple[float, float], ...]
    pole: tuple[float, float, float]
    colour: Colour
    tips: Colour
    wave: float


@dataclass(frozen=True)
class Person:
    """Someone who does not exist.

    Attributes:
        name: of the person.
        cloth: colours of the clothes.
        neckline: how deep the collar is cut, mm.
    """

    name: str
    bones: Bones
    eyes: Eyes
    brows: Brows
    lips: Lips
    skin: Skin
    hair: Hair
    cloth: tuple[Colour, ...]
    neckline: float


PEOPLE = (
    Person(
        name="Amara",
        bones=Bones(
            width=0.95,
            length=0.92,
            face=53.5,
            jaw=26,
            chin=0,
            chin_forward=1,
            cheek=2,
            brow=-2,
            nose_width=14.0,
            nose_tip=6.8,
            nose_length=5,
            nose_drop=0,
            bridge=1,
            neck=41,
            shoulders=165,
        ),
        eyes=Eyes(
            apart=32.5,
            width=19.0,
            height=14.6,
            tilt=2.4,
            iris=8.4,
            colour=(0.16, 0.065, 0.022),
            ring=(0.03, 0.012, 0.006),
            lashes=1.0,
        ),
        brows=Brows(inner=13, outer=53, above=20.5, arch=4.5, slant=-0.5, thickness=4.8, colour=(0.022, 0.012, 0.008)),
        lips=Lips(width=23.5, upper=6.6, lower=9.0, bow=1.9, full=4.0, colour=(0.40, 0.075, 0.08), gloss=0.8),
        skin=Skin(colour=(0.50, 0.25, 0.145), blush=(0.52, 0.205, 0.12), freckles=0, beard=0.0),
        hair=Hair(
            long=True,
            opening=(
                (-0.30, -1.03),
                (0.05, -0.93),
                (0.38, -0.78),
                (0.70, -0.64),
                (0.94, -0.38),
                (1.07, 0.02),
                (1.08, 0.4),
                (1.03, 0.8),
                (0.92, 1.12),
                (0.70, 1.34),
                (0.0, 1.42),
            ),
            opening_left=(
                (-0.30, -1.03),
                (-0.55, -0.84),
                (-0.82, -0.63),
                (-1.00, -0.36),
                (-1.08, 0.02),
                (-1.08, 0.4),
                (-1.03, 0.8),
                (-0.92, 1.12),
                (-0.70, 1.34),
                (0.0, 1.42),
            ),
            pole=(-0.27, -0.92, 0.33),
            colour=(0.022, 0.012, 0.009),
            tips=(0.17, 0.075, 0.04),
            wave=0.05,
        ),
        cloth=((0.55, 0.12, 0.08), (0.75, 0.68, 0.58), (0.04, 0.20, 0.22)),
        neckline=16,
    ),
    Person(
        name="Bran",
        bones=Bones(
            width=1.02,
            length=1.03,
            face=64,
            jaw=44,
            chin=13,
            chin_forward=3,
            cheek=0,
            brow=2,
            nose_width=17.5,
            nose_tip=8.5,
            nose_length=8,
            nose_drop=2.5,
            bridge=3,
            neck=53,
            shoulders=195,
        ),
        eyes=Eyes(
            apart=31,
            width=13.8,
            height=8.6,
            tilt=0.4,
            iris=6.0,
            colour=(0.16, 0.34, 0.36),
            ring=(0.03, 0.07, 0.09),
            lashes=0.35,
        ),
        brows=Brows(inner=12, outer=50, above=14.5, arch=2.5, slant=0.5, thickness=7.0, colour=(0.16, 0.06, 0.02)),
        lips=Lips(width=26.5, upper=5.2, lower=7.5, bow=1.2, full=2.6, colour=(0.56, 0.22, 0.18), gloss=0.3),
        skin=Skin(colour=(0.74, 0.475, 0.365), blush=(0.74, 0.36, 0.27), freckles=260, beard=0.9),
        hair=Hair(
            long=False,
            opening=(
                (0.0, -0.96),
                (0.3, -0.97),
                (0.58, -0.93),
                (0.80, -0.78),
                (0.90, -0.58),
                (1.02, -0.36),
                (1.10, -0.16),
                (1.13, 0.05),
                (1.24, 0.05),
                (1.25, -0.35),
                (1.20, -0.74),
                (1.30, -0.88),
                (1.52, -0.84),
                (1.68, -0.45),
                (1.72, 0.0),
                (1.64, 0.45),
                (1.55, 0.6),
                (0.9, 1.55),
                (0.0, 1.7),
            ),
            opening_left=(
                (0.0, -0.96),
                (-0.3, -0.99),
                (-0.60, -0.97),
                (-0.80, -0.80),
                (-0.90, -0.58),
                (-1.02, -0.36),
                (-1.10, -0.16),
                (-1.13, 0.05),
                (-1.24, 0.05),
                (-1.25, -0.35),
                (-1.20, -0.74),
                (-1.30, -0.88),
                (-1.52, -0.84),
                (-1.68, -0.45),
                (-1.72, 0.0),
                (-1.64, 0.45),
                (-1.55, 0.6),
                (-0.9, 1.55),
                (0.0, 1.7),
            ),
            pole=(-0.50, -0.80, 0.10),
            colour=(0.25, 0.075, 0.018),
            tips=(0.62, 0.25, 0.075),
            wave=0.03,
        ),
        cloth=((0.03, 0.06, 0.16), (0.10, 0.16, 0.09), (0.35, 0.34, 0.33)),
        neckline=2,
    ),
)
