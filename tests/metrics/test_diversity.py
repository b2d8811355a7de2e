"""Diversity within classes: known distances, equal counts, and no class that cannot be compared."""

from itertools import combinations

import pytest
import torch

from frugan.metrics.diversity import WithinClass, nearest_pictures, pixel_rows, ratios, within_class
from limits import Limit


def samples(count: int, spread: float, seed: int) -> torch.Tensor:
    """[count, 6] around one point."""
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(seed)) * spread


def measured(*of_classes: torch.Tensor) -> WithinClass:
    labels = [torch.full((len(each),), number) for number, each in enumerate(of_classes)]
    return within_class(torch.cat(of_classes), torch.cat(labels))


def test_distances_that_one_can_do_in_the_head() -> None:
    rows = torch.tensor([[0.0, 0.0], [3.0, 3.0], [0.0, 1.0], [9.0, 9.0], [5.0, 5.0]])
    distances = within_class(rows, torch.tensor([4, 4, 7, 4, 8]))
    assert distances.mean == {4: pytest.approx((3 + 6 + 9) / 3)}  # root mean square differences; 7 and 8 are alone
    assert distances.nearest == {4: pytest.approx((3 + 3 + 6) / 3)}


def test_classes_are_kept_apart() -> None:
    one, two = samples(20, 1.0, 0), samples(20, 0.25, 1) + 100
    diversity = ratios(measured(one, two), measured(one, one))
    assert diversity.mean[0] == pytest.approx(1)
    assert diversity.mean[1] == pytest.approx(0.25, rel=0.2)
    assert diversity.mean_overall == pytest.approx((diversity.mean[0] + diversity.mean[1]) / 2)
    assert diversity.nearest_overall == pytest.approx((diversity.nearest[0] + diversity.nearest[1]) / 2)


def test_the_nearest_among_fewer_is_the_mean_over_all_choices() -> None:
    rows = samples(7, 1.0, 2)
    whole = measured(rows)
    for count in (2, 3, 6, 7):
        chosen = [measured(rows[list(each)]).nearest[0] for each in combinations(range(7), count)]
        assert whole.nearest_among(0, count) == pytest.approx(sum(chosen) / len(chosen))
    with pytest.raises(ValueError, match="expected 2 to 7"):
        whole.nearest_among(0, 8)


def test_nearest_neighbours_compare_whatever_the_counts() -> None:
    # 400 samples of one distribution have far nearer neighbours than 30 of it
    few, many = measured(samples(30, 1.0, 3)), measured(samples(400, 1.0, 4))
    assert many.nearest[0] < 0.75 * few.nearest[0]
    assert ratios(many, few).nearest[0] == pytest.approx(1, abs=0.15)
    assert ratios(few, many).nearest[0] == pytest.approx(1, abs=0.15)


def test_few_kinds_of_samples_show_in_neighbours_and_not_in_the_mean() -> None:
    real = samples(100, 1.0, 5)
    copied = real[:10].repeat(10, 1) + samples(100, 0.01, 6)
    diversity = ratios(measured(copied), measured(real))
    assert diversity.mean[0] > 0.8
    assert diversity.nearest[0] < 0.05


def test_who_repeats_a_small_class_is_not_to_blame() -> None:
    real = samples(20, 1.0, 10)
    again = real[torch.randint(20, (60,), generator=torch.Generator().manual_seed(11))]
    assert ratios(measured(again), measured(real)).nearest[0] < 0.5
    assert ratios(measured(again), measured(real), real_share=0.25).nearest[0] > 0.7
    assert ratios(measured(again), measured(real), real_share=0.01).nearest[0] > 0.7  # two of them, at least


def test_many_samples_are_measured_in_blocks(limit: Limit) -> None:
    rows = samples(50, 1.0, 7)
    at_once = measured(rows).ranked[0]
    limit("rows of distances", 8)
    assert torch.allclose(measured(rows).ranked[0], at_once)


