"""What frugan uses of torch beyond its documentation does what it is used for, and nothing else private is used."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from frugan import torch_internals
from frugan.torch_internals import (
    FakeTensorMode,
    TorchDispatchMode,
    inside_function,
    is_compiled,
    is_node_needed,
    running_backward_node,
    storage_holders,
    tree_leaves,
    tree_map,
    write_count,
)

PACKAGE = Path(torch_internals.__file__).parent
PRIVATE = re.compile(
    r"\btorch(?:\.\w+)*\._[a-z]\w*|^\s*from torch[\w.]*\._\w[\w.]* import"
    r"|(?<!self)\._version\b|[\"']has_torch_function",  # of tensors, and in functions of torch
    re.M,
)
ELSEWHERE = {
    "safe_pickle/torch_files.py",  # names in other programs' files, which are read and never called
}
"""Files that name something private for another reason."""


@pytest.mark.parametrize("name", ["add_", "copy_", "div", "div_", "mul_"])
def test_operations_on_lists_are_those_on_each_tensor(name: str) -> None:
    operation = getattr(torch_internals, f"foreach_{name}")
    tensors, others = [torch.tensor([1.0, -2.0]), torch.tensor(3.0)], [torch.tensor([4.0, 5.0]), torch.tensor(6.0)]
    expected = [getattr(tensor.clone(), name)(other) for tensor, other in zip(tensors, others, strict=True)]
    result = operation(tensors, others)
    found = tensors if name.endswith("_") else result
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_modules_that_were_compiled() -> None:
    layer = torch.nn.Linear(1, 1)
    assert not is_compiled(layer)
    assert is_compiled(torch.compile(layer))
    layer.compile()
    assert is_compiled(layer)


def test_norms_of_a_list() -> None:
    tensors = [torch.tensor([3.0, 4.0]), torch.tensor([[1.0, -1.0], [1.0, 1.0]])]
    assert [float(norm) for norm in torch_internals.foreach_norm(tensors)] == [5.0, 2.0]


def test_what_a_processor_multiplies_is_known() -> None:
    assert isinstance(torch_internals.has_amx(), bool)
    assert torch_internals.has_amx() <= torch_internals.has_avx512_bf16() or not torch_internals.has_amx()


def test_views_hold_the_same_memory() -> None:
    tensor = torch.ones(4)
    alone = storage_holders(tensor)
    view = tensor.view(2, 2)
    assert storage_holders(tensor) == storage_holders(view) == alone + 1


def test_writes_to_a_tensor_and_its_views_are_counted() -> None:
    tensor = torch.ones(4)
    before = write_count(tensor)
    tensor.view(2, 2).add_(1)
    assert write_count(tensor) > before
    before = write_count(tensor)
    tensor + 1
    assert write_count(tensor) == before


def test_functions_in_python_are_looked_into() -> None:
    class Noting(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(func.__name__)
            if (inside := inside_function(func)) is not None:
                with self:
                    return inside(*args, **(kwargs or {}))
            return func(*args, **(kwargs or {}))

    names: list[str] = []
    x = torch.linspace(-1, 1, 8).view(2, 4)
    with Noting():
        result = F.softmax(x, dim=1)
    assert names == ["softmax", "softmax"]  # of torch.nn.functional, and of tensors
    assert torch.equal(result, x.softmax(1))
    assert inside_function(torch.exp) is None
    assert inside_function(F.conv2d) is None


def test_the_node_that_backward_is_at() -> None:
    seen: list[Any] = []
    needed: list[bool] = []

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.nodes = [tensor.grad_fn for tensor in (x, y)]
            return x + y

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
            seen.append(running_backward_node())
            needed.extend(is_node_needed(node) for node in ctx.nodes)
            return gradients[0], gradients[0]

    assert running_backward_node() is None
    a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    torch.autograd.grad(Twice.apply(a * 2, b * 2).sum(), a)
    assert seen[0] is not None
    assert "Twice" in seen[0].name()
    assert needed == [True, False]


def test_a_mode_sees_operations_and_trees_are_walked() -> None:
    operations: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            operations.append(str(func))
            return func(*args, **(kwargs or {}))

    with Watch():
        torch.ones(2) + 1
    assert "aten.add.Tensor" in operations
    assert tree_leaves({"a": [1, (2, 3)]}) == [1, 2, 3]
    assert tree_map(lambda leaf: leaf + 1, {"a": (1, 2)}) == {"a": (2, 3)}
    with FakeTensorMode():
        assert (torch.ones(2, 3) @ torch.ones(3, 4)).shape == (2, 4)


def test_nothing_else_private_is_used() -> None:
    found = {
        path.relative_to(PACKAGE).as_posix(): names
        for path in sorted(PACKAGE.rglob("*.py"))
        if (names := PRIVATE.findall(path.read_text("utf-8")))
    }
    del found["torch_internals.py"]
    assert found.keys() <= ELSEWHERE, found
