"""How precision is chosen, and the loss scale."""

from collections.abc import Callable
from typing import Literal

import pytest
import torch

from frugan.accelerator.base import Processor, multiplies_faster
from frugan.accelerator.cuda import Cuda
from frugan.accelerator.precision import (
    Precision,
    PrecisionName,
    card_precision,
    continued_precision,
    resolve_precision,
    wider_precision,
)
from frugan.engine.state.loss_scale import LossScale

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


CARDS: tuple[tuple[str, tuple[int, int], PrecisionName], ...] = (
    ("NVIDIA GeForce GTX 1060 6GB", (6, 1), "fp32"),
    ("Tesla V100-SXM2-16GB", (7, 0), "fp16"),
    ("NVIDIA GeForce RTX 2060", (7, 5), "fp16"),
    ("Tesla T4", (7, 5), "fp16"),
    ("NVIDIA GeForce GTX 1660 Ti", (7, 5), "fp32"),
    ("NVIDIA GeForce GTX 1650 with Max-Q Design", (7, 5), "fp32"),
    ("NVIDIA GeForce MX450", (7, 5), "fp32"),
    ("NVIDIA T1000 8GB", (7, 5), "fp32"),
    ("Quadro RTX 5000", (7, 5), "fp16"),
    ("gtx-1660-super", (7, 5), "fp32"),
    ("NVIDIA A100-SXM4-40GB", (8, 0), "bf16"),
    ("NVIDIA H100", (9, 0), "bf16"),
    ("NVIDIA GeForce RTX 5090", (12, 0), "bf16"),
)


def _pretend(monkeypatch: pytest.MonkeyPatch, name: str, capability: tuple[int, int]) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)


