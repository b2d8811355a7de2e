"""Runs torch code on tensors that have shapes and no data: a rule for each operation that steps are made of.

Torch has such rules of its own ("meta" kernels), for every operation; most are written in Python and take 50 to 1,000
times as long as these, and the first one that is called imports a compiler. What is not listed here is asked of them.
"""

import gc
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from frugan.stepmemory import shapes
from frugan.stepmemory.shapes import Scalar, Spec, Specs
from frugan.torch_internals import TorchDispatchMode, no_compiler

aten = torch.ops.aten

Rule = Callable[..., Specs]
"""Takes the operation's own arguments; gives NotImplemented where only torch can tell."""


def _table() -> dict[Any, Rule]:
    """Operation -> its rule."""
    of: dict[Rule, tuple[Any, ...]] = {
        shapes.pointwise: (
            aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar, aten.rsub.Scalar, aten.mul.Tensor,
            aten.mul.Scalar, aten.addcmul.default, aten.addcdiv.default, aten.maximum.default, aten.minimum.default,
            aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.bitwise_and.Tensor, aten.bitwise_or.Tensor,
            aten.bitwise_xor.Tensor,
            aten.softplus_backward.default, aten.sigmoid_backward.default, aten.tanh_backward.default,
            aten.hardtanh_backward.default,
            aten.lerp.Scalar, aten.lerp.Tensor, aten.remainder.Scalar, aten.remainder.Tensor,
        ),
        shapes.float_pointwise: (
            aten.div.Tensor, aten.div.Scalar, aten.sqrt.default, aten.rsqrt.default, aten.exp.default, aten.log.default,
            aten.sin.default, aten.cos.default, aten.tanh.default, aten.sigmoid.default, aten.reciprocal.default,
        ),
        shapes.reduced_loss: (
            aten.mse_loss.default, aten.smooth_l1_loss.default, aten.binary_cross_entropy.default,
            aten.soft_margin_loss.default,
        ),
        shapes.compared: (
            aten.ge.Scalar, aten.gt.Scalar, aten.le.Scalar, aten.lt.Scalar, aten.eq.Scalar, aten.ne.Scalar,
            aten.ge.Tensor, aten.gt.Tensor, aten.le.Tensor, aten.lt.Tensor, aten.eq.Tensor, aten.ne.Tensor,
            aten.logical_and.default, aten.logical_or.default, aten.logical_not.default, aten.isfinite.default,
        ),
        shapes.second_first: (
            aten.threshold_backward.default, aten.leaky_relu_backward.default,
        ),
        shapes.where: (aten.where.self,),
        shapes.as_first: (
            aten.relu.default, aten.leaky_relu.default, aten.neg.default, aten.abs.default, aten.sgn.default,
            aten.sign.default, aten.floor.default, aten.ceil.default, aten.round.default, aten.clamp.default,
            aten.clamp_min.default, aten.clamp_max.default, aten.softplus.default, aten.bitwise_not.default,
            aten.flip.default,
        ),
        shapes.like: (
            aten.ones_like.default, aten.zeros_like.default, aten.empty_like.default, aten.full_like.default,
            aten.rand_like.default, aten.randn_like.default,
        ),
        shapes.new: (
            aten.new_empty.default, aten.new_zeros.default, aten.new_ones.default, aten.new_full.default,
        ),
        shapes.new_strided: (aten.new_empty_strided.default,),
        shapes.made: (
            aten.empty.memory_format, aten.zeros.default, aten.ones.default, aten.rand.default, aten.rand.generator,
            aten.randn.default, aten.randn.generator,
        ),
        shapes.made_strided: (aten.empty_strided.default,),
        shapes.full: (aten.full.default,),
        shapes.number: (aten.scalar_tensor.default,),
        shapes.integers: (aten.randint.default, aten.randint.generator),
        shapes.integers_from: (aten.randint.low, aten.randint.low_generator),
        shapes.range_: (aten.arange.default, aten.arange.start, aten.arange.start_step),
        shapes.sum_: (aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim),
        shapes.extreme: (aten.amax.default, aten.amin.default),
        shapes.variance: (aten.var.correction,),
        shapes.judged: (aten.all.default, aten.any.default, aten.all.dim, aten.any.dim),
        shapes.norm: (aten.linalg_vector_norm.default,),
        shapes.counted: (aten.count_nonzero.default,),
        shapes.mm: (aten.mm.default, aten.bmm.default),
        shapes.addmm: (aten.addmm.default, aten.baddbmm.default),
        shapes.grouped_mm: (aten._grouped_mm.default,),
        shapes.mv: (aten.mv.default,),
        shapes.dot: (aten.dot.default,),
        shapes.convolution: (aten.convolution.default,),
        shapes.convolution_backward: (aten.convolution_backward.default,),
        shapes.average_pool: (aten.avg_pool2d.default,),
        shapes.max_pool: (aten.max_pool2d_with_indices.default,),
        shapes.as_second: (aten.avg_pool2d_backward.default, aten.max_pool2d_with_indices_backward.default),
        shapes.upsampled: (aten.upsample_nearest2d.default,),
        shapes.upsampled_backward: (aten.upsample_nearest2d_backward.default,),
        shapes.batch_norm: (aten.native_batch_norm.default,),
        shapes.batch_norm_backward: (aten.native_batch_norm_backward.default,),
        shapes.cat: (aten.cat.default,),
        shapes.stack: (aten.stack.default,),
        shapes.padded: (aten.constant_pad_nd.default,),
        shapes.embedding: (aten.embedding.default,),
        shapes.indexed: (aten.index.Tensor,),
        shapes.embedding_backward: (aten.embedding_dense_backward.default,),
        shapes.put_back: (aten.slice_backward.default, aten.select_backward.default),
        shapes.softmax: (aten._softmax.default,),
        shapes.softmax_backward: (aten._softmax_backward_data.default,),
        shapes.attention: (aten._scaled_dot_product_flash_attention_for_cpu.default,),
        shapes.attention_backward: (aten._scaled_dot_product_flash_attention_for_cpu_backward.default,),
        shapes.each: (
            aten._foreach_mul.Scalar, aten._foreach_mul.List, aten._foreach_add.Scalar, aten._foreach_add.List,
            aten._foreach_div.List, aten._foreach_div.ScalarList, aten._foreach_sqrt.default,
        ),
        shapes.each_norm: (aten._foreach_norm.Scalar,),
    }  # fmt: skip
    return {operation: rule for rule, operations in of.items() for operation in operations}


