"""Whether the parts of a batch give its loss: a few samples as a whole against two halves, without gradients."""

import inspect
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from frugan.accelerator.choice import accelerator_of
from frugan.errors import BadInput
from frugan.torch_internals import TorchDispatchMode, tree_leaves, tree_map
from frugan.training.own_loop.batch import Inputs, Loss, LossValue, Parts, Weight, is_texts, taken
from frugan.training.own_loop.batch_loss import BatchLoss
from frugan.wording import first_line, first_names

SAMPLES = 4
"""Samples of a batch that are looked at: two halves of two, in which contrastive losses differ from the whole."""

FULL, HALF = 5e-6, 2e-2
"""Differences that are rounding, as a share of the loss: with weights in fp32, and with some in half precision.

Models of 12 to 50 layers differ by 2e-7 at most.
"""

TERMS = 1e-4
"""Difference of a number that a module returns beside its results, as a share of it, that is worth a line.

A mixture's balancing loss differs by 3e-4 to 3e-3 before it is trained, and counts a hundredth or a thousandth: what it
changes in the loss, 1e-7 to 5e-6, cannot be told from rounding there.
"""

ERRORS = (RuntimeError, ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError, BadInput)
"""Errors of other people's code in eval mode, which a step in training mode may not meet."""


def normalises_batches(model: nn.Module) -> bool:
    """Return whether batch normalisation uses batch statistics, so that splitting a batch would change the result."""
    return any(isinstance(m, _BatchNorm) and (m.training or m.running_mean is None) for m in model.modules())


@dataclass(frozen=True)
class SplitCheck:
    """Result of the look: whether a split changes the loss, and what moves with each forward."""

    differs: str | None = None  # why the parts of a batch do not give its loss; None: they do, as far as is known
    unknown: str | None = None  # why it could not be found out; None: it could
    moving: tuple[str, ...] = ()  # buffers and numbers of the model that move with each forward
    terms: tuple[str, ...] = ()  # numbers that modules return, such as a balancing loss, that differ in parts
    draws: bool = False  # whether model or loss draws random numbers, dropout aside

    def other_draws(self, forwards: int) -> str | None:
        """Say that parts of a batch draw other random numbers than the whole; None: they draw none."""
        if forwards == 1 or not self.draws:
            return None
        return (
            "model or loss draws random numbers, such as a diffusion model's noise: parts of a batch draw others than "
            "the whole, as another seed would; draw them before, and give them with the batch, to have the same"
        )

    def moves(self, forwards: int) -> str | None:
        """Say what moves more than once in a step; None: nothing does."""
        if forwards == 1 or not self.moving:
            return None
        return f"moved by each of the {forwards} forwards of a step, not once: {first_names(self.moving)}"

    def other_terms(self) -> str | None:
        """Say which numbers that modules return are others in parts; None: none is."""
        if not self.terms:
            return None
        return (
            f"{first_names(self.terms)}: its mean over parts of a batch is not that of the whole, and a loss that "
            "counts it differs by as much"
        )


def check_split(model: nn.Module, loss: Loss, inputs: Inputs, batch: int, weight: Weight | None = None) -> SplitCheck:
    """Compare the loss of a few samples with that of two halves of them, in eval mode, and leave everything as it was.

    Random numbers are the same for each sample meanwhile, so that losses that draw noise are comparable.
    """
    count = min(SAMPLES, batch) // 2 * 2
    data = [*model.parameters(), *(leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor))]
    if any(tensor.is_meta for tensor in data):
        return SplitCheck(unknown="there are no data yet")
    if not count:
        return SplitCheck()
    device = next(model.parameters()).device
    places = _most_unlike(inputs, batch, count)
    few: Inputs = tree_map(partial(taken, places=places, device=device), inputs, partial(is_texts, batch))
    compared = _Compared(model, loss, few, count, device, weight)
    compared.check_weight()
    try:
        with torch.no_grad(), _as_it_was(model), _exact_products():
            with _evaluating(model):
                differs = compared.difference()
            moving = _moving(model, partial(loss, model, *few))
    except ERRORS as error:
        return SplitCheck(unknown=f"its loss does not run in eval mode ({type(error).__name__}: {first_line(error)})")
    return SplitCheck(differs, compared.unknown, moving, () if differs else tuple(compared.terms), compared.draws)


