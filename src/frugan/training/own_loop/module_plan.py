"""`plan_module`: whether a step of any module fits a card, and how, found by running it without data."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass, replace
from functools import update_wrapper
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from frugan.accelerator.choice import accelerator_of
from frugan.accelerator.precision import PrecisionName, resolve_precision
from frugan.errors import BadInput
from frugan.planning.predictions import why_refused
from frugan.stepmemory.calibration import choose_card
from frugan.stepmemory.cards import Budget, Card, free_bytes
from frugan.stepmemory.tracker import tensors_of
from frugan.torch_internals import is_compiled
from frugan.training.own_loop.advice import advice
from frugan.training.own_loop.batch import Inputs, Loss, Weight, check_loss_takes, samples_in
from frugan.training.own_loop.batch_loss import BatchLoss, check_weight
from frugan.training.own_loop.dataless_step import Task
from frugan.training.own_loop.ema_hook import EmaHook
from frugan.training.own_loop.half_precision import Autocast, name_of, trained_halves
from frugan.training.own_loop.module_report import OUTSIDE, ModuleReport
from frugan.training.own_loop.module_step import check_plain, moved_by
from frugan.training.own_loop.plan_search import Search, recomputable
from frugan.training.own_loop.recompute import block_named
from frugan.training.own_loop.split_check import normalises_batches
from frugan.wording import MIB, count, first_names, parse_size, show_size

ModulePrecisionName = PrecisionName | Literal["autocast"]


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
    micro_batch: int | None = None,
    equal_parts: bool = False,
    blocks: Sequence[str] | None = None,
    ema: EmaHook | None = None,
) -> ModuleReport:
    """Say whether a step of a module fits a memory budget, and with which micro-batch, precision and recomputed blocks.

    Runs the step on tensors without data: needs no card, no memory to speak of, and moves nothing.

    Args:
        model: on any device, "meta" too. In DistributedDataParallel: the plan of one process, whose part of the batch
            is given.
        loss: (model, *inputs) -> the mean of the loss over the samples; or (sum, count), where it is a mean over
            something else; or a mapping with either as "loss", whose other entries a step hands on.
        inputs: what the loss is given besides the model, of one whole batch: tensors [samples, ...], or tuples, lists,
            dicts and dataclasses of them. On the host each part is copied when it is due; on a card they are counted
            there.
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
        micro_batch: samples in each forward, where you know it; None: the most that fits.
        equal_parts: all forwards of a step take as many samples, as in loops that divide each loss by their number.
        blocks: names of modules that may be recomputed; None: those that lists and sequences of the module hold.
        ema: average that is kept of the model, to be counted.

    Raises:
        BadInput: unknown card or block, a wrapped model, inputs of different numbers of samples, or a module that asks
            for the value of a tensor.
    """
    parallel = model if isinstance(model, DistributedDataParallel) else None
    model = model if parallel is None else parallel.module
    check_plain(model, loss, optimizer)
    check_weight(loss, weight)
    if precision not in (known := (*get_args(PrecisionName), "autocast")):
        raise BadInput(f"precision {precision!r}: expected one of {', '.join(known)}")
    arguments = _as_arguments(inputs)
    batch = samples_in(arguments)
    check_loss_takes(loss, model, arguments)
    together = _normalised_together(model, batch, normalisation_batch, micro_batch, equal_parts=equal_parts)
    half = trained_halves(model)
    if half is not None and not masters and not equal_parts and precision not in ("auto", name_of(half)):
        raise BadInput(f'precision {precision!r}: weights that stay in {name_of(half)} train in it; expected "auto"')
    if card is not None and not isinstance(card, str):
        raise BadInput(f'card {card!r}: expected a name, such as "rtx-3060"')
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
        buckets=() if parallel is None else _buckets(model),
        weight=weight,
        masters=masters,
    )
    if half is not None and precision == "auto":
        precision = name_of(half)
    names = recomputable(model) if blocks is None else _named_blocks(model, blocks)
    tried = _in_precision(
        Search(task, batch, together, names, planned_for, equal_parts, micro_batch), precision, device
    )
    report = _report(tried, _budget_bytes(memory, card, planned_for, task, device), normalisation_batch)
    if micro_batch is not None and (split := report.search.split) is not None and split.differs is not None:
        raise BadInput(
            f"micro_batch {micro_batch}: parts of this batch do not give its loss, because {split.differs}; leave it "
            "out to plan the whole batch, or say with weight= what counts"
        )
    return report


def fits(
    model: nn.Module,
    loss: Loss,
    inputs: Sequence[Any] | Mapping[str, Any] | Tensor,
    optimizer: torch.optim.Optimizer,
    memory: str | int | None = None,
    *,
    card: str | None = None,
    weight: Weight | None = None,
    precision: Literal["fp32", "autocast"] = "fp32",
    micro_batch: int | None = None,
    blocks: Sequence[str] | None = None,
) -> ModuleReport:
    """Say whether a step of a training loop that you keep fits a memory budget, and what to change in it where not.

    Plans with what any loop can do with torch alone: gradients of equal parts of the batch added up, blocks wrapped in
    torch's checkpoint (`apply_recompute` of the report), the parameters' own precision, or `torch.autocast` around
    each forward and loss, in the half precision that the report names. Other arguments are as for `plan_module`.

    Raises:
        BadInput: as `plan_module`, or another precision.

    Example:
        >>> plan = frugan.fits(model, loss, batch, optimizer, card="rtx-3060")
        >>> plan.apply_recompute(model)
        >>> for batch in loader:
        ...     for part, share in plan.parts(batch):
        ...         (loss(model, *part) * share).backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
    """
    if precision not in ("fp32", "autocast"):
        raise BadInput(
            f'precision {precision!r}: expected "fp32" or "autocast", which any loop has; for copies of the weights in '
            "half precision use frugan.plan_module and frugan.ModuleStep"
        )
    whole_batch = isinstance(loss, BatchLoss)
    if whole_batch:
        batch = samples_in(_as_arguments(inputs))
        if micro_batch not in (None, batch):
            raise BadInput(
                f"micro_batch {micro_batch}: a BatchLoss compares all {batch} samples, and only frugan.ModuleStep "
                "splits it (frugan.plan_module); leave micro_batch out to plan the whole batch for a loop of your own"
            )
        micro_batch = batch
    report = plan_module(
        model,
        loss if whole_batch or not callable(loss) else _OneNumber(loss),
        inputs,
        optimizer,
        memory,
        card=card,
        weight=weight,
        precision=precision,
        masters=False,
        micro_batch=micro_batch,
        equal_parts=True,
        blocks=blocks,
    )
    if not whole_batch:
        return report
    why = "split: none, as a BatchLoss compares the whole batch; frugan.ModuleStep splits it too (frugan.plan_module)"
    return replace(report, decisions=(why, *report.decisions))


class _OneNumber:
    """A loss in a loop that multiplies it by a part's share itself."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        update_wrapper(self, loss)  # its signature, by which mistakes are told

    def __call__(self, model: nn.Module, *inputs: Any) -> Any:
        """Return what the loss does.

        Raises:
            BadInput: that is no scalar, nor a mapping with one.
        """
        returned = self._loss(model, *inputs)
        value = returned["loss"] if isinstance(returned, Mapping) and "loss" in returned else returned
        if isinstance(value, tuple | list):
            raise BadInput(
                f"the loss gives a {type(value).__name__}, and a loop of your own multiplies a part's loss by its "
                "share: return the mean, and give what it is over as weight=, such as lambda tokens, labels: (labels "
                "!= -100).sum(); frugan.ModuleStep takes (sum, count) as it is (frugan.plan_module)"
            )
        return returned


