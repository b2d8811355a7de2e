"""The engine in float64, so that rounding can be told from a difference.

In float64 our runs and the original's agree to about 1e-15: what is left against a recorded fp32 value is the
original's own rounding, which the recording's authors measured too (`fp32_vs_fp64_noise`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from parity.golden import Recording


class InFloat64(TorchFunctionMode):
    """Makes float64 of every cast to fp32; the engine keeps a float64 network's weights as they are."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run one function of torch."""
        kwargs = dict(kwargs or {})
        # Casts of bool are verdicts and counters, no arithmetic; the fused Adam takes its verdict in fp32 only.
        if func is Tensor.float and args[0].dtype is not torch.bool:
            func = Tensor.double
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


class Float64Recording(Recording):
    """Feeds pictures that a phase's /127.5 - 1 makes exactly the recording's fp32 pictures of, in float64."""

    def take(self, source: str, stream: str, position: int, count: int) -> dict[str, Tensor]:
        """See `Recording`."""
        data = super().take(source, stream, position, count)
        pictures = (data["pictures"].to(torch.float32) / 255 - 0.5) * 2
        return data | {"pictures": (pictures.to(torch.float64) + 1) * 127.5}
