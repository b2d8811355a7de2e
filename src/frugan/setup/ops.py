"""Kernels by name, and operations that consist of some of them."""

from collections.abc import Collection
from typing import cast

from frugan.contract.kernel import Kernel
from frugan.contract.ops import Ops, combined
from frugan.registry import OPS, load, names


def kernel_names() -> list[str]:
    """Names of all kernels, of frugan and of other packages."""
    return names(OPS)


def kernel(name: str) -> type[Kernel]:
    """Import a kernel by name.

    Raises:
        BadInput: there is no such kernel, or the package that has it cannot be imported.
    """
    return cast(type[Kernel], load(OPS, name)[0])


def ops_of(chosen: Collection[str]) -> Ops:
    """Combine kernels into operations, which are in plain torch where no kernel is for them.

    Raises:
        BadInput: see `kernel`.
    """
    return combined(kernel(name) for name in kernel_names() if name in chosen)
