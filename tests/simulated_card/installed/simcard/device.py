"""A device that is a card to torch: each of its tensors carries a processor's, on which its operations are done."""

import atexit
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _DummyPrivateUse1Hook,
    _setup_privateuseone_for_python_backend,
)

from frugan.stepmemory.tracker import ADD, ADD_IN_PLACE, Holders, is_made_in_place, running_node
from simcard.arithmetic import ComputesAsACard, computed
from simcard.backward import Guard, watch_backward
from simcard.generator import CPU, KIND, Generator, with_generator
from simcard.memory import CardMemory, refused_numbers
from simcard.time import STAGED_BYTES, Clock, Place, poison

__all__ = ["CARDS", "CardTensor", "Cards", "ComputesAsACard", "Generator"]

aten = torch.ops.aten
EMPTY = {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided"}
WAITING = {
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::unique",
    "aten::_unique",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::unique_consecutive",
    "aten::masked_select",
    "aten::equal",
    "aten::bincount",
    "aten::repeat_interleave",
    "aten::is_nonzero",
}
"""Operations whose result the host cannot have, or give memory to, before the card is done."""
WHOLE = range(2**63)
"""A card's memory is not looked at piece by piece."""
INDEXED = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index"}
DRAWS_IN_PLACE = {"aten::native_batch_norm": (3, 4), "aten::_native_batch_norm_legit": (3, 4)}
"""Operations that write to some of their arguments and return new memory too: what they wrote is taken back when there
is none."""


class Cards:
    """All simulated cards of this process."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """See `begin`."""
        self.held_by: Holders | None = None  # the first operand of the last addition without gradients
        self.lone: Holders | None = None  # the same where only the engine of backward holds it
        self.begin(environment)

    def begin(self, environment: Mapping[str, str]) -> None:
        """New ones, as the environment says; whatever lies on the old ones is not theirs."""
        self.count = int(environment.get("SIMCARD_COUNT", "1"))
        self.current = 0
        self.clock = Clock(latest=environment.get("SIMCARD_SCHEDULE", "latest") == "latest")
        total_bytes = int(environment.get("SIMCARD_BYTES", 8 * 2**30))
        refused = refused_numbers(environment.get("SIMCARD_REFUSE"))
        kernel_bytes = int(environment.get("SIMCARD_KERNEL_BYTES", 0))
        self.memory = [
            CardMemory(i, total_bytes, refused, self.clock.order.frees, kernel_bytes=kernel_bytes)
            for i in range(self.count)
        ]
        self.main = [self.clock.queue(f"{KIND}:{i}") for i in range(self.count)]
        self.streams = list(self.main)  # those that work goes to now
        self.generators = [Generator(f"{KIND}:{i}") for i in range(self.count)]
        self.launches: Counter[str] = Counter()

    def waits_of(self, index: int) -> list[Place]:
        """Places behind all that a card was given."""
        queues = (queue for queue in self.clock.queues if queue.name.partition("/")[0] == f"{KIND}:{index}")
        return [self.clock.place(queue) for queue in queues]

    def blocking(self, why: str, index: int) -> None:
        """An operation makes the host wait for a card's current queue."""
        self.clock.wait(why, [self.clock.place(self.streams[index])])

    def take(self, made: Tensor, index: int) -> None:
        """Give out a card's memory for what an operation made: the queue that frees it is the card's own."""
        if not self.memory[index].holds(made):
            self.refuse_memory_beside(index)
        self.memory[index].take(made)

    def refuse_memory_beside(self, index: int) -> None:
        """Memory that is taken for another queue than a card's own is of a pool of that queue's."""
        if self.streams[index] is not self.main[index]:
            raise RuntimeError(
                f"memory is taken on {self.streams[index].name}, from a pool of its own that no plan knows; take it "
                "before `on`"
            )

    def begins(self, index: int, what: str, reads: Sequence[Tensor], writes: Sequence[Tensor] = ()) -> None:
        """A card's current queue is given an operation on processors' tensors."""
        order, queue = self.clock.order, self.streams[index].name
        order.begins(queue)
        for tensors, writing in ((reads, False), (writes, True)):
            for x in tensors:
                order.touches(x.untyped_storage()._cdata, WHOLE, queue, what, writes=writing)


class CardTensor(Tensor):
    """A tensor on a simulated card."""

    raw: Tensor  # a processor's
    made_in: int | None  # `running_node` when it was made
    __torch_function__: ClassVar[Any] = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls: type["CardTensor"], raw: Tensor, index: int) -> "CardTensor":
        """Around a processor's tensor."""
        made: CardTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.shape,
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device(KIND, index),
        )
        made.raw = raw
        made.made_in = running_node()
        return made

    def __init__(self, raw: Tensor, index: int) -> None:
        """See `__new__`."""

    def __repr__(self) -> str:  # type: ignore[override]
        """What it is; its values would have to be waited for."""
        return f"CardTensor({tuple(self.shape)}, {self.dtype}, {self.device})"

    def __deepcopy__(self, memo: dict[int, Any]) -> "CardTensor":
        """A copy with memory of its own."""
        if id(self) not in memo:
            with torch.no_grad():
                made: Any = self.detach().clone(memory_format=torch.preserve_format)
            made.requires_grad_(self.requires_grad)
            for name, value in self.__dict__.items():
                if name != "raw":
                    setattr(made, name, value)
            memo[id(self)] = made
        found: CardTensor = memo[id(self)]
        return found

    def tolist(self) -> Any:
        """As torch's, which has none for classes of Python's: the host waits."""
        return self.cpu().tolist()

    @property
    def data(self) -> Tensor:
        """As torch's."""
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        """As torch's: the same tensor with another's memory."""
        assert isinstance(value, CardTensor), "the memory of another device"
        Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        self.raw = value.raw

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's own stub says nothing of the operation
        cls, op: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Every operation of which a card's tensor is a part."""
        if op is ADD and not kwargs and isinstance(args[0], CardTensor) and not torch.is_grad_enabled():
            memory = torch._C._storage_Use_Count(args[0].raw.untyped_storage()._cdata)
            tensors: int = args[0]._use_count()  # type: ignore[attr-defined]  # torch's own stub lacks it
            CARDS.held_by = Holders(sys.getrefcount(args[0]), tensors, memory)
            # on a card the engine would add such gradients in place; it does not where Python is asked
            if CARDS.lone is not None and is_made_in_place(args, CARDS.held_by, CARDS.lone, args[0].made_in):
                op = ADD_IN_PLACE
        return _BACKWARD.keeping(lambda: run(op, *args, **(kwargs or {})))


