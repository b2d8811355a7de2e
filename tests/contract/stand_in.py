"""A stand-in for a card: what a card would hold is on torch's `meta` device, pictures and draws are on the host.

Nothing is computed, but every operation is seen: none may mix the two, look at a value, or copy between them so that
the host waits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from frugan.stepmemory.work import tensors_in

META = torch.device("meta")
_aten = torch.ops.aten
_LOOKS = {_aten._local_scalar_dense, _aten.nonzero, _aten.masked_select, _aten.is_nonzero, _aten.equal, _aten._unique2}
"""Operations whose result's shape or value the host has to wait for."""
_INDEXING = {_aten.index, _aten.index_put_, _aten.index_put}
"""So do these, where the index is a mask."""
_COPIES = {_aten.copy_, _aten._to_copy, _aten._copy_from}

_WITHOUT_META = {_aten._fused_sgd_, _aten._fused_adam_}
"""These write in place, and `meta` knows none of them, or not all of their forms."""


@dataclass
class Watcher(TorchDispatchMode):
    """Notes what a card would refuse or wait for. Copies to the host are made blank, which `meta` alone cannot do."""

    found: list[str] = field(default_factory=list)  # what it noted
    # to_card, to_host: copies that went either way
    to_card: int = 0
    to_host: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at an operation, and run it."""
        kwargs = kwargs or {}
        given = tensors_in((args, kwargs))
        here = {t.device.type for t in given if t.ndim or t.is_meta}  # a scalar of the host goes along as a number
        by_mask = func.overloadpacket in _INDEXING and any(t.dtype in (torch.bool, torch.uint8) for t in given)
        if "meta" in here and (func.overloadpacket in _LOOKS or by_mask):
            self.found.append(f"{func} looks at a value")
        if func.overloadpacket in _COPIES:
            return self._copy(func, args, kwargs)
        if len(here) > 1:
            self.found.append(f"{func} mixes {[(t.device.type, tuple(t.shape)) for t in given]}")
        if func.overloadpacket in _WITHOUT_META and "meta" in here:
            return None
        return func(*args, **kwargs)

    def _copy(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        if func.overloadpacket is _aten.copy_:
            target, source = args[0], args[1]
            waits = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
            to = target.device
        else:
            target, source = None, args[0]
            waits = not kwargs.get("non_blocking", False)
            to = torch.device(kwargs.get("device") or source.device)
        if to.type != source.device.type:
            if waits:
                self.found.append(f"{func} of {tuple(source.shape)} from {source.device} to {to} waits")
            if to.type == "cpu":
                self.to_host += 1
                blank = torch.zeros_like(source, device="cpu", dtype=kwargs.get("dtype"))
                return blank if target is None else target.copy_(blank)
            self.to_card += 1
        return func(*args, **kwargs)
