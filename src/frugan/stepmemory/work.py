"""Operations, bytes and launches of a step, counted while it runs."""

import operator
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from frugan.torch_internals import TorchDispatchMode

aten = torch.ops.aten


def _cpu_attention_flops(query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any) -> int:
    heads = query[1]  # each of which has a product with its key, though several may share that
    flops: int = sdpa_flop_count(query, (key[0], heads, *key[2:]), (value[0], heads, *value[2:]))
    return flops


def _matrix_vector_flops(matrix: torch.Size, vector: torch.Size, *_: Any, **__: Any) -> int:
    return 2 * matrix.numel()


def _grouped_flops(a: torch.Size, b: torch.Size, *_: Any, **__: Any) -> int:
    """Each row meets the columns of its own group: all of them, unless the groups share out the columns."""
    rows = a[1:] if len(a) > len(b) else a
    return 2 * rows.numel() * b[-1]


def _convolution_backward_flops(
    gradient: torch.Size,
    x: torch.Size,
    weight: torch.Size,
    *rest: Any,
    out_shape: Sequence[torch.Size | None],
    **_: Any,
) -> int:
    """Either gradient takes as many products as the forward: each weight meets each position of the smaller side."""
    transposed = rest[4]
    positions = (x if transposed else gradient)[2:].numel()
    forward = 2 * x[0] * positions * weight.numel()
    return forward * sum(1 for shape in out_shape[:2] if shape is not None)


_CORRECTED = {
    # torch 2.13 counts 0 for its CPU attention kernel, a matrix times a vector and groups of matrices, and the gradient
    # of a grouped convolution's weight once for each of its groups.
    aten._scaled_dot_product_flash_attention_for_cpu: _cpu_attention_flops,
    aten.mv: _matrix_vector_flops,
    aten._grouped_mm: _grouped_flops,
    aten.convolution_backward: _convolution_backward_flops,
}


FILLS = frozenset({aten.copy_, aten._foreach_copy_, aten.zero_, aten._foreach_zero_, aten.fill_})
"""What they are given first they write and do not read, as others do what is given as `out`."""

_WRITTEN = frozenset({"out", "out0", "out1", "out2", "grad_input"})
"""Names of operands that are written and not read."""

_ALLOCATIONS = frozenset({aten.empty, aten.empty_strided, aten.empty_like, aten.new_empty, aten.new_empty_strided})


class MacCounter(FlopCounterMode):
    """Torch's own counter of products, in multiply-accumulates, put right where it is wrong: see `_CORRECTED`."""

    def __init__(self) -> None:
        super().__init__(display=False, custom_mapping=_CORRECTED)

    def macs(self) -> int:
        """Multiply-accumulates so far: convolutions, matrix products and attention."""
        return int(self.get_total_flops()) // 2


def stored_bytes(tensor: Tensor) -> int:
    """Bytes that a kernel touches to read or write a tensor once: an expanded dimension is stored only once."""
    touched: int = tensor.element_size()
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        touched *= size if stride != 0 or size == 0 else 1
    return touched


def tensors_in(tree: object) -> list[Tensor]:
    """Tensors among an operation's arguments or results: several times as fast there as walking a general tree."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, tuple | list):
        return [tensor for item in tree for tensor in tensors_in(item)]
    if isinstance(tree, dict):
        return [tensor for item in tree.values() for tensor in tensors_in(item)]
    return []


def _storage(tensor: Tensor) -> int:
    """Return what tells storages apart while they live; a fake tensor has no memory address."""
    address: int = tensor.untyped_storage()._cdata
    return address


class TrafficCounter(TorchDispatchMode):
    """Adds up inputs and outputs of every operation: the traffic of a program that fuses nothing across operations.

    Views and allocations move nothing. A convolution or matrix product counts each operand once, whatever its kernel's
    blocking re-reads, and a table lookup counts the whole table.

    Attributes:
        bytes_moved: so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes_moved = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.bytes_moved += self.traffic_of(func, (args, kwargs or {}), out)
        return out

    def traffic_of(self, func: Any, inputs: Any, out: object) -> int:
        """Bytes that one operation reads and writes."""
        read = {id(tensor): tensor for tensor in tensors_in(_only_read(func, inputs))}
        written = {id(tensor): tensor for tensor in tensors_in(out)}
        if func.overloadpacket in _ALLOCATIONS:
            return 0
        if not func._schema.is_mutable:
            stored = {_storage(tensor) for tensor in read.values()}
            # `_unsafe_view` and `detach` are views too, though torch does not list them as such.
            written = {key: tensor for key, tensor in written.items() if _storage(tensor) not in stored}
            if not written:
                return 0
        elif not written:  # what works on lists in place gives nothing back
            written = {id(tensor): tensor for tensor in written_in_place(func, inputs)}
        return sum(map(stored_bytes, read.values())) + sum(map(stored_bytes, written.values()))


