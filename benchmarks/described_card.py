"""A card that is described and not there, for torch's compiler and Triton under torch's build for processors.

Nothing runs on it. What the two ask of a card (its compute capability, multiprocessors, memory) is answered from the
description, so that Inductor writes the program that it would write there, and Triton makes machine code for it. Torch
is changed for the rest of the process: one process for one card.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from frugan.stepmemory.shapes import prefers_channels_last

CARD = torch.device("cuda", 0)
aten = torch.ops.aten


@dataclass(frozen=True)
class DescribedCard:
    """What a compiler asks of a card."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: int
    shared_bytes: int  # shared memory that one block may ask for
    threads: int  # of a multiprocessor

    @property
    def target(self) -> str:
        """As ptxas calls it."""
        return "sm_{}{}".format(*self.capability)


CARDS = {
    card.target: card
    for card in (
        DescribedCard("RTX 2060", (7, 5), 30, 6 << 30, 65536, 1024),
        DescribedCard("RTX 3060", (8, 6), 28, 12 << 30, 101376, 1536),
        DescribedCard("H100", (9, 0), 132, 80 << 30, 232448, 2048),
        DescribedCard("RTX 5070", (12, 0), 48, 12 << 30, 101376, 1536),
    )
}
"""By target."""


def describe(card: DescribedCard) -> None:
    """Let torch's compiler and Triton take the card for this machine's, for the rest of this process."""
    import triton  # noqa: PLC0415  (an extra)
    from torch._inductor import config  # noqa: PLC0415
    from torch._inductor.fx_passes import joint_graph, post_grad  # noqa: PLC0415
    from torch._inductor.runtime import hints, triton_helpers  # noqa: PLC0415

    passes: Any
    for passes in (joint_graph, post_grad):  # patterns that they replace are traced on tensors, which must exist
        passes.lazy_init(torch.device("cpu"))
        passes.lazy_init = _answer(None)
    known = _properties(card)
    fields = {name: value for name, value in vars(known).items() if name in hints.DeviceProperties._fields}
    properties = hints.DeviceProperties(type="cuda", index=0, cc=10 * known.major + known.minor, **fields)
    hints.DeviceProperties.create = classmethod(lambda cls, device: properties)  # type: ignore[method-assign,assignment]
    _answer_in_torch(card, known)
    triton.runtime.driver.set_active(_driver(10 * known.major + known.minor))
    triton_helpers.set_driver_to_gpu = lambda: None
    # the methods of C++ ask for a guard of the device
    methods: Any = torch.Tensor
    methods.__invert__, methods.contiguous, methods.copy_ = _inverted, _contiguous, _copied
    config.use_static_triton_launcher = False  # it loads what is compiled
    folder: Any = joint_graph.UniformValueConstantFolder
    for name in ("__init__", "_deduce_value"):
        setattr(folder, name, _on_the_processor(getattr(folder, name)))
    _lay_out_convolutions_as_cudnn_does()
    F.scaled_dot_product_attention = _attention_of(card)


def _properties(card: DescribedCard) -> SimpleNamespace:
    major, minor = card.capability
    return SimpleNamespace(
        name=card.name,
        major=major,
        minor=minor,
        multi_processor_count=card.multiprocessors,
        total_memory=card.memory_bytes,
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=card.threads,
        max_threads_per_block=1024,
        warp_size=32,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=card.shared_bytes,
        L2_cache_size=3 << 20,
        gcnArchName="",
    )


def _answer(value: object) -> Callable[..., Any]:
    return lambda *_, **__: value