RULES: Mapping[Any, Rule] = MappingProxyType(_table())
"""Operation -> what it gives."""

META = torch.device("meta")
_ALIASES = frozenset({aten.detach.default, aten._unsafe_view.default, aten.lift_fresh.default, aten.alias.default})
"""Views, though torch does not list all of them as such."""


class Known:
    """Result and cost of an operation on operands of some shapes.

    Attributes:
        specs: of its results.
        cost: whatever a counter keeps of its work; None: not counted so far.
    """

    __slots__ = ("cost", "specs")

    def __init__(self, specs: Specs) -> None:
        self.specs = specs
        self.cost: tuple[int, int, int] | None = None


class Dataless:
    """Runs operations on tensors without data, torch's own on its "meta" device, in a few microseconds each.

    Shapes and cost of an operation's results are found once for each set of its operands' shapes, and then looked up.

    Args:
        keep_values: whole numbers and truth values that follow from the program and from real tensors are computed, so
            that a model may ask a mask whether it masks anything; see `is_kept`.

    Attributes:
        value: what a tensor is said to hold when it is asked; None: that is an error.
    """

    def __init__(self, *, keep_values: bool = False) -> None:
        self.value: float | None = None
        self._keep_values = keep_values
        # storage without data -> itself, and the number that it is filled with
        self._fills: dict[int, tuple[weakref.ref[torch.UntypedStorage], float]] = {}
        self._known: dict[tuple[Any, ...], Known] = {}
        self._viewing: set[Any] = set()

    def run(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, Known | None]:
        """Run an operation; return its results, and their shapes and cost, or None: a view, a constant or a number.

        Raises:
            RuntimeError: it asks for a value.
        """
        if func in self._viewing:
            return func(*args, **kwargs), None
        tensors: list[Tensor] = []
        parts: list[Any] = [func]
        _describe(args, parts, tensors)
        if kwargs:
            _describe(kwargs.items(), parts, tensors)
        if tensors and not all(x.is_meta for x in tensors):
            if not any(x.is_meta for x in tensors):
                return self._run_on_values(func, args, kwargs)
            args, kwargs = _on_meta(args), {name: _on_meta(value) for name, value in kwargs.items()}
            return self.run(func, args, kwargs)
        if len(tensors) > 1:
            parts.append(len({*map(id, tensors)}))  # what is read twice moves once
        key = tuple(parts)
        known = self._known.get(key)
        if known is None:
            out, known = self._first_time(func, args, kwargs, key, tensors)
        else:
            out = _made(known.specs, func, args, kwargs)
        if self._keep_values:
            out = self._with_value(func, args, kwargs, tensors, out)
        return out, known

    def _with_value(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], tensors: Sequence[Tensor], out: Any
    ) -> Any:
        """Return a result with its value, where the program says it: a constant, or a mask made of one number."""
        if not tensors:
            if _is_constant(func, out):
                return func(*args, **_without_device(kwargs))
            if func in FILLS:
                number = FILLS[func]
                filled = float(args[1] if number is None else number)
                self._fills[id(out.untyped_storage())] = weakref.ref(out.untyped_storage()), filled
            return out
        if not self._fills:
            return out
        if func._schema.is_mutable:
            for tensor in tensors:
                self._fills.pop(id(tensor.untyped_storage()), None)
        elif func is aten._to_copy.default and not out.is_floating_point() and is_kept(out):
            storage = tensors[0].untyped_storage()
            kept, number = self._fills.get(id(storage), (None, 0.0))
            if kept is not None and kept() is storage:
                return torch.full(out.shape, number, dtype=out.dtype)
        return out

    def _run_on_values(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, Known | None]:
        """Run an operation on real tensors alone: constants, made of numbers in the program, or kept values.

        Where values are kept, results that are not worth keeping have no data.
        """
        if self._keep_values and func is aten._to_copy.default and kwargs.get("dtype") in (None, args[0].dtype):
            return args[0], None  # to where the step runs, which is where it is
        known = None
        is_new = not (func.is_view or func._schema.is_mutable or func in _ALIASES)
        if self._keep_values and is_new and func is not aten._local_scalar_dense.default:
            try:
                blank = {name: _on_meta(value) for name, value in kwargs.items()}
                out, known = self.run(func, _on_meta(args), blank)
            except RuntimeError:  # of sizes that depend on values, or a value itself
                pass
            else:
                if not is_kept(out):
                    return out, known
        return func(*args, **_without_device(kwargs)), known

    def _first_time(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], key: tuple[Any, ...], tensors: Sequence[Tensor]
    ) -> tuple[Any, Known | None]:
        if func.is_view or func in _ALIASES or torch.Tag.inplace_view in func.tags:
            self._viewing.add(func)
            return func(*args, **kwargs), None
        if func is aten._local_scalar_dense.default:
            if self.value is not None:
                return self.value, None
            raise RuntimeError("_local_scalar_dense: tensors without data cannot be asked for a value")
        specs = RULES[func](*args, **kwargs) if func in RULES else NotImplemented
        if specs is NotImplemented and func._schema.is_mutable and _writes_its_results(func):
            specs = _WRITTEN
        if specs is NotImplemented:
            return self._asked_of_torch(func, args, kwargs, key, tensors)
        self._known[key] = known = Known(specs)
        return _made(specs, func, args, kwargs), known

    def _asked_of_torch(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], key: tuple[Any, ...], tensors: Sequence[Tensor]
    ) -> tuple[Any, Known | None]:
        """Run an operation that has no rule; it is looked up from then on only if all its results are new tensors."""
        placed = {**_without_device(kwargs), "device": META} if _takes_device(func) else kwargs
        out = func(*args, **placed)
        outputs = (
            [out]
            if isinstance(out, Tensor)
            else [x for x in out if x is not None]
            if isinstance(out, tuple | list)
            else []
        )
        inputs = {x.untyped_storage()._cdata for x in tensors}
        if not outputs or any(not isinstance(x, Tensor) or x.untyped_storage()._cdata in inputs for x in outputs):
            return out, None
        self._known[key] = known = Known(_specs_of(out))
        return out, known