def _only_read(func: Any, inputs: Any) -> object:
    """Operands without those that an operation writes into and does not read."""
    args, kwargs = inputs
    if func.overloadpacket in FILLS:
        return args[1:], kwargs
    if not func._schema.is_mutable:
        return inputs
    return args, {name: value for name, value in kwargs.items() if name not in _WRITTEN}


def written_in_place(func: Any, inputs: Any) -> list[Tensor]:
    """Operands that an operation writes into."""
    args, kwargs = inputs
    positional = zip(func._schema.arguments, args, strict=False)
    named = ((argument, kwargs[argument.name]) for argument in func._schema.arguments if argument.name in kwargs)
    # Fused optimizers say that they may write gradients: they do where these are scaled, which ours never are.
    writes = (value for argument, value in (*positional, *named) if argument.name != "grads" and argument.alias_info)
    return tensors_in(list(writes))


class SavedActivations:
    """Tensors that autograd keeps for backward: one entry per storage, however often it is packed.

    `torch.autograd.graph.saved_tensors_hooks` packs weights too, and one storage several times (6 packs for 4).

    Args:
        excluded: tensors that stay whether or not there is a backward (parameters, buffers).
    """

    def __init__(self, excluded: Iterable[Tensor]) -> None:
        self._kept = list(excluded)  # alive until the end, so that no address is used twice
        self._seen = {_storage(tensor) for tensor in self._kept}
        self.saved_bytes = 0

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = _storage(tensor)
        if storage not in self._seen:
            self._seen.add(storage)
            self._kept.append(tensor)
            self.saved_bytes += tensor.untyped_storage().nbytes()
        return tensor

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Count what the block saves."""
        with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor):
            yield


@dataclass(frozen=True)
class Work:
    """An amount of work."""

    macs: float = 0  # multiply-accumulates of convolutions, matrix products and attention
    bytes_moved: float = 0  # inputs and outputs of every operation
    operations: float = 0  # that move something; each is about one kernel to be started
    host_bytes: float = 0  # moved between host and device, apart from pictures, while the device waits for them
    # of `macs`, those on fp32 numbers, whatever the working weights are; predictions made before this
    # was counted have 0
    fp32_macs: float = 0
    beside_bytes: float = 0  # moved between host and device while the device does the rest

    def __add__(self, other: "Work") -> "Work":
        return Work(*map(operator.add, self._amounts(), other._amounts()))

    def __sub__(self, other: "Work") -> "Work":
        return Work(*map(operator.sub, self._amounts(), other._amounts()))

    def __mul__(self, factor: float) -> "Work":
        return Work(*(factor * amount for amount in self._amounts()))

    def _amounts(self) -> tuple[float, ...]:
        """All of them in order; `dataclasses.astuple` copies each, and takes ten times as long."""
        return tuple(vars(self).values())


class WorkCounter(TorchDispatchMode):
    """Adds up what runs inside.

    Attributes:
        work: so far.
        host_bytes, beside_bytes: moved between host and device, as those who move them say.
    """

    def __init__(self) -> None:
        super().__init__()
        self._flops = MacCounter().flop_registry
        self._traffic = TrafficCounter()
        self._operations = 0
        self._macs = 0
        self._fp32_macs = 0
        self.host_bytes = 0
        self.beside_bytes = 0

    @property
    def work(self) -> Work:
        """So far."""
        moved = self._traffic.bytes_moved
        return Work(self._macs, moved, self._operations, self.host_bytes, self._fp32_macs, self.beside_bytes)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count it."""
        out = func(*args, **(kwargs or {}))
        self.count(func, args, kwargs or {}, out)
        return out

    def count(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Count an operation that has run."""
        self.add(self.cost_of(func, args, kwargs, out))

    def cost_of(self, func: Any, args: Any, kwargs: Any, out: Any) -> tuple[int, int, int]:
        """Bytes that an operation moves, its multiply-accumulates, and those of them on fp32 numbers."""
        moved_bytes = self._traffic.traffic_of(func, (args, kwargs), out)
        if (count := self._flops.get(func._overloadpacket)) is None:
            return moved_bytes, 0, 0
        macs = count(*args, **kwargs, out_val=out) // 2
        return moved_bytes, macs, macs if tensors_in(args)[0].dtype == torch.float32 else 0

    def add(self, cost: tuple[int, int, int]) -> None:
        """Count an operation of known cost."""
        moved_bytes, macs, fp32_macs = cost
        self._traffic.bytes_moved += moved_bytes
        self._operations += moved_bytes > 0
        self._macs += macs
        self._fp32_macs += fp32_macs
