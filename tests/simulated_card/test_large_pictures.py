"""Places within a picture of more numbers than 32 bits count: told by Triton's interpreter, without the picture."""

import pytest
import torch

pytest.importorskip("triton.runtime.interpreter", reason="needs Triton: pip install 'frugan[kernels]'")

PIXELS, CHANNELS = 1 << 26, 64
"""Of a picture: two times 2^31 numbers."""


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("of", ["made", "taken"])
def test_places_within_a_large_picture(of: str, last: bool) -> None:
    """Of a tile of what is made, and of samples that a filter takes: the last pixels by the last channels."""
    from simulated_card import large_picture_kernels as kernels  # noqa: PLC0415  (Triton may be missing)

    p, c = PIXELS - 4 + torch.arange(4), CHANNELS - 8 + torch.arange(8)
    expected = p[:, None] * CHANNELS + c if last else p[:, None] + c * PIXELS
    assert expected.max() > 2**31
    found = torch.zeros(4, 8, dtype=torch.int64)
    kernel = kernels.of_a_tile if of == "made" else kernels.of_samples
    kernel[(1,)](found, PIXELS - 4, CHANNELS - 8, PIXELS, CHANNELS, last, 4, 8)
    assert torch.equal(found, expected)