KEPT_ELEMENTS = 1 << 20
"""Most that a tensor has whose values are kept: masks of samples, not of pairs of places."""
KEPT_NUMBERS = 64
"""Most floating-point numbers that are kept: constants, and no activations."""


FILLS: Mapping[Any, float | None] = MappingProxyType(
    {aten.ones.default: 1.0, aten.zeros.default: 0.0, aten.full.default: None}
)
"""Operation that fills a tensor -> with which number; None: with its second argument."""


def is_kept(out: Any) -> bool:
    """Return whether the values of an operation's result, or of an input, are worth keeping."""
    if not isinstance(out, Tensor):
        return isinstance(out, tuple | list) and all(isinstance(x, Tensor) and is_kept(x) for x in out)
    most = KEPT_NUMBERS if out.is_floating_point() or out.is_complex() else KEPT_ELEMENTS
    return out.numel() <= most


def _is_constant(func: Any, out: Any) -> bool:
    """Return whether an operation without tensors gives whole numbers or truth values, and the same each time."""
    if not isinstance(out, Tensor) or out.is_floating_point() or out.is_complex() or not is_kept(out):
        return False
    return torch.Tag.nondeterministic_seeded not in func.tags and "empty" not in func._schema.name


_WRITTEN: Any = ("written",)
"""Stands for the specs of an operation that gives back what it wrote into."""


def _writes_its_results(func: Any) -> bool:
    """Whether all that an operation gives are operands that it wrote into."""
    return all(r.alias_info is not None and r.alias_info.is_write for r in func._schema.returns)