def test_what_cannot_be_compared_is_left_out() -> None:
    one, alike = samples(10, 1.0, 8), torch.ones(10, 6)
    diversity = ratios(measured(one, one, one, one[:1]), measured(one, alike, one[:1], one))
    assert list(diversity.mean) == list(diversity.nearest) == [0]
    nothing = ratios(measured(one), measured(alike))
    with pytest.raises(ValueError, match="at least one"):
        _ = nothing.mean_overall
    assert ratios(measured(alike), measured(one)).mean == {0: pytest.approx(0, abs=1e-6)}


def test_pictures_are_reduced_by_area_and_bytes_are_scaled() -> None:
    pictures = torch.randint(0, 256, (4, 3, 64, 64), generator=torch.Generator().manual_seed(9), dtype=torch.uint8)
    rows = pixel_rows(pictures)
    assert rows.shape == (4, 3 * 32 * 32)
    by_hand = pictures.float().view(4, 3, 32, 2, 32, 2).mean((3, 5)) / 127.5 - 1
    assert torch.allclose(rows, by_hand.flatten(1), atol=1e-6)
    assert torch.equal(pixel_rows(pictures.float() / 127.5 - 1), rows)
    assert pixel_rows(torch.zeros(2, 1, 8, 16)).shape == (2, 128)  # small ones stay as they are


def test_other_shapes_and_infinite_values_are_refused() -> None:
    with pytest.raises(ValueError, match=r"features torch.float32 \[2, 1, 4, 4\]"):
        within_class(torch.zeros(2, 1, 4, 4), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="expected integers"):
        within_class(torch.zeros(2, 4), torch.zeros(2))
    with pytest.raises(ValueError, match="not finite"):
        within_class(torch.full((2, 4), torch.nan), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"expected \[N, C, H, W\]"):
        pixel_rows(torch.zeros(2, 4))


def walnuts(count: int, side: int, seed: int) -> torch.Tensor:
    """A dark object of its own texture on white paper in each: uint8 [count, 3, 32, 32]."""
    random = torch.Generator().manual_seed(seed)
    pictures = torch.full((count, 3, 32, 32), 255, dtype=torch.uint8)
    for picture in pictures:
        top, left = (int(place) for place in torch.randint(30 - side, (2,), generator=random) + 1)
        texture = torch.randint(20, 160, (3, side, side), generator=random)
        picture[:, top : top + side, left : left + side] = texture.byte()
    return pictures


def test_specks_on_paper_are_no_copy_of_a_small_object() -> None:
    real = torch.cat([walnuts(60, 20, 0), walnuts(4, 3, 1)])
    specks = torch.full((1, 3, 32, 32), 255, dtype=torch.uint8)
    specks[..., 8:10, 8:10] = specks[..., 25:27, 4:6] = 160
    random = torch.Generator().manual_seed(2)
    copy = (real[[3]].float() + 8 * torch.randn(1, 3, 32, 32, generator=random)).clamp(0, 255).byte()
    found = nearest_pictures(torch.cat([specks, copy, copy.flip(-1)]), real.numpy(), 2)
    assert found.ratios[0] > 0.8  # 0.49, named a copy, if the paper counts
    assert found.ratios[1:].max() < 0.4
    assert found.indices[1:, 0].tolist() == [3, 3]
    blank = torch.full((1, 3, 32, 32), 255, dtype=torch.uint8)
    assert nearest_pictures(blank, real.numpy(), 1).ratios[0] > 0.8


def test_pictures_that_were_unseen_say_what_is_usual() -> None:
    real, unseen, asked = (
        torch.randint(0, 256, (count, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
        for seed, count in ((0, 40), (1, 9), (2, 3))
    )
    alone, beside = (nearest_pictures(asked, real.numpy(), 2, unseen=others) for others in (None, unseen.numpy()))
    assert torch.equal(alone.indices, beside.indices)
    assert torch.equal(alone.distances, beside.distances)
    expected = nearest_pictures(unseen, real.numpy(), 1).distances[:, 0].median()
    assert beside.usual == pytest.approx(float(expected), rel=1e-6)
    seen = nearest_pictures(asked, real.numpy(), 1, unseen=real.numpy())  # none but copies: nothing is usual
    assert seen.usual == pytest.approx(0, abs=1e-3)
