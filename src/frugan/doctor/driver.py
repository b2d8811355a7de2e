"""What the driver knows of cards, asked of `nvidia-smi`: it answers where CUDA does not, and by its own numbering."""

import csv
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from frugan.memory.sizes import MIB

ASKED = ("index", "uuid", "name", "memory.total", "memory.used", "driver_version", "display_active")
WSL_PROGRAM = Path("/usr/lib/wsl/lib/nvidia-smi")
"""Where Windows puts it for Linux under it; not always on the path there."""
PATIENCE_SECONDS = 30.0
"""A driver that hangs is a finding too."""

LEAST_DRIVER = {13: 580, 12: 525, 11: 450}
"""CUDA's major version -> oldest driver branch that serves its programs (CUDA compatibility, minor versions)."""

Run = Callable[[Sequence[str]], "Said"]


@dataclass(frozen=True)
class Said:
    """What a program printed.

    Attributes:
        code: it ended with; None: it did not end in time.
        text: its output and its errors.
    """

    code: int | None
    text: str


@dataclass(frozen=True)
class PhysicalCard:
    """A card as the driver sees it.

    Attributes:
        index: in the driver's order, which is that of the slots.
        uuid: "GPU-…".
        name: its maker's.
        total_bytes: of memory; None: it does not say.
        used_bytes: by all programs; None: it does not say.
        shows: whether a desktop is drawn by it; None: it does not say.
    """

    index: int
    uuid: str
    name: str
    total_bytes: int | None
    used_bytes: int | None
    shows: bool | None


@dataclass(frozen=True)
class Driver:
    """The driver.

    Attributes:
        found: whether its program is there.
        version: "580.65.06"; None: not known.
        cards: that it sees.
        trouble: what it said instead of cards; None: it answered.
    """

    found: bool
    version: str | None = None
    cards: tuple[PhysicalCard, ...] = ()
    trouble: str | None = None

    @property
    def branch(self) -> int | None:
        """The first number of its version."""
        first = (self.version or "").partition(".")[0]
        return int(first) if first.isdigit() else None


def ask_driver(run: Run | None = None) -> Driver:
    """Ask the driver, before CUDA is set up: what cards hold then is other programs'.

    Args:
        run: runs a program; None: as the system does.
    """
    program = shutil.which("nvidia-smi") or (str(WSL_PROGRAM) if WSL_PROGRAM.is_file() else None)
    if program is None:
        return Driver(found=False)
    said = _query(program, ASKED, run or _run)
    if said.code not in (0, None) and "not a valid field" in said.text:  # names come and go with drivers
        said = _query(program, ASKED[:-1], run or _run)
    if said.code != 0:
        words = " ".join(said.text.split()) or "nothing"
        return Driver(found=True, trouble=words if said.code is not None else f"no answer in {PATIENCE_SECONDS:.0f} s")
    least = len(ASKED) - 1
    rows = [row for row in csv.reader(said.text.splitlines(), skipinitialspace=True) if len(row) >= least]
    if not rows:
        return Driver(found=True, trouble=" ".join(said.text.split()) or "no card")
    return Driver(found=True, version=rows[0][5].strip(), cards=tuple(map(_card, rows)))


def _query(program: str, fields: Sequence[str], run: Run) -> Said:
    return run([program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"])


def _card(row: Sequence[str]) -> PhysicalCard:
    index, uuid, name, total, used, _, *shows = (word.strip() for word in row)
    return PhysicalCard(
        index=int(index),
        uuid=uuid,
        name=name,
        total_bytes=_mebibytes(total),
        used_bytes=_mebibytes(used),
        shows={"Enabled": True, "Disabled": False, "Yes": True, "No": False}.get("".join(shows)),
    )


def _mebibytes(text: str) -> int | None:
    """Bytes of a number of MiB; None where it says "[N/A]" or "[Not Supported]"."""
    return int(text) * MIB if text.isdigit() else None


def _run(words: Sequence[str]) -> Said:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Said(None, "")
    except OSError as error:
        return Said(1, str(error))
    return Said(done.returncode, done.stdout + done.stderr)
