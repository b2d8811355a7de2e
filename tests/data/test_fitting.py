"""Centre-crop to the short side, then resize."""

import numpy as np
import pytest
from PIL import Image

from frugan.data.survey import Fitting
from frugan.errors import BadInput


def test_the_middle_is_kept_and_odd_remainders_go_right_and_below() -> None:
    pixels = np.arange(4 * 7, dtype=np.uint8).reshape(4, 7)
    wide = Image.fromarray(pixels).convert("RGB")
    np.testing.assert_array_equal(Fitting(4)(wide)[0], pixels[:, 1:5])
    high = Image.fromarray(pixels.T.copy()).convert("RGB")
    np.testing.assert_array_equal(Fitting(4)(high)[2], pixels.T[1:5])


def test_fitting_pixels_are_untouched_in_channel_first_order() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    fitted = Fitting(8, "lanczos")(Image.fromarray(pixels))
    np.testing.assert_array_equal(fitted, pixels.transpose(2, 0, 1))
    assert fitted.flags.c_contiguous


def test_reduction_does_not_alias() -> None:
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    for resample in ("bilinear", "lanczos"):
        inner = Fitting(8, resample)(Image.fromarray(stripes))[:, :, 1:-1]
        assert np.abs(inner.astype(int) - 127).max() <= 2


def test_the_two_filters_differ() -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    assert not np.array_equal(Fitting(16)(noise), Fitting(16, "lanczos")(noise))


@pytest.mark.parametrize("resolution", [0, -4, 8193])
def test_impossible_resolution(resolution: int) -> None:
    with pytest.raises(BadInput, match=f"resolution {resolution}: expected 1 to 8192"):
        Fitting(resolution)


def test_unknown_filter() -> None:
    with pytest.raises(BadInput, match="'box': expected one of bilinear, lanczos"):
        Fitting(8, "box")  # type: ignore[arg-type]
