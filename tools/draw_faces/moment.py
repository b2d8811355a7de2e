"""How a person is seen in one frame: turn of the head, expression, light and surroundings."""

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np


@dataclass(frozen=True)
class Moment:
    """What changes from frame to frame; angles in radians."""

    yaw: float = 0.0  # turn to the side, as `pose.yaw` counts it; positive looks to the left of the picture
    pitch: float = 0.0  # nod; positive looks up
    roll: float = 0.0  # tilt in the picture's plane; positive is clockwise
    jaw: float = 0.0  # how far the mouth is open, 0 to 1
    smile: float = 0.0  # -0.4 (sad) to 1
    pucker: float = 0.0  # how far the lips are drawn together, 0 to 1
    lids: float = 1.0  # how far the eyes are open: 0 shut, 1 usual, 1.2 wide
    brows: float = 0.0  # -1 lowered to 1 raised
    frown: float = 0.0  # how far the brows are drawn together, 0 to 1
    gaze: tuple[float, float] = (0.0, 0.0)  # turn of the eyes to the right of the picture and downward
    light: tuple[float, float] = (-0.6, 0.6)  # azimuth (positive: from the right) and elevation of the main light
    warmth: float = 0.2  # of the main light, -1 (blue) to 1 (orange)
    softness: float = 0.4  # share of light that comes from everywhere, 0 to 1
    rim: float = 0.3  # strength of a light from behind, 0 to 1; its side is opposite to the main light
    zoom: float = 1.0  # size of the head, as a share of the usual
    shift: tuple[float, float] = (0.0, 0.0)  # of the head to the right and down, as a share of the picture
    scene: int = 0  # names the background and the clothes


def draw_moment(seed: int, person: int, index: int) -> Moment:
    """Return one moment of a person, the same for the same three numbers."""
    name = f"{seed}/drawn/{person}/{index}".encode()
    rng = np.random.Generator(np.random.PCG64(int.from_bytes(blake2b(name, digest_size=16).digest(), "big")))
    talk = rng.random()
    yaw = float(np.clip(rng.normal(0, 0.30), -0.61, 0.61))
    smile = float(rng.uniform(0.3, 1.0) if rng.random() < 0.5 else rng.uniform(-0.25, 0.3))
    lids = float(rng.uniform(0.0, 0.35) if rng.random() < 0.07 else rng.uniform(0.75, 1.15))
    return Moment(
        yaw=yaw,
        pitch=float(np.clip(rng.normal(0, 0.12), -0.26, 0.26)),
        roll=float(np.clip(rng.normal(0, 0.10), -0.26, 0.26)),
        jaw=float(rng.uniform(0.15, 1.0)) if talk < 0.45 else 0.0,
        smile=smile,
        pucker=float(rng.uniform(0.2, 0.8)) if rng.random() < 0.10 and smile < 0.3 else 0.0,
        lids=lids,
        brows=float(np.clip(rng.normal(0.2, 0.4), -1, 1)),
        frown=float(rng.uniform(0.3, 0.9)) if rng.random() < 0.10 else 0.0,
        gaze=(float(np.clip(rng.normal(0.5 * yaw, 0.22), -0.5, 0.5)), float(np.clip(rng.normal(0, 0.10), -0.25, 0.25))),
        light=(float(rng.uniform(-1.2, 1.2)), float(rng.uniform(0.15, 1.0))),
        warmth=float(rng.uniform(-0.6, 1.0)),
        softness=float(rng.uniform(0.2, 0.7)),
        rim=float(rng.uniform(0.0, 1.0)),
        zoom=float(rng.uniform(0.92, 1.06)),
        shift=(float(rng.uniform(-0.04, 0.04)), float(rng.uniform(-0.03, 0.03))),
        scene=int(rng.integers(1 << 31)),
    )
