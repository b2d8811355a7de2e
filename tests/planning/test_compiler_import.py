"""Planning does not import torch's compiler, and leaves it as it was."""

import subprocess
import sys

import pytest

PLAN = """
import sys
import frugan.planning.plan_recipe
from frugan.torch_internals import no_compiler
import torch
x = torch.ones(2, requires_grad=True)
with no_compiler():
    torch.optim.SGD([x], lr=0.1)
    (x * 2).backward(torch.ones(2))
    assert "sympy" not in sys.modules
assert "torch._dynamo" not in sys.modules and "torch.fx.experimental.symbolic_shapes" not in sys.modules
"""
AFTERWARDS = """
with no_compiler():
    assert torch._dynamo.is_compiling() is False  # more than to be left alone: the real one
assert "sympy" in sys.modules
torch.optim.SGD([x], lr=0.1).zero_grad()
"""


@pytest.mark.parametrize("program", [PLAN, pytest.param(PLAN + AFTERWARDS, marks=pytest.mark.long)])
def test_it_is_not_imported_and_not_missed(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
