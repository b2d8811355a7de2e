"""Machine code of Triton's kernels for cards that are not here, by ptxas, which Triton brings."""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TARGETS = ("sm_75", "sm_86", "sm_90", "sm_120")
"""Cards as ptxas calls them: RTX 20xx, RTX 30xx, H100 and RTX 50xx."""


@dataclass(frozen=True)
class KernelCode:
    """Machine code of one kernel."""

    registers: int = 0  # of a thread
    shared_bytes: int = 0  # of a block
    spilt_bytes: int = 0  # that a thread stores and loads because registers do not suffice
    error: str | None = None  # why there is none


def code_of(kernel: Any, target: str) -> KernelCode:
    """What becomes of a kernel that Triton has compiled for a target."""
    with tempfile.TemporaryDirectory() as folder:
        said = _assembled(kernel.asm["ptx"], target, Path(folder))
    registers = re.search(r"Used (\d+) registers", said)
    if registers is None:
        return KernelCode(error=f"ptxas named no registers: {said[:200]}")
    spilt = sum(map(int, re.findall(r"(\d+) bytes spill", said)))
    return KernelCode(int(registers[1]), int(kernel.metadata.shared), spilt)


def _assembled(ptx: str, target: str, folder: Path) -> str:
    """What ptxas says of a kernel."""
    from triton.backends.nvidia.compiler import get_ptxas  # noqa: PLC0415  (an extra)

    capability = int(target.removeprefix("sm_"))
    ptxas = get_ptxas(capability).path
    file = folder / "kernel.ptx"
    file.write_text(ptx, "utf-8")
    architecture = f"{target}a" if capability >= 90 else target  # as Triton writes it
    words = [ptxas, "-v", f"--gpu-name={architecture}", str(file), "-o", str(folder / "kernel.cubin")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"ptxas: {done.stderr[:200]}")
    return done.stderr