def leaves_of(x: Any) -> Iterator[Any]:
    """What arguments or results hold; torch's own walk through them took half of an operation's time."""
    if isinstance(x, list | tuple):
        for each in x:
            yield from leaves_of(each)
    else:
        yield x


def changed(change: Callable[[Any], Any], x: Any) -> Any:
    """The same with something else in the place of each leaf."""
    if isinstance(x, list | tuple):
        return type(x)([changed(change, each) for each in x])
    return change(x)


def raw(x: Any) -> Any:
    """The processor's part of an argument."""
    if isinstance(x, CardTensor):
        return x.raw
    return CPU if isinstance(x, torch.device) and x.type == KIND else x


def run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Do an operation for a card, on the processor."""
    if op is aten._to_copy.default:
        return _to_copy(*args, **kwargs)
    if op is aten.copy_.default:
        return _copy(*args, **kwargs)
    name = op._schema.name
    leaves = [x for x in leaves_of((args, [*kwargs.values()])) if isinstance(x, Tensor)]
    ours = [x for x in leaves if isinstance(x, CardTensor)]
    index = ours[0].device.index if ours else _asked_for(kwargs.get("device"))
    _refuse_mixed(op, leaves, index)
    if ours and kwargs.get("device") is not None:  # made elsewhere, in the likeness of a card's tensor
        device = torch.device(kwargs["device"])
        if device.type != KIND:
            return op(*changed(raw, args), **kwargs)
        index = _asked_for(device)
    if name in WAITING or (name in INDEXED and _waits_for_indices(args[1])):
        CARDS.blocking(name, index)
    if not op.is_view:
        CARDS.launches[name] += 1
        CARDS.memory[index].load(name)
        if CARDS.clock.order.watches:
            CARDS.begins(index, name, [x.raw for x in ours], _written(op, args, kwargs))
    raw_args, raw_kwargs = changed(raw, args), {name: changed(raw, x) for name, x in kwargs.items()}
    if raw_kwargs.get("pin_memory"):
        raise RuntimeError(f"{op}: memory of a card cannot be pinned")
    raw_kwargs.pop("pin_memory", None)
    if raw_kwargs.get("device", 0) is None:
        raw_kwargs["device"] = CPU
    with_generator(op, torch.device(KIND, index), CARDS.generators[index], raw_args, raw_kwargs)
    given = {id(x.raw): x for x in ours}
    with _undone_without_memory(name, raw_args, raw_kwargs):
        made = op(*raw_args, **raw_kwargs) if op.is_view else computed(op, raw_args, raw_kwargs)
        for x in leaves_of(made):
            if isinstance(x, Tensor) and id(x) not in given and not _shares(x, ours):
                CARDS.take(x, index)
                if name in EMPTY:
                    poison(x)

    def wrapped(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return given[id(x)] if id(x) in given else CardTensor(x, index)

    return changed(wrapped, made)


def _shares(x: Tensor, ours: list[CardTensor]) -> bool:
    key = x.untyped_storage()._cdata
    return any(each.raw.untyped_storage()._cdata == key for each in ours)


def _asked_for(device: Any) -> int:
    index = None if device is None else torch.device(device).index
    return CARDS.current if index is None else index


def _refuse_mixed(op: Any, leaves: list[Tensor], index: int) -> None:
    """What CUDA would refuse: another device's tensors, but a processor's scalars and indices."""
    for x in leaves:
        if isinstance(x, CardTensor):
            if x.device.index != index:
                raise RuntimeError(f"{op}: tensors on {KIND}:{index} and {x.device}; expected one card")
        elif x.device.type != "cpu":
            raise RuntimeError(f"{op}: tensors on {KIND}:{index} and {x.device}; expected one device")
        elif not (
            (x.dim() == 0 and (torch.Tag.pointwise in op.tags or op._schema.name in ("aten::fill_", "aten::fill")))
            or op._schema.name in INDEXED
        ):
            raise RuntimeError(f"{op}: tensors on {KIND}:{index} and {x.device} {tuple(x.shape)}; expected one device")


def _waits_for_indices(indices: Any) -> bool:
    """Whether some are of another device, or yes and no: how many they are only the card knows."""
    return any(
        isinstance(x, Tensor) and (x.dtype in (torch.bool, torch.uint8) or not isinstance(x, CardTensor))
        for x in indices
    )


@contextmanager
def _undone_without_memory(name: str, args: Any, kwargs: Any) -> Iterator[None]:
    """Where an operation finds no memory, it did nothing: a card's asks for it first."""
    generator = kwargs.get("generator")
    state = None if generator is None else generator.get_state()
    written = [args[i] for i in DRAWS_IN_PLACE.get(name, ()) if args[i] is not None]
    before = [x.clone() for x in written]
    try:
        yield
    except torch.OutOfMemoryError:
        if generator is not None:
            generator.set_state(state)
        for x, was in zip(written, before, strict=True):
            x.copy_(was)
        raise


