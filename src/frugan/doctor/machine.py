"""Findings about the computer beside its cards: environment, memory, disk, limits, packages; and all in order."""

import errno
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType

import torch
from torch import distributed

from frugan.accelerator.choice import accelerator_of
from frugan.accelerator.cuda import Cuda
from frugan.accelerator.device import available_cores
from frugan.doctor.card_activity import activity_finding, last_training_finding
from frugan.doctor.cards import (
    Driver,
    ask_driver,
    calibration_finding,
    card_findings,
    device_finding,
    kernels_finding,
    memory_finding,
    precision_finding,
)
from frugan.doctor.finding import Finding, finding
from frugan.engine.run.threads import asked_for, machine_name
from frugan.files import Folders
from frugan.progress import Say, quiet
from frugan.setup.devices import CGROUP_LIMIT, READ, container_limit, misspelt, physical_bytes
from frugan.stepmemory.allocator import not_modelled
from frugan.stepmemory.cards import spills
from frugan.version import __version__
from frugan.wording import GIB, MIB, count, show_size

CHANGES_TRAINING = ("CUDA_LAUNCH_BLOCKING",)
"""Debugging aids that are left on by mistake: each kernel is waited for."""


def environment_findings(environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Report environment variables that are set or misspelt."""
    foreign = {name: environment[name] for name in READ if name in environment and not name.startswith("FRUGAN_")}
    line = ", ".join(f"{name}={value}" for name, value in foreign.items()) or "nothing set that concerns training"
    cures = [
        f"unset {name}: with it the host waits for every kernel"
        for name in CHANGES_TRAINING
        if environment.get(name) not in (None, "", "0")
    ]
    if (settings := not_modelled(environment)) is not None:
        cures.append(f"plans model torch's allocator as it is without {settings}: unset it if they turn out wrong")
    return [
        finding(
            "environment",
            line,
            "; ".join(cures) or None,
            set={name: _without_identity(value) for name, value in foreign.items()},
        ),
        *(
            finding(
                "environment",
                f"{name} is set, which nothing reads",
                f"did you mean {meant}? Set that one, and unset {name}",
                misspelt=name,
                meant=meant,
            )
            for name, meant in misspelt(environment).items()
        ),
    ]


def _without_identity(value: str) -> str:
    """A value without the numbers by which one card in the world is known."""
    return re.sub(r"\b(GPU|MIG)-[0-9A-Fa-f-]+", r"\1-…", value)


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
    """Report the processor and torch's threads."""
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
    if platform.system() != "Windows" and spills():
        line += "; WSL2 pins about a gigabyte of it at most: what is kept beside the card goes there more slowly"
    return finding("host memory", line, cure, total_bytes=has)


def run_folder_finding(folder: Path, probe_bytes: int = PROBE_BYTES) -> Finding:
    """Report whether runs can be written, how fast, and how much room there is.

    Args:
        folder: of runs; need not be there.
        probe_bytes: written, and taken away again.
    """
    there = next((path for path in (folder.absolute(), *folder.absolute().parents) if path.exists()), Path.cwd())
    elsewhere = "choose another folder: --out, or FRUGAN_RUNS in the environment"
    if not there.is_dir():
        return Finding("run folder", "impossible", f"{folder} cannot be written: {there} is a file", elsewhere)
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
    return tuple(2**31 if limit == resource.RLIM_INFINITY else limit for limit in (soft, hard))  # type: ignore[return-value]


LEAST_TORCH = (2, 11)


@dataclass(frozen=True)
class Extra:
    """Packages of an optional dependency group, and their use."""

    packages: tuple[str, ...]  # names of the packages in the registry
    purpose: str  # use of the packages, for people


EXTRAS: Mapping[str, Extra] = MappingProxyType(
    {
        "data": Extra(("h5py",), "HDF5 files"),
        "heic": Extra(("pillow-heif",), "HEIC pictures"),
        "face": Extra(("opencv-python-headless",), "face models"),
        "export": Extra(("onnx", "onnxruntime"), "ONNX files (dfm, frugan export)"),
        "report": Extra(
            ("matplotlib", "tensorboard"), "TensorBoard, curves (frugan evaluate --plot), and benchmarks' figures"
        ),
        "page": Extra(("starlette", "uvicorn"), "frugan page"),
        "nvml": Extra(("nvidia-ml-py",), "how busy and how warm an NVIDIA card is, while training and here"),
    }
)
"""Optional dependencies of pyproject.toml but `dev`, which is for those who work on frugan."""


def torch_finding() -> Finding:
    """Report versions of frugan, torch and Python."""
    frugan = f"frugan {__version__}" + ("" if _version("frugan") else " (run from its tree, not installed)")
    line = f"{frugan}, torch {torch.__version__}, Python {platform.python_version()}, {platform.platform()}"
    match = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    old = match is not None and (int(match[1]), int(match[2])) < LEAST_TORCH
    least = ".".join(map(str, LEAST_TORCH))
    return Finding(
        "versions",
        "impossible" if old else "fine",
        line,
        f"frugan needs torch {least} or newer: pip install --upgrade torch" if old else None,
        {
            "frugan": __version__,
            "torch": str(torch.__version__),
            "cuda": torch.version.cuda,
            "hip": torch.version.hip,
            "python": platform.python_version(),
            "system": platform.platform(),
        },
    )


def ranks_finding(cards: int) -> Finding:
    """Report the backends by which ranks can communicate."""
    backends = {"nccl": False, "gloo": False}
    if distributed.is_available():
        backends = {"nccl": distributed.is_nccl_available(), "gloo": distributed.is_gloo_available()}
    there = [name for name, is_there in backends.items() if is_there]
    lacking = cards > 1 and not backends["nccl"]
    cure = None
    if lacking:
        windows = platform.system() == "Windows"
        cure = "NCCL is not for Windows: several cards want Linux" if windows else "install torch's own build for CUDA"
    return finding(
        "ranks",
        f"{count(cards, 'card')} here; processes that share a training (torchrun) can talk by "
        f"{' and '.join(there) or 'nothing'}",
        cure,
        cards=cards,
        **backends,
    )


def extras_findings(installed: Callable[[str], str | None] | None = None) -> list[Finding]:
    """Which extras are there.

    Args:
        installed: a package's version, or None where it is not there; None: as this environment has it.
    """
    look = installed or _version
    findings = []
    for name, extra in EXTRAS.items():
        versions = {package: look(package) for package in extra.packages}
        missing = [package for package, there in versions.items() if there is None]
        told = ", ".join(f"{package} {there}" for package, there in versions.items() if there is not None)
        findings.append(
            Finding(
                f"extra {name}",
                "fine",
                f"for {extra.purpose}: " + (f"not installed: {', '.join(missing)}" if missing else told),
                f"if you want that: pip install 'frugan[{name}]'" if missing else None,
                {"extra": name, "versions": versions},
            )
        )
    return findings


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def examine(
    device: str = "auto",
    runs: Path | None = None,
    *,
    driver: Driver | None = None,
    environment: Mapping[str, str] = os.environ,
    measures: bool = True,
    say: Say = quiet,
) -> list[Finding]:
    """Look at this machine.

    Args:
        device: what training shall run on: auto, cpu, cuda or cuda:N.
        runs: folder that runs will be written to; None: the usual one.
        driver: what the driver says; None: it is asked.
        environment: variables.
        measures: whether there is time to measure a card that was never measured.
        say: is told what takes long.

    Returns:
        A finding for each thing that was looked at; `training_is_possible` judges them together.
    """
    folders = Folders.from_environment()
    asked_driver = driver or ask_driver()  # before CUDA is set up, and takes memory itself
    findings = [torch_finding(), *environment_findings(environment), *card_findings(asked_driver, environment)]
    chosen_finding, chosen = device_finding(device)
    findings.append(chosen_finding)
    if chosen is not None:
        findings.append(precision_finding(chosen))
    if chosen is not None and accelerator_of(chosen).is_card:
        memory = memory_finding(chosen, asked_driver)
        findings += [memory, activity_finding(chosen)]
        if memory.values:  # else it does not work, or has no room
            if measures:
                say("measuring what CUDA and its libraries take, in about ten seconds the first time")
            findings.append(calibration_finding(chosen, folders.cache, measures=measures))
            if accelerator_of(chosen).kind == "cuda":
                findings.append(kernels_finding(chosen, measures=measures))
    if (last := last_training_finding(runs or folders.runs)) is not None:
        findings.append(last)
    cards = Cuda.count()
    return [
        *findings,
        processor_finding(),
        host_memory_finding(),
        run_folder_finding(runs or folders.runs),
        *limits_findings(),
        ranks_finding(cards),
        *extras_findings(),
    ]
