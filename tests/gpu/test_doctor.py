"""The self-test on a CUDA card; skipped without one."""

from pathlib import Path

import pytest
import torch

from frugan.doctor.selftest import run_self_test

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")


def test_the_self_test_passes(tmp_path: Path) -> None:
    result = run_self_test("cuda", tmp_path)
    assert [each for each in result.outcomes if each.state == "failed"] == []
