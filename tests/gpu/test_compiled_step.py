"""Compiled phases on a CUDA card; skipped without one, or without Triton. Never run so far."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from contract.made_up import MadeUpFamily
from contract.rig import BF16, FP32, Rig, largest_difference
from frugan.accelerator.precision import Precision
from frugan.contract.family import Family
from frugan.doctor.trial import HostDraws
from frugan.engine.compiled_phases import CompiledPhases, missing_compiler
from frugan.engine.streams import Streams
from frugan.families import families
from frugan.planning.prediction import BlankPictures

CUDA = torch.device("cuda")
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card"),
    pytest.mark.skipif(
        torch.cuda.is_available() and missing_compiler(torch.device("cuda", 0)) is not None, reason="needs Triton"
    ),
]
ALL = [MadeUpFamily(), *families().values()]


def _pair(family: Family, precision: Precision, cache: Path) -> tuple[Rig, Rig, list[str]]:
    """As written and compiled, and what the compiled one warns of."""
    warned: list[str] = []
    rigs = [Rig.create(family, precision=precision, device=CUDA) for _ in range(2)]
    for rig in rigs:
        rig.step = replace(rig.step, draws=HostDraws(7))
    backward = CompiledPhases(lambda _: None, warned.append, cache)
    rigs[1].step = replace(rigs[1].step, backward=backward)
    return rigs[0], rigs[1], warned


@pytest.mark.parametrize("family", ALL, ids=lambda family: family.name)
def test_compiled_kernels_equal_the_written_step(family: Family, tmp_path: Path) -> None:
    """In fp32, one step: later ones amplify what differs."""
    written, compiled, warned = _pair(family, FP32, tmp_path)
    written.run(1)
    compiled.run(1)
    assert warned == []
    difference, where = largest_difference(written.tensors(), compiled.tensors())
    assert difference < 1e-3, where


def test_compiled_steps_never_wait_for_the_card(tmp_path: Path) -> None:
    family = MadeUpFamily()
    _, compiled, warned = _pair(family, BF16, tmp_path)
    compiled.run(2)  # compiles
    blank = BlankPictures(family.sources(*family.tiny()))
    compiled.step = replace(compiled.step, pictures=blank, draws=Streams(7))
    compiled.run(1)
    torch.cuda.set_sync_debug_mode("error")
    try:
        compiled.run(1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert warned == []


@pytest.mark.parametrize("precision", [FP32, BF16], ids=str)
def test_cuda_graphs_equal_the_written_step(precision: Precision, tmp_path: Path) -> None:
    """After one step. Torch records a graph at its second run and replays it after that: three more shall not fail."""
    written, compiled, warned = _pair(MadeUpFamily(), precision, tmp_path)
    compiled.plan = replace(compiled.plan, cuda_graphs=True)
    written.run(1)
    compiled.run(1)
    assert warned == []
    difference, where = largest_difference(written.tensors(), compiled.tensors())
    assert difference < (1e-3 if precision is FP32 else 1e-1), where
    compiled.run(3)
    assert warned == []