@pytest.mark.parametrize(("name", "capability", "best"), CARDS, ids=str)
def test_a_card_goes_by_capability_and_name(
    name: str, capability: tuple[int, int], best: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pretend(monkeypatch, name, capability)
    chosen = resolve_precision("auto", CUDA)
    assert chosen.name == best
    assert chosen.warning is None
    assert f"{name} with compute capability {capability[0]}.{capability[1]}" in chosen.reason
    assert resolve_precision("fp32", CUDA).name == "fp32"


@pytest.mark.parametrize(("name", "capability", "best"), CARDS, ids=str)
def test_a_run_that_overflows_goes_on_in_bf16_where_a_card_has_units_for_it(
    name: str, capability: tuple[int, int], best: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pretend(monkeypatch, name, capability)
    assert Cuda(CUDA).has_bf16_units == (best == "bf16")
    assert wider_precision(CUDA).name == ("bf16" if best == "bf16" else "fp32")


@pytest.mark.parametrize(("name", "capability", "best"), CARDS, ids=str)
def test_bf16_is_fp32_where_there_is_none_and_says_so(name: str, capability: tuple[int, int], best: str) -> None:
    chosen = card_precision("bf16", name, capability)
    assert (chosen.name, chosen.dtype) == (("bf16", torch.bfloat16) if best == "bf16" else ("fp32", torch.float32))
    assert (chosen.warning is None) == (best == "bf16")
    if chosen.warning is not None:
        assert name in chosen.warning
        assert ("fp16 is faster" in chosen.warning) == (best == "fp16")


@pytest.mark.parametrize(("name", "capability", "best"), CARDS, ids=str)
def test_fp16_is_kept_where_asked_for_and_warned_of_where_it_is_no_good(
    name: str, capability: tuple[int, int], best: str
) -> None:
    chosen = card_precision("fp16", name, capability)
    assert chosen.name == "fp16"
    if best == "fp32":
        assert chosen.warning is not None
        assert ("NaN" in chosen.warning) == (capability == (7, 5))
    else:
        assert chosen.warning is None


@pytest.mark.parametrize(
    ("before", "name", "capability", "now"),
    [
        ("bf16", "NVIDIA GeForce RTX 3060", (8, 6), "bf16"),
        ("bf16", "NVIDIA GeForce RTX 2060", (7, 5), "fp32"),  # and not fp16, which has a smaller range
        ("fp16", "NVIDIA GeForce RTX 3060", (8, 6), "fp16"),
        ("fp16", "NVIDIA GeForce GTX 1660", (7, 5), "fp32"),
        ("fp16", "NVIDIA GeForce GTX 1080", (6, 1), "fp32"),
        ("fp32", "NVIDIA GeForce RTX 3060", (8, 6), "fp32"),
    ],
)
def test_a_run_goes_on_in_its_precision_where_the_card_has_it(
    before: Literal["fp32", "fp16", "bf16"],
    name: str,
    capability: tuple[int, int],
    now: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _pretend(monkeypatch, name, capability)
    chosen = continued_precision(before, CUDA)
    assert chosen.name == now
    assert (name in chosen.reason) == (before != now)


def test_a_run_goes_on_in_its_precision_on_a_cpu() -> None:
    assert continued_precision("bf16", CPU).name == "bf16"


@pytest.mark.parametrize("units", [True, False])
def test_cpu_goes_by_its_units(units: bool, bf16_units: Callable[[bool], None]) -> None:
    bf16_units(units)
    assert Processor(torch.device("cpu")).has_bf16_units is units
    assert resolve_precision("auto", CPU).name == ("bf16" if units else "fp32")
    assert (resolve_precision("bf16", CPU).warning is None) == units


@pytest.mark.parametrize("faster", [True, False])
def test_instructions_alone_do_not_make_bf16_fast(
    faster: bool, bf16_units: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bf16_units(True)
    monkeypatch.setattr("torch.cpu._is_amx_tile_supported", lambda: False)
    monkeypatch.setattr("frugan.accelerator.base.multiplies_faster", lambda half, full: faster)
    assert resolve_precision("auto", CPU).name == ("bf16" if faster else "fp32")
    assert (resolve_precision("bf16", CPU).warning is None) == faster


@pytest.mark.parametrize(
    ("half", "full", "faster"),
    [
        ([9.0, 1.0], [2.0, 3.0], True),  # on average the slower one
        ([1.0, 1.0], [1.1, 1.1], False),  # not clearly
        ([2.0, 9.0], [1.0, 20.0], False),
    ],
)
def test_the_faster_type_is_found_by_the_best_of_its_products(
    half: list[float], full: list[float], faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, seconds = [0.0], {torch.bfloat16: iter(half * 32), torch.float32: iter(full * 32)}
    threads = torch.get_num_threads()

    def product(matrix: torch.Tensor, _: torch.Tensor) -> None:
        clock[0] += next(seconds[matrix.dtype])

    monkeypatch.setattr("torch.mm", product)
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    assert multiplies_faster.__wrapped__(torch.bfloat16, torch.float32) is faster
    assert torch.get_num_threads() == threads


def test_fp16_on_a_cpu_is_said_and_kept() -> None:
    chosen = resolve_precision("fp16", CPU)
    assert chosen.dtype == torch.float16
    assert chosen.warning is not None
    assert "slower" in chosen.warning


def test_loss_scale_moves_as_grad_scaler_does() -> None:
    ours = LossScale.create(Precision("fp16", torch.float16, ""), CPU)
    theirs = torch.amp.GradScaler("cpu", init_scale=65536.0, growth_interval=3)
    theirs.scale(torch.ones(()))
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    for good in [True, True, True, False, True, False, False, True, True, True, True]:
        parameter.grad = torch.full((2,), 1.0 if good else float("inf"))
        theirs.unscale_(optimizer)
        theirs.step(optimizer)
        theirs.update()
        ours.move(torch.tensor(good), interval=3)
        assert float(ours.scale) == theirs.get_scale()


def test_loss_scale_stays_one_outside_fp16() -> None:
    scale = LossScale.create(Precision("bf16", torch.bfloat16, ""), CPU)
    scale.move(torch.tensor(False))
    assert float(scale.scale) == 1
