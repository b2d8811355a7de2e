"""Each block of a set is checked when it is first read, and then no more."""

import numpy as np
import pytest

from frugan.data.formats.set_file import BLOCK_BYTES, Blocks, block_digest, pictures_per_block


def test_blocks_hold_about_a_mebibyte_and_at_least_a_picture() -> None:
    assert pictures_per_block(32) == BLOCK_BYTES // 3072
    assert pictures_per_block(1024) == 1


def test_blocks_are_checked_once() -> None:
    side = 512  # a block is one picture
    pictures = np.zeros((3, 3, side, side), np.uint8)
    digests = [block_digest(picture[None]) for picture in pictures]
    damaged: list[int] = []
    blocks = Blocks(pictures, digests, damaged.append)
    blocks.check(np.array([0, 0]))
    pictures[:2] = 1  # 0 was checked, 1 was not
    blocks.check(np.array([2, 1, 0, 1]))
    blocks.check(np.array([1]))  # mended, as far as it can know
    assert damaged == [1]


def test_a_block_that_could_not_be_mended_is_not_taken_for_whole() -> None:
    pictures = np.zeros((2, 3, 8, 8), np.uint8)

    def refuse(block: int) -> None:
        raise ValueError(block)

    blocks = Blocks(pictures, ["0" * 16], refuse)
    for _ in range(2):
        with pytest.raises(ValueError, match="0"):
            blocks.check(np.array([1]))
