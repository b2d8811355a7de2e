"""Measures a device in about ten seconds: what it reaches, how long something takes, what its libraries take."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from frugan.accelerator.base import card_has_tf32
from frugan.accelerator.choice import accelerator_of
from frugan.accelerator.host_memory import host_like
from frugan.accelerator.precision import DTYPES, resolve_precision
from frugan.files import Folders, atomic_file, read_json
from frugan.stepmemory.cards import WORKSPACE_BYTES, Card, card_here, named_card, outside_bytes, unnamed_card
from frugan.stepmemory.work import WorkCounter
from frugan.wording import MIB

_MATRIX, _MATRIX_ON_CARD = 2048, 8192
"""Side of the product: 2048 takes about 0.1 s on two cores, 8192 about 20 ms in fp32 on a large card."""

_COPY_BYTES, _COPY_BYTES_ON_CARD = 2**28, 2**30
"""Far beyond the caches."""


@dataclass(frozen=True)
class Peaks:
    """Speeds that a device reaches."""

    macs_per_s: float  # multiply-accumulates per second, in a big matrix product
    bytes_per_s: float  # bytes read plus bytes written per second, in a big copy


def measure_peaks(device: torch.device | str, dtype: torch.dtype = torch.float32) -> Peaks:
    """Measure a device's peaks, in a second or two.

    Args:
        device: what is measured.
        dtype: of the matrices; cards and newer processors multiply half precision several times faster than fp32.
    """
    device = torch.device(device)
    return Peaks(_macs_per_s(device, dtype), _bytes_per_s(device))


def _macs_per_s(device: torch.device, dtype: torch.dtype) -> float:
    """In a product of matrices of which nothing stays."""
    side, room_bytes = _MATRIX, _room_bytes(device)
    if room_bytes is not None:
        side = _MATRIX_ON_CARD
        while 3 * side**2 * dtype.itemsize > room_bytes:
            side //= 2
    a, b = (random_matrix(side, dtype, device) for _ in range(2))
    product = torch.empty_like(a)
    return side**3 / measure_latency(lambda: torch.mm(a, b, out=product), device)


def _tf32_macs_per_s(device: torch.device) -> float:
    matmul = torch.backends.cuda.matmul
    before, matmul.allow_tf32 = matmul.allow_tf32, True
    try:
        return _macs_per_s(device, torch.float32)
    finally:
        matmul.allow_tf32 = before


def random_matrix(side: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """For products that are timed: of constants a card's units switch little, draw less power and clock higher."""
    numbers = torch.Generator(device).manual_seed(0)
    return torch.randn(side, side, dtype=dtype, device=device, generator=numbers)


