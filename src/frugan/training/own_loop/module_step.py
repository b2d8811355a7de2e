"""A planned training step of any module with any of torch's optimizers, to be called in a loop of one's own."""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import UninitializedParameter
from torch.utils.checkpoint import checkpoint

from frugan.accelerator.device import ran_out_of_memory, release_memory
from frugan.accelerator.precision import Precision
from frugan.contract.layers import keeps_fp32
from frugan.engine.plan import Layout, micro_batch_sizes
from frugan.engine.state.gradients import clip, measure
from frugan.engine.state.loss_scale import LossScale
from frugan.engine.state.working_weights import WorkingWeights, working_weights
from frugan.errors import BadInput, TrainingFailed
from frugan.stepmemory.work import written_in_place
from frugan.torch_internals import TorchDispatchMode, tree_leaves, tree_map
from frugan.wording import first_line, first_names, nearest

Loss = Callable[..., Tensor]
"""(model, *inputs) -> the mean of the loss over the samples, a scalar."""

Inputs = tuple[Any, ...]
"""What the loss is given besides the model: tensors [samples, ...], or tuples, lists and dicts of them."""


@dataclass(frozen=True)
class ModulePlan:
    """Execution plan of a module's step; it changes cost, and the result by no more than rounding."""

    batch: int  # samples of a step, at most
    micro_batch: int  # samples of one forward
    precision: Precision  # of the working weights
    recompute: tuple[str, ...] = ()  # modules whose activations are made again in backward

    def smaller(self) -> "ModulePlan | None":
        """One that takes less memory, for when it runs out; None: there is none."""
        return None


@dataclass(frozen=True)
class StepOutcome:
    """Loss and gradient norm of a step, and whether its update was skipped."""

    loss: float  # mean over the batch
    grad_norm: float  # of all gradients, unscaled, before clipping
    skipped: bool  # loss or gradients were not finite, and nothing has moved
    loss_scale: float  # as used; 1 but in fp16


