"""How cards multiply, decided once for a process: sums in fp32, and fp32 with all its digits."""

import os
from collections.abc import Mapping

import torch

FORCED = "NVIDIA_TF32_OVERRIDE"
"""Read by NVIDIA's libraries themselves: 1 and 0 overrule every program."""
DEFAULT = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
"""Read by torch, as the default of matrix products; set in NVIDIA's containers."""


def pin_arithmetic() -> None:
    """Let half-precision products add up in fp32, and fp32 ones keep their digits, in this process.

    Torch's own defaults allow sums in half precision, and TF32 in convolutions: its three digits are too few where
    nearly equal products are subtracted (DSSIM, statistics). Who wants speed has half precision.

    Torch has two sets of names for this, and refuses to answer for the older where only the newer was set; the older
    sets both.
    """
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def tf32_decision(capability: tuple[int, int], environment: Mapping[str, str] = os.environ) -> str | None:
    """A line that says what was decided, and what the environment makes of it; None: the card knows no TF32."""
    if capability < (8, 0):
        return None
    if environment.get(FORCED) == "1":
        return (
            f"TF32: on, in all fp32 products and convolutions, because {FORCED}=1 in this environment overrules "
            "frugan: fp32 has three digits here, in losses and statistics as well; unset it"
        )
    line = f"TF32: off, in products and convolutions: fp32 keeps all its digits; {FORCED}=1 would force it on"
    if environment.get(DEFAULT) == "1":
        line += f" ({DEFAULT}=1 in this environment asks for it, and is overruled)"
    return line
