"""What a card computes where its kernels are not a processor's.

A table says of each operation what a card makes of it; one that is not in it is refused. Facts are from the headers
that torch's wheels ship (`torch/include/ATen/native/cuda`, `.../native/Lerp.h`), its documentation, and IEEE 754; where
nothing is known, last bits are moved, so that no test lives on a processor's.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)

KINDS: Mapping[str, str] = MappingProxyType(
    {
        # what is moved, made of one value, compared or chosen
        "moves": """
            _copy_from _foreach_copy _foreach_zero _local_scalar_dense _reshape_alias _to_copy _unsafe_view alias arange
            as_strided_scatter argmax argmin cat clone constant_pad_nd copy diagonal_copy embedding empty empty_like
            empty_strided eye fill flip full full_like gather index index_put index_select is_nonzero
            isfinite isinf isnan lift_fresh linspace masked_fill masked_scatter masked_select native_dropout new_empty
            new_empty_strided new_full new_ones new_zeros nonzero one_hot ones ones_like randperm repeat
            repeat_interleave resize roll scalar_tensor scatter select_backward select_scatter set slice_backward
            slice_scatter sort stack t topk tril triu triu_indices unfold_backward unique_consecutive _unique2
            upsample_nearest2d where zero zeros zeros_like promote_types view_as_real
            max_pool2d_with_indices equal split_with_sizes_copy
        """,
        "chooses": """
            all amax amin any bitwise_and bitwise_not bitwise_or bitwise_xor ceil clamp clamp_max clamp_min
            count_nonzero eq floor floor_divide fmod ge gt hardtanh hardtanh_backward le logical_and logical_not
            logical_or lt max maximum min minimum ne neg relu round sgn sign signbit threshold_backward trunc
            __and__ __or__ __xor__ __rshift__ __lshift__ abs cummax median nan_to_num bincount histc searchsorted
        """,
        # one operation of IEEE 754, which rounds once on every device
        "rounds once": """
            _foreach_div _foreach_mul _foreach_neg _foreach_sqrt leaky_relu leaky_relu_backward mul reciprocal
            remainder rsub sqrt square _foreach_abs _foreach_maximum _foreach_clamp_min
        """,
        # x/y of a host's number y: its reciprocal is taken first
        "divides": "div",
        # a product that is added: in one operation, without a rounding between
        "multiplies and adds": """
            _foreach_add _foreach_addcdiv _foreach_addcmul _foreach_lerp _foreach_sub add addcdiv addcmul lerp sub
        """,
        # functions that either library approximates, to a unit or two in the last place
        "approximates": """
            atan2 cos elu elu_backward erf erfinv exp exp2 expm1 gelu gelu_backward hardsigmoid hardswish log log10
            log1p log2 log_sigmoid_forward log_sigmoid_backward log_softmax pow rsqrt sigmoid sigmoid_backward silu
            silu_backward sin softplus softplus_backward tan tanh tanh_backward xlogy
            _foreach_pow _foreach_reciprocal _foreach_exp
        """,
        # sums, whose order is the device's, in fp32 for halves, some of them by atomic additions in no order at all
        "sums": """
            _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _cdist_forward _euclidean_dist _foreach_norm _log_softmax
            _log_softmax_backward_data
            _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward _softmax
            _softmax_backward_data addmm addmv avg_pool2d avg_pool2d_backward baddbmm bmm convolution
            convolution_backward cumsum dot embedding_dense_backward grid_sampler_2d grid_sampler_2d_backward index_add
            linalg_cholesky_ex linalg_eigh linalg_eigvals linalg_qr linalg_svd linalg_vector_norm _linalg_eigh
            _linalg_svd logsumexp
            max_pool2d_with_indices_backward mean mm mse_loss mse_loss_backward mv native_batch_norm
            native_batch_norm_backward native_group_norm native_group_norm_backward native_layer_norm
            native_layer_norm_backward nll_loss2d_backward nll_loss2d_forward
            nll_loss_backward nll_loss_forward norm prod scatter_add std sum trace
            upsample_bilinear2d upsample_bicubic2d upsample_nearest2d_backward var var_mean _fused_rms_norm
            binary_cross_entropy_with_logits _upsample_bilinear2d_aa
        """,
        "fused updates": "_fused_adam _fused_adamw _fused_sgd",
        # another generator's numbers on a real card: what is compared with it draws on the host
        "draws": "bernoulli exponential multinomial normal rand rand_like randint randint_like randn randn_like random "
        "uniform",
    }
)
"""Kind -> operations of it, without the "_" of those that write in place."""
UNKNOWN = "say in simcard/arithmetic.py what a card computes here"

Way = Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]


@cache
def kind_of(op: Any) -> str:
    """What a card makes of an operation.

    Raises:
        RuntimeError: nobody has said it.
    """
    if op.namespace == "frugan":  # kernels of our own: their sums have an order of their own
        return "sums"
    if op.namespace == "c10d":  # between ranks: all of them are given the same bits
        return "moves"
    for kind, names in KINDS.items():
        if _bare(op) in names.split():
            return kind
    raise RuntimeError(f"{op}: {UNKNOWN}")


@cache
def is_known(op: Any) -> bool:
    """Whether it has been said."""
    return op.namespace in ("frugan", "c10d") or any(_bare(op) in names.split() for names in KINDS.values())


def _bare(op: Any) -> str:
    name: str = op._schema.name.split("::")[1]
    return name if name.startswith("__") else name.removesuffix("_")


def computed(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Do an operation on a processor's tensors as a card would."""
    way = _WAYS.get(kind_of(op))
    return op(*args, **kwargs) if way is None else way(op, args, kwargs)


