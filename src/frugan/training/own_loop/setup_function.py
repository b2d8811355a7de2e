"""A step that a function of one's own sets up, by its name, "my_project.train:setup"; its weights are not made."""

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from frugan.errors import BadInput
from frugan.stepmemory.calibration import choose_card
from frugan.training.own_loop.batch import Loss
from frugan.training.own_loop.module_plan import plan_module
from frugan.training.own_loop.module_report import ModuleReport
from frugan.wording import first_line, nearest

Setup = tuple[nn.Module, Loss, Any, torch.optim.Optimizer, dict[str, Any]]
"""Result of such a function: model, loss, one whole batch and optimizer, and options, as `plan_module` takes them."""

OPTIONS = tuple(name for name in inspect.getfullargspec(plan_module).kwonlyargs if name != "card")
"""Options that it may return; the card is the command line's."""

_MAKERS = frozenset({torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn})
_MOVERS = frozenset({Tensor.to, Tensor.cuda, Tensor.cpu})


def plan_function(
    name: str, memory: str | int | None = None, *, card: str | None = None, micro_batch: int | None = None
) -> ModuleReport:
    """Plan the step that a function sets up; its weights are made only if it does not run without them.

    Args:
        name: "my_project.train:setup", found in the current folder or where Python's packages are. It takes no
            arguments and returns (model, loss, batch, optimizer), or these and a dict of options of `plan_module`,
            such as {"precision": "autocast", "weight": count_labels}.
        micro_batch: in place of the function's.

    Raises:
        BadInput: no such card, no such function, it raises, or returns something else; or as `plan_module`.
    """
    choose_card(card, torch.device("cpu"))  # before anything of theirs is run, which may take long
    function = _found(name)
    without: Setup | None = None
    try:
        with _WithoutWeights():
            without = _set_up(name, function)
        return _plan(without, memory, card, micro_batch)
    except BadInput as error:
        first, refused = error, first_line(error)
    try:
        setup = _set_up(name, function)
    except BadInput as error:
        if without is not None:  # it needs a card that is not here, which is no reason why the plan was refused
            raise first from None
        raise _in_both_ways(error, refused) from error
    try:
        report = _plan(setup, memory, card, micro_batch)
    except BadInput as error:
        raise _in_both_ways(error, refused) from error
    why = f"weights: made for this plan, as it does not run without them: {refused}"
    return replace(report, decisions=(*report.decisions, why))


def _in_both_ways(error: BadInput, refused: str) -> BadInput:
    """Return what is wrong with the weights made, and without them where that is something else."""
    found = first_line(error)
    return BadInput(found if found == refused else f"{found} (and without making its weights: {refused})")


def _plan(setup: Setup, memory: str | int | None, card: str | None, micro_batch: int | None) -> ModuleReport:
    model, loss, inputs, optimizer, options = setup
    if micro_batch is not None:
        options = {**options, "micro_batch": micro_batch}
    return plan_module(model, loss, inputs, optimizer, memory, card=card, **options)


def _found(name: str) -> Callable[[], Any]:
    module_name, _, function_name = name.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise BadInput(f"{name}: {error}; it is looked for in {here} and where Python's packages are") from error
    function = getattr(module, function_name, None)
    if function is not None and not callable(function):
        raise BadInput(f"{name}: is {function!r:.60}; expected a function that returns (model, loss, batch, optimizer)")
    if function is None:
        known = [key for key, value in vars(module).items() if callable(value)]
        raise BadInput(f"{name}: {module_name} has no function {function_name}{nearest(function_name, known)}")
    found: Callable[[], Any] = function
    return found


def _needed(function: Callable[[], Any]) -> list[str]:
    """Arguments without which a function cannot be called; none of one written in C that does not tell."""
    with suppress(ValueError):
        parameters = inspect.signature(function).parameters.values()
        more = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return [p.name for p in parameters if p.default is inspect.Parameter.empty and p.kind not in more]
    return []


def _set_up(name: str, function: Callable[[], Any]) -> Setup:
    if needed := _needed(function):
        raise BadInput(
            f"{name}: needs {', '.join(needed)}; expected a function without arguments: write one that calls it"
        )
    try:
        setup = function()
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise BadInput(
            f"{name} raised {type(error).__name__}: {first_line(error)} ({last.filename}:{last.lineno})"
        ) from error
    match setup:
        case (nn.Module() as model, loss, inputs, torch.optim.Optimizer() as optimizer, *rest) if callable(loss):
            options = rest[0] if rest else {}
            if len(rest) <= 1 and isinstance(options, dict):
                for key in options:
                    if key not in OPTIONS:
                        hint = nearest(key, OPTIONS)
                        raise BadInput(f"{name} returns option {key!r}{hint}; expected of {', '.join(OPTIONS)}")
                return model, loss, inputs, optimizer, options
    kinds = [type(part).__name__ for part in setup] if isinstance(setup, tuple) else type(setup).__name__
    raise BadInput(
        f"{name} returns {kinds}; expected a tuple (model, loss, batch, optimizer), as plan_module takes them, or "
        "these and a dict of its options"
    )


class _WithoutWeights(TorchFunctionMode):
    """Makes tensors of floating-point numbers on the device meta, all others on the host, and leaves them there.

    Whole numbers have values: a model may ask for that of a mask, or of an index.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one function of torch."""
        kwargs = dict(kwargs or {})
        if func in _MOVERS:
            dtypes = [x for x in (*args[1:], kwargs.get("dtype")) if isinstance(x, torch.dtype)]
            return args[0].type(dtypes[0]) if dtypes else args[0]
        if func in _MAKERS and (kwargs.get("dtype") or torch.get_default_dtype()).is_floating_point:
            kwargs["device"] = "meta"
        elif torch.device(kwargs.get("device") or "cpu").type != "meta" and "device" in kwargs:
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)
