"""A planned training step of any module with any of torch's optimizers, to be called in a loop of one's own."""

import math
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import UninitializedParameter

from frugan.accelerator.device import ran_out_of_memory, release_memory
from frugan.accelerator.precision import Precision
from frugan.engine.plan import micro_batch_sizes
from frugan.engine.state.gradients import clip, measure
from frugan.engine.state.loss_scale import LossScale
from frugan.errors import BadInput, TrainingFailed
from frugan.stepmemory.work import written_in_place
from frugan.torch_internals import TorchDispatchMode, foreach_mul_, tree_leaves
from frugan.training.own_loop.batch import Inputs, Loss, Parts, Split, Sums, Weight, check_loss_takes, samples_in
from frugan.training.own_loop.batch_loss import BatchLoss, backward_over_batch, check_weight
from frugan.training.own_loop.half_precision import in_precision, make_masters, trained_halves
from frugan.training.own_loop.recompute import block_named, recomputing
from frugan.training.own_loop.split_check import check_split, normalises_batches
from frugan.wording import first_line, first_names


@dataclass(frozen=True)
class ModulePlan:
    """Execution plan of a module's step; it changes cost, and the result by no more than rounding."""

    batch: int  # samples of a step, at most
    micro_batch: int  # samples of one forward
    precision: Precision  # of the working weights
    recompute: tuple[str, ...] = ()  # modules whose activations are made again in backward
    # parts of a batch were found to give its loss; False: the first step finds it out
    split_checked: bool = field(default=False, kw_only=True)
    split_wanted: bool = field(default=False, kw_only=True)  # a batch is split whatever its parts give
    weight: Weight | None = field(default=None, kw_only=True, compare=False, repr=False)  # as `plan_module` takes it
    masters: bool = field(default=True, kw_only=True)  # weights that train become fp32, where they are in half

    def smaller(self) -> "ModulePlan | None":
        """One that takes less memory, for when it runs out; None: there is none."""
        return None

    def check_model(self, model: nn.Module) -> None:
        """Refuse a model that is not the one that was planned, as far as that is known.

        Raises:
            BadInput: it is another.
        """

    def arguments(self, inputs: Inputs) -> Inputs:
        """Return what the loss is given besides the model, of a batch as a loop has it."""
        return inputs


@dataclass(frozen=True)
class StepOutcome:
    """Loss and gradient norm of a step, and whether its update was skipped."""

    loss: float  # mean over the batch
    grad_norm: float  # of all gradients, unscaled, before clipping
    skipped: bool  # loss or gradients were not finite, and nothing has moved
    loss_scale: float  # as used; 1 but in fp16
    beside: Mapping[str, Any] = field(default_factory=dict, compare=False)  # what the loss returned beside its value


