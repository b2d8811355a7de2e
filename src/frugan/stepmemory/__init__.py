"""Memory, arithmetic and traffic of a training step, found by running the real thing on tensors without data.

Knows PyTorch, and neither generators nor frugan's engine. README.md beside this file shows how it is used.
Names are imported when they are first asked for: a training on a processor asks only for `cards`.
"""

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from frugan.stepmemory.dataless import META as META
    from frugan.stepmemory.dataless import Dataless as Dataless
    from frugan.stepmemory.dataless import WithoutData as WithoutData
    from frugan.stepmemory.measurement import Measurement as Measurement
    from frugan.stepmemory.measurement import StepMemory as StepMemory
    from frugan.stepmemory.measurement import measure as measure

_WHERE = MappingProxyType(
    {
        **dict.fromkeys(("META", "Dataless", "WithoutData"), "frugan.stepmemory.dataless"),
        **dict.fromkeys(("Measurement", "StepMemory", "measure"), "frugan.stepmemory.measurement"),
    }
)
"""Name -> module that defines it."""

__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    """Return what the package offers under a name."""
    if name not in _WHERE:
        raise AttributeError(f"module 'frugan.stepmemory' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
