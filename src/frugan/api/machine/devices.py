"""Which device to use, and why."""

import os

import torch

from frugan.api.machine.card_support import cpu_build, not_served
from frugan.api.machine.environment_variables import CARDS, misspelt
from frugan.errors import BadInput


def choose_device(asked: str = "auto") -> tuple[torch.device, str]:
    """The device, and why.

    Raises:
        BadInput: no such device here, or this torch has no kernels for it.
    """
    if asked == "auto":
        return _automatic()
    try:
        device = torch.device(asked)
    except RuntimeError as error:
        raise BadInput(f"--device {asked}: expected auto, cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise BadInput(f"--device {asked}: expected auto, cpu, cuda or cuda:N")
    if device.type == "cpu":
        return device, "asked for"
    if reason := cpu_build(wanted=True):
        raise BadInput(f"--device {asked}: {reason}")
    if not (torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()):
        raise BadInput(
            f"--device {asked}: this torch ({torch.__version__}) sees {torch.cuda.device_count()} CUDA cards; "
            "`nvidia-smi` says whether the driver sees more, and which CUDA version it serves"
        )
    index = torch.cuda.current_device() if device.index is None else device.index
    if reason := not_served(index):
        raise BadInput(f"--device {asked}: {reason}; or train on the CPU: --device cpu")
    return torch.device("cuda", index), "asked for"  # with an index: what torch wants where it sets or caps a device


def misspelt_cards() -> str | None:
    """What to say of a variable that is nearly CUDA_VISIBLE_DEVICES, and that nothing reads; None: nothing."""
    near = [name for name, meant in misspelt(os.environ).items() if meant == CARDS]
    return f"{near[0]} is set, and nothing reads it: the variable is {CARDS}" if near else None


def use_device(asked: str = "auto") -> tuple[torch.device, str]:
    """As `choose_device`, and a card becomes torch's current one: some of its kernels and libraries look no further,
    and would take memory on the first card as well.

    Raises:
        BadInput: as `choose_device`.
    """
    device, why = choose_device(asked)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device, why


def _automatic() -> tuple[torch.device, str]:
    """The current card, or the first that this torch has kernels for; the CPU where there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu"), f"{cpu_build(wanted=False) or 'no CUDA card is there'}; override with --device"
    current = torch.cuda.current_device()
    reasons: list[str] = []
    for index in dict.fromkeys((current, *range(torch.cuda.device_count()))):
        if (reason := not_served(index)) is None:
            return torch.device("cuda", index), "; ".join((*reasons, "a CUDA card is there; override with --device"))
        reasons.append(reason)
    return torch.device("cpu"), "; ".join(reasons)
