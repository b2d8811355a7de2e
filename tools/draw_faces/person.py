"""What makes up a person, in numbers."""

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
