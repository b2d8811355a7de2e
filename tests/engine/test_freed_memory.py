"""Freed memory that is kept for the next block is not asked of the system, and cleared by it, again and again."""

import platform
import subprocess
import sys

import pytest

COUNTING = """
import resource
from frugan.engine.host_memory import freed_memory_kept

def faults_of_ten_blocks():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        block = bytes(40 * 2**20 - 64) + b"x"
        del block
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 // 2**20

print(faults_of_ten_blocks())
with freed_memory_kept(KEPT):
    faults_of_ten_blocks()
    print(faults_of_ten_blocks(), resident())
print(resident(), faults_of_ten_blocks())
"""


pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library decides by itself")


def test_kept_inside_and_given_back_afterwards() -> None:
    before, kept, while_kept, afterwards, after = _counted("True")
    assert before > 100  # pages may be huge
    assert kept < before / 10
    assert while_kept - afterwards > 40
    assert after > before / 2


def test_nothing_changes_for_a_card() -> None:
    before, not_kept, while_inside, afterwards, _ = _counted("False")
    assert not_kept > before / 2
    assert abs(while_inside - afterwards) < 40


def _counted(kept: str) -> list[int]:
    """Page faults before and inside, MiB held inside and afterwards, page faults afterwards."""
    program = COUNTING.replace("KEPT", kept)
    printed = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True).stdout
    return [int(word) for word in printed.split()]
