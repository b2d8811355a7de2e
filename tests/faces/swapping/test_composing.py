"""How swapped faces are laid on frames, against computations of its own."""

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from faces.swapping.drawn_frames import SIDE, background
from frugan.faces.swapping.composing import Look, Picture, SwappedFace, compose, edged, product

R = 64
MATRIX = np.array([[0.5, 0.1, -20], [-0.1, 0.5, -10]], np.float32)
"""From the frame to the square."""


def disc(radius: float) -> Picture:
    rows, columns = np.mgrid[0:R, 0:R]
    inside: Picture = (np.hypot(rows - R // 2, columns - R // 2) <= radius).astype(np.float32)
    return inside


def soft_disc() -> Picture:
    rows, columns = np.mgrid[0:R, 0:R]
    soft: Picture = (1.5 - np.hypot(rows - R / 2, columns - R / 2) / 16).clip(0, 1).astype(np.float32)
    return soft


def face(masks: tuple[Picture, ...], colour: tuple[float, float, float] = (0.2, 0.4, 0.8)) -> SwappedFace:
    flat = np.broadcast_to(np.array(colour, np.float32), (R, R, 3)).copy()
    random = np.random.default_rng(0)
    return SwappedFace(MATRIX, random.random((R, R, 3)).astype(np.float32), flat, masks)


def sampled(mask: Picture) -> NDArray[np.float64]:
    """The mask in the frame by bilinear interpolation, pixel by pixel, [SIDE, SIDE]."""
    padded = np.pad(mask.astype(np.float64), 1)
    rows, columns = np.mgrid[0:SIDE, 0:SIDE].astype(np.float64)
    x = MATRIX[0, 0] * columns + MATRIX[0, 1] * rows + MATRIX[0, 2]
    y = MATRIX[1, 0] * columns + MATRIX[1, 1] * rows + MATRIX[1, 2]
    left, top = np.floor(x).clip(-1, R - 1).astype(int), np.floor(y).clip(-1, R - 1).astype(int)
    right, down = (x - left).clip(0, 1), (y - top).clip(0, 1)
    at = padded[top + 1, left + 1] * (1 - right) + padded[top + 1, left + 2] * right
    below = padded[top + 2, left + 1] * (1 - right) + padded[top + 2, left + 2] * right
    value: NDArray[np.float64] = at * (1 - down) + below * down
    value[(x < -1) | (x > R) | (y < -1) | (y > R)] = 0
    return value


def test_a_face_is_mixed_in_by_its_mask() -> None:
    frame, mask = background(0), soft_disc()
    ours = compose(frame, [face((mask,))], Look(), 0)
    share = sampled(mask)[..., None]
    expected = (1 - share) * frame + share * 255 * np.array([0.2, 0.4, 0.8])
    assert np.abs(ours - expected).max() <= 3  # OpenCV samples at 1/32 of a pixel
    assert np.abs(ours - expected).mean() <= 0.5


def test_pixels_outside_the_mask_stay() -> None:
    frame = background(1)
    ours = compose(frame, [face((disc(12),))], Look(blur=3, erode=-2), 0)
    far = sampled(disc(20)) == 0
    assert np.array_equal(ours[far], frame[far])
    assert not np.array_equal(ours, frame)


def test_masks_are_multiplied_and_traces_left_out() -> None:
    first, second = np.full((R, R), 0.5, np.float32), np.full((R, R), 0.25, np.float32)
    second[0] = 0.007
    mask = product((first, second))
    assert mask[1:].min() == mask[1:].max() == 0.125
    assert not mask[0].any()


@pytest.mark.parametrize("erode", [5, -5])
def test_erosion_is_the_least_in_an_ellipse(erode: int) -> None:
    random, reach = np.random.default_rng(1), abs(erode)
    mask = random.random((R, R)).astype(np.float32)
    element = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * reach + 1, 2 * reach + 1)) > 0
    around = np.lib.stride_tricks.sliding_window_view(np.pad(mask, reach), element.shape)  # 0 beyond the square
    expected = (np.min if erode > 0 else np.max)(around[..., element], axis=-1)
    assert np.array_equal(edged(mask, erode, 0), expected)


def test_blur_is_a_gaussian_that_fades_at_the_square() -> None:
    blur, mask = 6, np.ones((R, R), np.float32)
    sigma = 0.3 * (blur - 1) + 0.8
    kernel = np.exp(-(np.arange(-blur, blur + 1) ** 2) / (2 * sigma**2))
    line = np.convolve(np.ones(R), kernel / kernel.sum(), "same")
    np.testing.assert_allclose(edged(mask, 0, blur), np.outer(line, line), atol=1e-5)


def test_colours_become_the_destinations() -> None:
    """The Monge-Kantorovich map gives means and covariances of the other picture."""
    random = np.random.default_rng(2)
    target = (0.4 + 0.05 * random.standard_normal((R, R, 3))).astype(np.float32)
    swapped = (0.5 + 0.02 * random.standard_normal((R, R, 3)) @ random.random((3, 3))).astype(np.float32)
    square = np.array([[1, 0, 0], [0, 1, 0]], np.float32)
    one = SwappedFace(square, target, swapped, (np.ones((R, R), np.float32),))
    ours = compose(np.zeros((R, R, 3), np.uint8), [one], Look(colours="mkl"), 0).reshape(-1, 3) / 255
    wanted = target.reshape(-1, 3)
    np.testing.assert_allclose(ours.mean(0), wanted.mean(0), atol=2e-3)
    np.testing.assert_allclose(np.cov(ours.T), np.cov(wanted.T), atol=1e-4)


def test_seamless_takes_the_frames_light() -> None:
    """Poisson's equation knows a picture up to a constant: the frame itself, made lighter, gives the frame back."""
    frame = (background(0) // 2).astype(np.uint8)
    square = cv2.warpAffine(frame.astype(np.float32) / 255, MATRIX, (R, R), flags=cv2.INTER_CUBIC).astype(np.float32)
    one = SwappedFace(MATRIX, square, (square + np.float32(0.2)).clip(0, 1), (disc(20),))
    overlay, seamless = (compose(frame, [one], Look(blend=blend), 0) for blend in ("overlay", "seamless"))
    inside = sampled(disc(18)) == 1
    assert np.abs(overlay[inside].astype(float) - frame[inside]).mean() > 40
    assert np.abs(seamless[inside].astype(float) - frame[inside]).mean() < 4


def test_a_face_that_leaves_the_frame_is_cloned_too() -> None:
    frame, mask = background(0), np.ones((R, R), np.float32)
    shifted = MATRIX + np.array([[0, 0, 60], [0, 0, 50]], np.float32)
    one = SwappedFace(shifted, np.zeros((R, R, 3), np.float32), np.full((R, R, 3), 0.5, np.float32), (mask,))
    assert compose(frame, [one], Look(blend="seamless"), 0).shape == frame.shape


def test_a_face_without_a_mask_leaves_the_frame() -> None:
    frame = background(2)
    assert np.array_equal(compose(frame, [face((disc(-1),))], Look(blend="seamless", blur=2), 0), frame)
