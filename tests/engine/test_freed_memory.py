"""Freed memory that is kept for the next block is not asked of the system, and cleared by it, again and again."""

import platform
import subprocess
import sys

import pytest

COUNTING = """
import resource
from frugan.accelerator.host_memory import keep_freed_memory

def faults_of_ten_blocks():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        block = bytes(40 * 2**20 - 64) + b"x"
        del block
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 // 2**20

for kept in (False, True):
    before = faults_of_ten_blocks()
    with keep_freed_memory(kept):
        faults_of_ten_blocks()
        inside = faults_of_ten_blocks(), resident()
    print(before, *inside, resident(), faults_of_ten_blocks())
"""


pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library decides by itself")


@pytest.mark.long
def test_kept_inside_for_a_processor_alone_and_given_back_afterwards() -> None:
    """Page faults before and inside, MiB held inside and afterwards, page faults afterwards."""
    done = subprocess.run([sys.executable, "-c", COUNTING], check=True, stdout=subprocess.PIPE, text=True)
    for_a_card, for_a_processor = ([int(word) for word in line.split()] for line in done.stdout.splitlines())

    before, not_kept, while_inside, afterwards, _ = for_a_card
    assert not_kept > before / 2
    assert abs(while_inside - afterwards) < 40

    before, kept, while_kept, afterwards, after = for_a_processor
    assert before > 100  # pages may be huge
    assert kept < before / 10
    assert while_kept - afterwards > 40
    assert after > before / 2
