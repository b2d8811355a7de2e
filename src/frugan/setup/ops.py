"""Which kernels there are, by name, and the operations that are made of some of them."""

from collections.abc import Collection
from typing import cast

from frugan.contract.kernel import Kernel
from frugan.contract.ops import Ops, combined
from frugan.registry import OPS, load, names


def kernel_names() -> list[str]:
    """Names of all kernels: frugan's and those of other packages."""
    return names(OPS)


def kernel(name: str) -> type[Kernel]:
    """The class of a kernel.

    Raises:
        BadInput: nothing goes by the name, or the package that has it cannot be imported.
    """
    return cast(type[Kernel], load(OPS, name)[0])


def ops_of(chosen: Collection[str]) -> Ops:
    """Operations by kernels of some names, and in plain torch where none of them is for it.

    Raises:
        BadInput: as `kernel`.
    """
    return combined(kernel(name) for name in kernel_names() if name in chosen)
