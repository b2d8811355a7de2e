"""A phase compiled for a card that is only described: `benchmarks/compiled_for_cards.py`, in a process of its own."""

import json
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

from benchmark_programs import FOLDER

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton: pip install 'frugan[kernels]'"),
]


def test_every_kernel_of_a_phase_becomes_machine_code() -> None:
    """R1 of the smallest recipe: two backwards, in a minute."""
    words = [sys.executable, str(FOLDER / "compiled_for_cards.py"), "biggan-digits-32", "--for", "sm_86", "D_r1"]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["precision"] == "bf16"
    phase = found["phases"]["D_r1"]
    assert phase["machine_code"]["kernels"] > 30
    assert not phase["machine_code"]["errors"]
    assert not phase["machine_code"]["spilt_bytes"]
    assert phase["libraries"]["convolution"] > 10
    assert 0 < phase["kept_bytes"] < phase["peak_bytes"] < phase["bytes_moved"]
