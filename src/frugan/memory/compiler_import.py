"""Spares a process that only plans the import of torch's compiler: two seconds of a processor's time.

Torch imports it at the first call of many a function (an optimizer's step, a backward from given gradients) only to say
that it must not compile it, or to compare sizes that might be symbols. Where nothing is compiled that changes nothing.
"""

import importlib
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import eq
from types import ModuleType, SimpleNamespace
from typing import Any

COMPILER, SYMBOLS = "torch._dynamo", "torch.fx.experimental.symbolic_shapes"
_SETTINGS = SimpleNamespace(error_on_nested_fx_trace=True)  # read by a recomputation, used where something is compiled


class _StandIn(ModuleType):
    """A module of which a few functions are known; gives way to the real one when asked for another."""

    def __init__(self, name: str, known: dict[str, Any]) -> None:
        super().__init__(name)
        self.__path__: list[str] = []  # a package, to Python's import
        vars(self).update(known)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _remove(self)
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def no_compiler() -> Iterator[None]:
    """Inside, torch's compiler is not imported, unless somebody asks for more of it than to be left alone."""
    asked: list[weakref.ref[Any]] = []  # weak: some are made at every call and hold its tensors

    def disable(function: Callable[..., Any], *_: object, **__: object) -> Callable[..., Any]:
        asked.append(weakref.ref(function))
        return function

    stand_ins: list[_StandIn] = [
        _StandIn(COMPILER, {"disable": disable, "graph_break": lambda *_, **__: None, "config": _SETTINGS}),
        _StandIn(SYMBOLS, {"expect_true": bool, "sym_eq": eq}),
    ]
    stand_ins = [module for module in stand_ins if module.__name__ not in sys.modules]
    sys.modules.update({module.__name__: module for module in stand_ins})
    try:
        yield
    finally:
        for module in stand_ins:
            _remove(module)
        for each in asked:  # torch noted the answer; let it ask again
            if (function := each()) is not None:
                vars(function).pop("__dynamo_disable", None)


def _remove(stand_in: _StandIn) -> None:
    if sys.modules.get(stand_in.__name__) is stand_in:
        del sys.modules[stand_in.__name__]