class ModuleStep:
    """Runs steps of a module by a plan: gradients in parts of the batch, judged, clipped and given to the optimizer.

    A step that is not finite moves nothing: no weight, no optimizer state, no buffer such as running statistics, no
    average of an `EmaHook`. In fp16 the loss scale is then halved. Memory that runs out before the optimizer has begun
    leaves no trace either: the step is repeated by the next smaller plan, and so are those after it. The host waits
    for each step's verdict, as it does with torch's own gradient scaler.

    Args:
        model: on its device, with fp32 parameters.
        loss: as for `plan_module`.
        optimizer: any of torch's that takes its step without a closure.
        plan: of `plan_module`.
        clip_norm: largest gradient norm; larger ones are scaled down to it. None: no clipping.

    Attributes:
        plan: in force; a smaller one once memory has run out.

    Raises:
        BadInput: the model is wrapped for several processes or compiled, or has no block that the plan recomputes;
            a gradient norm that is not positive.

    Example:
        >>> plan = frugan.plan_module(model, loss, (pictures, masks), optimizer, memory="6GiB")
        >>> step = frugan.ModuleStep(model, loss, optimizer, plan, clip_norm=1.0)
        >>> for pictures, masks in loader:
        ...     outcome = step(pictures, masks)
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        plan: ModulePlan,
        *,
        clip_norm: float | None = None,
    ) -> None:
        check_plain(model, loss, optimizer)
        if not isinstance(plan, ModulePlan):
            raise BadInput(f"plan {plan!r}: expected what frugan.plan_module returns")
        if (planned := getattr(plan, "name", None)) not in (None, type(model).__name__):
            raise BadInput(f"the plan is of a {planned}, and the model is a {type(model).__name__}: plan it")
        if clip_norm is not None and not clip_norm > 0:
            raise BadInput(f"clip_norm {clip_norm}: expected more than 0, or None for no clipping")
        for name in plan.recompute:
            block_named(model, name)
        if any(parameter.is_meta for parameter in model.parameters()):
            raise BadInput(f"the {type(model).__name__} is on the device meta, without data: make it on another")
        self.plan = plan
        self._model, self._loss, self._optimizer, self._clip_norm = model, loss, optimizer, clip_norm
        self._device = next(model.parameters()).device
        self._scale = LossScale.create(plan.precision, torch.device("cpu"))  # on the host, which decides

    def __call__(self, *inputs: Any) -> StepOutcome:
        """Run one step on a batch.

        Args:
            inputs: what the loss is given besides the model; on the host or the model's device.

        Raises:
            BadInput: inputs are of different numbers of samples, or of more than was planned.
            TrainingFailed: memory ran out and no smaller plan is left, or the optimizer had begun.
        """
        batch = samples_in(inputs)
        if batch > self.plan.batch:
            raise BadInput(
                f"a batch of {batch} samples: the plan is for at most {self.plan.batch}; plan again with such inputs"
            )
        while True:
            try:
                return self._run(inputs, batch)
            except RuntimeError as error:
                if not ran_out_of_memory(error):
                    raise
                message = first_line(error)
            release_memory(self._device)  # outside of the handler, whose frames hold what has to go
            smaller = self.plan.smaller()
            if smaller is None:
                raise TrainingFailed(f"memory ran out, and no smaller plan is left: {message}")
            self.plan = smaller

    def state_dict(self) -> dict[str, float]:
        """Return the loss scale, which a checkpoint needs besides model and optimizer."""
        return {"loss_scale": float(self._scale.scale), "good_steps": float(self._scale.good)}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on from a checkpoint."""
        if self._scale.dynamic:
            self._scale.scale.fill_(state["loss_scale"])
            self._scale.good.fill_(state["good_steps"])

    def _run(self, inputs: Inputs, batch: int) -> StepOutcome:
        scale = float(self._scale.scale)
        parts = micro_batches(inputs, micro_batch_sizes(batch, self.plan.micro_batch), batch, self._device)
        with restoring_state(self._model, self._optimizer) as undo:
            values = compute_gradients(self._model, self._loss, self._optimizer, parts, self.plan, scale)
            loss, norm = values.tolist()
            accepted = math.isfinite(loss) and math.isfinite(norm)
            if accepted:
                if self._clip_norm is not None:
                    clip(moved_by(self._optimizer), values[1], self._clip_norm)
                with _undo_on_error(self._optimizer):
                    self._optimizer.step()
                undo.pop_all()
        self._scale.move(torch.tensor(accepted))
        return StepOutcome(loss, norm, not accepted, scale)


def compute_gradients(
    model: nn.Module,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    parts: Iterable[tuple[Inputs, float]],
    plan: ModulePlan,
    scale: float = 1.0,
) -> Tensor:
    """Run forward and backward of a batch, with gradients accumulated in fp32, but not the optimizer.

    Args:
        parts: micro-batches on the device, each with its share of the batch.
        scale: of the loss, against underflow in fp16.

    Returns:
        Mean of the loss, and norm of the gradients that lie in the parameters now [2].

    Raises:
        BadInput: the loss is no scalar.
    """
    total: Tensor | None = None
    # On a card autograd would run backward on a thread of its own: recomputation and tracing then run as on a CPU.
    with (
        torch.autograd.set_multithreading_enabled(False),
        _in_precision(model, plan.precision) as working,
        _recomputing(model, plan.recompute),
    ):
        for inputs, share in parts:
            value = loss(model, *inputs)
            if not isinstance(value, Tensor) or value.numel() != 1:
                what = f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
                raise BadInput(f"the loss gives {what}; expected a scalar, the mean over the samples")
            value = value.reshape(()).to(torch.promote_types(value.dtype, torch.float32))
            torch.autograd.backward(value, torch.full_like(value, scale * share))
            micro_batch_loss = value.detach() * share
            total = micro_batch_loss if total is None else total + micro_batch_loss
            if working is not None:
                working.add_up()
        if working is not None:
            device = next(model.parameters()).device
            working.carry(None if scale == 1 else torch.full((), 1 / scale, device=device))
    assert total is not None
    return torch.stack([total.float(), measure(moved_by(optimizer), zeros=False).norm])


