"""A step of any module run without data: what lives at its peak, and the work that it is."""

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from frugan.accelerator.choice import accelerator_of
from frugan.engine.plan import micro_batch_sizes
from frugan.engine.state.working_weights import pending_gradient
from frugan.errors import BadInput
from frugan.stepmemory.dataless import META, Dataless, WithoutData, is_kept, running_without_data
from frugan.stepmemory.measurement import Measurement
from frugan.stepmemory.tracker import Category, tensors_of
from frugan.stepmemory.work import Work
from frugan.torch_internals import is_compiled, tree_map
from frugan.training.own_loop.batch import Inputs, Loss, Parts, Weight
from frugan.training.own_loop.batch_loss import BatchLoss
from frugan.training.own_loop.half_precision import HALVES
from frugan.training.own_loop.module_step import (
    ModulePlan,
    compute_gradients,
    moved_by,
    restoring_state,
)
from frugan.wording import first_line


@dataclass(frozen=True)
class Taken:
    """Memory and operations of one step."""

    live_bytes: int  # most that lives at once
    reserved_bytes: int  # the least that a card's allocator must be allowed to reserve; on a CPU what lives
    categories: Mapping[str, int]  # bytes that live at the peak, by what they are for
    work: Work  # of the whole step


@dataclass(frozen=True)
class Task:
    """A step that is planned."""

    # model, loss, inputs, optimizer: as `plan_module` takes them
    model: nn.Module
    loss: Loss
    inputs: Inputs
    optimizer: torch.optim.Optimizer
    averages: tuple[Tensor, ...]  # that lie beside the model
    device: torch.device  # the model's
    as_card: bool  # planned for a card, wherever the model is
    weight: Weight | None = None  # as `plan_module` takes it; a plan counts all parts alike
    masters: bool = True  # weights that train in half precision become fp32
    buckets: tuple[Tensor, ...] = ()  # in which DistributedDataParallel exchanges gradients
    # runs operations, and remembers what they give
    dataless: Dataless = field(default_factory=lambda: Dataless(keep_values=True))

    def copied(self, leaf: Tensor) -> bool:
        """Return whether a batch tensor is in host memory and its micro-batches are copied to a card."""
        return self.as_card and not accelerator_of(leaf.device).is_card

    def run(self, plan: ModulePlan) -> Taken:
        """Run a whole step by a plan, of which all micro-batches but two of the same size are reckoned with.

        Raises:
            BadInput: the optimizer cannot step without data.
            RuntimeError: the model asks for a value, or torch refuses.
        """
        dataless = self.dataless
        with running_without_data(as_card=self.as_card), _as_written(self.model):
            model, optimizer = on_meta(self.model, self.optimizer, as_card=self.as_card, masters=self.masters)
            inputs = tree_map(_blank, self.inputs)
            with WithoutData(dataless), _scalars_readable(dataless):
                try:
                    _initialise_state(optimizer)
                except RuntimeError as error:
                    raise BadInput(
                        f"{type(optimizer).__module__}.{type(optimizer).__qualname__} cannot be planned: its step "
                        f"does not run without data ({first_line(error)}). Plan with one of torch.optim that keeps at "
                        "least as much a parameter: what fits with that one fits with yours"
                    ) from error
            # in one order each time: what an allocator reserves depends on it
            held = list(dict.fromkeys((*model.parameters(), *model.buffers(), *moved_by(optimizer).values())))
            kept = tensors_of(list(optimizer.state.values()))
            flat = list(zip(tensors_of(self.inputs), tensors_of(inputs), strict=True))
            existing: dict[Category, list[Tensor]] = {
                "parameters": held,
                # counts stay on the host
                "optimizer": [tensor for tensor in kept if tensor.is_meta or not self.as_card],
                "averages": [_without_data(average) for average in self.averages],
                "gradients": [_without_data(bucket) for bucket in self.buckets],
                "batch": [there for here, there in flat if not self.copied(here)],
            }
            copied = [there for here, there in flat if self.copied(here)]
            with (
                Measurement(existing, elsewhere=copied, dataless=dataless) as measurement,
                restoring_state(model, optimizer) as undo,
            ):
                tracker = measurement.tracker
                parts = _WatchedParts(model, self, inputs, plan, measurement)
                tracker.place = "forward and backward"
                compute_gradients(model, self.loss, optimizer, parts, plan)
                tracker.mark("gradients", (p.grad for p in held if p.grad is not None), again=True)
                tracker.place = "optimizer"
                with _scalars_readable(dataless):
                    optimizer.step()
                undo.pop_all()
        memory = measurement.memory(work=measurement.counter.work + parts.left_out)
        peak = memory.peak
        live, reserved = peak.size_bytes, peak.size_bytes
        if self.as_card:
            live, reserved = memory.live_on_card_bytes, memory.needed_on_card_bytes
        return Taken(live, reserved, {str(k): size for k, size in peak.categories.items()}, memory.work)


@contextmanager
def _as_written(model: nn.Module) -> Iterator[None]:
    """Inside, compiled modules run as they are written."""
    if any(is_compiled(module) for module in model.modules()):
        with torch.compiler.set_stance("force_eager"):
            yield
    else:
        yield


