"""Averages in a loop of one's own: against torch's own average, and through skipped and repeated steps."""

import copy
import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import frugan
from frugan.engine.durations import Duration
from limits import Limit

DECAY = 0.9


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, accumulate: int = 1) -> None:
    random = torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(accumulate):
            model(torch.randn(8, 3, generator=random)).square().mean().backward()
        optimizer.step()


def test_it_is_torchs_own_average() -> None:
    model = network()
    theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    theirs.update_parameters(model)  # their first update is a copy
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = frugan.EmaHook(optimizer, model, frugan.EmaSettings(decay=DECAY))
    optimizer.register_step_post_hook(lambda *_: theirs.update_parameters(model))
    train(model, optimizer, 5, accumulate=2)
    assert hook.steps == 5
    own = dict(hook.networks["network"].named_parameters())
    for name, parameter in theirs.module.named_parameters():
        torch.testing.assert_close(own[name], parameter, rtol=1e-6, atol=1e-7)
        assert not torch.equal(own[name], dict(model.named_parameters())[name])


class Tied(nn.Module):
    """Its last layer has the weight of its first, as language models have."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("on_host", [False, True])
def test_a_tied_weight_is_averaged_once(on_host: bool, limit: Limit) -> None:
    limit("elements of a large average", 1)
    torch.manual_seed(0)
    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = frugan.EmaHook(optimizer, model, frugan.EmaSettings(decay=DECAY), on_host=on_host)
    before = model.first.weight.detach().clone()
    train(model, optimizer, 1)
    average = hook.networks["network"]
    assert isinstance(average, Tied)
    assert average.last.weight is average.first.weight
    torch.testing.assert_close(average.first.weight, torch.lerp(before, model.first.weight.detach(), 1 - DECAY))


def test_averages_are_in_eval_mode() -> None:
    model = network()
    hook = frugan.EmaHook(torch.optim.SGD(model.parameters(), lr=0.1), model)
    average = hook.networks["network"]
    assert average(torch.ones(1, 3)).shape == (1, 1)  # one sample has no batch statistics
    assert int(average.state_dict()["1.num_batches_tracked"]) == 0
    assert model.training


@pytest.mark.parametrize(("buffers", "moved"), [("copy", 1.0), ("average", 0.1)])
def test_buffers_are_copied_or_averaged(buffers: str, moved: float) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = frugan.EmaHook(optimizer, model, frugan.EmaSettings(decay=DECAY), buffers=buffers)  # type: ignore[arg-type]
    before: Tensor = model.state_dict()["1.running_mean"].clone()
    train(model, optimizer, 1)
    own = hook.networks["network"].state_dict()
    torch.testing.assert_close(own["1.running_mean"], torch.lerp(before, model.state_dict()["1.running_mean"], moved))
    assert int(own["1.num_batches_tracked"]) == 1


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_a_scaler_skips_moves_nothing(fused: bool) -> None:
    """A fused optimizer is stepped all the same, and skips by itself."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=fused)
    hook = frugan.EmaHook(optimizer, model, frugan.EmaSettings(decay=DECAY))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    averages = []
    for factor in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale(factor * model(torch.ones(8, 3)).mean()).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01 if factor != 1 else 0.0)  # had it been averaged, it would show
        scaler.step(optimizer)
        scaler.update()
        averages.append(copy.deepcopy(hook.networks["network"].state_dict()))
    moved = [
        not all(torch.equal(a[name], b[name]) for name in a if "num_batches" not in name and "running" not in name)
        for a, b in itertools.pairwise(averages)
    ]
    assert moved == [False, True]


def test_the_schedule_counts_steps_and_images() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = frugan.EmaSettings(schedule="half-life", half_life_images=16, start=Duration.parse("16 images"))
    hook = frugan.EmaHook(optimizer, {"G": model}, settings, batch=8)
    train(model, optimizer, 1)
    weight = hook.networks["G"].state_dict()["0.weight"]
    assert torch.equal(weight, model.state_dict()["0.weight"])  # still a copy
    before = weight.clone()
    train(model, optimizer, 1)
    torch.testing.assert_close(weight, torch.lerp(before, model.state_dict()["0.weight"], 1 - 0.5**0.5))


