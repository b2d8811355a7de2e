"""Findings about cards: which there are, what the driver says of them, or why CUDA finds none; and what they count."""

import csv
import os
import platform
import re
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from frugan.accelerator.base import Accelerator
from frugan.accelerator.choice import accelerator_of
from frugan.accelerator.cuda import Cuda
from frugan.accelerator.device import ran_out_of_memory, release_memory, tf32_decision
from frugan.accelerator.precision import resolve_precision
from frugan.doctor.finding import Finding, finding
from frugan.errors import BadInput
from frugan.setup.devices import CARDS, cpu_build, not_served, use_device
from frugan.stepmemory.calibration import calibrate, load_calibration, save_calibration
from frugan.stepmemory.cards import free_bytes, outside_bytes, room_bytes, spills
from frugan.training.kernels import told, verdicts, what_is_missing
from frugan.wording import MIB, first_line, show_size

ASKED = ("index", "uuid", "name", "memory.total", "memory.used", "driver_version", "display_active")
WSL_PROGRAM = Path("/usr/lib/wsl/lib/nvidia-smi")
"""Path of nvidia-smi in Linux under Windows, where it is not always on the search path."""
PATIENCE_SECONDS = 30.0
"""A driver that hangs is a finding too."""

LEAST_DRIVER = {13: 580, 12: 525, 11: 450}
"""CUDA's major version -> oldest driver branch that serves its programs (CUDA compatibility, minor versions)."""

Run = Callable[[Sequence[str]], "ProgramOutput"]


@dataclass(frozen=True)
class ProgramOutput:
    """Output of a program, and whether it ended well."""

    code: int | None  # exit code; None: the program did not end in time
    text: str  # its output and its errors


@dataclass(frozen=True)
class PhysicalCard:
    """A card as the driver sees it."""

    index: int  # in the driver's order, which is that of the slots
    uuid: str  # "GPU-…"
    name: str  # product name
    total_bytes: int | None  # total memory; None: the driver does not say
    used_bytes: int | None  # memory in use by all programs; None: the driver does not say
    shows: bool | None  # whether it draws a desktop; None: the driver does not say


@dataclass(frozen=True)
class Driver:
    """Answers of NVIDIA's driver."""

    found: bool  # whether its program is there
    version: str | None = None  # "580.65.06"; None: not known
    cards: tuple[PhysicalCard, ...] = ()  # cards that the driver sees
    trouble: str | None = None  # message of the driver in place of cards; None: it answered

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


def _query(program: str, fields: Sequence[str], run: Run) -> ProgramOutput:
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


def _run(words: Sequence[str]) -> ProgramOutput:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return ProgramOutput(None, "")
    except OSError as error:
        return ProgramOutput(1, str(error))
    return ProgramOutput(done.returncode, done.stdout + done.stderr)


_BY_WORDS = (
    (
        r"driver/library version mismatch",
        "the driver was updated and its old half still runs",
        "restart the computer",
    ),
    (
        r"error 802|not yet initialized",
        "the cards of this node wait for their fabric manager",
        "start the service nvidia-fabricmanager, of the driver's version",
    ),
    (
        r"error 803|error 804|forward compatib",
        "a CUDA library in front of the driver's own does not go with it",
        "take folders named compat out of LD_LIBRARY_PATH, or update the driver",
    ),
    (
        r"unknown error|error 999",
        "the driver does not answer CUDA, as happens after the computer has slept",
        "restart the computer (or, on Linux: sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm)",
    ),
    (
        r"couldn't communicate|no devices were found|driver/library|failed to initialize nvml",
        "the driver's program is there, the driver does not run",
        "reinstall the driver, or restart the computer if it was just installed",
    ),
    (
        r"error 46|busy or unavailable",
        "another program has the card for itself",
        "end it, or allow sharing: nvidia-smi --compute-mode=DEFAULT",
    ),
)
"""Pattern of an error text -> its meaning and cure."""


