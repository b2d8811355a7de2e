"""The link between cards: how it is written, and what adding up over it takes."""

import pytest

from frugan.errors import BadInput
from frugan.planning.links import GUESSED, Link, Sum, parse_link, seconds_between


@pytest.mark.parametrize(
    ("text", "bytes_per_s", "latency_s"),
    [
        ("8GB/s", 8e9, GUESSED.latency_s),
        ("8 GB/s", 8e9, GUESSED.latency_s),
        ("12.5GiB/s", 12.5 * 2**30, GUESSED.latency_s),
        ("25Gbit/s", 25e9 / 8, GUESSED.latency_s),
        ("8GB/s,50us", 8e9, 50e-6),
        ("900MB/s, 1.5 ms", 9e8, 1.5e-3),
        ("8GB/s,0us", 8e9, 0.0),
    ],
)
def test_links_are_read(text: str, bytes_per_s: float, latency_s: float) -> None:
    link = parse_link(text)
    assert (link.bytes_per_s, link.latency_s) == pytest.approx((bytes_per_s, latency_s))
    assert not link.guess


@pytest.mark.parametrize("text", ["8", "8GB", "GB/s", "-8GB/s", "8Gb/s", "nan GB/s", "8GB/s,50", "8GB/s 50us", ""])
def test_links_without_a_unit_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match="with its unit, such as 8GB/s"):
        parse_link(text)


@pytest.mark.parametrize("text", ["0GB/s", "0.0MB/s", "9" * 400 + "GB/s"])
def test_links_that_carry_nothing_or_everything_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match="nothing would ever arrive"):
        parse_link(text)


def test_adding_up_takes_a_ring_and_a_tree() -> None:
    """8 cards, 1 GB: 2 x 7/8 GB through each card at 2 GB/s, and 2 x 3 messages one after the other."""
    link = Link(2e9, 1e-3)
    assert link.sent_bytes(1e9, 8) == pytest.approx(1.75e9)
    assert link.seconds(1e9, 8) == pytest.approx(0.875 + 6e-3)
    assert link.seconds(1e9, 12) == pytest.approx(11 / 12 + 8e-3)
    assert link.seconds(1e9, 1) == 0
    sums = (Sum("D", 10**9, 1.0), Sum("D_r1", 10**9, 1 / 16))
    assert seconds_between(link, sums, 8) == pytest.approx((0.875 + 6e-3) * 17 / 16)
