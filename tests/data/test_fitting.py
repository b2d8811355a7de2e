"""Centre-crop to the short side, or pad to the long one; then resize."""

import numpy as np
import pytest
from PIL import Image

from frugan.data.formats.decoding import background
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


def test_padded_pictures_are_whole_and_in_the_middle_of_the_background() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 3), dtype=np.uint8)
    red = background("#ff0000")
    square = Fitting(8, background=red, fit="pad")(Image.fromarray(pixels)).transpose(1, 2, 0)  # [8, 8, 3]
    np.testing.assert_array_equal(square[2:5], pixels)
    assert (np.delete(square, slice(2, 5), 0) == (255, 0, 0)).all()
    high = Fitting(8, fit="pad")(Image.fromarray(pixels.transpose(1, 0, 2).copy())).transpose(1, 2, 0)
    np.testing.assert_array_equal(high[:, 2:5], pixels.transpose(1, 0, 2))
    assert (np.delete(high, slice(2, 5), 1) == 255).all()


def test_padding_reduces_the_long_side_and_enlarges_only_what_it_may() -> None:
    blue = Image.new("RGB", (40, 20), "blue")

    def extent(fitting: Fitting) -> tuple[int, int]:
        """Rows and columns that hold blue."""
        found = fitting(blue)[0] == 0  # no red: white has it
        return int(found.any(1).sum()), int(found.any(0).sum())

    assert extent(Fitting(16, fit="pad")) == (8, 16)
    assert extent(Fitting(64, fit="pad")) == (20, 40)  # background all around
    assert extent(Fitting(80, "lanczos", allow_upscale=True, fit="pad")) == (40, 80)
    assert extent(Fitting(16)) == (16, 16)
    line = Image.new("RGB", (1000, 1), "blue")
    assert Fitting(8, fit="pad")(line).shape == (3, 8, 8)  # no side of 0


def test_square_pictures_are_the_same_cropped_and_padded() -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    np.testing.assert_array_equal(Fitting(16, fit="pad")(noise), Fitting(16)(noise))


def test_unknown_filter() -> None:
    with pytest.raises(BadInput, match="'box': expected one of bilinear, lanczos"):
        Fitting(8, "box")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="fit 'stretch': expected one of crop, pad"):
        Fitting(8, fit="stretch")  # type: ignore[arg-type]