def _made(value: Tensor, index: int) -> CardTensor:
    CARDS.take(value, index)
    return CardTensor(value, index)


def _written(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The processor's parts of the arguments that an operation writes to."""
    given = {argument.name: value for argument, value in zip(op._schema.arguments, args, strict=False)} | dict(kwargs)
    written = [given.get(each.name) for each in op._schema.arguments if each.alias_info and each.alias_info.is_write]
    return [x.raw for x in leaves_of(written) if isinstance(x, CardTensor)]


def _from_host(x: Tensor, index: int, *, non_blocking: bool) -> Tensor:
    """What a card is given of a host tensor."""
    CARDS.launches["copy to the card"] += 1
    if CARDS.clock.pinned.has(x):
        value = CARDS.clock.from_host(x, CARDS.streams[index])
        if not non_blocking:
            CARDS.blocking("copy to the card", index)
        return value
    if not non_blocking:
        CARDS.blocking("copy to the card", index)
    elif x.nbytes > STAGED_BYTES:
        CARDS.blocking("copy of pageable memory to the card", index)
    return x.clone()


def _to_host(there: Tensor, value: Tensor, index: int, *, non_blocking: bool) -> None:
    CARDS.launches["copy to the host"] += 1
    if non_blocking and CARDS.clock.pinned.has(there):
        CARDS.clock.to_host(there, value, CARDS.streams[index])
        return
    CARDS.blocking("copy to pageable memory" if non_blocking else "copy to the host", index)
    there.copy_(value)


def _to_copy(x: Tensor, **kwargs: Any) -> Tensor:
    kept = {key: value for key, value in kwargs.items() if key in ("dtype", "memory_format") and value is not None}
    asked, non_blocking = kwargs.get("device"), bool(kwargs.get("non_blocking"))
    device = x.device if asked is None else torch.device(asked)
    if not isinstance(x, CardTensor):
        index = _asked_for(device)
        CARDS.begins(index, "a copy to the card", [])
        return _made(aten._to_copy.default(_from_host(x, index, non_blocking=non_blocking), **kept), index)
    index = x.device.index
    CARDS.begins(index, "a copy", [x.raw])
    if device.type == KIND:
        CARDS.launches["aten::_to_copy"] += 1
        return _made(aten._to_copy.default(x.raw, **kept), index if device.index is None else device.index)
    value: Tensor = aten._to_copy.default(x.raw, **kept)
    if not non_blocking:
        CARDS.launches["copy to the host"] += 1
        CARDS.blocking("copy to the host", index)
        return value
    there = CARDS.clock.pinned.add(torch.empty_like(value))
    _to_host(there, value, index, non_blocking=True)
    return there


def _takes_memory(there: Tensor, x: Tensor) -> bool:
    """Whether a copy between host and card goes by way of more memory on the card: what is no single piece alike."""
    one_piece = 1 + sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True)) == x.numel()
    return bool(x.numel()) and not (one_piece and x.stride() == there.stride() and x.dtype == there.dtype)


