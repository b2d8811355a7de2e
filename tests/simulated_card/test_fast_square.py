"""The program of docs/adding-a-kernel.md, by Triton's interpreter: it gives what the page's plain way gives."""

import importlib
import sys
from typing import Any

import pytest
import torch

from kernels.page_kernel import write_package

pytest.importorskip("triton.runtime.interpreter", reason="needs Triton: pip install 'frugan[kernels]'")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The page's package, installed."""
    folder = tmp_path_factory.mktemp("site")
    write_package(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield importlib.import_module("fast_square")
        for name in ("fast_square", "fast_square.programs"):
            sys.modules.pop(name, None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", [(3, 5), (2, 4096), (2, 3, 50, 51)])
def test_the_pages_program(shape: tuple[int, ...], dtype: torch.dtype, package: Any) -> None:
    a, b = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    # squares of halves are rounded in the plain way, and not in the program
    torch.testing.assert_close(package.sums_of_squares.start(a, b), package.plain(a.float(), b.float()))
