"""A kernel that is added as docs/adding-a-kernel.md says; and a training on a processor loads none."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from frugan.contract.ops import PLAIN, overridden
from frugan.setup.ops import kernel, kernel_names, ops_of
from kernels.page_kernel import write_package
from training.pictures import write_pictures


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The page's package, installed."""
    folder = tmp_path_factory.mktemp("site")
    write_package(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield importlib.import_module("fast_square")
        sys.modules.pop("fast_square", None)


def test_it_is_found_and_overrides_one_operation(package: Any) -> None:
    assert "fast_square" in kernel_names()
    assert kernel("fast_square") is package.FastSquare
    assert overridden(package.FastSquare) == {"mean_square"}
    assert isinstance(ops_of({"fast_square"}), package.FastSquare)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_it_gives_what_torch_gives(package: Any, dtype: torch.dtype) -> None:
    ops = ops_of({"fast_square"})
    a, b = torch.randn(2, 3, 40, 41).to(dtype), torch.randn(2, 3, 40, 41).to(dtype)
    expected, found = PLAIN.mean_square(a, b), ops.mean_square(a, b)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(ops.mean_square(a, b[:1]), PLAIN.mean_square(a, b[:1]))  # left to torch


def test_it_is_differentiable_twice(package: Any) -> None:
    a, b = (torch.randn(5, 7, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradgradcheck(ops_of({"fast_square"}).mean_square, (a, b))


def test_a_plan_sees_one_operation_without_data(package: Any) -> None:
    a = torch.empty(3, 5000, device="meta")
    sums = package.sums_of_squares(a, a)
    assert (sums.device.type, sums.shape, sums.dtype) == ("meta", (4,), torch.float32)


@pytest.mark.long
def test_a_training_on_a_processor_loads_no_kernel(tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures", classes=(), each=8, side=32)
    words = (
        *("train", "biggan-small-32", "--data", "pictures", "--out", "run", "--device", "cpu"),
        *("networks.classes=1", "networks.generator_channels=2", "networks.discriminator_channels=2"),
        *("training.batch=4", "training.normalisation_batch=4", "training.duration=1 steps"),
    )
    program = (
        "import sys\n"
        "from frugan.cli.main import run\n"
        f"sys.argv = ['frugan', *{list(words)!r}]\n"
        "try:\n"
        "    run()\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        "print([name for name in sys.modules if name.startswith('frugan.kernels')])\n"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"
