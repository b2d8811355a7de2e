"""How precision is chosen, and the loss scale."""

import pytest
import torch

from frugan.engine.precision import LossScale, Precision, cpu_has_bf16_units, resolve_precision

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.mark.parametrize(
    ("capability", "name"), [((6, 1), "fp32"), ((7, 0), "fp16"), ((7, 5), "fp16"), ((8, 0), "bf16"), ((9, 0), "bf16")]
)
def test_cuda_goes_by_compute_capability(
    capability: tuple[int, int], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    chosen = resolve_precision("auto", CUDA)
    assert chosen.name == name
    assert f"{capability[0]}.{capability[1]}" in chosen.reason


@pytest.mark.parametrize("units", [True, False])
def test_cpu_goes_by_its_units(units: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frugan.engine.precision.cpu_has_bf16_units", lambda: units)
    assert resolve_precision("auto", CPU).name == ("bf16" if units else "fp32")
    assert (resolve_precision("bf16", CPU).warning is None) == units
    assert isinstance(cpu_has_bf16_units(), bool)


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