def test_it_goes_on_from_a_checkpoint_and_can_be_taken_away() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = frugan.EmaHook(optimizer, model)
    train(model, optimizer, 3)
    other = frugan.EmaHook(optimizer, model)
    other.load_state_dict(hook.state_dict())
    assert other.steps == 3
    for a, b in zip(hook.networks["network"].parameters(), other.networks["network"].parameters(), strict=True):
        assert torch.equal(a, b)
    hook.remove()
    train(model, optimizer, 1)
    assert (hook.steps, other.steps) == (3, 4)
    with pytest.raises(frugan.BadInput, match="averages of network; expected G"):
        frugan.EmaHook(optimizer, {"G": model}).load_state_dict(hook.state_dict())
    state = hook.state_dict()
    del state["networks"]["network"]["0.weight"]
    with pytest.raises(frugan.BadInput, match="of another network"):
        other.load_state_dict(state)


def test_averages_on_the_host_and_attributes_that_are_carried_along() -> None:
    """The host is where the averages are here too; tests/simulated_card has them away from a card."""
    model, other = network(), network()
    model.alpha, model[0].calls = 0.5, [1]  # type: ignore[assignment]
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
    names = ["alpha", "0.calls"]
    settings = frugan.EmaSettings(decay=DECAY)
    hook = frugan.EmaHook(optimizer, {"G": model, "D": other}, settings, on_host=True, attributes=names)
    beside = frugan.EmaHook(optimizer, {"G": model}, settings)
    model.alpha, model[0].calls = 0.75, [1, 2]  # type: ignore[assignment]
    train(model, optimizer, 1)
    average = hook.networks["G"]
    assert hook.on_host
    assert vars(average)["alpha"] == 0.75
    assert vars(average.get_submodule("0"))["calls"] == [1, 2]
    model[0].calls.append(3)  # type: ignore[union-attr,operator]
    assert vars(average.get_submodule("0"))["calls"] == [1, 2]
    assert vars(beside.networks["G"])["alpha"] == 0.5
    assert not hasattr(hook.networks["D"], "alpha")
    for a, b in zip(average.parameters(), beside.networks["G"].parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(frugan.BadInput, match="attribute 'beta': G has no plain attribute of this name"):
        frugan.EmaHook(optimizer, {"G": model}, attributes=["beta"])
    with pytest.raises(frugan.BadInput, match=r"attribute '0\.weight'"):
        frugan.EmaHook(optimizer, {"G": model}, attributes=["0.weight"])


@pytest.mark.long
def test_wrappers_are_looked_through() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = frugan.EmaHook(optimizer, torch.compile(model))  # type: ignore[arg-type]
    assert list(hook.networks["network"].state_dict()) == list(model.state_dict())


def test_what_cannot_be_averaged_is_refused() -> None:
    model, other = network(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(frugan.BadInput, match="moves no parameter of D"):
        frugan.EmaHook(optimizer, {"G": model, "D": other})
    with pytest.raises(frugan.BadInput, match="give batch"):
        frugan.EmaHook(optimizer, model, frugan.EmaSettings(schedule="half-life", half_life_images=100))
    grows = frugan.EmaSettings(schedule="half-life", half_life_images=0, final_half_life_images=100)
    with pytest.raises(frugan.BadInput, match="a hook knows nothing"):
        frugan.EmaHook(optimizer, model, grows, batch=8)
    with pytest.raises(frugan.BadInput, match="batch 0"):
        frugan.EmaHook(optimizer, model, batch=0)
    with pytest.raises(frugan.BadInput, match="no network"):
        frugan.EmaHook(optimizer, {})
    half = network().bfloat16()
    with pytest.raises(frugan.BadInput, match="stands still"):
        frugan.EmaHook(torch.optim.SGD(half.parameters(), lr=0.1), half)
