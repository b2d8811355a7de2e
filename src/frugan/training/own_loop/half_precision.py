"""Half precision in a loop of one's own: copies of the weights, or torch's autocast by rules that no device changes."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from frugan.accelerator.precision import Precision
from frugan.contract.layers import keeps_fp32
from frugan.engine.plan import Layout
from frugan.engine.state.working_weights import WorkingWeights, working_weights
from frugan.errors import BadInput
from frugan.torch_internals import inside_function, tree_leaves, tree_map

HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Autocast(Precision):
    """A precision in which some operations compute, by the rules of torch's autocast for CUDA; weights stay fp32."""

    @classmethod
    def of(cls, precision: Precision, reason: str, *, on_card: bool) -> "Autocast":
        """In the half precision that a device computes fast; where there is none, fp16 on a card and bf16 elsewhere."""
        name, dtype = precision.name, precision.dtype
        if dtype == torch.float32:
            name, dtype = ("fp16", torch.float16) if on_card else ("bf16", torch.bfloat16)
        return cls(name, dtype, f"where torch's autocast has it, {reason}", precision.warning)


def name_of(half: torch.dtype) -> Literal["fp16", "bf16"]:
    """Name of a half precision."""
    return "fp16" if half == torch.float16 else "bf16"


def trained_halves(model: nn.Module) -> torch.dtype | None:
    """Half precision of weights that train; None: they are all in fp32, or more.

    Raises:
        BadInput: they are in several.
    """
    found = {p.dtype for p in model.parameters() if p.requires_grad and p.dtype in HALVES}
    if len(found) > 1:
        raise BadInput("weights that train are in float16 and in bfloat16: expected one of them")
    return found.pop() if found else None


@torch.no_grad()
def make_masters(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Make weights that train fp32 where they are, with their optimizer's state; the objects stay the same."""
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.dtype in HALVES:
            parameter.data = parameter.data.float()
            kept = optimizer.state.get(parameter, {})
            kept |= {name: value.float() for name, value in kept.items() if _is_half(value)}


@contextmanager
def in_precision(
    model: nn.Module, precision: Precision
) -> Iterator[tuple[WorkingWeights | None, AbstractContextManager[Any]]]:
    """Run a model on half-precision copies of its weights, made once; its outputs are fp32, for the loss.

    Each of torch's layers that has weights casts what it is given to their precision, as activations may become fp32
    on the way (a buffer that is added). In fp32 the model runs as it is.

    With its working weights comes what each forward is to be run in, and blocks that are run again in backward. By
    autocast's rules it runs on the weights themselves, which are cast where an operation takes them.

    Raises:
        RuntimeError: it has recurrent layers, and is to run on half-precision copies.
    """
    if isinstance(precision, Autocast):
        yield None, AutocastRules(precision.dtype)
        return
    if precision.dtype == torch.float32:
        yield None, nullcontext()
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
        yield working["model"], nullcontext()


def _cast_inputs(_: nn.Module, args: Any, kwargs: Any, *, dtype: torch.dtype) -> Any:
    return tree_map(partial(_cast, dtype=dtype), (args, kwargs))


def _cast_outputs(_: nn.Module, __: object, output: Any) -> Any:
    return tree_map(partial(_cast, dtype=torch.float32), output)


def _cast(leaf: Any, *, dtype: torch.dtype) -> Any:
    is_number = isinstance(leaf, Tensor) and leaf.dtype in (torch.float32, torch.float16, torch.bfloat16)
    return leaf.to(dtype) if is_number else leaf


# Autocast. Torch's own looks at the device, so that nothing planned without data would be what then runs; its lists
# are those of https://docs.pytorch.org/docs/stable/amp.html, "CUDA ops", but for matrices times vectors, which win
# nothing and of which spectral norms are made.

IN_HALF = frozenset(
    [
        "matmul",
        "__matmul__",
        "__rmatmul__",
        "addbmm",
        "addmm",
        "baddbmm",
        "bmm",
        "chain_matmul",
        "multi_dot",
        "mm",
        "linear",
        "prelu",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_tbc",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "einsum",
        "scaled_dot_product_attention",
        "lstm",
        "gru",
        "rnn_tanh",
        "rnn_relu",
        "lstm_cell",
        "gru_cell",
        "rnn_tanh_cell",
        "rnn_relu_cell",
    ]
)
IN_FP32 = frozenset(
    [
        "__pow__",
        "__rpow__",
        "__rdiv__",
        "__rtruediv__",
        "acos",
        "asin",
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "cosh",
        "cosine_embedding_loss",
        "cdist",
        "cosine_similarity",
        "cross_entropy",
        "dist",
        "erfinv",
        "exp",
        "expm1",
        "group_norm",
        "hinge_embedding_loss",
        "huber_loss",
        "kl_div",
        "l1_loss",
        "layer_norm",
        "log",
        "log10",
        "log1p",
        "log2",
        "mse_loss",
        "multi_margin_loss",
        "multilabel_margin_loss",
        "nll_loss",
        "norm",
        "pdist",
        "poisson_nll_loss",
        "pow",
        "reciprocal",
        "renorm",
        "rms_norm",
        "rsqrt",
        "sinh",
        "smooth_l1_loss",
        "soft_margin_loss",
        "softplus",
        "tan",
        "triplet_margin_loss",
    ]
)
SUMS_IN_FP32 = frozenset(["cumprod", "cumsum", "prod", "softmax", "log_softmax", "softmin", "sum"])
"""Operations that take the type of their result as `dtype`."""

WIDEST = frozenset(
    [
        "addcdiv",
        "addcmul",
        "atan2",
        "bilinear",
        "cross",
        "dot",
        "grid_sample",
        "index_put",
        "scatter_add",
        "tensordot",
        "vdot",
    ]
)


class AutocastRules(TorchFunctionMode):
    """Casts what operations are given, as torch's autocast for CUDA does, on any device and without data too.

    Weights are cast once and kept until the outermost `with` ends, which may be entered again. Functions of
    `torch.nn.functional` that are written in Python are looked into.

    Args:
        dtype: half precision.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype
        self._weights: dict[tuple[int, bool], tuple[Tensor, Tensor]] = {}
        self._entered = 0

    def __enter__(self) -> Self:
        self._entered += 1
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._entered -= 1
        if not self._entered:
            self._weights.clear()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in IN_HALF:
            args, kwargs = tree_map(self._in_half, (args, kwargs))
        elif name in IN_FP32:
            args, kwargs = tree_map(_in_fp32, (args, kwargs))
        elif name in SUMS_IN_FP32 and kwargs.get("dtype") is None and _is_half(args[0] if args else None):
            kwargs = {**kwargs, "dtype": torch.float32}
        elif name in WIDEST and any(_is_fp32(leaf) for leaf in tree_leaves((args, kwargs))):
            args, kwargs = tree_map(_in_fp32, (args, kwargs))
        if (inside := inside_function(func)) is not None:
            with self:
                return inside(*args, **kwargs)
        return func(*args, **kwargs)

    def _in_half(self, leaf: Any) -> Any:
        if not _is_fp32(leaf):
            return leaf.to(self._dtype) if _is_half(leaf) else leaf
        if not (leaf.is_leaf and leaf.requires_grad):
            return leaf.to(self._dtype)
        key = id(leaf), torch.is_grad_enabled()
        if key not in self._weights:
            self._weights[key] = leaf, leaf.to(self._dtype)
        return self._weights[key][1]


def _is_half(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dtype in HALVES


def _is_fp32(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dtype == torch.float32


def _in_fp32(leaf: Any) -> Any:
    return leaf.float() if _is_half(leaf) else leaf