def _answer_in_torch(card: DescribedCard, known: SimpleNamespace) -> None:
    """Of `torch.cuda` and of the interface by which the compiler asks for a device."""
    from torch._dynamo import device_interface  # noqa: PLC0415

    shared: dict[str, object] = {
        "get_device_properties": known,
        "current_device": 0,
        "device_count": 1,
        "is_available": True,
        "is_bf16_supported": card.capability >= (8, 0),
        "set_device": None,
    }
    only_torch: dict[str, object] = {
        "get_device_capability": card.capability,
        "_lazy_init": None,
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": None,
        "synchronize": None,
        "_exchange_device": 0,
        "_maybe_exchange_device": 0,
    }
    for name, value in (shared | only_torch).items():
        setattr(torch.cuda, name, _answer(value))
    torch.version.cuda = "12.8"
    torch._C._cuda_getCurrentRawStream = _answer(0)
    only_interface: dict[str, object] = {
        "get_compute_capability": "{}{}".format(*card.capability),
        "get_raw_stream": 0,
        "is_triton_capable": True,
        "raise_if_triton_unavailable": None,
    }
    methods = {name: staticmethod(_answer(value)) for name, value in (shared | only_interface).items()}
    asked = {name: methods[name] for name in ("current_device", "set_device", "get_device_properties")}
    cuda: Any = device_interface.CudaInterface
    worker = type("Worker", (cuda.Worker,), asked)
    device_interface.register_interface_for_device("cuda", type("Described", (cuda,), {**methods, "Worker": worker}))


def _driver(capability: int) -> object:
    """Of a card for Triton, which asks it for the target alone as long as nothing runs."""
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415
    from triton.backends.driver import DriverBase  # noqa: PLC0415

    answers: dict[str, Any] = {
        "__init__": lambda self: None,
        "is_active": classmethod(lambda cls: True),
        "map_python_to_cpp_type": _answer("void*"),
        "get_current_target": _answer(GPUTarget("cuda", capability, 32)),
        "get_active_torch_device": _answer(CARD),
        "get_current_device": _answer(0),
        "get_current_stream": _answer(0),
        "get_device_interface": _answer(torch.cuda),
        "get_benchmarker": _answer(None),
    }
    return type("DescribedDriver", (DriverBase,), answers)()


class _OnTheProcessor(TorchDispatchMode):
    """What is asked for on the card is made on the processor."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation."""
        there = {name: torch.device("cpu") if value == CARD else value for name, value in (kwargs or {}).items()}
        return func(*args, **there)


def _on_the_processor(run: Callable[..., Any]) -> Callable[..., Any]:
    """For constants, of which the compiler finds the value by making them."""

    def there(*args: Any, **kwargs: Any) -> Any:
        with _OnTheProcessor():
            return run(*args, **kwargs)

    return there


def _inverted(x: Tensor) -> Tensor:
    return torch.bitwise_not(x)


def _contiguous(x: Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> Tensor:
    made: Tensor = aten.contiguous(x, memory_format=memory_format)
    return made


def _copied(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    with torch._C._AutoDispatchBelowAutograd() if x.device == CARD else nullcontext():
        made: Tensor = aten.copy_(x, source, non_blocking)
    return made


def _lay_out_convolutions_as_cudnn_does() -> None:
    """A result is channels-last where the input or the weight is; torch's processor build does not know cuDNN."""
    rules: Any = torch._C

    def layout(pictures: Tensor, weight: Tensor, _: object) -> torch.memory_format:
        last = prefers_channels_last(pictures) or prefers_channels_last(weight)
        return torch.channels_last if last and weight.ndim == 4 else torch.contiguous_format

    rules._select_conv_backend = _answer(rules._ConvBackend.Cudnn)
    rules._conv_determine_backend_memory_format = layout


def _attention_of(card: DescribedCard) -> Callable[..., Tensor]:
    """The fused kernel that torch would take: flash attention, before compute capability 8.0 the memory-efficient."""

    def attention(query: Tensor, key: Tensor, value: Tensor, *, scale: float) -> Tensor:
        if card.capability >= (8, 0) and query.dtype != torch.float32:
            flash = aten._scaled_dot_product_flash_attention(query, key, value, 0.0, False, False, scale=scale)
            return flash[0]  # type: ignore[no-any-return]
        made = aten._scaled_dot_product_efficient_attention(query, key, value, None, True, 0.0, False, scale=scale)
        return made[0]  # type: ignore[no-any-return]

    return attention
