"""What makes up a person, in numbers."""

from dataclasses import dataclass

Colour = tuple[float, float, float]  # R, G, B: reflected share of linear light, 0 to 1


@dataclass(frozen=True)
class Bones:
    """The shape of a head, mm where nothing else is said."""

    width: float  # of the skull, as a share of the usual
    length: float  # from the brows to the chin, as a share of the usual
    face: float  # half its width below the eyes
    jaw: float  # half the distance between the jaw's angles
    chin: float  # half the chin's width
    chin_forward: float  # how far the chin stands out
    cheek: float  # how far the cheekbones stand out
    brow: float  # how far the ridge above the eyes stands out
    nose_width: float  # half the distance between the wings of the nose
    nose_tip: float  # its radius
    nose_length: float  # how far the tip stands out
    nose_drop: float  # how far down the tip is
    bridge: float  # how far the nose's bridge stands out
    neck: float  # half the neck's width
    shoulders: float  # half their width


@dataclass(frozen=True)
class Eyes:
    """The shape and colour of the eyes, mm."""

    apart: float  # half the distance between their middles
    width: float  # half of it
    height: float  # of the open eye
    tilt: float  # how much higher the outer corner is than the inner
    iris: float  # its radius
    colour: Colour  # of the iris
    ring: Colour  # of its rim
    lashes: float  # how strong they are, 0 to 1


@dataclass(frozen=True)
class Brows:
    """The shape of the eyebrows, mm."""

    inner: float  # distance of the inner end from the middle of the face
    outer: float  # distance of the outer end
    above: float  # height above the eyes
    arch: float  # how much higher the bend is than the line between the ends
    slant: float  # how much higher the outer end is than the inner one
    thickness: float  # at its thickest
    colour: Colour  # of the hairs


@dataclass(frozen=True)
class Lips:
    """The shape and colour of the closed mouth, mm."""

    width: float  # half of it
    upper: float  # thickness of the upper lip
    lower: float  # thickness of the lower lip
    bow: float  # how deep the notch in the upper lip is
    full: float  # how far they stand out
    colour: Colour  # of both
    gloss: float  # how much they shine, 0 to 1


@dataclass(frozen=True)
class Skin:
    """The colours of the skin."""

    colour: Colour  # of most of it
    blush: Colour  # of cheeks, tip of the nose and ears
    freckles: int  # how many
    beard: float  # how dense, 0 (none) to 1


@dataclass(frozen=True)
class Hair:
    """The cut and colour of the hair; outlines and directions are on the chart."""

    long: bool  # whether it falls to the jaw or is cut short
    # outline of where no hair is, from the top round the right side of the picture to the bottom
    opening: tuple[tuple[float, float], ...]
    opening_left: tuple[tuple[float, float], ...]  # the same on the left
    pole: tuple[float, float, float]  # direction from which the strands run
    colour: Colour  # of most of it
    tips: Colour  # of its lightest strands
    wave: float  # how far the strands swing, radians


@dataclass(frozen=True)
class Person:
    """Someone who does not exist."""

    name: str  # of the person
    bones: Bones
    eyes: Eyes
    brows: Brows
    lips: Lips
    skin: Skin
    hair: Hair
    cloth: tuple[Colour, ...]  # colours of the clothes
    neckline: float  # how deep the collar is cut, mm