class ModuleStep:
    """Runs steps of a module by a plan: gradients in parts of the batch, judged, clipped and given to the optimizer.

    A step that is not finite moves nothing: no weight, no optimizer state, no buffer such as running statistics, no
    average of an `EmaHook`. In fp16 the loss scale is then halved. Memory that runs out before the optimizer has begun
    leaves no trace either: the step is repeated by the next smaller plan, and so are those after it. The host waits
    for each step's verdict, as it does with torch's own gradient scaler.

    Args:
        model: on its device; parameters that train in half precision become fp32, unless the plan says otherwise.
        loss: as for `plan_module`.
        optimizer: any of torch's that takes its step without a closure.
        plan: of `plan_module`.
        weight: as for `plan_module`; None: that of the plan.
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
        weight: Weight | None = None,
        clip_norm: float | None = None,
    ) -> None:
        check_plain(model, loss, optimizer)
        check_weight(loss, weight)
        if not isinstance(plan, ModulePlan):
            raise BadInput(f"plan {plan!r}: expected what frugan.plan_module returns")
        plan.check_model(model)
        if clip_norm is not None and not clip_norm > 0:
            raise BadInput(f"clip_norm {clip_norm}: expected more than 0, or None for no clipping")
        for name in plan.recompute:
            block_named(model, name)
        if any(parameter.is_meta for parameter in model.parameters()):
            raise BadInput(f"the {type(model).__name__} is on the device meta, without data: make it on another")
        if plan.masters and trained_halves(model) is not None:
            make_masters(model, optimizer)
        self.plan = plan
        self._model, self._loss, self._optimizer, self._clip_norm = model, loss, optimizer, clip_norm
        self._weight = plan.weight if weight is None else weight
        self._split_checked = plan.split_checked and self._weight is plan.weight
        self._has_seen_ignored = False  # labels, in a batch that was looked at
        self._device = next(model.parameters()).device
        self._scale = LossScale.create(plan.precision, torch.device("cpu"))  # on the host, which decides

    def __call__(self, *inputs: Any) -> StepOutcome:
        """Run one step on a batch.

        Args:
            inputs: what the loss is given besides the model, one after the other or as the batch that was planned; on
                the host or the model's device.

        Raises:
            BadInput: inputs are of different numbers of samples, or of more than was planned, or the parts into which
                the plan splits them do not give the loss of the whole.
            TrainingFailed: memory ran out and no smaller plan is left, or the optimizer had begun.
        """
        inputs = self.plan.arguments(inputs)
        batch = samples_in(inputs)
        check_loss_takes(self._loss, self._model, inputs)
        if batch > self.plan.batch:
            raise BadInput(
                f"a batch of {batch} samples: the plan is for at most {self.plan.batch}; plan again with such inputs"
            )
        while True:
            self._check_split(inputs, batch)
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

    def _check_split(self, inputs: Inputs, batch: int) -> None:
        """Find out, before a batch is split for the first time, whether its parts give its loss.

        And once more for the first one with labels that are ignored: a mean over the others counts no samples.
        """
        if self.plan.split_wanted or batch <= self.plan.micro_batch or batch == 1:
            return
        if normalises_batches(self._model):
            raise BadInput(
                f"the plan splits a batch into parts of {self.plan.micro_batch}, which changes the result: batch "
                "normalisation normalises each part by itself; plan the model in training mode with plan_module, or "
                "with normalisation_batch=N, which says that the parts are to count alone"
            )
        has_ignored = not self._has_seen_ignored and _has_negative(inputs)
        if self._split_checked and not has_ignored:
            return
        found = check_split(self._model, self._loss, inputs, batch, self._weight)
        if found.differs is not None:
            raise BadInput(
                f"the plan splits a batch into parts of {self.plan.micro_batch}, which changes the result: "
                f"{found.differs}; plan it with such a batch, and plan_module recomputes blocks in place of a split; "
                "or with normalisation_batch=N, which says that the parts are to count alone"
            )
        for line in (
            found.unknown and f"whether parts of a batch give its loss is not known: {found.unknown}",
            found.other_terms(),
            found.moves(-(-batch // self.plan.micro_batch)),
            found.other_draws(-(-batch // self.plan.micro_batch)),
        ):
            if line:
                warnings.warn(line, stacklevel=3)
        self._split_checked, self._has_seen_ignored = True, self._has_seen_ignored or has_ignored

    def _run(self, inputs: Inputs, batch: int) -> StepOutcome:
        scale = float(self._scale.scale)
        sizes = micro_batch_sizes(batch, self.plan.micro_batch)
        parts = Parts(inputs, sizes, batch, self._device, self._weight)
        if self._weight is not None and not any(parts.shares()):
            return StepOutcome(math.nan, 0.0, True, scale)
        with restoring_state(self._model, self._optimizer) as undo:
            gradients = compute_gradients(self._model, self._loss, self._optimizer, parts, self.plan, scale)
            loss, norm = gradients.measured.tolist()
            accepted = math.isfinite(loss) and math.isfinite(norm)
            if accepted:
                if self._clip_norm is not None:
                    clip(moved_by(self._optimizer), gradients.measured[1], self._clip_norm)
                with _undo_on_error(self._optimizer):
                    self._optimizer.step()
                undo.pop_all()
        self._scale.move(torch.tensor(accepted))
        return StepOutcome(loss, norm, not accepted, scale, gradients.beside)


def _has_negative(inputs: Inputs) -> bool:
    """Return whether whole numbers below 0 are among the inputs, as labels are that a loss ignores."""
    whole = (t for t in tree_leaves(inputs) if isinstance(t, Tensor) and not t.is_floating_point() and t.is_signed())
    return any(bool((tensor < 0).any()) for tensor in whole if not tensor.is_complex())


@dataclass(frozen=True)
class Gradients:
    """Loss and gradient norm of a batch whose gradients lie in the parameters."""

    measured: Tensor  # mean of the loss, and norm of the gradients [2]
    beside: Mapping[str, Any]  # what the loss returned beside its value


def compute_gradients(
    model: nn.Module,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    parts: Split,
    plan: ModulePlan,
    scale: float = 1.0,
) -> Gradients:
    """Run forward and backward of a batch, with gradients accumulated in fp32, but not the optimizer.

    Args:
        parts: micro-batches on the device, each with its share of the batch.
        scale: of the loss, against underflow in fp16.

    Raises:
        BadInput: the loss gives neither a scalar nor (sum, count).
    """
    sums = Sums(scale)
    # On a card autograd would run backward on a thread of its own: recomputation and tracing then run as on a CPU.
    with (
        torch.autograd.set_multithreading_enabled(False),
        in_precision(model, plan.precision) as (working, rules),
        recomputing(model, plan.recompute, rules),
    ):
        add_up = working.add_up if working is not None else lambda: None
        if isinstance(loss, BatchLoss) and len(parts.sizes) > 1:
            backward_over_batch(model, loss, parts, sums, add_up, rules)
        else:
            for inputs, share in parts:
                with rules:
                    value = loss(model, *inputs)
                sums.add(value, inputs, share)
                del value
                add_up()
        factor = sums.correction()
        if scale != 1:
            device = next(model.parameters()).device
            factor = torch.full((), 1 / scale, device=device) * (1 if factor is None else factor)
        if working is not None:
            working.carry(factor)
    moved = moved_by(optimizer)
    if working is None and factor is not None:
        foreach_mul_([p.grad for p in {*model.parameters(), *moved.values()} if p.grad is not None], factor)
    return Gradients(torch.stack([sums.loss(), measure(moved).norm]), sums.beside())


def moved_by(optimizer: torch.optim.Optimizer) -> dict[str, nn.Parameter]:
    """Return the parameters of an optimizer by "group I, parameter J", their places in it."""
    groups = enumerate(optimizer.param_groups)
    return {f"group {i}, parameter {j}": p for i, group in groups for j, p in enumerate(group["params"])}


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
    """Refuse a wrapped model, one without parameters to train, a loss that is a module, and optimizers of others.

    Raises:
        BadInput: it is.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise BadInput(f"the optimizer is {optimizer!r}: expected one of torch's, made for the model's parameters")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise BadInput("LBFGS runs forward and backward itself, in a closure; expected another of torch's optimizers")
    name = type(model).__name__
    if not isinstance(model, nn.Module):
        raise BadInput(f"the model is a {name}: expected a torch.nn.Module")
    if isinstance(loss, nn.Module) or not callable(loss):
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
    if not {*model.parameters()} & {*moved_by(optimizer).values()}:
        raise BadInput(f"the optimizer moves none of the {name}'s parameters: make it for model.parameters()")