def _bytes_per_s(device: torch.device) -> float:
    """In a copy of which nothing stays."""
    copied_bytes, room_bytes = _COPY_BYTES, _room_bytes(device)
    if room_bytes is not None:
        copied_bytes = _COPY_BYTES_ON_CARD
        while 2 * copied_bytes > room_bytes:
            copied_bytes //= 2
    source = torch.ones(copied_bytes // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return 2 * copied_bytes / measure_latency(lambda: target.copy_(source), device)


def _room_bytes(device: torch.device) -> int | None:
    """Return the bytes of a card that a measurement may take: half of what is free. None: the device is none."""
    accelerator = accelerator_of(device)
    accelerator.give_back()
    return accelerator.free_bytes // 2 if accelerator.is_card else None


def measure_latency(
    call: Callable[[], object],
    device: torch.device | str,
    *,
    repeats: int = 10,
    budget_seconds: float = 1.0,
    queued: int = 1,
) -> float:
    """Time a call: the least of several runs, which other users of the machine disturb least.

    Args:
        call: what to time; run once before, to warm up.
        device: where its work is queued; waited for if it is a card's.
        repeats: runs at most.
        budget_seconds: no further run is begun after so long; at least two are timed.
        queued: calls of a run, between two waits. Of many, a card's time is taken where the host is ahead of it; of
            one, the host's time to start it is added.

    Returns:
        Seconds of one call.
    """
    accelerator = accelerator_of(torch.device(device))

    def timed() -> float:
        accelerator.synchronize()
        begun = time.perf_counter()
        for _ in range(queued):
            call()
        accelerator.synchronize()
        return time.perf_counter() - begun

    timed()
    times = [timed(), timed()]
    while len(times) < repeats and sum(times) < budget_seconds:
        times.append(timed())
    return min(times) / queued


FORMAT = 2
_CONVOLUTIONS: tuple[tuple[Callable[[Tensor, Tensor], Tensor], Callable[[int], tuple[int, ...]]], ...] = (
    (partial(F.conv2d, padding=1), lambda c: (c, c, 3, 3)),
    (partial(F.conv2d, padding=1, stride=2), lambda c: (c, c, 3, 3)),
    (partial(F.conv_transpose2d, padding=1, stride=2), lambda c: (c, c, 4, 4)),
    (F.conv2d, lambda c: (c, c, 1, 1)),
)
"""Convolutions of the networks that ship, and the shapes of their weights by the number of channels. Depthwise ones are
left out: torch runs some of them by kernels of its own, which take nothing."""
_SHAPES = ((8, 96, 128, 128), (32, 192, 64, 64), (32, 768, 16, 16))
"""Activations [B, C, H, W] like those of the generators that ship."""


def calibrate(device: torch.device) -> Card:
    """Measure a device.

    On a card, close other programs first: what they hold cannot be told from what the CUDA context does.
    """
    bytes_per_s = _bytes_per_s(device)
    accelerator = accelerator_of(device)
    reached = {name: _macs_per_s(device, DTYPES[name]) for name in _precisions(device)}
    slowest = min(reached.values())
    tf32 = {"tf32": _tf32_macs_per_s(device)} if card_has_tf32(accelerator.capability) else {}
    small = torch.zeros(16, device=device)
    per_kernel = measure_latency(lambda: [small.add_(1) for _ in range(1000)], device) / 1000
    workspace_bytes = (
        _workspace_bytes(device) if accelerator.is_card else 0
    )  # before the context: this loads the libraries
    return Card(
        name=accelerator.name,
        memory_bytes=accelerator.total_bytes if accelerator.is_card else None,
        macs_per_s={name: reached.get(name, slowest) for name in DTYPES} | tf32,
        bytes_per_s=bytes_per_s,
        host_bytes_per_s=_host_bytes_per_s(device) if accelerator.is_card else bytes_per_s,
        seconds_per_kernel=per_kernel,
        seconds_per_operation=seconds_per_operation(device),
        context_bytes=_context_bytes(device) if accelerator.is_card else 0,
        workspace_bytes=workspace_bytes,
        source="measured",
        capability=accelerator.capability,
        queued=accelerator.is_card,
    )


def _precisions(device: torch.device) -> tuple[str, ...]:
    """Return the precisions worth measuring: bf16 where the hardware has it, as elsewhere it is refused or emulated."""
    accelerator = accelerator_of(device)
    if not accelerator.is_card:
        return tuple(dict.fromkeys(("fp32", resolve_precision("auto", device).name)))
    return ("fp32", "fp16", "bf16") if accelerator.has_bf16_units else ("fp32", "fp16")


def save_calibration(card: Card, folder: Path | None = None) -> Path:
    """Keep what was measured, by the device's name; by default in this user's cache."""
    folder = folder or Folders.from_environment().cache
    folder.mkdir(parents=True, exist_ok=True)
    file = _file(card.name, folder)
    with atomic_file(file) as beside:
        beside.write_text(json.dumps({"format": FORMAT, **asdict(card)}, indent=1) + "\n", "utf-8")
    return file


def load_calibration(name: str, folder: Path) -> Card | None:
    """Read what was measured on a device of this name; None if nothing was, or in another format."""
    values = read_json(_file(name, folder))
    if values.pop("format", None) != FORMAT:
        return None
    if values["capability"] is not None:
        values["capability"] = tuple(values["capability"])
    return Card(**values)


def _file(name: str, folder: Path) -> Path:
    return folder / f"calibration-{''.join(c if c.isalnum() else '-' for c in name.lower())}.json"


def seconds_per_operation(device: torch.device) -> float:
    """Time a step so small that all of it is waiting for the host: forward, backward and what Python does for them."""
    layers = [module for _ in range(32) for module in (nn.Conv2d(8, 8, 3, padding=1), nn.LeakyReLU())]
    network, x = nn.Sequential(*layers).to(device), torch.zeros(1, 8, 8, 8, device=device)

    def step() -> None:
        network.zero_grad()
        network(x).sum().backward()

    with WorkCounter() as counter:
        step()
    operations: float = counter.work.operations
    return measure_latency(step, device) / operations


def _host_bytes_per_s(device: torch.device) -> float:
    here = torch.empty(256 * MIB, dtype=torch.uint8, device=device)
    there = host_like(here, "what is copied to measure the bus")
    return there.nbytes / measure_latency(lambda: here.copy_(there, non_blocking=True), device)


def _context_bytes(device: torch.device) -> int:
    """Return the bytes taken on the card outside torch's allocator."""
    accelerator_of(device).synchronize()
    return outside_bytes(device)


def _workspace_bytes(device: torch.device) -> int:
    """Most that a convolution or a product takes from the allocator besides its own tensors, and no less than guessed.

    Only some of the convolutions that networks have are tried: what is measured may raise the guess, never lower it.
    """
    most, card = 0, accelerator_of(device)
    for dtype in (torch.float32, DTYPES[_precisions(device)[-1]]):  # bf16, or else fp16
        for shape in _SHAPES:
            x = torch.zeros(shape, dtype=dtype, device=device)
            x = x.contiguous(memory_format=torch.channels_last) if dtype != torch.float32 else x
            x.requires_grad_()
            for convolve, weight_shape in _CONVOLUTIONS:
                weight = torch.zeros(weight_shape(shape[1]), dtype=dtype, device=device, requires_grad=True)
                card.give_back()
                before = card.live_bytes
                card.reset_peaks()
                out = convolve(x, weight)
                gradients = torch.autograd.grad(out, (x, weight), torch.ones_like(out))
                known = 2 * out.nbytes + sum(g.nbytes for g in gradients)
                most = max(most, card.peak_live_bytes - before - known)
                del weight, out, gradients
            del x
    a = torch.zeros(2048, 2048, device=device)
    torch.mm(a, a)
    del a
    card.synchronize()
    return max(WORKSPACE_BYTES, most + card.live_bytes)  # the product's workspace stays


def choose_card(name: str | None, device: torch.device) -> Card:
    """The card that is planned for: by name, or the device here with what was measured on it or is known of it.

    Raises:
        BadInput: a name that is not known.
    """
    if name is not None:
        return named_card(name)
    accelerator = accelerator_of(device)
    if accelerator.capability is None:
        return unnamed_card()
    if (measured := load_calibration(accelerator.name, Folders.from_environment().cache)) is not None:
        return measured
    return card_here(accelerator.name, accelerator.total_bytes, accelerator.capability)