def _made(specs: Specs, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if specs is _WRITTEN:
        written = (kwargs[name] for name in ("out", "grad_input") if name in kwargs)
        return next(written, args[0]) if func._schema.returns else None
    if specs is None:
        return None
    if isinstance(specs, Scalar):
        return torch.empty(specs.elements, dtype=specs.dtype, device=META).resize_(())
    if isinstance(specs, list):
        return [_empty(spec) for spec in specs]
    if len(specs) == 3 and isinstance(specs[2], torch.dtype):
        return torch.empty_strided(specs[0], specs[1], dtype=specs[2], device=META)
    return tuple(None if spec is None else _empty(spec) for spec in specs)


def _empty(spec: Spec) -> Tensor:
    return torch.empty_strided(spec[0], spec[1], dtype=spec[2], device=META)


def _specs_of(out: Any) -> Specs:
    if isinstance(out, Tensor):
        return tuple(out.shape), out.stride(), out.dtype
    specs = [None if x is None else (tuple(x.shape), x.stride(), x.dtype) for x in out]
    return specs if isinstance(out, list) else tuple(specs)  # type: ignore[return-value]


def _describe(values: Any, parts: list[Any], tensors: list[Tensor]) -> None:
    """Add to a key all that decides what an operation gives."""
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
            parts += (value.shape, value.stride(), value.dtype)
        elif isinstance(value, list | tuple):
            parts.append(len(value))
            _describe(value, parts, tensors)
        else:
            parts += (value.__class__, value)  # 1, 1.0 and True are equal


def _on_meta(value: Any) -> Any:
    """Replace tensors that have data by ones that have not."""
    if isinstance(value, Tensor):
        if value.is_meta:
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=META)
    if isinstance(value, list | tuple):
        return type(value)(_on_meta(item) for item in value)
    return value


def _without_device(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name not in ("device", "pin_memory", "generator")}


def _takes_device(func: Any) -> bool:
    return any(argument.name == "device" for argument in func._schema.arguments)


class WithoutData(TorchDispatchMode):
    """Inside, whatever is made has no data."""

    def __init__(self, dataless: Dataless) -> None:
        super().__init__()
        self._dataless = dataless

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here; torch would import its compiler to make sure

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation."""
        return self._dataless.run(func, args, kwargs or {})[0]


def _can_be_fused(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None) -> bool:
    """Return whether torch has a fused kernel for these on a device: none has a gradient of its mask."""
    if not query.is_meta or query.ndim != 4 or (attn_mask is not None and attn_mask.requires_grad):
        return False
    return all(x.stride(-1) == 1 and x.shape[-1] == value.shape[-1] for x in (query, key, value))


@contextmanager
def fused_attention(*, as_card: bool = False) -> Iterator[None]:
    """Inside, attention on tensors without data is the fused one wherever it would be on a device.

    Torch chooses by the device, and for "meta" takes what stores the whole map.

    Args:
        as_card: choose as on cards: also where attention is dropped out, where a processor stores the map, but not in
            fp32 where several queries share a key (`enable_gqa`), for which cards' kernels are in half precision alone.
    """
    plain = F.scaled_dot_product_attention

    def scaled_dot_product_attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> Tensor:
        tensors = query, key, value, attn_mask
        if has_torch_function(tensors):  # a mode that casts is on, which torch's own would ask too
            result: Tensor = handle_torch_function(
                scaled_dot_product_attention, tensors, *tensors, dropout_p, is_causal, **options
            )
            return result
        if attn_mask is not None and query.is_meta and not attn_mask.is_meta:
            attn_mask = _on_meta(attn_mask)  # its values are not needed here
        shared = options.get("enable_gqa", False)
        is_fused = {*options} <= {"scale", "enable_gqa"} and (as_card or not dropout_p)
        if shared and as_card and query.dtype == torch.float32:
            is_fused = False
        if not (is_fused and _can_be_fused(query, key, value, attn_mask)):
            return plain(query, key, value, attn_mask, dropout_p, is_causal, **options)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = query.new_zeros(attn_mask.shape)  # what torch makes of it
        outputs = aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=options.get("scale")
        )
        return outputs[0]  # type: ignore[no-any-return]

    F.scaled_dot_product_attention = scaled_dot_product_attention  # type: ignore[assignment]
    try:
        yield
    finally:
        F.scaled_dot_product_attention = plain


@contextmanager
def resting_collector() -> Iterator[None]:
    """Inside, Python's collector rests: faster, and memory goes at the same moments every time."""
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()


@contextmanager
def running_without_data(*, as_card: bool = False) -> Iterator[None]:
    """Inside, a step on tensors without data takes what it would on a device; torch's compiler is not imported.

    Args:
        as_card: as for `fused_attention`.
    """
    with resting_collector(), no_compiler(), fused_attention(as_card=as_card):
        yield