def moved_by(optimizer: torch.optim.Optimizer) -> dict[str, nn.Parameter]:
    """Return the parameters of an optimizer by "group I, parameter J", their places in it."""
    groups = enumerate(optimizer.param_groups)
    return {f"group {i}, parameter {j}": p for i, group in groups for j, p in enumerate(group["params"])}


# The batch and its parts.


def samples_in(inputs: Inputs) -> int:
    """Samples of a batch.

    Raises:
        BadInput: there are none, tensors have different numbers of them, or inputs are no tensors.
    """
    leaves = tree_leaves(inputs)
    for leaf in leaves:
        if not isinstance(leaf, Tensor | int | float | str | None):
            raise BadInput(
                f"inputs hold a {type(leaf).__name__}, which has no samples: expected tensors, or tuples, lists and "
                "dicts of them"
            )
    sizes = {len(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim}
    if len(sizes) != 1 or 0 in sizes:
        found = " and ".join(map(str, sorted(sizes))) or "no"
        raise BadInput(f"inputs have {found} samples; expected tensors [samples, ...] of the same number, at least 1")
    return sizes.pop()


def micro_batches(
    inputs: Inputs, sizes: Sequence[int], batch: int, device: torch.device
) -> Iterator[tuple[Inputs, float]]:
    """A batch in parts on a device, each with its share of the batch; a text for each sample goes with its sample."""

    def is_texts(leaf: Any) -> bool:
        return isinstance(leaf, list | tuple) and len(leaf) == batch > 1 and all(isinstance(x, str) for x in leaf)

    first = 0
    for size in sizes:
        yield (
            tree_map(partial(_part, first=first, size=size, device=device), inputs, is_texts),
            size / batch,
        )
        first += size


def _part(leaf: Any, *, first: int, size: int, device: torch.device) -> Any:
    if isinstance(leaf, list | tuple):
        return leaf[first : first + size]
    if not isinstance(leaf, Tensor):
        return leaf
    return (leaf[first : first + size] if leaf.ndim else leaf).to(device, non_blocking=True)


# Half precision: working weights, and inputs that are cast where layers take them.


@contextmanager
def _in_precision(model: nn.Module, precision: Precision) -> Iterator[WorkingWeights | None]:
    """Run a model on half-precision copies of its weights, made once; its outputs are fp32, for the loss.

    Each of torch's layers that has weights casts what it is given to their precision, as activations may become fp32
    on the way (a buffer that is added). In fp32 the model runs as it is.

    Raises:
        RuntimeError: it has recurrent layers.
    """
    if precision.dtype == torch.float32:
        yield None
        return
    if any(isinstance(module, nn.RNNBase) for module in model.modules()):
        raise RuntimeError("recurrent layers keep their weights in lists of their own, where no others can be put")
    layouts = {"model": Layout(precision.dtype)}
    with ExitStack() as stack:
        working = stack.enter_context(working_weights({"model": model}, layouts, ("model",), None, many=True))
        for module in model.modules():
            parameters = dict(module.named_parameters(recurse=False))
            if type(module).__module__.startswith("torch.nn.") and parameters.keys() - keeps_fp32(module):
                cast = partial(_cast_inputs, dtype=precision.dtype)
                stack.callback(module.register_forward_pre_hook(cast, with_kwargs=True).remove)
        stack.callback(model.register_forward_hook(_cast_outputs).remove)
        yield working["model"]


def _cast_inputs(_: nn.Module, args: Any, kwargs: Any, *, dtype: torch.dtype) -> Any:
    return tree_map(partial(_cast, dtype=dtype), (args, kwargs))


def _cast_outputs(_: nn.Module, __: object, output: Any) -> Any:
    return tree_map(partial(_cast, dtype=torch.float32), output)


def _cast(leaf: Any, *, dtype: torch.dtype) -> Any:
    is_number = isinstance(leaf, Tensor) and leaf.dtype in (torch.float32, torch.float16, torch.bfloat16)
    return leaf.to(dtype) if is_number else leaf


# Recomputation.


@dataclass
class _Forward:
    """A block's forward; when it is repeated, on copies of the buffers as they were before, so that none moves twice.

    Running statistics are such buffers, and vectors of a spectral norm, which the result depends on.
    """

    block: nn.Module
    forward: Callable[..., Any]
    _before: list[tuple[nn.Module, str, Tensor]] | None = field(default=None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        now = [(m, name, b) for m in self.block.modules() for name, b in m._buffers.items() if b is not None]
        if self._before is None:
            self._before = [(module, name, buffer.clone()) for module, name, buffer in now]
            return self.forward(*args, **kwargs)
        try:
            for module, name, buffer in self._before:
                module._buffers[name] = buffer
            return self.forward(*args, **kwargs)
        finally:
            for module, name, buffer in now:
                module._buffers[name] = buffer


@contextmanager
def _recomputing(model: nn.Module, names: Sequence[str]) -> Iterator[None]:
    """Recompute the activations of blocks in backward, with the same dropout, instead of keeping them."""
    with ExitStack() as stack:
        for block, forward in recompute_blocks(model, names):
            stack.callback(_restore_forward, block, forward)
        yield


def recompute_blocks(model: nn.Module, names: Sequence[str]) -> list[tuple[nn.Module, Callable[..., Any] | None]]:
    """Wrap the forward of blocks in torch's checkpoint, where it is not yet.

    Returns:
        Those that were wrapped, each with the attribute that its forward was before, if it was one.
    """
    before = []
    for block in [block_named(model, name) for name in names]:
        forward = block.__dict__.get("forward")
        if getattr(forward, "func", None) is not _checkpointed:
            # An attribute of the instance hides the method of its class.
            block.__dict__["forward"] = partial(_checkpointed, block, forward or partial(type(block).forward, block))
            before.append((block, forward))
    return before


def _checkpointed(block: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    drawn = not any(isinstance(leaf, Tensor) and leaf.is_meta for leaf in tree_leaves((args, kwargs)))
    return checkpoint(_Forward(block, forward), *args, use_reentrant=False, preserve_rng_state=drawn, **kwargs)


def _restore_forward(block: nn.Module, forward: Callable[..., Any] | None) -> None:
    if forward is None:
        del block.__dict__["forward"]
    else:
        block.__dict__["forward"] = forward


def block_named(model: nn.Module, name: str) -> nn.Module:
    """A module of a model that can be called by itself.

    Raises:
        BadInput: there is none of this name, or it is a list.
    """
    known: dict[str, nn.Module] = dict(model.named_modules())
    if not name or name not in known:
        raise BadInput(f"block {name!r} is unknown in this {type(model).__name__}{nearest(name, [*known])}")
    if isinstance(known[name], nn.ModuleList | nn.ModuleDict):
        raise BadInput(f"block {name!r} is a {type(known[name]).__name__}, which is not called: name what it holds")
    return known[name]


# What a step must leave as it was.


@contextmanager
def restoring_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[ExitStack]:
    """Release gradients at the end, and restore buffers unless the yielded stack is emptied (`pop_all`)."""
    parameters = dict.fromkeys((*model.parameters(), *moved_by(optimizer).values()))
    _release(parameters)
    try:
        with ExitStack() as undo:
            # by its place: a module may put another tensor there, as `self.mean = 0.9 * self.mean + ...` does
            for module in model.modules():
                for name, buffer in module._buffers.items():
                    if buffer is not None:
                        undo.callback(_restore, module, name, buffer, buffer.clone())
            yield undo
    finally:
        _release(parameters)


def _release(parameters: Iterable[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None


@torch.no_grad()
def _restore(module: nn.Module, name: str, buffer: Tensor, before: Tensor) -> None:
    module._buffers[name] = buffer.copy_(before)


class _Writes(TorchDispatchMode):
    """Notes whether an operation is to write into any of some tensors. (Torch's own counts leave out fused kernels.)"""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self._kept = [tensor.untyped_storage() for tensor in tensors]
        self._known = {storage._cdata for storage in self._kept}
        self.began = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here; torch would import its compiler to make sure

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation."""
        kwargs = kwargs or {}
        if not self.began and func._schema.is_mutable:
            written = written_in_place(func, (args, kwargs))
            self.began = any(tensor.untyped_storage()._cdata in self._known for tensor in written)
        return func(*args, **kwargs)


@contextmanager
def _undo_on_error(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Re-raise out-of-memory errors only where no parameter has moved, with the optimizer's state undone.

    The first step of most optimizers makes their state before it moves anything. Later ones begin by counting the step.

    Raises:
        TrainingFailed: a part had moved.
    """
    before = {parameter: dict(kept) for parameter, kept in optimizer.state.items()}
    moved = moved_by(optimizer).values()
    is_first = any(parameter not in before for parameter in moved)
    writes = _Writes([*moved, *(t for t in tree_leaves(list(before.values())) if isinstance(t, Tensor))])
    try:
        with writes if is_first else nullcontext():
            yield
    except RuntimeError as error:
        if not ran_out_of_memory(error):
            raise
        if writes.began or not is_first:
            raise TrainingFailed(
                "memory ran out in the midst of the optimizer's step, which cannot be repeated: go on from a "
                f"checkpoint with a smaller memory= ({first_line(error)})"
            ) from None
        optimizer.state.clear()
        optimizer.state.update(before)
        raise


def check_plain(model: nn.Module, loss: Loss, optimizer: torch.optim.Optimizer) -> None:
    """Refuse a wrapped model, one without parameters to train, a loss that is a module, and optimizers with closures.

    Raises:
        BadInput: it is.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise BadInput(f"the optimizer is {optimizer!r}: expected one of torch's, made for the model's parameters")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise BadInput("LBFGS runs forward and backward itself, in a closure; expected another of torch's optimizers")
    name = type(model).__name__
    if isinstance(loss, nn.Module):
        raise BadInput(
            f"the loss is a {type(loss).__name__}: expected a function of the model and a batch, such as "
            "lambda model, x, y: criterion(model(x), y)"
        )
    if any(isinstance(parameter, UninitializedParameter) for parameter in model.parameters()):
        raise BadInput(f"the {name} has lazy parameters without a shape yet: run the model once on a batch")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise BadInput(f"the {name} has no parameters that train: there is nothing to do")
    sparse = [key for key, module in model.named_modules() if isinstance(module, nn.Embedding) and module.sparse]
    if sparse:
        raise BadInput(f"{first_names(sparse) or name}: sparse gradients are not planned; make it with sparse=False")
    if isinstance(model, DistributedDataParallel | nn.DataParallel) or hasattr(model, "_orig_mod"):
        raise BadInput(
            f"the model is a {name}: give the module inside it; plans are for one process, and for modules as they are "
            "written"
        )
    fsdp = sys.modules.get("torch.distributed.fsdp")  # a model that it has sharded has imported it
    if fsdp is not None and any(
        isinstance(m, fsdp.FSDPModule | fsdp.FullyShardedDataParallel) for m in model.modules()
    ):
        raise BadInput(
            f"the {name} is sharded over processes by FSDP: plan it before it is. A process then holds its share of "
            "parameters, gradients and optimizer state, and the weights of the largest sharded module in full"
        )
