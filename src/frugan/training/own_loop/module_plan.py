"""`plan_module`: whether a step of any module fits a card, and how, found by running it without data."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.data import DataLoader

from frugan.accelerator.choice import accelerator_of
from frugan.accelerator.precision import DTYPES, Precision, PrecisionName, resolve_precision
from frugan.errors import BadInput
from frugan.planning.predictions import why_refused
from frugan.planning.search import LOWER
from frugan.stepmemory.calibration import choose_card
from frugan.stepmemory.cards import Budget, Card, free_bytes
from frugan.stepmemory.tracker import tensors_of
from frugan.training.own_loop.batch import Inputs, Loss, Weight, samples_in
from frugan.training.own_loop.batch_loss import check_weight
from frugan.training.own_loop.dataless_step import Taken, Task
from frugan.training.own_loop.ema_hook import EmaHook
from frugan.training.own_loop.half_precision import Autocast, name_of, trained_halves
from frugan.training.own_loop.module_step import (
    ModulePlan,
    check_plain,
    moved_by,
)
from frugan.training.own_loop.recompute import block_named
from frugan.training.own_loop.split_check import SAMPLES, SplitCheck, check_split
from frugan.wording import MIB, count, first_names, parse_size, show_size

ModulePrecisionName = PrecisionName | Literal["autocast"]

SLACK = "allocator slack"
MOST_MACS = 1e11
"""Of a step of a few samples, beyond which a plan that is made on a CPU does not run them: some seconds."""

OUTSIDE = ("CUDA context", "library workspaces")
"""Categories beside those of the step itself."""


@dataclass(frozen=True)
class ModuleReport(ModulePlan):
    """The plan of a step, what it is predicted to take, and why it was chosen; printed, it says so to people."""

    name: str = field(kw_only=True)  # of the module's class
    fits: bool = field(kw_only=True)  # within the budget; True without one
    budget_bytes: int | None = field(kw_only=True)  # on the card in all; None: there is none, or it is for a CPU
    peak_bytes: int = field(kw_only=True)  # on the card in all, CUDA's context and libraries too; on a CPU what lives
    categories: Mapping[str, int] = field(kw_only=True)  # bytes at the peak, by what they are for
    extra_time: float = field(kw_only=True)  # predicted beyond the whole batch with nothing recomputed, as a share
    decisions: tuple[str, ...] = field(kw_only=True)  # a line for each choice: what, why, how to override
    search: "Search" = field(kw_only=True, repr=False, compare=False)  # among all plans of the step

    def smaller(self) -> ModulePlan | None:
        """The fastest that takes at most 93 % of this one; None: there is none."""
        taken = self.search.taken(self.micro_batch, self.recompute)
        chosen = self.search.within(int(LOWER * taken.reserved_bytes))
        if chosen is None:
            return None
        why = "memory ran out: this is the fastest plan that takes less than the one before"
        return replace(self.of(*chosen), fits=True, decisions=(*self.decisions, why))

    def of(self, micro_batch: int, recompute: tuple[str, ...]) -> "ModuleReport":
        """Return the report of another plan of the same step."""
        taken, search = self.search.taken(micro_batch, recompute), self.search
        outside = {name: self.categories[name] for name in OUTSIDE if name in self.categories}
        slack = {SLACK: taken.reserved_bytes - sum(taken.categories.values())} if outside else {}
        plain = (search.sizes[-1], ())
        return replace(
            self,
            micro_batch=micro_batch,
            recompute=recompute,
            peak_bytes=taken.reserved_bytes + sum(outside.values()),
            categories={**taken.categories, **slack, **outside},
            extra_time=max(0.0, search.seconds(micro_batch, recompute) / search.seconds(*plain) - 1),
        )

    def __str__(self) -> str:
        """For people to read."""
        budget = "" if self.budget_bytes is None else f" {show_size(self.budget_bytes)}"
        where = "on a CPU" if self.search.card is None else "on the card"
        verdict = "fits" if self.fits else "does not fit"
        forwards = count(-(-self.batch // self.micro_batch), "forward")
        blocks = f"recomputed: {first_names(self.recompute)}" if self.recompute else "nothing recomputed"
        return "\n".join(
            [
                f"{self.name} {verdict}{budget}: predicted peak {show_size(self.peak_bytes)} {where}",
                f"micro-batch {self.micro_batch}, {forwards} for batch {self.batch}; {self.precision.name}; {blocks}; "
                f"extra time {self.extra_time:.0%} (predicted)",
                "",
                "at the peak:",
                *(
                    f"{name:20} {show_size(size):>10}"
                    for name, size in sorted(self.categories.items(), key=lambda item: -item[1])
                    if size
                ),
                "",
                *(f"- {line}" for line in self.decisions),
            ]
        )


def plan_module(
    model: nn.Module,
    loss: Loss,
    inputs: Sequence[Any] | Mapping[str, Any] | Tensor,
    optimizer: torch.optim.Optimizer,
    memory: str | int | None = None,
    *,
    card: str | None = None,
    weight: Weight | None = None,
    precision: ModulePrecisionName = "auto",
    masters: bool = True,
    normalisation_batch: int | None = None,
    blocks: Sequence[str] | None = None,
    ema: EmaHook | None = None,
) -> ModuleReport:
    """Say whether a step of a module fits a memory budget, and with which micro-batch, precision and recomputed blocks.

    Runs the step on tensors without data: needs no card, no memory to speak of, and moves nothing.

    Args:
        model: on any device, "meta" too.
        loss: (model, *inputs) -> the mean of the loss over the samples; or (sum, count), where it is a mean over
            something else; or a mapping with either as "loss", whose other entries a step hands on.
        inputs: what the loss is given besides the model, of one whole batch: tensors [samples, ...], or tuples, lists
            and dicts of them. On the host each part is copied when it is due; on a card they are counted there.
        optimizer: that moves the model's parameters.
        memory: budget on a card in all, "6GiB" or bytes. None: all of a named card, or what is free on the model's;
            a model on the CPU that no card is named for is planned for the CPU, without a limit.
        card: plan for a card of this name, "rtx-3060"; None: the model's, or one that is not named.
        weight: (*inputs) -> how much counts in them, where the loss is a mean over something else than samples:
            `lambda tokens, labels: (labels != -100).sum()`.
        precision: "auto", "fp32", "fp16", "bf16" or "autocast", torch's rules of what is computed in half precision;
            "auto" goes by the card, and by autocast's rules, or else in fp32, for modules that do not run in half.
        masters: weights that train in half precision become fp32, and the model runs on copies of them in it; False:
            they stay, and lose updates that are too small for their digits.
        normalisation_batch: samples in each forward, where layers look at several samples together. None: all, for
            modules with batch normalisation.
        blocks: names of modules that may be recomputed; None: those that lists and sequences of the module hold.
        ema: average that is kept of the model, to be counted.

    Raises:
        BadInput: unknown card or block, a wrapped model, inputs of different numbers of samples, or a module that asks
            for the value of a tensor.
    """
    check_plain(model, loss, optimizer)
    check_weight(loss, weight)
    if precision not in (known := (*get_args(PrecisionName), "autocast")):
        raise BadInput(f"precision {precision!r}: expected one of {', '.join(known)}")
    arguments = _as_arguments(inputs)
    batch = samples_in(arguments)
    if normalisation_batch is not None and not 1 <= normalisation_batch <= batch:
        raise BadInput(f"normalisation_batch {normalisation_batch}: expected 1 to {batch}, the batch")
    half = trained_halves(model)
    if half is not None and not masters and precision not in ("auto", name_of(half)):
        raise BadInput(f'precision {precision!r}: weights that stay in {name_of(half)} train in it; expected "auto"')
    device = next(model.parameters()).device
    on_card = memory is not None or card is not None or accelerator_of(device).is_card
    planned_for = choose_card(card, device) if on_card else None
    task = Task(
        model=model,
        loss=loss,
        inputs=arguments,
        optimizer=optimizer,
        averages=_averages_on_card(ema),
        device=device,
        as_card=on_card,
        weight=weight,
        masters=masters,
    )
    if half is not None and precision == "auto":
        precision = name_of(half)
    together = normalisation_batch or (batch if normalises_batches(model) else None)
    names = recomputable(model) if blocks is None else _named_blocks(model, blocks)
    tried = _in_precision(Search(task, batch, together, names, planned_for), precision, device)
    budget_bytes = _budget_bytes(memory, card, planned_for, device)
    if budget_bytes is not None and memory is None and card is None:
        budget_bytes += _held_bytes(task, device)  # it counts as part of the step, and is not free any more
    return _report(tried, budget_bytes, normalisation_batch)


def _averages_on_card(ema: EmaHook | None) -> tuple[Tensor, ...]:
    if ema is None or ema.on_host:
        return ()
    return tuple(tensors_of([network.state_dict() for network in ema.networks.values()]))


def _named_blocks(model: nn.Module, names: Sequence[str]) -> tuple[str, ...]:
    """Return names of blocks that the module has.

    Raises:
        BadInput: it has no such block, or the names are a single text.
    """
    if isinstance(names, str):
        raise BadInput(f"blocks {names!r}: expected several names, such as [{names!r}]")
    for name in names:
        block_named(model, name)
    return tuple(names)


def _as_arguments(inputs: Sequence[Any] | Mapping[str, Any] | Tensor) -> Inputs:
    if isinstance(inputs, DataLoader):
        raise BadInput("inputs are a DataLoader: give one batch of it, next(iter(loader))")
    return (inputs,) if isinstance(inputs, Tensor | Mapping) else tuple(inputs)


def _budget_bytes(memory: str | int | None, named: str | None, card: Card | None, device: torch.device) -> int | None:
    if card is None:
        return None
    if memory is not None:
        if not isinstance(memory, str) and memory < MIB:
            raise BadInput(f'memory={memory}: that is {memory} bytes; expected a size such as "6GiB", or bytes')
        return parse_size(memory) if isinstance(memory, str) else memory
    return card.memory_bytes if named is not None else free_bytes(device)[0] + card.context_bytes


def _held_bytes(task: Task, device: torch.device) -> int:
    """Return the bytes that model, optimizer, averages and inputs hold on a device, each storage counted once."""
    model_tensors = [
        *task.model.parameters(),
        *task.model.buffers(),
        *moved_by(task.optimizer).values(),
        *task.averages,
    ]
    every = (*model_tensors, *tensors_of(list(task.optimizer.state.values())), *tensors_of(task.inputs))
    storages = [tensor.untyped_storage() for tensor in every if tensor.device.type == device.type]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def normalises_batches(model: nn.Module) -> bool:
    """Return whether batch normalisation uses batch statistics, so that splitting a batch would change the result."""
    return any(isinstance(m, _BatchNorm) and (m.training or m.running_mean is None) for m in model.modules())


def recomputable(model: nn.Module) -> tuple[str, ...]:
    """Names of a model's blocks: what its lists and sequences hold, or sequences of single layers as a whole."""
    return tuple(_blocks(model, ""))


