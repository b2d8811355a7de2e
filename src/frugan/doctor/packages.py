"""Findings about packages: torch, what several cards need, and extras."""

import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType

import torch
from torch import distributed

from frugan.data.wording import count
from frugan.doctor.finding import Finding, finding

LEAST_TORCH = (2, 11)


@dataclass(frozen=True)
class Extra:
    """What is installed when it is asked for.

    Attributes:
        packages: as the registry names them.
        purpose: what for.
    """

    packages: tuple[str, ...]
    purpose: str


EXTRAS: Mapping[str, Extra] = MappingProxyType(
    {
        "data": Extra(("h5py",), "HDF5 files"),
        "face": Extra(("opencv-python-headless",), "face models"),
        "export": Extra(("onnx", "onnxruntime"), "ONNX files (dfm)"),
        "report": Extra(
            ("matplotlib", "tensorboard"), "TensorBoard, curves (frugan evaluate --plot), and benchmarks' figures"
        ),
    }
)
"""As pyproject.toml has them; `dev` is for those who work on frugan."""


def torch_finding() -> Finding:
    """Versions."""
    own = _version("frugan") or "not installed as a package"
    line = f"frugan {own}, torch {torch.__version__}, Python {platform.python_version()}, {platform.platform()}"
    match = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    old = match is not None and (int(match[1]), int(match[2])) < LEAST_TORCH
    least = ".".join(map(str, LEAST_TORCH))
    return Finding(
        "versions",
        "impossible" if old else "fine",
        line,
        f"frugan needs torch {least} or newer: pip install --upgrade torch" if old else None,
        {
            "frugan": own,
            "torch": str(torch.__version__),
            "cuda": torch.version.cuda,
            "hip": torch.version.hip,
            "python": platform.python_version(),
            "system": platform.platform(),
        },
    )


def ranks_finding(cards: int) -> Finding:
    """What several processes can talk by."""
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