def ignores_count(model: nn.Module, inputs: Inputs, batch: int) -> bool:
    """Return whether a model's loss ignores `num_items_in_batch`, which transformers' Trainer takes it to divide by.

    Trainer expects that of each model whose forward takes any keyword, unless its `accepts_loss_kwargs` is False, and
    adds up the losses of parts as they are. False too where the loss cannot be tried.
    """
    named = inputs[0] if len(inputs) == 1 else None
    if not isinstance(named, Mapping) or "labels" not in named:
        return False
    of_adapter = getattr(model, "get_base_model", None)  # a model of peft has it
    inside: Any = of_adapter() if callable(of_adapter) else model
    keywords = inspect.signature(inside.forward).parameters.values()
    if not getattr(inside, "accepts_loss_kwargs", any(each.kind is each.VAR_KEYWORD for each in keywords)):
        return False
    device = next(model.parameters()).device
    few = tree_map(partial(taken, places=slice(0, 2), device=device), dict(named), partial(is_texts, batch))
    try:
        with torch.no_grad(), _as_it_was(model), _evaluating(model):
            losses = [
                float(model(**few, num_items_in_batch=torch.tensor(number, device=device))["loss"]) for number in (1, 2)
            ]
    except ERRORS:
        return False
    return losses[0] == losses[1]


