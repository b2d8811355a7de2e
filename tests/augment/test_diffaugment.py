"""DiffAugment's operations, each by itself."""

import pytest
import torch
from torch import Tensor

from frugan.augment.augmentation import OPERATIONS
from frugan.augment.diffaugment import CUTOUT, TRANSLATION, DiffAugment

NAMES = ("brightness", "saturation", "contrast", "down", "right", "row", "column")
"""Of the columns of the uniform numbers."""
EVERY = DiffAugment(OPERATIONS["diffaugment"])
NO_NUMBERS, UNUSED = torch.empty(1, 0), torch.zeros(())


def pictures(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1)) * 2 - 1


def augmented(operation: str, x: Tensor, **numbers: float) -> Tensor:
    """Where nothing is said, numbers by which brightness, saturation, contrast and translation change nothing."""
    row = torch.tensor([[numbers.get(name, 0.5) for name in NAMES]])
    return DiffAugment((operation,))(x, row.expand(len(x), -1), NO_NUMBERS.expand(len(x), 0), UNUSED)


def test_brightness_adds_up_to_a_half() -> None:
    x = pictures(2, 3, 8, 8)
    for number, added in ((0.0, -0.5), (0.25, -0.25), (0.5, 0.0), (1.0, 0.5)):
        torch.testing.assert_close(augmented("colour", x, brightness=number), x + added)


def test_saturation_goes_from_grey_to_twice_as_colourful() -> None:
    x = pictures(2, 3, 8, 8)
    grey = x.mean(1, keepdim=True)
    torch.testing.assert_close(augmented("colour", x, saturation=0.0), grey.expand_as(x))
    torch.testing.assert_close(augmented("colour", x, saturation=1.0), grey + 2 * (x - grey))
    assert torch.equal(augmented("colour", x[:, :1], saturation=0.1), augmented("colour", x[:, :1]))


def test_contrast_keeps_each_picture_s_mean_and_order() -> None:
    x = pictures(2, 3, 8, 8)
    for number, factor in ((0.0, 0.5), (0.5, 1.0), (1.0, 1.5)):
        made = augmented("colour", x, contrast=number)
        mean = x.mean((1, 2, 3), keepdim=True)
        torch.testing.assert_close(made, mean + factor * (x - mean))
        assert torch.equal(made.flatten(1).argsort(1), x.flatten(1).argsort(1))


@pytest.mark.parametrize("shape", [(1, 3, 32, 32), (1, 1, 16, 40)])
def test_translation_moves_whole_pixels_and_brings_in_zeros(shape: tuple[int, ...]) -> None:
    x = pictures(*shape)
    height, width = shape[2:]
    most_down, most_right = round(TRANSLATION * height), round(TRANSLATION * width)
    made = augmented("translation", x, down=0.0, right=0.999)
    expected = torch.zeros_like(x)  # up and to the right, as far as it goes
    expected[..., : height - most_down, most_right:] = x[..., most_down:, : width - most_right]
    assert torch.equal(made, expected)
    assert torch.equal(augmented("translation", x), x)


def test_every_shift_is_as_likely() -> None:
    """One bright pixel says where it went."""
    x = torch.zeros(1, 1, 16, 16)
    x[..., 8, 8] = 1
    random = torch.rand(5000, EVERY.uniforms, generator=torch.Generator().manual_seed(3))
    made = DiffAugment(("translation",))(x.expand(5000, -1, -1, -1), random, NO_NUMBERS.expand(5000, 0), UNUSED)
    brightest = made.flatten(1).argmax(1)
    for places in (brightest // 16, brightest % 16):
        counts = places.bincount(minlength=16)
        assert counts.nonzero().flatten().tolist() == [6, 7, 8, 9, 10]
        assert counts[6:11].min() > 0.85 * 1000


@pytest.mark.parametrize("side", [8, 15])
def test_cutout_sets_at_most_a_square_of_half_the_side_to_zero(side: int) -> None:
    random = torch.rand(1000, EVERY.uniforms, generator=torch.Generator().manual_seed(3))
    kept = DiffAugment(("cutout",))(torch.ones(1000, 1, side, side), random, NO_NUMBERS.expand(1000, 0), UNUSED)
    assert set(kept.unique().tolist()) == {0.0, 1.0}
    lost = (kept == 0).squeeze(1)
    rows, columns = lost.any(2).sum(1), lost.any(1).sum(1)
    assert torch.equal(lost.sum((1, 2)), rows * columns)  # a rectangle
    assert int(rows.max()) == int(columns.max()) == round(CUTOUT * side)
    assert bool(lost.any(0).all())  # no place is spared
    assert int(rows.min()) <= side // 4 + 1  # at the border a part of it lies outside


def test_gradients_flow_twice() -> None:
    x = pictures(2, 3, 8, 8).requires_grad_()
    uniforms = torch.rand(2, EVERY.uniforms, generator=torch.Generator().manual_seed(3))
    made = EVERY(x, uniforms, NO_NUMBERS.expand(2, 0), UNUSED)
    (gradient,) = torch.autograd.grad(made.square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum(), x)
    assert bool(torch.isfinite(second).all())
    assert float(second.abs().max()) > 0


def test_a_split_batch_gives_the_same_pictures() -> None:
    x = pictures(5, 3, 16, 16)
    uniforms = torch.rand(5, EVERY.uniforms, generator=torch.Generator().manual_seed(3))
    whole = EVERY(x, uniforms, NO_NUMBERS.expand(5, 0), UNUSED)
    parts = [EVERY(*part, NO_NUMBERS, UNUSED) for part in zip(x.split(2), uniforms.split(2), strict=True)]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=1e-6)
