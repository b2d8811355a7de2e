import pytest

from frugan.errors import BadInput
from frugan.wording import parse_size, show_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("6GiB", 6 * 2**30), ("5632 MiB", 5632 * 2**20), ("6GB", 6 * 10**9), ("1.5gib", 3 * 2**29), (" 512KiB ", 2**19)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["6", "GiB", "six GiB", "-6GiB", "6 GiB please", "6TB", "0GiB", "0.0001B", ""])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(BadInput, match="6GiB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(6 * 2**30, "6.00 GiB"), (300 * 2**20, "300 MiB"), (0, "0 MiB"), (5 * 2**10, "5 KiB"), (-(2**30), "-1.00 GiB")],
)
def test_shown(size: int, text: str) -> None:
    assert show_size(size) == text