def _most_unlike(inputs: Inputs, batch: int, count: int) -> Tensor:
    """Samples with the least and the most padding, or ignored labels: zeros and less in whole numbers."""
    scores = torch.zeros(batch)
    for leaf in tree_leaves(inputs):
        if isinstance(leaf, Tensor) and leaf.ndim > 1 and not leaf.is_floating_point() and not leaf.is_complex():
            scores += (leaf <= 0).flatten(1).sum(1).cpu()
    order = scores.argsort(stable=True)
    return torch.cat([order[: count // 2], order[batch - count // 2 :]])


@dataclass
class _Compared:
    """A few samples, as a whole and in halves."""

    model: nn.Module
    loss: Loss
    inputs: Inputs
    count: int
    device: torch.device
    weight: Weight | None
    unknown: str | None = None  # why they cannot be compared
    terms: list[str] = field(default_factory=list)  # numbers of modules that differ; known after `difference`
    _drawn: list[Tensor] = field(default_factory=list)

    @property
    def draws(self) -> bool:
        """Whether random numbers were drawn."""
        return bool(self._drawn)

    def check_weight(self) -> None:
        """Call the weight, whose own mistakes are none of the loss.

        Raises:
            BadInput: it cannot be called with the inputs, or gives no number.
        """
        try:
            self._parts(2).shares()
        except TypeError as error:
            raise BadInput(
                f"weight= cannot be called with the {len(self.inputs)} inputs that the loss is given besides the "
                f"model: {first_line(error)}"
            ) from error

    def difference(self) -> str | None:
        """Say how the parts' loss differs from the whole one."""
        halves = self._parts(2)
        if self.weight is not None and 0 in halves.shares():
            return None  # nothing counts in one of them
        with self._numbers() as of_whole:
            whole, _ = self._loss_of(self._parts(1))
        with self._numbers() as of_halves:
            mean, total = self._loss_of(halves)
        exact = all(p.dtype in (torch.float32, torch.float64) for p in self.model.parameters())
        near = (FULL if exact else HALF) * max(abs(whole), abs(mean)) + 1e-7
        if not math.isfinite(whole) and not math.isfinite(mean):
            self.unknown = f"the loss of a few samples is {whole:g}"
            return None
        if abs(whole - mean) <= near:
            self.terms = [
                name
                for name, numbers in of_whole.items()
                if _differs(numbers, of_halves.get(name, []), halves.shares(), TERMS if exact else HALF)
            ]
            return None
        if abs(self._loss_of(self._parts(1))[0] - whole) > near:
            self.unknown = "the loss of the same samples is another each time"
            return None
        found = f"the loss of {self.count} samples is {whole:.6g}, and from two halves of them comes {mean:.6g}"
        if abs(whole - total) <= near:
            return f"{found}: it is a sum over samples, where a mean is expected"
        return f"{found}: {self._culprit()}"

    def _parts(self, parts: int) -> Parts:
        return Parts(self.inputs, [self.count // parts] * parts, self.count, self.device, self.weight)

    def _loss_of(self, parts: Parts) -> tuple[float, float]:
        """Loss from parts: as a mean, and as a sum."""
        if isinstance(self.loss, BatchLoss):
            found = []
            for inputs, _ in parts:
                with _alike_draws(self._drawn):
                    found.append(self.loss.representations(self.model, inputs))
            value = LossValue.of(self.loss.compare(*(torch.cat(column) for column in zip(*found, strict=True))))
            whole = float(value.value if value.count is None else value.value / value.count)
            return whole, whole
        values = []
        for inputs, share in parts:
            with _alike_draws(self._drawn):
                values.append((LossValue.of(self.loss(self.model, *inputs)), share))
        counts = [value.count for value, _ in values if value.count is not None]
        total = float(sum(value.value for value, _ in values))
        if counts:
            return total / (float(sum(counts)) or math.nan), total
        return float(sum(value.value * share for value, share in values)), total

    @contextmanager
    def _numbers(self) -> Iterator[dict[str, list[float]]]:
        """Note scalars that modules return, in the order of their calls, but for those called "loss"."""
        found: dict[str, list[float]] = {}

        def note(module: nn.Module, _: object, output: Any, *, name: str) -> None:
            for key, value in _numbers_in(output):
                if key not in ("", "loss"):
                    found.setdefault(f"{key} of {name or type(module).__name__}", []).append(value)

        with ExitStack() as stack:
            for name, module in self.model.named_modules():
                stack.callback(module.register_forward_hook(partial(note, name=name)).remove)
            yield found

    def _culprit(self) -> str:
        """Name the first module whose results for the same samples differ, or the loss."""
        whole, halves = self._results(self._parts(1)), self._results(self._parts(2))
        for name, of_whole in whole.items():
            of_halves = halves.get(name)
            if of_halves is None or of_halves.shape != of_whole.shape:
                continue
            if not torch.allclose(of_whole, of_halves, rtol=1e-3, atol=1e-5 * float(of_whole.abs().max())):
                return f"{name or type(self.model).__name__} gives a sample other values among other samples"
        return (
            "no module looks at several samples, so the loss does (a frugan.BatchLoss keeps it exact), or it counts "
            "something else than samples (give weight=, what counts in a part, or return (sum, count))"
        )

    def _results(self, parts: Parts) -> dict[str, Tensor]:
        """A number for each result of each module and each sample [samples, results], in the order of the calls.

        Plain sums would not do: those of a layer norm are nothing but rounding.
        """
        found: dict[str, list[Tensor]] = {}

        def note(_: nn.Module, __: object, output: Any, *, name: str, number: int) -> None:
            leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
            sums = [_mixed(leaf.flatten(1).double()) for leaf in leaves if leaf.ndim > 1 and len(leaf) == number]
            if sums:
                found.setdefault(name, []).append(torch.stack(sums, 1).cpu())

        for inputs, _ in parts:
            with ExitStack() as stack, _alike_draws(self._drawn):
                number = self.count // len(parts.sizes)
                for name, module in self.model.named_modules():
                    stack.callback(module.register_forward_hook(partial(note, name=name, number=number)).remove)
                self.loss(self.model, *inputs)
        return {name: torch.cat(sums) for name, sums in found.items() if len(sums) == len(parts.sizes)}


def _mixed(values: Tensor) -> Tensor:
    """Return sums of the rows of [samples, values], each value with a weight of its own between -1 and 1."""
    return values @ torch.arange(1, values.shape[1] + 1, device=values.device, dtype=values.dtype).cos()


def _numbers_in(output: Any, key: str = "") -> Iterator[tuple[str, float]]:
    """Yield the scalars of a module's result, each by its key or its place."""
    if isinstance(output, Tensor):
        if not output.ndim and output.is_floating_point():
            yield key, float(output)
    elif isinstance(output, Mapping):
        for name, value in output.items():
            yield from _numbers_in(value, str(name))
    elif isinstance(output, tuple | list):
        for number, value in enumerate(output, 1):
            yield from _numbers_in(value, f"result {number}")


def _differs(whole: Sequence[float], parts: Sequence[float], shares: Sequence[float], near: float) -> bool:
    """Return whether numbers of the whole are no means of those of its parts, which come one part after the other."""
    calls = len(whole)
    if len(parts) != calls * len(shares):
        return False
    means = [sum(share * parts[part * calls + i] for part, share in enumerate(shares)) for i in range(calls)]
    return any(abs(a - b) > near * max(abs(a), abs(b)) for a, b in zip(whole, means, strict=True))


def _moving(model: nn.Module, forward: Any) -> tuple[str, ...]:
    """Names of what a forward in the model's present mode moves."""

    def state() -> dict[str, Any]:
        places = [(f"{name}.".lstrip("."), module) for name, module in model.named_modules()]
        buffers = {f"{place}{n}": b.clone() for place, m in places for n, b in m._buffers.items() if b is not None}
        numbers = {f"{place}{n}": v for place, m in places for n, v in vars(m).items() if type(v) in (int, float)}
        return buffers | numbers

    before = state()
    forward()
    after = state()
    return tuple(
        name
        for name, value in after.items()
        if name in before
        and not (torch.equal(value, before[name]) if isinstance(value, Tensor) else value == before[name])
    )


@contextmanager
def _as_it_was(model: nn.Module) -> Iterator[None]:
    """Put buffers, attributes and random numbers back."""
    device = next(model.parameters()).device
    on_card: dict[str, Any] = {"devices": [device.index or 0], "device_type": device.type}
    kept = [(module, dict(vars(module)), dict(module._buffers)) for module in model.modules()]
    values = [(buffer, buffer.clone()) for _, _, buffers in kept for buffer in buffers.values() if buffer is not None]
    drawn = random.getstate()
    try:
        with torch.random.fork_rng(**(on_card if accelerator_of(device).is_card else {"devices": []})):
            yield
    finally:
        random.setstate(drawn)
        for module, attributes, buffers in kept:
            module.__dict__.clear()
            module.__dict__.update(attributes)
            module._buffers.update(buffers)
        for buffer, value in values:
            buffer.copy_(value)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, was in training:
            module.training = was


@contextmanager
def _exact_products() -> Iterator[None]:
    """Multiply in full fp32 on cards, which round to ten bits otherwise, and differently for other sizes."""
    matrices = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, allow_tf32=False):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = matrices


@contextmanager
def _alike_draws(first: list[Tensor]) -> Iterator[None]:
    """Have random numbers drawn once and for all samples alike.

    Args:
        first: what the first sample drew in each draw so far; is filled by the first use.
    """
    random.seed(0)
    with torch.random.fork_rng(devices=[]), _AlikeDraws(first):
        torch.manual_seed(0)
        yield


class _AlikeDraws(TorchDispatchMode):
    """Gives each sample what the first one drew; the permutation of samples that leaves them alone."""

    def __init__(self, first: Sequence[Tensor]) -> None:
        super().__init__()
        self._first, self._number = first, 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation."""
        result = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded not in func.tags or not isinstance(result, Tensor) or not result.ndim:
            return result
        if "randperm" in str(func):
            return result.copy_(torch.arange(len(result), device=result.device))
        if self._number == len(self._first):
            self._first.append(result[:1].clone())  # type: ignore[attr-defined]
        drawn = self._first[self._number]
        self._number += 1
        fits = drawn.shape[1:] == result.shape[1:] and len(drawn) == 1
        return result.copy_((drawn if fits else result[:1].clone()).expand_as(result))
