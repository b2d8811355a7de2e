"""SGD and DeepFaceLab's optimizers: gated, in pieces, with dropout. (tests/parity holds the latter's numbers to the
original's.)"""

import math

import pytest
import torch
from torch import Tensor, nn

from frugan.engine.state import piecewise_optimizer as optimizer_rules
from frugan.engine.state.optimizer import SGD, Optimizer, make_state
from frugan.engine.state.optimizer_settings import SGDSettings, create_optimizer
from frugan.engine.state.piecewise_optimizer import AdaBelief, PiecewiseOptimizer, RMSprop, keep_mask

YES, NO = torch.tensor(True), torch.tensor(False)


def _make(kind: str, parameters: list[nn.Parameter]) -> PiecewiseOptimizer:
    if kind == "rmsprop":
        return RMSprop(parameters, lr=1e-2, decay=0.9, eps=1e-6)
    return AdaBelief(parameters, lr=1e-2, betas=(0.9, 0.999), eps=1e-6)


def _parameters() -> list[nn.Parameter]:
    random = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(shape, generator=random)) for shape in ((6, 4, 3, 3), (5,))]


def _gradients(parameters: list[nn.Parameter], seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        values = torch.randn(parameter.shape, generator=random)
        parameter.grad = torch.empty_like(parameter).copy_(values)


def _update(optimizer: Optimizer, accepted: Tensor = YES, share: float | None = None, seed: int = 0) -> None:
    optimizer.update(accepted, learning_rate=1e-2, period=None, share=share, seed=seed)


def _everything(optimizer: Optimizer, parameters: list[nn.Parameter]) -> list[Tensor]:
    slots = [value for p in parameters for value in optimizer.state_for(p).values()]
    return [t.detach().clone() for t in (*parameters, *slots, *optimizer.counts.values())]


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 3.0])
@pytest.mark.parametrize("small_piece", [1, 1 << 19], ids=["where they lie", "copied together"])
@pytest.mark.parametrize("kind", ["sgd", "rmsprop", "adabelief"])
def test_a_refused_update_leaves_no_trace(
    kind: str, small_piece: int, wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimizer_rules, "SMALL_PIECE", small_piece)
    parameters = _parameters()
    if kind == "sgd":
        optimizer: Optimizer = SGD(parameters, lr=1e-2, momentum=0.9, weight_decay=1e-2, nesterov=True)
    else:
        optimizer = _make(kind, parameters)
    make_state(optimizer, on_host=False)
    _gradients(parameters, 2)
    _update(optimizer)
    before = _everything(optimizer, parameters)
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, wrong)
    _update(optimizer, NO, share=None if kind == "sgd" else 0.5)
    assert all(torch.equal(a, b) for a, b in zip(before, _everything(optimizer, parameters), strict=True))


@pytest.mark.parametrize("kind", ["rmsprop", "adabelief"])
def test_pieces_and_layout_do_not_matter(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(*, channels_last: bool, piece: int, small_piece: int = 1 << 19) -> list[Tensor]:
        monkeypatch.setattr(optimizer_rules, "SMALL_PIECE", small_piece)
        parameters = _parameters()
        if channels_last:
            parameters[0] = nn.Parameter(parameters[0].detach().contiguous(memory_format=torch.channels_last))
        optimizer = _make(kind, parameters)
        optimizer.piece = piece
        for seed in range(3):
            _gradients(parameters, seed)
            _update(optimizer)
        return [p.detach() for p in parameters]

    whole = trained(channels_last=False, piece=1 << 20)
    for other in (
        trained(channels_last=False, piece=7),
        trained(channels_last=True, piece=7),
        trained(channels_last=True, piece=7, small_piece=7),
    ):
        # a processor rounds the last few elements of a tensor, which fill no vector, in its own way
        torch.testing.assert_close(whole, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", ["rmsprop", "adabelief"])
def test_dropout_moves_a_share_and_the_statistics_see_everything(kind: str) -> None:
    def trained(share: float | None, seed: int) -> tuple[Tensor, list[Tensor]]:
        parameter = nn.Parameter(torch.zeros(20_000))
        parameter.grad = torch.linspace(1, 2, 20_000)
        optimizer = _make(kind, [parameter])
        _update(optimizer, share=share, seed=seed)
        return parameter.detach(), list(optimizer.state_of(parameter).values())

    full, statistics = trained(None, 0)
    dropped, seen = trained(0.3, 1)
    moved = dropped != 0
    assert float(moved.float().mean()) == pytest.approx(77 / 256, abs=0.015)
    assert torch.equal(dropped[moved], full[moved])  # not made larger for being fewer
    assert all(torch.equal(a, b) for a, b in zip(statistics, seen, strict=True))
    assert torch.equal(trained(0.3, 1)[0], dropped)
    assert not torch.equal(trained(0.3, 2)[0], dropped)


def test_a_mask_of_one_256th_and_of_nearly_all() -> None:
    random, device = torch.Generator().manual_seed(3), torch.device("cpu")
    assert float(keep_mask(100_003, 1 / 256, random, device).float().mean()) == pytest.approx(1 / 256, rel=0.2)
    assert float(keep_mask(100_003, 255 / 256, random, device).float().mean()) == pytest.approx(255 / 256, rel=0.01)


def test_the_cosine_goes_down_and_up_again() -> None:
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = RMSprop([parameter], lr=1.0, decay=0.0, eps=1e-6)
    moves = []
    for _ in range(10):
        parameter.grad = torch.ones(1)
        before = float(parameter.detach())
        optimizer.update(YES, learning_rate=1.0, period=10, share=None, seed=0)
        moves.append(before - float(parameter.detach()))
    wanted = [(math.cos(k * 2 * math.pi / 10) + 1) / 2 for k in range(1, 11)]
    assert moves == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        SGDSettings(learning_rate=0.1),
        SGDSettings(learning_rate=0.1, weight_decay=1e-2, nesterov=True),
        SGDSettings(learning_rate=0.1, momentum=0, weight_decay=1e-2),
    ],
    ids=["momentum", "nesterov", "plain"],
)
def test_sgd_is_torchs_own(settings: SGDSettings, on_host: bool) -> None:
    """Its fused one, skipped updates aside, to the bit; plain descent keeps nothing."""
    own, theirs = _parameters(), _parameters()
    optimizer = create_optimizer(settings, {str(i): each for i, each in enumerate(own)}, on_host=on_host)
    torchs = torch.optim.SGD(
        theirs,
        0.1,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        nesterov=settings.nesterov,
        fused=True,
    )
    for step in range(4):
        for parameters in (own, theirs):
            _gradients(parameters, step)
        accepted = step != 2
        optimizer.update(torch.tensor(accepted), learning_rate=0.1, period=None, share=None, seed=0)
        if accepted:
            torchs.step()
        assert all(torch.equal(a, b) for a, b in zip(own, theirs, strict=True)), step
    assert len(optimizer.state_for(own[0])) == (1 if settings.momentum else 0)


def test_adabelief_without_momentum() -> None:
    """The recipe allows it."""

    def trained(beta1: float) -> list[Tensor]:
        parameters = _parameters()
        optimizer = AdaBelief(parameters, lr=1e-2, betas=(beta1, 0.999), eps=1e-6)
        for seed in (2, 3):
            _gradients(parameters, seed)
            _update(optimizer)
        return [p.detach() for p in parameters]

    before = _parameters()
    for without, nearly, start in zip(trained(0.0), trained(1e-9), before, strict=True):
        assert not torch.equal(without, start)
        torch.testing.assert_close(without, nearly, rtol=1e-4, atol=1e-6)