class _WatchedParts:
    """Micro-batches, of which a tracker is told what lives; all but two of the same size are left out.

    Attributes:
        sizes: samples of each that is not left out.
        left_out: work of those.
    """

    def __init__(self, model: nn.Module, task: Task, inputs: Inputs, plan: ModulePlan, seen_by: Measurement) -> None:
        sizes = micro_batch_sizes(plan.batch, plan.micro_batch)
        self.sizes = [*sizes[:2], *(size for size in sizes[2:][-1:] if size != sizes[0])]
        if isinstance(task.loss, BatchLoss):
            self.sizes = sizes  # it is given what all of them give
        self._missing = len(sizes) - len(self.sizes)
        self._model, self._inputs, self._batch = model, inputs, plan.batch
        self._tracker, self._counter = seen_by.tracker, seen_by.counter
        self.left_out = Work()

    def __iter__(self) -> Iterator[tuple[Inputs, float]]:
        laps: list[Work] = []
        for part, share in Parts(self._inputs, self.sizes, self._batch, META):
            self._mark()
            laps.append(self._counter.work)
            yield tree_map(self._copied, part), share
        laps.append(self._counter.work)
        self._mark()
        if self._missing:
            self.left_out = (laps[2] - laps[1]) * self._missing

    def _copied(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not self._tracker.ignores(leaf):
            return leaf
        copied = leaf.clone()
        self._tracker.mark("batch", [copied])
        return copied

    def _mark(self) -> None:
        placed = list(self._model.parameters())
        self._tracker.mark("working weights", (p for p in placed if not isinstance(p, nn.Parameter)), again=True)
        gradients = (g for p in placed if (g := pending_gradient(p)) is not None)
        self._tracker.mark("gradients", gradients, again=True)


def _blank(leaf: Any) -> Any:
    """Replace an input or a buffer by one without data, but for small ones of whole numbers or truth values."""
    if isinstance(leaf, Tensor) and not leaf.is_meta and not leaf.is_floating_point() and is_kept(leaf):
        return leaf.detach().to("cpu", copy=True)
    return _without_data(leaf)


def _without_data(leaf: Any) -> Any:
    return torch.empty_like(leaf, device=META) if isinstance(leaf, Tensor) else leaf


def on_meta(
    model: nn.Module, optimizer: torch.optim.Optimizer, *, as_card: bool, masters: bool = True
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return copies of a model and its optimizer on the meta device.

    Args:
        as_card: the optimizer works on lists of tensors, as torch's do by themselves on cards.
        masters: weights that train are fp32, where they are in half precision.
    """
    twins: dict[int, Any] = {}
    for parameter in (*model.parameters(), *moved_by(optimizer).values()):
        twin = _without_data(parameter)
        if masters and parameter.requires_grad and parameter.dtype in HALVES:
            twin = twin.float()
        twins[id(parameter)] = nn.Parameter(twin, requires_grad=parameter.requires_grad)
    twins |= {id(buffer): _blank(buffer) for buffer in model.buffers()}
    constants = (v for m in model.modules() for v in vars(m).values() if isinstance(v, Tensor))
    try:
        twin_model = copy.deepcopy(model, {id(constant): constant for constant in constants} | twins)
    except (TypeError, RuntimeError) as error:  # RuntimeError: a list of activations, kept since a step
        raise BadInput(
            f"the {type(model).__name__} cannot be copied, to be planned without data: {first_line(error)}; keep such "
            "an attribute outside of the module, or give its class a __deepcopy__"
        ) from error
    return twin_model, _optimizer_twin(optimizer, twins, as_card=as_card)


def _optimizer_twin(
    optimizer: torch.optim.Optimizer, twins: Mapping[int, Any], *, as_card: bool
) -> torch.optim.Optimizer:
    """Return an optimizer over twins, by the id of each original; hooks and a scheduler's wrapper are left out."""
    twin = object.__new__(type(optimizer))
    twin.__dict__ |= {name: value for name, value in vars(optimizer).items() if name != "step"}  # a scheduler's wrapper
    twin.__dict__ |= {name: {} for name in vars(optimizer) if name.endswith("_hooks")}
    twin._need_device_dtype_check_for_fused = False  # type: ignore[attr-defined]  # of devices
    twin.param_groups = []
    for group in optimizer.param_groups:
        twin_group = {**group, "params": [twins[id(p)] for p in group["params"]]}
        if twin_group.get("capturable"):
            twin_group["capturable"] = False  # which torch allows on cards alone, and takes no other memory
        if as_card and twin_group.get("foreach", False) is None and not twin_group.get("fused"):
            twin_group["foreach"] = True
        twin.param_groups.append(twin_group)
    twin.state = defaultdict(dict)
    for moved, kept in optimizer.state.items():  # counts have values, which optimizers look at
        twin.state[twins[id(moved)]] = {
            name: _without_data(v) if isinstance(v, Tensor) and v.ndim else copy.deepcopy(v) for name, v in kept.items()
        }
    return twin


@contextmanager
def _scalars_readable(dataless: Dataless) -> Iterator[None]:
    """Let optimizers read scalar values, as Adafactor does of a norm; any value takes the same memory."""
    dataless.value = 1.0
    try:
        yield
    finally:
        dataless.value = None


def _initialise_state(optimizer: torch.optim.Optimizer) -> None:
    """Run a first step to create the state; fused optimizers, which torch refuses on meta, step as plain ones."""
    fused = [bool(group.get("fused")) for group in optimizer.param_groups]
    parameters = [parameter for parameter in moved_by(optimizer).values() if parameter.requires_grad]
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    for group, is_fused in zip(optimizer.param_groups, fused, strict=True):
        if is_fused:
            group["fused"] = False
    optimizer.step()
    for group, is_fused in zip(optimizer.param_groups, fused, strict=True):
        if is_fused:
            group["fused"] = True
            for parameter in group["params"]:
                kept = optimizer.state[parameter]
                counts = {name: v for name, v in kept.items() if isinstance(v, Tensor) and not v.ndim}
                kept |= {name: parameter.new_empty(()) for name in counts}
    for parameter in parameters:
        parameter.grad = None
