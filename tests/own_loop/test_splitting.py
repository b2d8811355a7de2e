"""Parts of a batch give its loss and its gradients, or it is said why they do not, and it is not split."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import frugan
from frugan.accelerator.precision import Precision
from frugan.errors import BadInput
from frugan.stepmemory.tracker import Tracker
from frugan.training.own_loop.batch import Parts
from frugan.training.own_loop.dataless_step import Task
from frugan.training.own_loop.module_step import ModulePlan, compute_gradients
from frugan.training.own_loop.split_check import check_split

FP32 = Precision("fp32", torch.float32, "test")
BF16 = Precision("bf16", torch.bfloat16, "test")
FP16 = Precision("fp16", torch.float16, "test")
BATCH, WIDTH = 8, 6


class Centred(nn.Module):
    """Subtracts the mean over the batch, as people write it by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y - y.mean(0)


class TimeFirst(nn.Module):
    """[T, B, features] -> [T, B, features], one step after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.GRU(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)[0]
        return y


class Mixture(nn.Module):
    """A mixture's router, with a balancing loss beside its results (Fedus et al. 2021, equation 4), and a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        shares = self.router(x).softmax(-1)
        taken = F.one_hot(shares.argmax(-1), 3).float().mean(0)
        return shares, {"balance": 3 * (taken * shares.mean(0)).sum(), "mean": shares[:, 0].mean()}


class Routed(nn.Module):
    """[B, width] -> [B, 3], and what its mixture returns."""

    def __init__(self) -> None:
        super().__init__()
        self.mixture = Mixture()

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        shares, numbers = self.mixture(x)
        return shares.log(), numbers


class Counting(nn.Module):
    """Counts its forwards, in a number and in a buffer."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.forwards = 0
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.forwards += 1
            self.seen += 1
        y: Tensor = self.layer(x)
        return y


def contrastive(model: nn.Module, x: Tensor) -> Tensor:
    """InfoNCE of two views (van den Oord et al. 2018)."""
    a, b = F.normalize(model(x)), F.normalize(model(x + 0.1))
    return F.cross_entropy(a @ b.T / 0.1, torch.arange(len(x)))


def summed(model: nn.Module, x: Tensor) -> Tensor:
    return F.mse_loss(model(x), x, reduction="sum")


def dice(model: nn.Module, x: Tensor) -> Tensor:
    """One minus the overlap, over the whole batch."""
    found, there = model(x).sigmoid(), (x > 0).float()
    overlap: Tensor = 1 - 2 * (found * there).sum() / (found.sum() + there.sum())
    return overlap


def balanced(model: nn.Module, x: Tensor) -> Tensor:
    """A mixture's balancing loss beside the loss itself (Fedus et al. 2021, equation 4)."""
    gates = model(x).softmax(-1)
    chosen = F.one_hot(gates.argmax(-1), WIDTH).float()
    loss: Tensor = gates.square().mean() + 0.01 * WIDTH * (gates.mean(0) * chosen.mean(0)).sum()
    return loss


