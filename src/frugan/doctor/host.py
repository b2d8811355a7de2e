"""Findings about the computer beside the card: memory, the disk of runs, limits."""

import errno
import os
import platform
import shutil
import tempfile
import time
from pathlib import Path

from frugan.api.machine.host_memory import CGROUP_LIMIT, container_limit, physical_bytes
from frugan.doctor.finding import Finding, finding
from frugan.engine.threads import asked_for, available_cores, machine_name
from frugan.memory.sizes import GIB, MIB, show_size

PROBE_BYTES = 64 * MIB
"""Written to time a disk: beyond what a drive takes into its own memory, and little beside a checkpoint."""
SLOW_BYTES_PER_S = 40e6
"""A checkpoint of 3 GiB, with averages and an optimizer's state, takes more than a minute then."""
LITTLE_DISK_BYTES = 10 * GIB
LEAST_DISK_BYTES = 256 * MIB
"""No checkpoint of anything but a demo fits into less."""
ENOUGH_FILES = 1024
"""Open files: processes that make samples, shared memory, pipes and logs."""
ENOUGH_SHARED_BYTES = GIB
ENOUGH_MEMORY_BYTES = 8 * GIB
SHARED_FOLDER = Path("/dev/shm")


def processor_finding() -> Finding:
    """Processor and threads."""
    threads = asked_for()
    line = f"{machine_name()}; threads: " + (
        f"OMP_NUM_THREADS={threads}" if threads else "found out when training begins"
    )
    return finding("processor", line, name=machine_name(), cores=available_cores())


def host_memory_finding(limit: Path = CGROUP_LIMIT) -> Finding:
    """Memory of the computer, or of the container."""
    whole = physical_bytes()
    if whole is None:
        return finding("host memory", "this system does not say", total_bytes=None)
    has = min(whole, container_limit(limit) or whole)
    contained = has < whole
    line = f"{show_size(has)}" + (
        f", a limit of this container (the computer has {show_size(whole)})" if contained else ""
    )
    cure = None
    if has < ENOUGH_MEMORY_BYTES:
        cure = "allow the container more" if contained else "small recipes only, or no memory saving that uses the host"
    if "microsoft" in platform.release().lower():
        line += "; WSL2 pins about a gigabyte of it at most: what is kept beside the card goes there more slowly"
    return finding("host memory", line, cure, total_bytes=has)


def run_folder_finding(folder: Path, probe_bytes: int = PROBE_BYTES) -> Finding:
    """Whether runs can be written, how fast, and how much room there is.

    Args:
        folder: of runs; need not be there.
        probe_bytes: written, and taken away again.
    """
    there = next((each for each in (folder.absolute(), *folder.absolute().parents) if each.is_dir()), Path.cwd())
    elsewhere = "choose another folder: --out, or FRUGAN_RUNS in the environment"
    free = shutil.disk_usage(there).free
    try:
        seconds = _time_writing(there, probe_bytes)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
        cure = f"free some room, or {elsewhere}" if full else elsewhere
        return Finding("run folder", "impossible", f"{folder} cannot be written: {error.strerror}", cure)
    speed = probe_bytes / seconds
    line = f"{folder}: writes {speed / 1e6:,.0f} MB/s, {show_size(free)} free"
    values = {"bytes_per_s": speed, "free_bytes": free}
    if free < LEAST_DISK_BYTES:
        return Finding("run folder", "impossible", line, f"free some room, or {elsewhere}", values)
    cures = []
    if speed < SLOW_BYTES_PER_S:
        cures.append(f"checkpoints will take long ({3 * GIB / speed:.0f} s for 3 GiB): {elsewhere}")
    if free < LITTLE_DISK_BYTES:
        cures.append("a large recipe's checkpoints take several GiB each: free some room")
    return finding("run folder", line, "; ".join(cures) or None, **values)


def _time_writing(folder: Path, size_bytes: int) -> float:
    """Seconds that a file takes until it is on the disk."""
    piece = os.urandom(MIB)
    with tempfile.TemporaryFile(dir=folder) as file:
        began = time.perf_counter()
        for _ in range(max(1, size_bytes // MIB)):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        return time.perf_counter() - began


def limits_findings(shared: Path = SHARED_FOLDER) -> list[Finding]:
    """Open files, and memory that processes share."""
    findings = []
    if (files := _open_files()) is not None:
        soft, hard = files
        line = f"{soft:,} at once (may be raised to {hard:,})" if hard > soft else f"{soft:,} at once"
        cure = f"ulimit -n {min(4096, hard)}" if soft < ENOUGH_FILES else None
        findings.append(finding("open files", line, cure, soft=soft, hard=hard))
    if shared.is_dir():
        free = shutil.disk_usage(shared).free
        line = f"{show_size(free)} free in {shared}, for processes that make samples and for several cards"
        more = "in a container, start it with more: --shm-size=2g, or --ipc=host; else use --workers 0"
        cure = more if free < ENOUGH_SHARED_BYTES else None
        findings.append(finding("shared memory", line, cure, free_bytes=free))
    return findings


def _open_files() -> tuple[int, int] | None:
    """Soft and hard limit of open files; None: Windows, which has none to raise."""
    try:
        import resource  # noqa: PLC0415  (not on Windows)
    except ImportError:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return tuple(2**31 if each == resource.RLIM_INFINITY else each for each in (soft, hard))  # type: ignore[return-value]
