"""What is seen through the openings of the face: eyeballs, teeth and tongue."""

import numpy as np

from tools.draw_faces.chart import Array
from tools.draw_faces.curves import JAW_DROP, MOUTH_Y, eye, mouth
from tools.draw_faces.moment import Moment
from tools.draw_faces.person import Person

_ARCH = (23.0, 26.0)  # half width and depth of the teeth's arch in mm
_BEHIND_LIPS = 6.0
_PALATE = np.array([0.10, 0.022, 0.020], np.float32)
_TONGUE = np.array([0.345, 0.098, 0.090], np.float32)
_IVORY = np.array([0.80, 0.75, 0.66], np.float32)
_AMBER = np.array([0.30, 0.16, 0.05], np.float32)
_WHITE, _TO_PINK = np.array([0.74, 0.70, 0.67], np.float32), np.array([0.02, 0.10, 0.10], np.float32)


def eyeball(
    person: Person, moment: Moment, start: Array, step: Array, centre: Array, radius: float, light: Array, side: int
) -> Array:
    """Return the light that comes from one eye along rays, [n, 3].

    Args:
        person: whose eye.
        moment: its gaze and lids.
        start: of the rays, [3, n], head frame, mm.
        step: of the rays per mm of depth, [3, n].
        centre: of the ball in mm.
        radius: of the ball in mm.
        light: direction of the main light, [3], head frame.
        side: -1 for the eye on the left of the picture, 1 on the right.
    """
    out = start - centre[:, None]
    a = (step * step).sum(axis=0)
    b = (out * step).sum(axis=0)
    c = (out * out).sum(axis=0) - radius**2
    depth = (-b + np.sqrt(np.maximum(b * b - a * c, 0))) / a
    point = out + depth * step
    normal = point / np.maximum(np.linalg.norm(point, axis=0), 1e-6)
    colour = _eye_colour(person, moment, normal, radius)
    lids = eye(person, moment, side)
    x, y = point[0] + centre[0], point[1] + centre[1]
    order = np.argsort(lids.upper[:, 0])
    above = y - np.interp(x, lids.upper[order, 0], lids.upper[order, 1])
    below = np.interp(x, lids.lower[order, 0], lids.lower[order, 1]) - y
    shade = (0.30 + 0.70 * np.clip(above / 4.5, 0, 1) ** 0.8) * (0.75 + 0.25 * np.clip(below / 2, 0, 1))
    edge = np.abs(x - lids.middle[0]) / person.eyes.width
    shade *= 1 - 0.45 * np.clip(edge, 0, 1) ** 3
    lit = 0.50 + 0.62 * np.clip((normal * light[:, None]).sum(axis=0), 0, 1)
    half = light + np.array([0, 0, 1.0])
    half /= np.linalg.norm(half)
    bulge = normal + 0.25 * (normal - _gaze(moment)[:, None])  # the cornea is rounder than the ball
    bulge /= np.linalg.norm(bulge, axis=0)
    glint = np.clip((bulge * half[:, None]).sum(axis=0), 0, 1)
    shine = 1.8 * np.clip((glint - 0.984) / 0.008, 0, 1) + 0.06 * glint**30
    return np.asarray(colour * (shade * lit)[:, None] + (shine * (0.4 + 0.6 * shade))[:, None], np.float32)


def _gaze(moment: Moment) -> Array:
    right, down = moment.gaze
    return np.array([np.sin(right) * np.cos(down), np.sin(down), np.cos(right) * np.cos(down)], np.float32)