def squared(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean()  # type: ignore[no-any-return]


def denoising(model: nn.Module, x: Tensor) -> Tensor:
    """Draws noise and its size for each sample, as diffusion models do, mixes samples, and drops some numbers."""
    noise = torch.randn_like(x)
    size = torch.randint(1, 10, (len(x), 1)) / 10
    mixed = x + x[torch.randperm(len(x))]
    dropped = F.dropout(mixed + size * noise, 0.3, model.training)
    loss: Tensor = (model(dropped) - noise * torch.rand(len(x), 1)).square().mean()
    return loss


class Headed(nn.Module):
    """Normalises each sample at its end, so that its values sum to nothing but rounding, which depends on the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) + 1e-6 * len(x)  # type: ignore[no-any-return]


def test_noise_that_a_loss_draws_is_said_with_a_split() -> None:
    """Dropout's is not, as it is in eval mode that is looked at, nor is it where the batch stays whole."""
    model, x = nn.Sequential(nn.Dropout(), nn.Linear(WIDTH, WIDTH)), torch.randn(BATCH, WIDTH)
    for loss, micro_batch, said in ((denoising, 2, True), (denoising, BATCH, False), (squared, 2, False)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        report = frugan.plan_module(model, loss, x, optimizer, micro_batch=micro_batch, precision="fp32")
        assert any("parts of a batch draw others than the whole" in line for line in report.decisions) == said


@pytest.mark.parametrize(
    ("model", "loss", "why"),
    [
        (Headed, dice, "no module looks at several samples, so the loss does"),
        (nn.Linear, contrastive, "no module looks at several samples, so the loss does"),
        (nn.Linear, summed, "it is a sum over samples, where a mean is expected"),
        (nn.Linear, dice, "no module looks at several samples, so the loss does"),
        (nn.Linear, balanced, "no module looks at several samples, so the loss does"),
        (Centred, squared, "Centred gives a sample other values among other samples"),
        (TimeFirst, squared, "layers gives a sample other values among other samples"),
        (nn.Linear, squared, None),
        (nn.Linear, denoising, None),
        (nn.Linear, lambda model, x: model(x).mean() / 0, None),
    ],
)
def test_what_a_split_would_change_is_noticed(
    model: Callable[..., nn.Module], loss: Callable[..., Tensor], why: str | None
) -> None:
    torch.manual_seed(0)
    network = model(WIDTH, WIDTH) if model is nn.Linear else model()
    x = torch.randn(BATCH, 3, WIDTH) if model is TimeFirst else torch.randn(BATCH, WIDTH)
    state = torch.get_rng_state()
    found = check_split(network, loss, (x,), BATCH)
    assert (found.differs is None) == (why is None), found
    assert why is None or why in str(found.differs)
    assert torch.equal(state, torch.get_rng_state())
    assert network.training
    assert found.draws == (loss is denoising)


def test_a_plan_does_not_split_what_it_would_change_and_a_step_refuses_to() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, tight = torch.randn(4096, 512), "782MiB"
    plain = frugan.plan_module(model, squared, x, optimizer, tight, precision="fp32")
    assert plain.micro_batch < 4096
    assert plain.split_checked
    report = frugan.plan_module(model, contrastive, x, optimizer, tight, precision="fp32")
    assert (report.micro_batch, report.fits) == (4096, False)
    assert "- split: none, each forward takes the whole batch, because the loss of 4 samples is" in str(report)
    step = frugan.ModuleStep(model, contrastive, optimizer, ModulePlan(8, 4, FP32))
    with pytest.raises(BadInput, match="into parts of 4, which changes the result: the loss of 4 samples"):
        step(x[:8])
    wanted = ModulePlan(8, 4, FP32, split_wanted=True)
    assert not frugan.ModuleStep(model, contrastive, optimizer, wanted)(x[:8]).skipped


@pytest.mark.parametrize("counted", [0.0, 1e-6])
def test_a_balancing_loss_too_small_to_move_the_loss_is_said(counted: float) -> None:
    """The mean beside it, which is that of its parts, is not."""
    torch.manual_seed(0)
    model, x = Routed(), torch.randn(BATCH, WIDTH)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        logits, numbers = model(x)
        total: Tensor = logits.square().mean() + counted * numbers["balance"]
        return total

    plan = frugan.plan_module(model, loss, x, torch.optim.SGD(model.parameters(), lr=0.1), micro_batch=4)
    line = next(line for line in plan.decisions if line.startswith("split"))
    assert line.startswith(
        "split: balance of mixture, balance of Routed: its mean over parts of a batch is not that of the whole"
    )
    assert plan.micro_batch == 4


def test_a_model_without_data_is_looked_at_by_the_first_step() -> None:
    with torch.device("meta"):
        model, x = nn.Linear(512, 512), torch.empty(65536, 512)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    report = frugan.plan_module(model, contrastive, x[:, :512], optimizer, "900MiB", precision="fp32")
    assert not report.split_checked
    assert "for the first step to see: there are no data yet" in str(report)


def test_what_moves_with_each_forward_is_said() -> None:
    model = Counting()
    step = frugan.ModuleStep(model, squared, torch.optim.SGD(model.parameters(), lr=0.1), ModulePlan(8, 4, FP32))
    with pytest.warns(UserWarning, match="moved by each of the 2 forwards of a step, not once: seen, forwards"):
        step(torch.randn(8, WIDTH))
    assert (model.forwards, int(model.seen)) == (2, 2)  # the look has moved neither
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(torch.randn(8, WIDTH))


def words(padded: int) -> tuple[Tensor, Tensor]:
    """Features, and labels of which the first samples' are mostly ignored; of `padded` samples all."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, 5, WIDTH, generator=random)
    labels = torch.randint(WIDTH, (BATCH, 5), generator=random)
    labels[: BATCH // 2, 1:] = -100
    labels[:padded] = -100
    return x, labels


def mean_of_labels(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(x).flatten(0, 1), labels.flatten())


def sum_of_labels(model: nn.Module, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    loss = F.cross_entropy(model(x).flatten(0, 1), labels.flatten(), reduction="sum")
    return loss, (labels != -100).sum()


def labels_that_count(x: Tensor, labels: Tensor) -> Tensor:
    return (labels != -100).sum()


def weights_after(
    loss: Any, weight: Any, plan: ModulePlan | None, padded: int
) -> tuple[dict[str, Tensor], list[frugan.StepOutcome]]:
    """Weights after five steps of a plain loop, or by a plan."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, WIDTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)
    if plan is None:
        for _ in range(5):
            optimizer.zero_grad()
            loss(model, *words(padded)).backward()
            optimizer.step()
        return model.state_dict(), []
    step = frugan.ModuleStep(model, loss, optimizer, plan, weight=weight)
    outcomes = [step(*words(padded)) for _ in range(5)]
    return model.state_dict(), outcomes


@pytest.mark.parametrize("padded", [0, 3], ids=["uneven", "nothing counts in a part"])
@pytest.mark.parametrize("precision", [FP32, BF16, FP16], ids=lambda p: p.name)
@pytest.mark.parametrize("way", ["weight", "sum and count"])
def test_parts_count_by_what_counts_in_them(way: str, precision: Precision, padded: int) -> None:
    plain, _ = weights_after(mean_of_labels, None, None, padded)
    loss, weight = (mean_of_labels, labels_that_count) if way == "weight" else (sum_of_labels, None)
    split, outcomes = weights_after(loss, weight, ModulePlan(BATCH, 3, precision), padded)
    assert not any(outcome.skipped for outcome in outcomes)
    near = 1e-5 if precision is FP32 else 2e-3
    for key, value in plain.items():
        torch.testing.assert_close(split[key], value, rtol=near, atol=near)
    if precision is FP32:
        whole, _ = weights_after(loss, weight, ModulePlan(BATCH, BATCH, FP32), padded)
        assert all(torch.equal(value, whole[key]) for key, value in plain.items())


def test_a_mean_of_labels_is_not_split_without_their_weight() -> None:
    """Samples with the least and the most padding are compared, wherever they are in the batch."""
    with pytest.raises(BadInput, match=r"or it counts something else than samples \(give weight="):
        weights_after(mean_of_labels, None, ModulePlan(BATCH, 3, FP32), 0)


def test_a_batch_in_which_nothing_counts_moves_nothing() -> None:
    for loss, weight in ((mean_of_labels, labels_that_count), (sum_of_labels, None)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that nothing is known of a loss that is not a number
            _, outcomes = weights_after(loss, weight, ModulePlan(BATCH, 4, FP32), BATCH)
        assert all(outcome.skipped and math.isnan(outcome.loss) for outcome in outcomes)


def test_what_a_loss_returns_beside_its_value_is_handed_on() -> None:
    model = nn.Linear(WIDTH, WIDTH)

    def loss(model: nn.Module, x: Tensor) -> dict[str, Any]:
        y = model(x)
        size = y.square().mean()
        return {"loss": size, "logits": y, "terms": (size, float(size.detach())), "names": "ab"}

    x = torch.randn(BATCH, WIDTH)
    y = model(x).detach()
    step = frugan.ModuleStep(model, loss, torch.optim.SGD(model.parameters(), lr=0.0), ModulePlan(8, 3, FP32))
    outcome = step(x)
    torch.testing.assert_close(outcome.beside["logits"], y)
    assert not outcome.beside["logits"].requires_grad
    assert [float(term) for term in outcome.beside["terms"]] == pytest.approx([float(y.square().mean())] * 2)
    assert outcome.beside["names"] == ["ab", "ab", "ab"]


class TwoTowers(nn.Module):
    """Two views of samples, with dropout and running statistics in between."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(WIDTH, 32), nn.Dropout(0.3), nn.ReLU(), nn.Linear(32, WIDTH))
        self.second = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, WIDTH))
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.seen += len(x)
        return F.normalize(self.first(x)), F.normalize(self.second(x))


def represent(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    views: tuple[Tensor, Tensor] = model(x)
    return views


def compare(a: Tensor, b: Tensor) -> Tensor:
    return F.cross_entropy(a @ b.T / 0.1, torch.arange(len(a), device=a.device))


def two_towers(dropout: float) -> nn.Module:
    torch.manual_seed(0)
    model = TwoTowers()
    model.first[1].p = dropout  # type: ignore[assignment]
    return model


@pytest.mark.parametrize("precision", [FP32, BF16], ids=lambda p: p.name)
def test_contrastive_losses_are_exact_in_parts(precision: Precision) -> None:
    """Against the plain loop on the whole batch, five steps; without dropout, whose masks depend on the split."""
    x = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(1))
    plain = two_towers(0.0)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, eps=1e-3)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        value = compare(*represent(plain, x))
        value.backward()
        optimizer.step()
        losses.append(float(value.detach()))
    model = two_towers(0.0)
    own = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)
    loss = frugan.BatchLoss(represent, compare)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what moves with each forward
        step = frugan.ModuleStep(model, loss, own, ModulePlan(BATCH, 3, precision))
        outcomes = [step(x) for _ in range(5)]
    near = 1e-5 if precision is FP32 else 3e-2
    assert [outcome.loss for outcome in outcomes] == pytest.approx(losses, rel=near)
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[key], value, rtol=near, atol=near)


def test_the_second_forward_of_a_part_draws_what_the_first_did() -> None:
    """Gradients with dropout are those of the loss that is told, which numerical differences show."""
    x = torch.randn(BATCH, WIDTH)
    loss = frugan.BatchLoss(represent, compare)

    def run(moved: float) -> tuple[float, float]:
        model = two_towers(0.5).double()
        weight = model.get_parameter("first.0.weight")
        with torch.no_grad():
            weight.add_(torch.ones_like(weight).cumsum(1), alpha=moved)
        torch.manual_seed(3)
        plan, optimizer = ModulePlan(BATCH, 3, FP32), torch.optim.SGD(model.parameters(), lr=0.1)
        gradients = compute_gradients(
            model, loss, optimizer, Parts((x.double(),), [3, 3, 2], BATCH, torch.device("cpu")), plan
        )
        assert int(model.get_buffer("seen")) == BATCH
        assert weight.grad is not None
        return float(gradients.measured[0]), float((weight.grad * torch.ones_like(weight).cumsum(1)).sum())

    (above, _), (below, _), (_, gradient) = run(1e-4), run(-1e-4), run(0.0)
    assert abs(gradient) > 1e-3
    assert gradient == pytest.approx((above - below) / 2e-4, rel=2e-2)


def test_batches_of_contrastive_losses_are_split_by_plans() -> None:
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = frugan.BatchLoss(lambda m, x: m(x), lambda a: compare(a, a))
    x = torch.randn(1024, 256)
    report = frugan.plan_module(model, loss, x, optimizer, "785MiB", precision="fp32")
    assert report.micro_batch < 1024
    assert report.split_checked
    plan = report.search.plan(256, ())
    predicted = Task(model, loss, (x,), optimizer, (), torch.device("cpu"), as_card=False).run(plan).live_bytes
    step = frugan.ModuleStep(model, loss, optimizer, plan)
    step(x)
    with Tracker({"parameters": list(model.parameters()), "batch": [x]}) as tracker:
        step(x)
    assert predicted == pytest.approx(tracker.peak_bytes, rel=0.01)
    with pytest.raises(BadInput, match="a BatchLoss sees all of the batch"):
        frugan.plan_module(model, loss, x, optimizer, weight=len)


IGNORED = -100


def labelled(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(x), labels, ignore_index=IGNORED)


def padded_batch() -> tuple[Tensor, Tensor]:
    labels = torch.arange(BATCH) % WIDTH
    labels[:3] = IGNORED  # 3 of the first part's 4 do not count, and none of the second's
    return torch.randn(BATCH, WIDTH), labels


def plain_weights(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    labelled(model, *batch).backward()
    optimizer.step()
    optimizer.zero_grad()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("whole", [False, True])
def test_a_weight_that_the_plan_was_given_holds_in_the_step(whole: bool) -> None:
    torch.manual_seed(0)
    batch = padded_batch()
    model, twin = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    twin.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = frugan.plan_module(
        model, labelled, batch, optimizer, weight=labels_that_count, micro_batch=4, precision="fp32"
    )
    step = frugan.ModuleStep(model, labelled, optimizer, plan)
    assert not (step(batch) if whole else step(*batch)).skipped  # as the batch that was planned, or one by one
    mine = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert torch.allclose(mine, plain_weights(twin, batch), rtol=1e-5, atol=1e-7)


def test_the_first_labels_that_are_ignored_are_looked_at() -> None:
    torch.manual_seed(0)
    x, labels = padded_batch()
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = frugan.plan_module(model, labelled, (x, labels.abs() % WIDTH), optimizer, micro_batch=4, precision="fp32")
    step = frugan.ModuleStep(model, labelled, optimizer, plan)
    for _ in range(2):
        assert not step(x, labels.abs() % WIDTH).skipped
    with pytest.raises(BadInput, match="it counts something else than samples"):
        step(x, labels)


def test_a_kept_loop_takes_a_weight_and_a_batch_as_it_comes() -> None:
    torch.manual_seed(0)
    batch = padded_batch()
    model, twin = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    twin.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = frugan.fits(model, labelled, batch, optimizer, weight=labels_that_count, micro_batch=4)
    for part, share in plan.parts(batch):
        (labelled(model, *part) * share).backward()
    optimizer.step()
    mine = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert torch.allclose(mine, plain_weights(twin, batch), rtol=1e-5, atol=1e-7)
    with pytest.raises(BadInput, match="micro_batch 5: expected a divisor of the batch, 8"):
        frugan.fits(model, labelled, batch, optimizer, weight=labels_that_count, micro_batch=5)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (3, "weight=3: expected a function"),
        (lambda _: 1, "weight= cannot be called with the 2 inputs"),
        (lambda _, labels: labels != IGNORED, r"weight= gives a tensor \[2\]; expected one number"),
        (lambda _, labels: None, "weight= gives a NoneType"),
        (lambda _, labels: -1, "weight= gives -1"),
    ],
)
def test_mistakes_of_a_weight_are_not_those_of_the_loss(weight: Any, message: str) -> None:
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(BadInput, match=message):
        frugan.plan_module(model, labelled, padded_batch(), optimizer, weight=weight, micro_batch=4, precision="fp32")


def test_what_is_of_no_sample_is_not_a_representation() -> None:
    loss = frugan.BatchLoss(lambda model, x: (model(x), torch.ones(())), lambda y, scale: (y * scale).mean())
    with pytest.raises(BadInput, match=r"a tensor \[8, 6\], a tensor \[\]; .*scale.expand\(len\(samples\)\)"):
        loss(nn.Linear(WIDTH, WIDTH), torch.randn(BATCH, WIDTH))


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_plan_that_splits_batch_normalisation_is_refused(by_hand: bool) -> None:
    """One that was made by hand, or for a model in eval mode."""
    model, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), torch.randn(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        result: Tensor = model(x)
        return result.square().mean()

    plan = ModulePlan(8, 4, FP32)
    if not by_hand:
        plan = frugan.plan_module(model.eval(), loss, x, optimizer, micro_batch=4)
    step = frugan.ModuleStep(model.train(), loss, optimizer, plan)
    with pytest.raises(
        BadInput, match="batch normalisation normalises each part by itself; plan the model in training"
    ):
        step(x)
    step(x[:4])
    model.eval()
    step(x)
