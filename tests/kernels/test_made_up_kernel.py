"""A kernel of another package, as docs/adding-a-kernel.md adds one: its blocks are what runs here."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from frugan.contract.layers import use_ops
from frugan.contract.ops import PLAIN, Ops
from frugan.families.stylegan2.networks import ToRGB
from frugan.recipe.loading import load_recipe
from frugan.setup.ops import kernel, kernel_names, ops_of
from frugan.setup.recipe_setup import training_of
from frugan.training.kernels import SMALL, difference, digest, useful_to

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adding-a-kernel.md").read_text("utf-8")
BLOCKS = re.findall(r"```(\w+)\n# (.*?)\n(.*?)```", PAGE, re.DOTALL)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that the package is installed in."""
    folder = tmp_path_factory.mktemp("installed")
    metadata = folder / "colours-0.1.dist-info"
    for place in (folder / "colours", metadata):
        place.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: colours\nVersion: 0.1\n")
    for language, title, text in BLOCKS:
        if language == "python":
            (folder / title.removeprefix("module ").replace(".", "/")).with_suffix(".py").write_text(text, "utf-8")
        else:
            group, line = text.strip().splitlines()
            name = re.fullmatch(r'\[project\.entry-points\."(.*)"\]', group)
            assert name is not None
            (metadata / "entry_points.txt").write_text(f"[{name[1]}]\n{line.replace(chr(34), '')}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield folder


@pytest.fixture
def ops(package: Path) -> Ops:
    return ops_of(["colours"])


class Seen(TorchDispatchMode):
    """Notes which of frugan's operations run."""

    def __init__(self) -> None:
        super().__init__()
        self.names = set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "frugan":
            self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_it_is_found_by_its_entry_point(ops: Ops) -> None:
    assert "colours" in kernel_names()
    assert isinstance(ops, kernel("colours"))
    assert "colours" in useful_to(training_of(load_recipe("stylegan2-digits-32", [])))
    assert "colours" not in useful_to(training_of(load_recipe("saehd-demo-64", [])))


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_its_plain_way_passes_the_trial(dtype: torch.dtype, layout: torch.memory_format, ops: Ops) -> None:
    call, tensors = kernel("colours").case(SMALL, dtype, layout, CPU)
    if dtype != torch.float64:
        assert difference(call, tensors, ops) is None
    assert torch.equal(call(*tensors, ops=ops), call(*tensors, ops=PLAIN))


def test_without_data_it_has_the_layout_of_its_input(ops: Ops) -> None:
    x = torch.empty(2, 3, 4, 4, device="meta", dtype=torch.float16).contiguous(memory_format=torch.channels_last)
    y = ops.add_bias(x, torch.empty(3, device="meta", dtype=torch.float16), None)
    assert (y.shape, y.dtype, y.stride(), y.device) == (x.shape, x.dtype, x.stride(), x.device)


def test_layers_compute_by_it(ops: Ops) -> None:
    layer = ToRGB(4, 3, 8, clamp=0.7, half=False)
    x, style = torch.randn(2, 4, 6, 6).contiguous(memory_format=torch.channels_last), torch.randn(2, 4)

    def output() -> tuple[Tensor, set[str]]:
        with Seen() as seen:
            return layer(x, style), seen.names

    expected, names = output()
    assert not names
    use_ops(layer, ops)
    found, names = output()
    assert names == {"colours_add_bias"}
    assert torch.equal(found, expected)


def test_a_changed_program_is_tried_again(package: Path) -> None:
    before, program = digest(), package / "colours" / "programs.py"
    text = program.read_text("utf-8")
    program.write_text(text + "\n", "utf-8")
    assert digest() != before
    program.write_text(text, "utf-8")
    assert digest() == before


def test_the_pages_own_test_passes_by_the_interpreter(package: Path) -> None:
    pytest.importorskip("triton.runtime.interpreter", reason="needs Triton: pip install 'frugan[kernels]'")
    path = os.pathsep.join([str(package), str(ROOT / "src")])
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": path}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(package / "test_colours.py")]
    done = subprocess.run(words, env=environment, cwd=package, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