def _eye_colour(person: Person, moment: Moment, normal: Array, radius: float) -> Array:
    eyes, gaze = person.eyes, _gaze(moment)
    away = radius * np.sqrt(np.maximum(2 - 2 * (normal * gaze[:, None]).sum(axis=0), 0))  # mm from the pupil's middle
    right = np.array([gaze[2], 0, -gaze[0]]) / np.hypot(gaze[0], gaze[2])
    down = np.cross(gaze, right)
    angle = np.arctan2((normal * down[:, None]).sum(axis=0), (normal * right[:, None]).sum(axis=0))
    share = away / eyes.iris
    rays = 0.5 + 0.25 * np.sin(angle * 23 + 2 * np.sin(angle * 5)) + 0.25 * np.sin(angle * 41 + 3 * share)
    inner, ring = np.array(eyes.colour, np.float32), np.array(eyes.ring, np.float32)
    bright = (0.65 + 0.55 * rays) * (1 + 0.6 * np.sin(angle))  # lit from below, through the cornea
    iris = inner[None] * np.clip(bright, 0.25, 2)[:, None]
    near_pupil = np.clip(1 - np.abs(share - 0.45) / 0.22, 0, 1)[:, None] * 0.35
    iris = iris + (_AMBER - iris) * near_pupil * (0.3 if eyes.colour[2] < 0.1 else 1.0)
    rim = np.clip((share - 0.72) / 0.25, 0, 1)[:, None]
    iris = iris + (ring - iris) * rim
    pupil = np.clip((0.40 - share) / 0.06, 0, 1)[:, None]
    iris = iris * (1 - pupil) + 0.004 * pupil
    white = _WHITE - _TO_PINK * np.clip((np.abs(normal[0]) - 0.35) * 1.5, 0, 1)[:, None]
    mix = np.clip((1.0 - share) * eyes.iris / 0.55 + 0.5, 0, 1)[:, None]
    return np.asarray(white + (iris - white) * mix, np.float32)


def inside_mouth(person: Person, moment: Moment, start: Array, step: Array, front: float, light: Array) -> Array:
    """Return the light that comes out of the mouth along rays, [n, 3].

    Args:
        person: whose mouth.
        moment: how far it is open.
        start: of the rays, [3, n], head frame, mm.
        step: of the rays per mm of depth, [3, n].
        front: how far forward the lips are, mm.
        light: direction of the main light, [3], head frame.
    """
    lines = mouth(person, moment)
    middle = len(lines.upper_inner) // 2
    top, bottom = lines.upper_inner[middle, 1], lines.lower_inner[middle, 1]
    x, y, around = _meet_arch(start, step, front - _BEHIND_LIPS)
    depth = np.clip((y - top) / max(bottom - top, 1.0), 0, 1)
    colour = _PALATE * (0.25 + 0.75 * depth)[:, None]
    tongue = np.clip((y - (0.58 * bottom + 0.42 * top + 3) - 0.012 * x**2) / 2.0, 0, 1)[:, None]
    colour = colour + (_TONGUE - colour) * tongue
    line = MOUTH_Y * person.bones.length
    out = np.abs(around)
    upper = np.clip((line + 3 - 1.6 * out**2 - 0.5 * np.abs(np.sin(around * 14)) - y) / 0.6, 0, 1)
    lower = np.clip((y - line - JAW_DROP * moment.jaw - 0.5 - 0.8 * out**2) / 0.6, 0, 1)
    gaps = np.clip(5 * np.abs(np.sin(around * np.pi * 5)), 0, 1)  # narrower to the sides, where the arch turns away
    shade = (0.80 + 0.20 * gaps) * (1 - 0.60 * out**1.6) * np.clip(0.55 + (y - line + 7.5) / 14, 0.3, 1.05)
    ivory = _IVORY * shade[:, None]
    colour = colour + (ivory - colour) * (upper * np.clip((0.97 - out) / 0.1, 0, 1))[:, None]
    colour = colour + (ivory * 0.62 - colour) * (lower * np.clip((0.80 - out) / 0.1, 0, 1))[:, None]
    under_lip = np.clip((y - top) / 3.0, 0, 1) * 0.65 + 0.35
    lit = 0.62 + 0.45 * max(float(light[2]), 0.0)
    return np.asarray(colour * (under_lip * lit)[:, None], np.float32)


def _meet_arch(start: Array, step: Array, front: float) -> tuple[Array, Array, Array]:
    """Return where rays meet the teeth's arch, an upright elliptic wall: x, y and -1 to 1 around it, each [n]."""
    wide, deep = _ARCH
    x0, z0 = start[0] / wide, (start[2] - front + deep) / deep
    dx, dz = step[0] / wide, step[2] / deep
    a, b, c = dx * dx + dz * dz, x0 * dx + z0 * dz, x0 * x0 + z0 * z0 - 1
    depth = (-b + np.sqrt(np.maximum(b * b - a * c, 0))) / a
    around = np.arctan2(x0 + depth * dx, np.maximum(z0 + depth * dz, 1e-3)) / (np.pi / 2)
    return start[0] + depth * step[0], start[1] + depth * step[1], around