class ComputesAsACard(TorchDispatchMode):
    """Lets a processor's operations compute as a card's, so that two runs may be held to each other's bits."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """A card's own tensors compute so by themselves."""
        if types or func.is_view or not is_known(func):
            return func(*args, **(kwargs or {}))
        return computed(func, args, kwargs or {})


def _approximated(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Last bits of what is no whole number: those are exact on cards too."""
    if op._schema.name.removesuffix("_") == "aten::pow" and args[1] in (2, 2.0, 0.5):  # a product, or a root
        return op(*args, **kwargs)
    return _last_bits_moved(op(*args, **kwargs), salt=1)


def _summed(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """In another order: in half precision the sum, which is fp32, is rounded once.

    A processor's convolutions and products of halves are done in fp32, in a twentieth of the time.
    """
    if op not in _IN_FP32 or args[0].dtype not in HALF:
        return _last_bits_moved(op(*args, **kwargs), salt=3)
    dtype = args[0].dtype
    wide = [_each(lambda x: x.float() if x.dtype in HALF else x, x) for x in args]
    made = _last_bits_moved(op(*wide, **kwargs), salt=3)
    return _each(lambda x: x.to(dtype), made)


def _divided(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """By a host's number: times its reciprocal, which is rounded first (`div_true_kernel_cuda`)."""
    x, y = args[0], args[1]
    if kwargs or isinstance(y, Tensor) or not x.is_floating_point() or x.dtype == torch.float64:
        return op(*args, **kwargs)
    inverse = float(1 / torch.tensor(y, dtype=torch.float32))
    return x.mul_(inverse) if op._schema.is_mutable else x.mul(inverse)


def _multiplied_and_added(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """In the next wider precision, and rounded once: only what rounds twice on a processor comes out otherwise."""
    given = [x for each in (*args, *kwargs.values()) for x in (each if isinstance(each, list | tuple) else [each])]
    tensors = [x for x in given if isinstance(x, Tensor)]
    name = op._schema.name
    adds = name.removesuffix("_") in ("aten::add", "aten::sub", "aten::_foreach_add", "aten::_foreach_sub")
    if (adds and kwargs.get("alpha", 1) == 1) or any(x.dtype != torch.float32 for x in tensors):
        return op(*args, **kwargs)
    wide = [_in_double(x) for x in args]
    made = op(*wide, **{key: _in_double(x) for key, x in kwargs.items()})
    if not op._schema.is_mutable:
        return _each(Tensor.float, made)
    of = kwargs["out"] if "out" in kwargs else args[0]
    wider = made if made is not None else wide[0]
    for target, value in zip(*((x if isinstance(x, list | tuple) else [x]) for x in (of, wider)), strict=True):
        target.copy_(value)
    return None if made is None else of


def _fused(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Of torch's fused optimizers: scalars in the parameters' own type before anything is made of them.

    Source: `adam_math` and `FusedAdamMathFunctor` of fused_adam_utils.cuh; of SGD no header ships.
    """
    named = {argument.name: argument.default_value for argument in op._schema.arguments if argument.has_default_value()}
    named |= dict(zip((argument.name for argument in op._schema.arguments), args, strict=False)) | dict(kwargs)
    if named["found_inf"] is not None and float(named["found_inf"]) == 1:
        return
    lists = [named["self"], named["grads"]]
    if op._schema.name == "aten::_fused_sgd_":
        buffers = named["momentum_buffer_list"] or [None] * len(named["self"])
        for weight, gradient, buffer in zip(*lists, buffers, strict=True):
            _sgd(weight, gradient, buffer, named)
        return
    assert not named["amsgrad"], "of which nothing is said here"
    decoupled = op._schema.name == "aten::_fused_adamw_"
    lists += [named["exp_avgs"], named["exp_avg_sqs"], named["state_steps"]]
    for weight, gradient, mean, square, step in zip(*lists, strict=True):
        _adam(weight, gradient, mean, square, step, named, decoupled=decoupled)


def _adam(
    weight: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, step: Tensor, named: Mapping[str, Any],
    *, decoupled: bool,
) -> None:  # fmt: skip
    def own(x: Any) -> Tensor:
        return x.detach().to(weight.dtype) if isinstance(x, Tensor) else torch.tensor(x, dtype=weight.dtype)

    rate, beta1, beta2, decay, eps = (own(named[key]) for key in ("lr", "beta1", "beta2", "weight_decay", "eps"))
    if named["grad_scale"] is not None:
        gradient.div_(own(named["grad_scale"]))
    changed, moved = -gradient if named["maximize"] else gradient, weight
    if named["weight_decay"]:
        if decoupled:
            moved = weight - rate * decay * weight
        else:
            changed = _fma(weight, decay, changed)
    corrections = [1 - torch.pow(beta, own(step)) for beta in (beta1, beta2)]
    power = changed * changed
    mean.copy_(_fma(beta1, mean, _fma(-beta1, changed, changed)))
    square.copy_(_fma(beta2, square, _fma(-beta2, power, power)))
    denominator = square.sqrt() / corrections[1].sqrt() + eps
    weight.copy_(moved - rate / corrections[0] * mean / denominator)


def _sgd(weight: Tensor, gradient: Tensor, buffer: Tensor | None, named: Mapping[str, Any]) -> None:
    if named["grad_scale"] is not None:
        gradient.div_(named["grad_scale"].to(gradient.dtype))

    def own(x: Any) -> Tensor:
        return x.detach() if isinstance(x, Tensor) else torch.tensor(x, dtype=torch.float64)

    changed, momentum = -gradient if named["maximize"] else gradient, own(named["momentum"])
    if named["weight_decay"]:
        changed = _fma(weight, own(named["weight_decay"]), changed)
    if buffer is not None:
        if named["is_first_step"]:
            buffer.copy_(changed)
        else:
            buffer.copy_(_fma(momentum, buffer, changed * (1 - named["dampening"])))
        changed = _fma(momentum, buffer, changed) if named["nesterov"] else buffer
    weight.copy_(_fma(-own(named["lr"]), changed, weight))


def _fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a·b + c, rounded once."""
    return (a.double() * b.double() + c.double()).to(c.dtype)


def _in_double(x: Any) -> Any:
    """Tensors; a card has a host's number in fp32."""
    return float(torch.tensor(x, dtype=torch.float32)) if isinstance(x, float) else _each(Tensor.double, x)


def _each(change: Callable[[Tensor], Tensor], x: Any) -> Any:
    if isinstance(x, list | tuple):
        return type(x)(_each(change, each) for each in x)
    return change(x) if isinstance(x, Tensor) and x.is_floating_point() else x


def _last_bits_moved(made: Any, *, salt: int) -> Any:
    """Move numbers to a neighbour or leave them, by their places alone; the same of the same, every time."""
    return _each(lambda x: _move_last_bits(x, salt), made)


def _move_last_bits(x: Tensor, salt: int) -> Tensor:
    """Whole numbers, zeros and infinities are exact, and stay."""
    pattern = _pattern(x.numel(), salt, 64 if x.dtype in HALF else 3).to(x.dtype).view(x.shape)
    other = torch.addcmul(x, x, pattern, value=torch.finfo(x.dtype).eps)
    return x.copy_(torch.where(x == x.round(), x, other))  # in the layout that it has


@lru_cache(256)
def _pattern(numbers: int, salt: int, one_in: int) -> Tensor:
    """-1, 0 or 1 of each place; not 0 at two places of three, or less often [numbers]."""
    at = torch.arange(numbers) * 2654435761 + salt * 40503
    drawn = (at >> 7) % one_in
    return (drawn == 0).float() - (drawn == 1).float()


_IN_FP32 = {
    aten.convolution.default, aten.convolution_backward.default, aten.mm.default, aten.bmm.default, aten.addmm.default,
    aten.baddbmm.default,
}  # fmt: skip
_WAYS: Mapping[str, Way] = MappingProxyType(
    {
        "divides": _divided,
        "multiplies and adds": _multiplied_and_added,
        "approximates": _approximated,
        "sums": _summed,
        "fused updates": _fused,
    }
)