def _copy(there: Tensor, x: Tensor, non_blocking: bool = False) -> Tensor:
    if isinstance(there, CardTensor) != isinstance(x, CardTensor) and x.dim() and _takes_memory(there, x):
        CARDS.refuse_memory_beside((there if isinstance(there, CardTensor) else x).device.index)
    if isinstance(there, CardTensor):
        index = there.device.index
        CARDS.begins(index, "a copy", [x.raw] if isinstance(x, CardTensor) else [], [there.raw])
        if isinstance(x, CardTensor):
            CARDS.launches["aten::copy_"] += 1
            there.raw.copy_(x.raw)
        elif x.dim() == 0 and not CARDS.clock.pinned.has(x) and non_blocking:
            there.raw.copy_(x)
        else:
            there.raw.copy_(_from_host(x, index, non_blocking=non_blocking))
        return there
    assert isinstance(x, CardTensor)
    CARDS.begins(x.device.index, "a copy to the host", [x.raw])
    value = x.raw.to(there.dtype, copy=True).expand(there.shape)
    _to_host(there, value, x.device.index, non_blocking=non_blocking)
    return there


class _Module(_DummyBackendModule):
    """What torch asks a device's module: `torch.simcard`."""

    def device_count(self) -> int:
        return CARDS.count

    def current_device(self) -> int:
        return CARDS.current

    def set_device(self, device: Any) -> None:
        CARDS.current = _asked_for(device)

    def manual_seed_all(self, seed: int) -> None:
        for generator in CARDS.generators:
            generator.manual_seed(seed)

    def get_rng_state(self, device: Any = None) -> Tensor:
        return CARDS.generators[_asked_for(device)].get_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        CARDS.generators[_asked_for(device)].set_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