def torch_says() -> str | None:
    """Return torch's message when CUDA is initialised; None: it works."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Cuda.trouble()


def why_no_card(said: str | None, driver: Driver, environment: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Why there is no card, and the cure.

    Args:
        said: by torch.
        driver: what the driver said.
    """
    if (build := cpu_build(wanted=bool(driver.cards))) is not None:
        reason, _, cure = build.partition("; for an NVIDIA card: ")
        return reason, f"for an NVIDIA card: {cure}" if cure else "if there is a card, install its driver first"
    text = f"{said or ''} {driver.trouble or ''}"
    return (
        _hidden(text, driver, environment)
        or _too_old(text, driver)
        or known_trouble(text, driver.trouble)
        or _no_driver(driver)
        or (
            f"torch says {said or 'nothing'!r}; driver {driver.version or 'of no version'} has "
            f"{_list(driver) or 'no card'}",
            "update the driver, restart the computer, and run frugan doctor again",
        )
    )


def _hidden(text: str, driver: Driver, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the cause and the cure where the environment hides all cards."""
    hidden = environment.get(CARDS)
    if hidden is None or not driver.cards or re.search(r"too old|unknown error|error \d+", text, re.IGNORECASE):
        return None
    there = f"{CARDS}={hidden!r} leaves no card, and the driver has {_list(driver)}"
    return there, f"unset {CARDS}, or set it to the number of a card"


def known_trouble(text: str, said: str | None = None) -> tuple[str, str] | None:
    """Return the meaning of error texts and the cure; None: they are unknown.

    Args:
        text: of torch and the driver.
        said: what to quote; None: the words that were known.
    """
    for pattern, reason, cure in _BY_WORDS:
        if (match := re.search(pattern, text, re.IGNORECASE)) is not None:
            return f"{reason} ({said or match[0]})", cure
    return None


def _no_driver(driver: Driver) -> tuple[str, str] | None:
    if driver.found:
        return None
    if Path("/.dockerenv").exists():
        return (
            "no driver is to be seen in this container",
            "start it with --gpus all, with NVIDIA's container toolkit installed on the host",
        )
    return "no NVIDIA driver is here", "install the newest driver for the card; without a card, train on the CPU"


def _too_old(said: str, driver: Driver) -> tuple[str, str] | None:
    """Return the cause and the cure where the driver is too old for this build of torch, with a build that would do."""
    needed = least_driver()
    is_old = "too old" in said or (needed is not None and driver.branch is not None and driver.branch < needed)
    if not is_old:
        return None
    branch = driver.branch
    serves = [major for major, least in LEAST_DRIVER.items() if branch is not None and branch >= least]
    other = " (or the cu126 build of torch, which it serves)" if 12 in serves else ""
    named = f"driver {driver.version}" if driver.version else "the driver"
    build = f"this torch ({torch.__version__}), built with CUDA {torch.version.cuda},"
    return f"{named} is too old for {build} which needs {needed or 'a newer one'}", f"update the driver{other}"


def least_driver() -> int | None:
    """The oldest driver branch that serves this build of torch; None: a CPU or AMD build, or a CUDA not known here."""
    major = (torch.version.cuda or "").partition(".")[0]
    return LEAST_DRIVER.get(int(major)) if major.isdigit() else None


def _list(driver: Driver) -> str:
    return ", ".join(f"{card.index}: {card.name}" for card in driver.cards)


MUCH_TAKEN = 0.15
"""Share of a card that other programs hold from which on it is worth closing them."""


def in_our_order(driver: Driver) -> list[PhysicalCard | None]:
    """Return the driver's entry of each card of this process, in its order; None: not found. CUDA has been
    initialised."""
    by_uuid = {card.uuid.lower().removeprefix("gpu-"): card for card in driver.cards}
    return [by_uuid.get((card.uuid or "").lower().removeprefix("gpu-")) for card in _cards()]


def _cards() -> list[Cuda]:
    """Every card of this process, in its order."""
    return [Cuda(torch.device("cuda", index)) for index in range(Cuda.count())]


def device_finding(requested: str) -> tuple[Finding, torch.device | None]:
    """Find the device that training would use; None: there is none. A card becomes torch's current one, as in
    training."""
    try:
        device, why = use_device(requested)
    except BadInput as error:
        reason, _, cure = str(error).partition("; ")
        return Finding("device", "impossible", reason, cure or None, {"device": None}), None
    return finding("device", f"training runs on {device}: {why}", device=str(device)), device


def card_findings(driver: Driver, environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Report the cards, and which of them this torch supports."""
    said = torch_says()
    if said is not None or Cuda.count() == 0:
        reason, cure = why_no_card(said, driver, environment)
        seen = [card.name for card in driver.cards]
        return [finding("card", f"none: {reason}", cure, cards=[], driver=driver.version, driver_sees=seen)]
    cards = [_card_finding(card, driver) for card in _cards()]
    return [*cards, _order_finding(driver, environment)]


def _card_finding(card: Cuda, driver: Driver) -> Finding:
    capability = card.capability
    line = (
        f"{card.device} is {card.name}, {show_size(card.total_bytes)}, compute capability "
        f"{capability[0]}.{capability[1]}, driver {driver.version or 'not known'}"
    )
    cure, reason = None, not_served(card)
    if reason is not None:
        why, _, cure = reason.partition("; ")
        line += f", cannot be used: {why}"
    return finding(
        "card",
        line,
        cure,
        index=card.device.index,
        name=card.name,
        capability=list(capability),
        total_bytes=card.total_bytes,
        driver=driver.version,
        cuda=torch.version.cuda,
        served=reason is None,
    )


def _order_finding(driver: Driver, environment: Mapping[str, str]) -> Finding:
    """Which card of the driver's each one is: CUDA puts the fastest first, the driver goes by slots."""
    pairs = {index: card.index if card else None for index, card in enumerate(in_our_order(driver))}
    told = ", ".join(
        f"cuda:{index} is {f'card {there}' if there is not None else 'not found'}" for index, there in pairs.items()
    )
    moved = any(there not in (None, index) for index, there in pairs.items())
    cure = None
    if moved and CARDS not in environment and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        cure = "CUDA_DEVICE_ORDER=PCI_BUS_ID gives them the driver's numbers"
    numbers = {str(index): there for index, there in pairs.items()}
    return finding("card numbers", f"{told} in nvidia-smi", cure, logical_to_physical=numbers)


def precision_finding(device: torch.device) -> Finding:
    """Report the precision that `precision = auto` resolves to."""
    precision = resolve_precision("auto", device)
    arithmetic = tf32_decision(accelerator_of(device).capability)
    forced = arithmetic is not None and ": on," in arithmetic
    half = precision.name if precision.name != "fp32" else "no half precision"
    return finding(
        "precision",
        f"{half}: {precision.reason}" + (f"; {arithmetic}" if arithmetic else ""),
        "unset NVIDIA_TF32_OVERRIDE" if forced else None,
        auto=precision.name,
        tf32_forced=forced,
    )


def memory_finding(device: torch.device, driver: Driver, system: str | None = None) -> Finding:
    """Report a card's free memory and who uses the rest. Loads CUDA's libraries, which take their part of it."""
    system = system or platform.system()
    try:
        usable, whole = free_bytes(device)
        free = accelerator_of(device).free_bytes
    except RuntimeError as error:
        reason, cure = _trouble(error)
        return finding("card memory", f"{device} does not work: {reason}", cure)
    # the driver's cards are CUDA's; another kind is not among them
    physical = in_our_order(driver)[device.index or 0] if device.type == Cuda.kind else None
    others = physical.used_bytes if physical is not None else None
    line = f"{show_size(whole)} in all, {show_size(free)} free, {show_size(max(0, usable))} of it to plan with"
    cures = []
    if others is not None:
        who = "the desktop and other programs" if physical is not None and physical.shows else "other programs"
        line += f"; {who} held {show_size(others)} before"
        if others > MUCH_TAKEN * whole:
            cures.append("close other programs on the card; nvidia-smi lists them")
    if spills(system):
        line += "; a full card spills into system memory here, which is very slow: frugan stays below that"
        if system == "Windows":  # Linux under it does not obey the setting
            cures.append(
                'to make other programs fail instead: NVIDIA Control Panel, "CUDA - Sysmem Fallback Policy", '
                '"Prefer No Sysmem Fallback"'
            )
    return finding(
        "card memory",
        line,
        "; ".join(cures) or None,
        total_bytes=whole,
        free_bytes=free,
        usable_bytes=usable,
        others_bytes=others,
    )


CALIBRATE = "frugan plan RECIPE --calibrate"
"""Command that measures a card anew."""


def kernels_finding(device: torch.device, *, measures: bool = True) -> Finding:
    """Which kernels of frugan's own are used on a CUDA card; tried now if they never were.

    Args:
        measures: whether there is time for it.
    """
    if (missing := what_is_missing(device)) is not None:
        return finding("kernels", f"torch's own operations in place of frugan's: {missing}")
    found = verdicts(device, tries=measures)
    line = "; ".join(told(name, verdict) for name, verdict in found.items())
    values = {name: asdict(verdict) for name, verdict in found.items()}
    return finding("kernels", line or "not tried, for want of time: the first training tries them", kernels=values)


def calibration_finding(device: torch.device, folder: Path, *, measures: bool = True) -> Finding:
    """Report the memory that the planner reserves for CUDA and its libraries; measured now if it never was.

    Args:
        folder: where measurements are kept.
        measures: whether there is time for it.
    """
    card = load_calibration(accelerator_of(device).name, folder)
    when = "measured before"
    if card is None and not measures:
        return finding("planner", "not measured, for want of time: the planner guesses", CALIBRATE)
    if card is None:
        try:
            card = calibrate(device)
        except RuntimeError as error:
            reason, cure = _trouble(error)
            line = f"not measured ({reason}): the planner guesses"
            return finding("planner", line, f"{cure}; then: {CALIBRATE}")
        when = "measured now"
        try:
            save_calibration(card, folder)
        except OSError as error:
            when = f"measured now, and cannot be kept ({error.strerror})"
    line = (
        f"CUDA's context takes {show_size(card.context_bytes)}, workspaces {show_size(card.workspace_bytes)}; "
        f"{card.seconds_per_operation * 1e6:.0f} µs an operation ({when})"
    )
    doubtful = card.context_bytes > 1500 * MIB
    return finding(
        "planner",
        line,
        f"other programs took memory while it was measured: close them, then {CALIBRATE}" if doubtful else None,
        context_bytes=card.context_bytes,
        workspace_bytes=card.workspace_bytes,
        macs_per_s=dict(card.macs_per_s),
        bytes_per_s=card.bytes_per_s,
        host_bytes_per_s=card.host_bytes_per_s,
        seconds_per_operation=card.seconds_per_operation,
    )


def _trouble(error: RuntimeError) -> tuple[str, str]:
    """Return the failure of a card, and its cure."""
    reason = first_line(error)
    if ran_out_of_memory(error):
        return f"there is no room on it: {reason}", "close other programs on the card; nvidia-smi lists them"
    return known_trouble(reason) or (reason, "restart the computer; if that does not help, update the driver")


@dataclass
class MeasuredMemory:
    """Memory that was taken inside `CardTools.watched`, known at its end."""

    allocated_bytes: int = 0  # most that lived at once
    reserved_bytes: int = 0  # most that torch's allocator reserved
    kept_bytes: int = 0  # memory that the allocator still reserved at the end
    # memory taken outside the allocator by the end: CUDA's context and libraries, and other programs
    outside_bytes: int = 0


@dataclass
class CardTools:
    """A card, by torch's own counters and switches."""

    device: torch.device  # with its number

    @property
    def card(self) -> Accelerator:
        """The card as the engine's accelerator."""
        return accelerator_of(self.device)

    def wait(self) -> None:
        """Wait until all work that was queued is done."""
        self.card.synchronize()

    def refusing_to_wait(self) -> AbstractContextManager[None]:
        """Let whatever makes the host wait for the card raise RuntimeError."""
        return self.card.refusing_to_wait()

    def room_bytes(self) -> int:
        """Bytes that this process may reserve."""
        return room_bytes(self.device)

    @contextmanager
    def watched(self) -> Iterator[MeasuredMemory]:
        """Watch memory; what is there already does not count."""
        card = self.card
        card.synchronize()
        release_memory(self.device)
        live, reserved = card.live_bytes, card.reserved_bytes
        card.reset_peaks()
        taken = MeasuredMemory()
        yield taken
        card.synchronize()
        taken.allocated_bytes, taken.reserved_bytes = card.peak_live_bytes - live, (card.peak_bytes or 0) - reserved
        taken.outside_bytes = outside_bytes(self.device)
        release_memory(self.device)
        taken.kept_bytes = card.reserved_bytes - reserved

    @contextmanager
    def capped(self, more_bytes: int) -> Iterator[None]:
        """Let this process have so much more than it has, and no more; what CUDA itself takes is not counted."""
        card = self.card
        card.synchronize()
        release_memory(self.device)
        before = card.limit_bytes
        card.limit(min(before, card.reserved_bytes + more_bytes))
        try:
            yield
        finally:
            card.limit(before)


def tools_of(device: torch.device) -> CardTools | None:
    """The tools of a device; None: it is no card."""
    return CardTools(device) if accelerator_of(device).is_card else None