def _blocks(module: nn.Module, name: str) -> Iterator[str]:
    children = [(f"{name}.{child}".lstrip("."), child_module) for child, child_module in module.named_children()]
    in_order = isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential)
    if (
        isinstance(module, nn.Sequential)
        and name
        and not any(_is_composite(child_module) for _, child_module in children)
    ):
        if any(True for _ in module.parameters()):
            yield name
        return
    for child, child_module in children:
        if not in_order or isinstance(child_module, nn.ModuleList | nn.ModuleDict | nn.Sequential):
            yield from _blocks(child_module, child)
        elif _is_composite(child_module):
            yield child


def _is_composite(module: nn.Module) -> bool:
    return any(True for _ in module.children())


# The plans that there are, and the choice.


@dataclass(frozen=True)
class Search:
    """Chooses among the plans of a step."""

    task: Task  # the step
    batch: int  # samples of it
    together: int | None  # that a forward must have; None: any number
    candidates: tuple[str, ...]  # names of blocks that would be recomputed, if torch can
    card: Card | None  # where it would run; None: on a CPU
    precision: Precision = field(default_factory=lambda: Precision("fp32", DTYPES["fp32"], "asked for"))
    refused: dict[str, str] = field(
        default_factory=dict
    )  # block that cannot be recomputed -> why; known after `blocks`
    split: SplitCheck | None = None  # whether parts of a batch give its loss; None: it was not looked at
    _known: dict[tuple[str, bool, int, tuple[str, ...]], Taken] = field(default_factory=dict)

    @cached_property
    def blocks(self) -> tuple[str, ...]:
        """Names of the blocks that can be recomputed: run again, they do and save the same.

        A block that appends to a list or a cache that others read does not.
        """
        return self._recomputable(self.candidates)

    def _recomputable(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of some blocks that can be recomputed together, found by halves."""
        try:
            if names:
                self.taken(self.sizes[0], names)
        except RuntimeError as error:
            if len(names) == 1:
                self.refused[names[0]] = why_refused(error)
                return ()
        else:
            return names
        half = len(names) // 2
        first, second = self._recomputable(names[:half]), self._recomputable(names[half:])
        together = (*first, *second)
        try:
            if first and second:
                self.taken(self.sizes[0], together)
        except RuntimeError as error:
            self.refused.update(dict.fromkeys(second, why_refused(error)))
            return first
        return together

    def checked(self) -> "Search":
        """Look whether parts of the batch give its loss, and return the search that splits it only then."""
        task = self.task
        macs = self.taken(self.sizes[-1], ()).work.macs * SAMPLES / self.batch
        has_data = task.device.type != "meta" and not any(tensor.is_meta for tensor in tensors_of(task.inputs))
        if has_data and task.device.type == "cpu" and macs > MOST_MACS:
            split = SplitCheck(unknown="a few samples would take this CPU long")
        else:
            split = check_split(task.model, task.loss, task.inputs, self.batch, task.weight)
        return replace(self, split=split, together=self.batch if split.differs is not None else self.together)

    @property
    def sizes(self) -> list[int]:
        """Micro-batches worth trying, smallest first."""
        if self.together is not None:
            return [self.together]
        counts = [factor * 2**i for i in range(self.batch.bit_length()) for factor in (1, 3)]
        return sorted({-(-self.batch // parts) for parts in counts if parts <= self.batch} | {1})

    def plan(self, micro_batch: int, recompute: tuple[str, ...]) -> ModulePlan:
        """Return the plan with this micro-batch and these recomputed blocks, in the precision of the search."""
        return ModulePlan(self.batch, micro_batch, self.precision, recompute, masters=self.task.masters)

    def taken(self, micro_batch: int, recompute: tuple[str, ...]) -> Taken:
        """Return memory and operations of a plan, measured on tensors without data."""
        key = (self.precision.name, isinstance(self.precision, Autocast), micro_batch, recompute)
        if key not in self._known:
            self._known[key] = self.task.run(self.plan(micro_batch, recompute))
        return self._known[key]

    def seconds(self, micro_batch: int, recompute: tuple[str, ...]) -> float:
        """Return the predicted seconds of a step, by which plans are compared."""
        card = self.card or choose_card(None, torch.device("cpu"))
        return card.compared_seconds(self.taken(micro_batch, recompute).work, self.precision)

    def within(self, limit_bytes: int) -> tuple[int, tuple[str, ...]] | None:
        """Return the fastest plan whose allocator reserves at most a limit; None: there is none."""
        found = []
        for recompute in dict.fromkeys([(), self.blocks]):
            size = self._largest(limit_bytes, recompute)
            if size is not None:
                found.append((size, recompute))
            if size == self.sizes[-1]:
                break  # nothing is won by recomputing
        return min(found, key=lambda way: self.seconds(*way)) if found else None

    def _largest(self, limit_bytes: int, recompute: tuple[str, ...]) -> int | None:
        """Return the largest micro-batch that fits, by bisection; None: none does."""
        sizes = self.sizes
        least, most = 0, len(sizes)
        tried = most - 1  # which is often the answer
        while least < most:
            if self.taken(sizes[tried], recompute).reserved_bytes <= limit_bytes:
                least = tried + 1
            else:
                most = tried
            tried = (least + most) // 2
        return sizes[least - 1] if least else None

    def least(self) -> tuple[int, tuple[str, ...]]:
        """Return the plan that reserves the least memory."""
        ways = [(self.sizes[0], recompute) for recompute in dict.fromkeys([(), self.blocks])]
        return min(ways, key=lambda way: self.taken(*way).reserved_bytes)


def _in_precision(search: Search, requested: ModulePrecisionName, device: torch.device) -> Search:
    """The search in the precision that is asked for; by "auto" in another where the module refuses a half one.

    Raises:
        BadInput: the module does not run without data.
    """
    base: PrecisionName = "auto" if requested == "autocast" else requested
    precision = resolve_precision(base, device) if search.card is None else search.card.precision(base)
    if requested == "autocast":
        precision = Autocast.of(precision, "as asked for", on_card=search.card is not None)
    chosen = replace(search, precision=precision)
    try:
        chosen.taken(search.sizes[-1], ())
    except RuntimeError as error:
        name, reason = type(search.task.model).__name__, why_refused(error)
        if precision.name == "fp32":
            outside = "; does the loss train parameters outside of the model? Freeze them, or put them in the model"
            cure = outside if "got meta" in reason or "and cpu" in reason else ""
            raise BadInput(f"{name}: its step cannot be run without data: {reason}{cure}") from error
        other: ModulePrecisionName = "fp32" if requested == "autocast" else "autocast"
        in_another = _in_precision(search, other, device)
        if requested not in ("auto", "autocast"):
            cure = "" if in_another.precision.dtype == torch.float32 else 'precision="autocast" and '
            raise BadInput(f'{name} does not run in {precision.name}: {reason}; {cure}precision="fp32" does') from error
        why = "by autocast's rules" if requested == "autocast" else f"in {precision.name} as a whole"
        return replace(in_another, precision=replace(in_another.precision, reason=f"it does not run {why}: {reason}"))
    return chosen


def _report(search: Search, budget_bytes: int | None, normalisation_batch: int | None) -> ModuleReport:
    plain = (search.sizes[-1], ())
    chosen: tuple[int, tuple[str, ...]] | None = plain
    outside: dict[str, int] = {}
    if search.card is not None and budget_bytes is not None:
        budget = Budget.on(search.card, budget_bytes)
        budget.check(sum(p.nbytes for p in search.task.model.parameters()))
        chosen = search.within(budget.step_bytes)
        outside = dict(zip(OUTSIDE, (budget.context_bytes, budget.workspace_bytes), strict=True))
    micro_batch, recompute = chosen or search.least()
    if micro_batch < search.batch and search.split is None and normalisation_batch is None:
        return _report(search.checked(), budget_bytes, normalisation_batch)
    first = ModuleReport(
        batch=search.batch,
        micro_batch=micro_batch,
        precision=search.precision,
        recompute=recompute,
        name=type(search.task.model).__name__,
        fits=chosen is not None,
        budget_bytes=budget_bytes,
        peak_bytes=0,
        categories=outside,
        extra_time=0.0,
        decisions=tuple(_decisions(search, micro_batch, recompute, normalisation_batch)),
        search=search,
        masters=search.task.masters,
        split_checked=normalisation_batch is not None or (search.split is not None and search.split.unknown is None),
    )
    return first.of(micro_batch, recompute)


def _decisions(
    search: Search, micro_batch: int, recompute: tuple[str, ...], normalisation_batch: int | None
) -> Iterator[str]:
    model, precision = search.task.model, search.precision
    warning = "" if precision.warning is None else f" ({precision.warning})"
    rules = " by autocast's rules" if isinstance(precision, Autocast) else ""
    yield (
        f"precision: {precision.name}{rules}, {precision.reason}{warning}; override with "
        'precision="fp32", "fp16", "bf16" or "autocast"'
    )
    yield from _decisions_on_weights(search)
    if normalisation_batch is not None:
        yield f"normalisation: {normalisation_batch} samples in each forward, as asked, however much memory there is"
    elif search.together is not None:
        yield (
            "batch normalisation: each forward takes the whole batch, because a part of it would be normalised by "
            "itself, which changes the result; normalisation_batch=N allows forwards of N samples"
        )
    yield from _decisions_on_split(search, micro_batch)
    if any(isinstance(m, _DropoutNd) and m.training and m.p for m in model.modules()) and micro_batch < search.batch:
        yield "dropout: its masks are drawn for each forward, so another micro-batch draws other ones"
    for name, reason in search.refused.items():
        yield f"recompute: not {name}, which would not do the same again: {reason}"
    if not search.candidates:
        yield "recompute: no list or sequence of modules holds blocks for it; name some with blocks=[...]"
    elif not recompute:
        names = search.candidates
        yield f"recompute: not needed; {count(len(names), 'block')} could be: {first_names(names)}"
    if (card := search.card) is not None:
        yield (
            f"card: {card.name}; {show_size(card.context_bytes)} for CUDA's context, {show_size(card.workspace_bytes)} "
            f"for its libraries{': guesses' if card.source == 'guess' else ', measured'}"
        )


def _decisions_on_weights(search: Search) -> Iterator[str]:
    model = search.task.model
    if (half := trained_halves(model)) is not None:
        stay = "they stay so, as asked, and lose updates that are too small for their digits"
        become = "the step makes them fp32, for their updates' sake; masters=False leaves them"
        yield f"weights: those that train are in {name_of(half)}; {become if search.task.masters else stay}"
    recurrent = [name for name, module in model.named_modules() if isinstance(module, nn.RNNBase)]
    if recurrent:
        yield (
            f"memory: {first_names(recurrent) or type(model).__name__} keeps in its kernels what no plan sees (an LSTM "
            "on a CPU 64% of the prediction where a step is little else): leave room"
        )


def _decisions_on_split(search: Search, micro_batch: int) -> Iterator[str]:
    split = search.split
    if split is None:
        return
    if split.differs is not None:
        yield f"split: none, each forward takes the whole batch, because {split.differs}"
    if split.unknown is not None:
        yield f"split: whether parts of a batch give its loss is for the first step to see: {split.unknown}"
    if (moves := split.moves(-(-search.batch // micro_batch))) is not None:
        yield f"split: {moves}"
