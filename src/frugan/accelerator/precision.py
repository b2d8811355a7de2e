"""Precision of the working weights, and the loss scale that fp16 needs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

import torch

from frugan.accelerator.base import card_has_bf16_units
from frugan.accelerator.choice import accelerator_of
from frugan.errors import BadInput

PrecisionName = Literal["auto", "fp32", "fp16", "bf16"]
DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
)

_WITHOUT_MATRIX_UNITS = re.compile(r"GTX[ -]?16\d\d|\bMX ?(450|550)\b|\bT(400|500|550|600|1000|1200|2000)\b", re.I)
"""Cards of compute capability 7.5 that are no RTX ones and no T4. Convolutions in fp16 that return NaN on them have
been reported for years and in many versions (pytorch/pytorch#58123, #77955)."""


@dataclass(frozen=True)
class Precision:
    """A resolved precision and why it was chosen."""

    name: Literal["fp32", "fp16", "bf16"]
    dtype: torch.dtype  # data type of the working weights
    reason: str  # why it was chosen
    warning: str | None = None  # drawback of this precision here; None: there is none
    tf32: bool = False  # whether fp32 numbers are multiplied by their first three digits


def resolve_precision(requested: PrecisionName, device: torch.device) -> Precision:
    """Decide "auto" by what the hardware multiplies fast, and say why; for what it cannot do, fp32, with a warning.

    Torch's own word for a card is of no use here: it is also true where bf16 is emulated.
    """
    accelerator = accelerator_of(device)
    if accelerator.capability is not None:
        return card_precision(requested, accelerator.name, accelerator.capability)
    if requested == "auto":
        if accelerator.has_bf16_units:
            return Precision("bf16", torch.bfloat16, "this CPU multiplies bf16 faster than fp32")
        known = (
            "half precision is no faster on this CPU"
            if device.type == "cpu"
            else f"no known half-precision units on this {device.type}"
        )
        return Precision("fp32", torch.float32, known)
    warning = None
    if requested == "bf16" and device.type == "cpu" and not accelerator.has_bf16_units:
        warning = "this CPU multiplies bf16 slower than fp32; precision = auto decides by that"
    if requested == "fp16" and device.type == "cpu":
        warning = "a CPU computes fp16 far slower than fp32; precision = fp32 or auto is faster here"
    return Precision(requested, DTYPES[requested], "asked for", warning)


def refuse_tf32(name: str) -> BadInput:
    """Return the error for a device of this name, which multiplies fp32 numbers with all their digits alone."""
    return BadInput(
        f"training.tf32=true: for NVIDIA cards of compute capability 8.0 or newer (RTX 30xx, A100 and later), which "
        f"{name} is not; leave it out, or give training.tf32=false"
    )


def card_precision(requested: PrecisionName, name: str, capability: tuple[int, int]) -> Precision:
    """Decide for a card by compute capability and name: 8.0 and newer bf16, 7.x with matrix units fp16, others fp32.

    Before 8.0 bf16 is never used: torch then goes without cuDNN and unrolls convolutions, which is slower than fp32
    and takes memory that no plan has counted.
    """
    card = f"{name} with compute capability {capability[0]}.{capability[1]}"
    plain_turing = capability == (7, 5) and _WITHOUT_MATRIX_UNITS.search(name) is not None
    has_fp16_units = capability >= (7, 0) and not plain_turing
    if requested == "auto":
        return _best_precision(card, capability, has_fp16_units=has_fp16_units)
    warning = None
    if requested == "bf16" and not card_has_bf16_units(capability):
        faster = "; training.precision=fp16 is faster there" if has_fp16_units else ""
        warning = f"in place of bf16, which {card} does not have: fp32 has all of its range{faster}"
        units = "no bf16 units, but those of fp16" if has_fp16_units else "no units for half precision"
        return Precision("fp32", torch.float32, f"bf16 was asked for, and {card} has {units}", warning)
    if requested == "fp16" and plain_turing:
        warning = f"fp16 convolutions may give NaN on {card}; training.precision=auto or fp32 is safe"
    elif requested == "fp16" and not has_fp16_units:
        warning = f"{card} has no fp16 tensor cores: it saves memory and no time; training.precision=fp32 is no slower"
    return Precision(requested, DTYPES[requested], "asked for", warning)


def _best_precision(card: str, capability: tuple[int, int], *, has_fp16_units: bool) -> Precision:
    if card_has_bf16_units(capability):
        return Precision("bf16", torch.bfloat16, f"{card} has bf16 tensor cores")
    if has_fp16_units:
        return Precision("fp16", torch.float16, f"{card} has fp16 tensor cores and no bf16")
    nan = ", and fp16 convolutions may give NaN on its kind" if capability >= (7, 0) else ""
    return Precision("fp32", torch.float32, f"{card} has no half-precision tensor cores{nan}")


def continued_precision(before: Literal["fp32", "fp16", "bf16"], device: torch.device) -> Precision:
    """The precision in which a run goes on that may choose: the one before, unless this card speaks against it.

    Then fp32, which has the range and the digits of both others.
    """
    same = resolve_precision(before, device)
    accelerator = accelerator_of(device)
    if accelerator.is_card and same.warning is not None:
        return Precision(
            "fp32", torch.float32, f"the run went on in {before} so far, which is not for {accelerator.name}"
        )
    return replace(same, reason="as this run began")


def wider_precision(device: torch.device) -> Precision:
    """The fastest precision here that has all of fp32's range, for a run that overflows in fp16."""
    reason = "fp16 overflowed at its least loss scale"
    wide = accelerator_of(device).has_bf16_units
    return Precision("bf16", torch.bfloat16, reason) if wide else Precision("fp32", torch.float32, reason)