def _buckets(model: nn.Module) -> tuple[Tensor, ...]:
    """Return tensors without data as large as those in which DistributedDataParallel lays out gradients."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    elements = {p.dtype: sum(q.numel() for q in trained if q.dtype == p.dtype) for p in trained}
    return tuple(torch.empty(number, dtype=dtype, device="meta") for dtype, number in elements.items())


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
    if isinstance(inputs, Tensor | Mapping) or is_dataclass(inputs):
        return (inputs,)
    if not isinstance(inputs, Sequence):
        raise BadInput(
            f"inputs are a {type(inputs).__name__}: expected one batch, a tensor or a tuple, list or dict of them"
        )
    return tuple(inputs)


def _budget_bytes(
    memory: str | int | None, named: str | None, card: Card | None, task: Task, device: torch.device
) -> int | None:
    """Return the bytes that the step may take; None: no limit.

    Raises:
        BadInput: `memory` is no size.
    """
    if card is None:
        return None
    if memory is not None:
        if not isinstance(memory, str) and not memory >= MIB:  # nor is it comparable, as nan
            raise BadInput(f'memory={memory}: that is {memory} bytes; expected a size such as "6GiB", or bytes')
        return parse_size(memory) if isinstance(memory, str) else memory
    if named is not None:
        return card.memory_bytes
    # What is held already counts as part of the step, and is not free any more.
    return free_bytes(device)[0] + card.context_bytes + _held_bytes(task, device)


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


def _normalised_together(
    model: nn.Module, batch: int, normalisation_batch: int | None, micro_batch: int | None, *, equal_parts: bool
) -> int | None:
    """Return how many samples each forward has to take, where layers look at several of them; None: any number.

    Raises:
        BadInput: a size that is asked for is none, or does not go with the module or with the batch.
    """
    for name, size in (("normalisation_batch", normalisation_batch), ("micro_batch", micro_batch)):
        if size is not None and not (isinstance(size, int) and 1 <= size <= batch):
            raise BadInput(f"{name} {size!r}: expected 1 to {batch}, the batch")
    together = normalisation_batch or (batch if normalises_batches(model) else None)
    if micro_batch is not None and together not in (None, micro_batch):
        raise BadInput(
            f"micro_batch {micro_batch}: batch normalisation would normalise each part by itself, which changes the "
            f"result; normalisation_batch={micro_batch} says that it may"
        )
    if equal_parts and batch % (micro_batch or 1):
        raise BadInput(f"micro_batch {micro_batch}: expected a divisor of the batch, {batch}, for parts of one size")
    return together


# The precision, and the report.


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
            in_fp32 = in_another.precision.dtype == torch.float32
            cure = 'precision="fp32" does' if in_fp32 else 'precision="autocast" and precision="fp32" do'
            raise BadInput(f"{name} does not run in {precision.name}: {reason}; {cure}") from error
        why = "by autocast's rules" if requested == "autocast" else f"in {precision.name} as a whole"
        return replace(in_another, precision=replace(in_another.precision, reason=f"it does not run {why}: {reason}"))
    return chosen


def _report(search: Search, budget_bytes: int | None, normalisation_batch: int | None) -> ModuleReport:
    plain = (search.sizes[-1], ())
    chosen: tuple[int, tuple[str, ...]] | None = plain
    outside: dict[str, int] = {}
    advised: tuple[str, ...] = ()
    if search.card is not None and budget_bytes is not None:
        budget = Budget.on(search.card, budget_bytes)
        budget.check(sum(p.nbytes for p in search.task.model.parameters()))
        chosen = search.within(budget.step_bytes)
        advised = tuple(advice(search, chosen, budget))
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
        decisions=(*_decisions(search, micro_batch, recompute, normalisation_batch), *advised),
        search=search,
        masters=search.task.masters,
        split_checked=search.split is not None and search.split.unknown is None,
        split_wanted=normalisation_batch is not None,
        weight=search.task.weight,
    )
    return first.of(micro_batch, recompute)


def _decisions(
    search: Search, micro_batch: int, recompute: tuple[str, ...], normalisation_batch: int | None
) -> Iterator[str]:
    model, precision = search.task.model, search.precision
    warning = "" if precision.warning is None else f" ({precision.warning})"
    rules = " by autocast's rules" if isinstance(precision, Autocast) else ""
    if search.equal_parts and not rules:
        yield (
            f'precision: that of the parameters, {precision.reason}; override with precision="autocast", which is '
            "torch.autocast around each forward"
        )
    else:
        others = '"fp32"' if search.equal_parts else '"fp32", "fp16", "bf16" or "autocast"'
        yield f"precision: {precision.name}{rules}, {precision.reason}{warning}; override with precision={others}"
    yield from _decisions_on_weights(search)
    if normalisation_batch is not None:
        yield (
            f"normalisation: {normalisation_batch} samples in each forward, as asked, however much memory there is; "
            "running statistics move with each forward"
        )
    elif normalises_batches(model):
        yield (
            "batch normalisation: each forward takes the whole batch, because a part of it would be normalised by "
            "itself, which changes the result; normalisation_batch=N allows forwards of N samples"
        )
    yield from _decisions_on_split(search, micro_batch)
    if any(isinstance(m, _DropoutNd) and m.training and m.p for m in model.modules()) and micro_batch < search.batch:
        yield "dropout: its masks are drawn for each forward, so another micro-batch draws other ones"
    for reason in dict.fromkeys(search.refused.values()):
        refused = [name for name, known in search.refused.items() if known == reason]
        yield f"recompute: not {first_names(refused)}, which would not do the same again: {reason}"
    if not search.candidates:
        yield "recompute: no list or sequence of modules holds blocks for it; name some with blocks=[...]"
    elif not recompute:
        names = search.candidates
        yield f"recompute: not needed; {count(len(names), 'block')} could be: {first_names(names)}"
    compiled = [key or type(model).__name__ for key, module in model.named_modules() if is_compiled(module)]
    if compiled:
        yield f"compiled: {first_names(compiled)}; planned as written, what a compiler makes of it takes less or more"
    if search.task.buckets:
        yield (
            "DistributedDataParallel: the plan of one process, with the buckets in which it exchanges gradients; with "
            "gradient_as_bucket_view=True it takes less. Run all parts but the last in no_sync()"
        )
    if (card := search.card) is not None:
        yield (
            f"card: {card.name}; {show_size(card.context_bytes)} for CUDA's context, {show_size(card.workspace_bytes)} "
            f"for its libraries{': guesses' if card.source == 'guess' else ', measured'}"
        )


def _decisions_on_weights(search: Search) -> Iterator[str]:
    model = search.task.model
    if (half := trained_halves(model)) is not None:
        stay = "they stay so, and lose updates that are too small for their digits"
        become = "the step makes them fp32, for their updates' sake; masters=False leaves them"
        yield f"weights: those that train are in {name_of(half)}; {become if search.task.masters else stay}"
    recurrent = {name: module for name, module in model.named_modules() if isinstance(module, nn.RNNBase)}
    if recurrent:
        more = "1.5 to 2.5" if any(isinstance(module, nn.LSTM) for module in recurrent.values()) else "up to 1.3"
        names = first_names([*recurrent]) or type(model).__name__
        yield (
            f"memory: {names} keeps in its kernels what no plan sees: leave room; a step of little "
            f"else takes {more} times its prediction on a CPU, and was not measured on a card"
        )


def _decisions_on_split(search: Search, micro_batch: int) -> Iterator[str]:
    split = search.split
    if split is None:
        return
    if split.differs is not None:
        yield f"split: none, each forward takes the whole batch, because {split.differs}"
    if split.unknown is not None:
        yield f"split: whether parts of a batch give its loss is for the first step to see: {split.unknown}"
    if (terms := split.other_terms()) is not None:
        yield f"split: {terms}"
    forwards = -(-search.batch // micro_batch)
    for line in (split.moves(forwards), split.other_draws(forwards)):
        if line is not None:
            yield f"split: {line}"
