"""Memory that a step gives back to the C library on a CPU, kept for the next step.

The C library of most Linux systems gives blocks of many megabytes back to the system as soon as they are free. Every
step then asks for them again, and the system clears them again, 4 KiB at a time.
"""

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MOST = -1, -3, -4
"""Numbers of `mallopt`'s settings, from glibc's malloc.h."""
NEVER = -1
OWN_MMAP_MOST, OWN_MMAP_THRESHOLD, OWN_TRIM_THRESHOLD = 65536, 32 * 2**20, 64 * 2**20
"""What the C library has, or comes to by itself in a process that uses large blocks."""


@contextmanager
def freed_memory_kept(on_cpu: bool) -> Iterator[None]:
    """Inside, freed memory stays with the process, for its next block; afterwards it goes back to the system.

    Args:
        on_cpu: whether steps run on the CPU. Otherwise, and where the C library is another one than glibc, nothing
            changes.
    """
    library = ctypes.CDLL(None) if on_cpu and platform.libc_ver()[0] == "glibc" else None
    if library is None:
        yield
        return
    library.mallopt(MMAP_MOST, 0)
    library.mallopt(TRIM_THRESHOLD, NEVER)
    try:
        yield
    finally:
        library.mallopt(MMAP_MOST, OWN_MMAP_MOST)
        library.mallopt(MMAP_THRESHOLD, OWN_MMAP_THRESHOLD)
        library.mallopt(TRIM_THRESHOLD, OWN_TRIM_THRESHOLD)
        library.malloc_trim(0)
