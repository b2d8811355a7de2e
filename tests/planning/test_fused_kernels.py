"""Joint graphs as they are recorded, and the kernels that become of them, counted by hand."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from frugan.memory.compiled import MOST_READ_TWICE, JointGraph, Kernel, OperationKind, kernels_of, peak_bytes, record
from frugan.stepmemory.dataless import META, Dataless

SIDE = 8
ONE = 4 * SIDE * SIDE
"""Bytes of an activation."""


def recorded(work: Callable[..., Sequence[Tensor]], *shapes: tuple[int, ...]) -> JointGraph:
    examples = [torch.empty(shape, device=META).requires_grad_() for shape in shapes]
    return record(work, examples, Dataless(), lambda: "here")


def stored(kernels: Sequence[Kernel]) -> list[tuple[int, ...]]:
    return [kernel.makes for kernel in kernels]


def names(graph: JointGraph) -> list[str]:
    return [str(operation.func.overloadpacket).removeprefix("aten.") for operation in graph.needed()]


def test_what_is_pointwise_is_made_within_its_reader() -> None:
    """mm, (silu, times two), mm: three kernels, and one value between the products."""

    def work(x: Tensor) -> list[Tensor]:
        with torch.no_grad():
            return [(F.silu(x @ x) * 2) @ x]

    graph = recorded(work, (SIDE, SIDE))
    kernels = kernels_of(graph)
    assert names(graph) == ["mm", "silu", "mul", "mm"]
    assert [kernel.bytes_moved for kernel in kernels] == [2 * ONE, 2 * ONE, 3 * ONE]
    assert sum(kernel.macs for kernel in kernels) == 2 * SIDE**3
    assert peak_bytes(graph, kernels) == 2 * ONE


def test_a_reduction_reads_what_is_not_stored() -> None:
    def work(x: Tensor) -> list[Tensor]:
        with torch.no_grad():
            return [(F.silu(x) * x).sum()]

    graph = recorded(work, (SIDE, SIDE))
    (kernel,) = kernels_of(graph)
    assert kernel.bytes_moved == ONE + 4
    assert peak_bytes(graph, [kernel]) == 4


def test_much_that_goes_into_several_readers_is_stored_once() -> None:
    def work(*xs: Tensor) -> list[Tensor]:
        with torch.no_grad():
            total = xs[0] + xs[1]
            for x in xs[2:]:
                total = total + x
            return [(total * 2).sum(), (total * 3).sum()]

    few, many = (kernels_of(recorded(work, *[(SIDE, SIDE)] * count)) for count in (4, 5))
    assert len(stored(few)) == 2
    assert len(stored(many)) == 3


def test_in_place_makes_a_new_value_and_views_are_their_base() -> None:
    def work(x: Tensor) -> list[Tensor]:
        with torch.no_grad():
            y = x @ x
            y.view(-1).mul_(2)
            y[0].zero_()  # a part: by itself, on what is left of the rest
            return [y.t()]

    graph = recorded(work, (SIDE, SIDE))
    assert [operation.kind for operation in graph.needed()] == [
        OperationKind.OWN,
        OperationKind.POINTWISE,
        OperationKind.OWN,
    ]
    assert [len(operation.reads) for operation in graph.needed()] == [1, 1, 1]
    assert stored(kernels_of(graph)) == [(1,), (2,), (3,)]
    assert graph.tensors[0].stride() == (1, SIDE)


def test_backward_is_in_it_and_what_nothing_comes_of_is_not() -> None:
    def work(x: Tensor, w: Tensor) -> list[Tensor]:
        loss = F.silu(x @ w).sum()
        (gradient,) = torch.autograd.grad(loss, w, create_graph=True)
        _ = gradient.square().sum()  # nobody asks for it
        loss.backward()
        assert w.grad is not None
        return [w.grad]

    graph = recorded(work, (SIDE, SIDE), (SIDE, SIDE))
    assert names(graph).count("mm") == 2
    first, *_, last = graph.needed()
    assert graph.values[first.makes[0]].forward
    assert not graph.values[last.makes[0]].forward


def test_batch_norm_is_taken_apart() -> None:
    """Its result and the gradient within are not stored; statistics are."""

    def work(x: Tensor, w: Tensor) -> list[Tensor]:
        y = F.conv2d(x, w)
        F.conv2d(F.relu(F.batch_norm(y, None, None, training=True)), w).sum().backward()
        assert w.grad is not None
        return [w.grad]

    graph = recorded(work, (2, 4, SIDE, SIDE), (4, 4, 1, 1))
    one = 2 * 4 * SIDE * SIDE * 4
    assert "var_mean" in names(graph)
    assert not any("batch_norm" in name for name in names(graph))
    makers = {n: str(o.func.overloadpacket).removeprefix("aten.") for o in graph.operations for n in o.makes}
    made = [n for kernel in kernels_of(graph) for n in kernel.makes]
    large = {makers[n] for n in made if graph.values[n].size_bytes == one}
    assert {"convolution", "relu", "convolution_backward"} <= large
    assert not large & {"sub", "threshold_backward"}


def test_a_convolutions_bias_is_added_by_what_reads_it_and_its_gradient_is_a_sum() -> None:
    def work(x: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
        F.relu(F.conv2d(x, w, b)).sum().backward()
        assert b.grad is not None
        return [b.grad]

    graph = recorded(work, (2, 4, SIDE, SIDE), (4, 4, 1, 1), (4,))
    first, second, *_ = graph.needed()
    assert (first.func, second.func) == (torch.ops.aten.convolution.default, torch.ops.aten.add.Tensor)
    assert len(first.reads) == 2
    assert graph.needed()[-1].kind == OperationKind.REDUCTION
    assert "convolution_backward" not in names(graph)  # nobody asks for another gradient
    assert kernels_of(graph)[0].makes == first.makes


def test_an_operand_in_another_order_is_copied_for_each_convolution_that_reads_it() -> None:
    one, weight = 2 * 4 * SIDE * SIDE * 4, 4 * 4 * 4

    def work(x: Tensor, w: Tensor) -> list[Tensor]:
        with torch.no_grad():
            w = w.flatten(1)[:, None, None].permute(0, 3, 1, 2)  # channels-last
            return [F.conv2d(x, w), F.conv2d(x, w)]

    graph = recorded(work, (2, 4, SIDE, SIDE), (4, 4, 1, 1))
    kernels = kernels_of(graph)
    assert names(graph) == ["clone", "convolution", "clone", "convolution"]
    assert [kernel.bytes_moved for kernel in kernels] == [2 * one, 2 * one + weight] * 2
    assert peak_bytes(graph, kernels) == 3 * one  # a copy, and both results


def test_what_is_pointwise_is_done_by_the_kernel_that_makes_what_it_reads() -> None:
    """A sum of many and two functions of it are one kernel, and the sum, which nobody else reads, is not stored."""

    def work(*xs: Tensor) -> list[Tensor]:
        with torch.no_grad():
            total = xs[0]
            for x in xs[1:]:
                total = total + x
            return [F.silu(total), F.relu(total)]

    many = 2 * MOST_READ_TWICE
    graph = recorded(work, *[(SIDE, SIDE)] * many)
    (kernel,) = kernels_of(graph)
    assert len(kernel.makes) == 2
    assert kernel.bytes_moved == (many + 2) * ONE
    assert peak_bytes(graph, [kernel]) == 2 * ONE
