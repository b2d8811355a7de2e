"""Tensors packed into blocks of pinned memory."""

import random

import pytest

from frugan.accelerator.host_memory import ALIGNMENT_BYTES, SMALLEST_BLOCK_BYTES, pack, pinned_bytes, rounded_bytes

MIB = 2**20


def check(sizes: list[int], *, powers_of_two: bool) -> int:
    """Every tensor is in one block, aligned, within it, and over no other; bytes in all."""
    blocks = pack(sizes, powers_of_two=powers_of_two)
    assert sorted(number for block in blocks for number in block.numbers) == list(range(len(sizes)))
    for block in blocks:
        end = 0
        for number, first in zip(block.numbers, block.firsts, strict=True):
            assert first % ALIGNMENT_BYTES == 0
            assert first >= end
            end = first + sizes[number]
        assert end <= block.size_bytes
        assert not powers_of_two or block.size_bytes == rounded_bytes(block.size_bytes)
    return sum(block.size_bytes for block in blocks)


def test_a_face_models_state_takes_little_more_than_it_is() -> None:
    """Two dense layers of 640 MiB with two statistics each, and what lies around them: one by one 4.6 GiB."""
    sizes = [640 * MIB] * 4 + [9 * MIB] * 40 + [4096] * 200
    one_by_one, taken = sum(map(rounded_bytes, sizes)), check(sizes, powers_of_two=True)
    assert one_by_one > 4.6e9
    assert taken == pinned_bytes(sizes) == 3 * 1024 * MIB
    assert rounded_bytes(sum(sizes)) == 4 * 1024 * MIB  # nor would one block for all do


@pytest.mark.parametrize("seed", range(5))
def test_blocks_never_take_more_than_tensors_one_by_one_or_all_in_one(seed: int) -> None:
    draw = random.Random(seed)
    sizes = [int(2 ** draw.uniform(8, 28)) for _ in range(draw.randint(1, 80))]
    taken = check(sizes, powers_of_two=True)
    assert taken <= max(SMALLEST_BLOCK_BYTES, 2 * sum(sizes))
    assert taken <= 1.35 * sum(sizes) or len(sizes) < 4
    assert check(sizes, powers_of_two=False) < sum(sizes) + len(sizes) * ALIGNMENT_BYTES


def test_nothing_takes_nothing() -> None:
    assert pack([], powers_of_two=True) == pack([], powers_of_two=False) == []
    assert check([0, 0], powers_of_two=True) == SMALLEST_BLOCK_BYTES