def _attention(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Torch's attention, which on cards is a fused one wherever it can be; here it is the processor's."""

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> Tensor:
        given = {"attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal, **options}
        fits = isinstance(query, CardTensor) and {*options} <= {"scale"} and query.ndim == 4
        plainly = attn_mask is not None or dropout_p > 0
        if not fits or plainly or any(x.stride(-1) != 1 or x.shape[-1] != value.shape[-1] for x in (query, key, value)):
            return plain(query, key, value, **given)
        attended: Tensor = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, **given)[0]
        return attended

    return attention


def _register() -> Any:
    _setup_privateuseone_for_python_backend(KIND, _Module(), _DummyPrivateUse1Hook(), Guard())
    torch.Generator = Generator  # type: ignore[misc,assignment]
    F.scaled_dot_product_attention = _attention(F.scaled_dot_product_attention)
    library = torch.library.Library("aten", "IMPL")

    def kernel(op: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: _BACKWARD.keeping(lambda: run(op, *args, **kwargs))

    for op in (
        aten.empty.memory_format,
        aten.empty_strided.default,
        aten._to_copy.default,
        aten.copy_.default,
        aten.fill_.Scalar,
        aten.zero_.default,
        aten.normal_.default,
        aten.uniform_.default,
        aten.random_.default,
        getattr(aten.random_, "from"),
        aten.random_.to,
        aten.arange.start_out,
        aten.view.default,
        aten.as_strided.default,
        aten.set_.source_Storage_storage_offset,
    ):
        name = op._schema.name.removeprefix("aten::")
        overload = op._overloadname
        library.impl(name if overload == "default" else f"{name}.{overload}", kernel(op), "PrivateUse1")
    return library


_BACKWARD = watch_backward()
_LIBRARY = _register()  # first: torch knows the device by its name from then on
CARDS = Cards(os.environ)


def _lone_holders() -> Holders:
    """What an addition of two gradients sees, of which the engine of backward alone holds the first."""
    x = CardTensor(torch.ones(2), 0).requires_grad_()
    y = x * 1
    torch.autograd.grad(torch.stack([y * 2, y * 3]), y, CardTensor(torch.ones(2, 2), 0))
    assert CARDS.held_by is not None
    return CARDS.held_by


CARDS.lone = _lone_holders()
CARDS.begin(os.environ)  # nothing of this is counted


@atexit.register
def _record() -> None:
    """Add what was counted to the file that the environment names."""
    if path := os.environ.get("SIMCARD_RECORD"):
        counted = {
            "rank": os.environ.get("RANK", "0"),
            "allocations": [memory.allocations for memory in CARDS.memory],
            "live": [memory.settle().live_bytes for memory in CARDS.memory],
            "peak_live": [memory.peak_live_bytes for memory in CARDS.memory],
            "peak_reserved": [memory.allocator.peak_reserved_bytes for memory in CARDS.memory],
            "waits": dict(CARDS.clock.waits),
            "launches": sum(CARDS.launches.values()),
        }
        with open(path, "a") as file:
            file.write(json.dumps(counted) + "\n")
