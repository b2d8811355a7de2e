"""The 68 landmarks of a drawn face: points of the curves it is painted with, on the surface it is shaded by."""

import numpy as np

from tools.draw_faces.camera import View
from tools.draw_faces.chart import Array
from tools.draw_faces.curves import EYE_Y, brow, eye, jaw_line, mouth
from tools.draw_faces.moment import Moment
from tools.draw_faces.person import Person
from tools.draw_faces.surface import Surface


def landmarks(person: Person, moment: Moment, surface: Surface, view: View) -> Array:
    """Return where the 68 landmarks lie in the picture, float32 [68, 2]."""
    bones = person.bones
    brows = [_spread(brow(person, moment, side).spine, 5) for side in (-1, 1)]
    eyes = [eye(person, moment, side) for side in (-1, 1)]
    lips = mouth(person, moment)
    tip = -5 + bones.nose_drop
    bridge = np.stack([np.zeros(4), np.linspace(EYE_Y + 1, tip, 4)], axis=1)
    wide, base = bones.nose_width - 3, 9.0 + bones.nose_drop * 0.6
    under = np.array(
        [[-wide, base - 2.5], [-wide / 2, base - 0.5], [0, base + 0.8], [wide / 2, base - 0.5], [wide, base - 2.5]]
    )
    left, right = eyes
    outer = [_spread(lips.upper_outer, 7), _spread(lips.lower_outer, 7)[5:0:-1]]
    inner = [_spread(lips.upper_inner, 5), _spread(lips.lower_inner, 5)[3:0:-1]]
    lids = [
        np.concatenate([_spread(left.upper, 4)[::-1], _spread(left.lower, 4)[1:3]]),
        np.concatenate([_spread(right.upper, 4), _spread(right.lower, 4)[2:0:-1]]),
    ]
    flat = np.concatenate([brows[0][::-1], brows[1], bridge, under, *lids, *outer, *inner]).astype(np.float32)
    inside = view.project(surface.points(flat))
    return np.concatenate([_jaw(person, moment, surface, view), inside]).astype(np.float32)


def _jaw(person: Person, moment: Moment, surface: Surface, view: View) -> Array:
    """Return the jaw's landmarks, [17, 2]: the outline where the head's turn hides the jaw's own edge."""
    lines, outward = jaw_line(person, moment)  # [17, k, 3], [17, 2]
    lengths = surface.reach(lines.reshape(-1, 3)).reshape(*lines.shape[:2], 1)
    seen = view.project((lines * lengths).reshape(-1, 3)).reshape(*lines.shape[:2], 2)
    best = (seen * outward[:, None]).sum(axis=2).argmax(axis=1)
    return np.asarray(seen[np.arange(17), best], np.float32)


def _spread(line: Array, count: int) -> Array:
    """Return points of a curve, [n, 2], evenly apart along x."""
    return np.asarray(line[np.linspace(0, len(line) - 1, count).round().astype(int)], np.float32)
