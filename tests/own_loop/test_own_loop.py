"""Steps of any module: no plan changes the result, a step is a plain loop's, and what cannot be planned is refused."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

import frugan
from frugan.accelerator.precision import Precision
from frugan.errors import BadInput
from frugan.stepmemory.tracker import tensors_of
from frugan.training.own_loop.batch import Parts
from frugan.training.own_loop.half_precision import Autocast
from frugan.training.own_loop.module_step import ModulePlan, compute_gradients
from frugan.training.own_loop.plan_search import recomputable
from own_loop.own_models import KINDS, adamw, built, cross_entropy, group_norm, mean

FP32 = Precision("fp32", torch.float32, "test")
BF16 = Precision("bf16", torch.bfloat16, "test")
FP16 = Precision("fp16", torch.float16, "test")
CPU = torch.device("cpu")

PAGE = Path(__file__).parents[2] / "docs" / "your-own-loop.md"


def trained(
    name: str, plan: ModulePlan, *, steps: int = 3, grouped: bool = True, **options: Any
) -> tuple[dict[str, Tensor], list[frugan.StepOutcome]]:
    """Tensors of a model after some steps, and what these did."""
    model = built(name, **options)
    model = group_norm(model) if grouped else model
    step = frugan.ModuleStep(model, cross_entropy, adamw(model.parameters()), plan, clip_norm=0.5)
    torch.manual_seed(1)
    outcomes = [step(*KINDS[name].batch(8 - number)) for number in range(steps)]
    return model.state_dict(), outcomes


@pytest.mark.parametrize("name", ["unet", "transformer"])
def test_the_micro_batch_changes_nothing_but_rounding(name: str) -> None:
    whole, outcomes = trained(name, ModulePlan(8, 8, FP32))
    for micro_batch in (3, 1):
        split, same = trained(name, ModulePlan(8, micro_batch, FP32))
        for key, value in whole.items():
            torch.testing.assert_close(split[key], value, rtol=1e-4, atol=1e-5, msg=f"{micro_batch}: {key}")
        for a, b in zip(outcomes, same, strict=True):
            assert (a.loss, a.grad_norm) == pytest.approx((b.loss, b.grad_norm), rel=1e-4)


@pytest.mark.parametrize(
    ("name", "options"), [("unet", {}), ("transformer", {"dropout": 0.2}), ("resnet", {})], ids=str
)
def test_recomputation_changes_nothing(name: str, options: dict[str, Any]) -> None:
    """To the bit: dropout's draws are the same, and running statistics move once."""
    blocks = recomputable(built(name, **options))
    plain, _ = trained(name, ModulePlan(8, 8, FP32), grouped=False, **options)
    again, _ = trained(name, ModulePlan(8, 8, FP32, blocks), grouped=False, **options)
    assert all(torch.equal(value, again[key]) for key, value in plain.items())


def test_a_step_is_what_a_plain_loop_does() -> None:
    """Batch normalisation and its statistics too, to the bit; a smaller batch at the end is a step as well."""
    plain = built("resnet")
    optimizer = adamw(plain.parameters())
    for number in range(3):
        optimizer.zero_grad()
        cross_entropy(plain, *KINDS["resnet"].batch(8 - number)).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 1e9)
        optimizer.step()
    model = built("resnet")
    step = frugan.ModuleStep(model, cross_entropy, adamw(model.parameters()), ModulePlan(8, 8, FP32))
    for number in range(3):
        step(*KINDS["resnet"].batch(8 - number))
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in plain.state_dict().items())


def test_normalisation_in_groups_is_that_of_a_loop_that_accumulates() -> None:
    plain = built("resnet")
    optimizer = adamw(plain.parameters())
    x, y = KINDS["resnet"].batch(8)
    for first in (0, 4):
        (cross_entropy(plain, x[first : first + 4], y[first : first + 4]) / 2).backward()
    optimizer.step()
    model = built("resnet")
    own = adamw(model.parameters())
    plan = frugan.plan_module(model, cross_entropy, (x, y), own, precision="fp32", normalisation_batch=4)
    assert plan.micro_batch == 4
    frugan.ModuleStep(model, cross_entropy, own, plan)(x, y)
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[key], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("precision", [FP32, FP16], ids=lambda each: each.name)
def test_a_step_that_is_not_finite_moves_nothing(precision: Precision) -> None:
    """Weights, optimizer, running statistics, average; in fp16 the loss scale is halved, and doubles back in time."""
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = adamw(model.parameters())
    hook = frugan.EmaHook(optimizer, model, frugan.EmaSettings(decay=0.5))
    factor = 1.0

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        value: Tensor = factor * model(x).square().mean()
        return value

    def everything() -> list[Tensor]:
        tensors = [*model.state_dict().values(), *hook.networks["network"].state_dict().values()]
        return [t.clone() for t in (*tensors, *tensors_of(list(optimizer.state.values())))]

    step = frugan.ModuleStep(model, loss, optimizer, ModulePlan(6, 6, precision))
    x = torch.randn(6, 8)
    first = step(x)
    assert (first.skipped, hook.steps) == (False, 1)
    before = everything()
    factor = float("inf")
    assert step(x).skipped
    assert hook.steps == 1
    assert all(torch.equal(a, b) for a, b in zip(before, everything(), strict=True))
    assert all(p.grad is None for p in model.parameters())
    factor = 1.0
    third = step(x)
    assert (third.skipped, hook.steps) == (False, 2)
    assert third.loss_scale == (first.loss_scale / 2 if precision is FP16 else 1)
    fresh = frugan.ModuleStep(model, loss, optimizer, ModulePlan(6, 6, precision))
    fresh.load_state_dict(step.state_dict())
    assert fresh.state_dict() == step.state_dict()


class AssignedMean(nn.Module):
    """Keeps a running mean as many people write it: by putting another tensor in the buffer's place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        made: Tensor = self.layer(x - self.mean)
        return made


def test_a_buffer_that_is_assigned_anew_is_put_back_too() -> None:
    model = AssignedMean()
    step = frugan.ModuleStep(
        model, lambda m, x: m(x).square().mean(), adamw(model.parameters()), ModulePlan(6, 6, FP32)
    )
    x = torch.randn(6, 8)
    step(x)
    before = model.mean.clone()
    assert step(x * torch.nan).skipped
    assert torch.equal(model.mean, before)
    assert not step(x).skipped


def test_half_precision_follows_full() -> None:
    """The losses of some steps, positions in fp32 that make activations so again included."""
    for name in ("transformer", "resnet"):
        _, full = trained(name, ModulePlan(8, 8, FP32), grouped=False)
        _, half = trained(name, ModulePlan(8, 8, BF16), grouped=False)
        assert [each.loss for each in half] == pytest.approx([each.loss for each in full], rel=0.02)


def test_vectors_of_a_spectral_norm_move_once() -> None:
    """Weights depend on them: a block that is made again must see those of before."""

    def run(blocks: Sequence[str]) -> dict[str, Tensor]:
        torch.manual_seed(0)
        block = nn.Sequential(spectral_norm(nn.Linear(8, 8)), nn.Tanh())
        model = nn.Sequential(block, nn.Linear(8, 1))
        optimizer = adamw(model.parameters())
        step = frugan.ModuleStep(model, lambda m, x: m(x).mean(), optimizer, ModulePlan(4, 2, FP32, tuple(blocks)))
        for _ in range(2):
            step(torch.ones(4, 8))
        return model.state_dict()

    plain, again = run(()), run(("0",))
    assert all(torch.equal(value, again[key]) for key, value in plain.items())


class Branches(nn.Module):
    """Looks at a value."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y if y.sum() > 0 else -y


class Gated(nn.Module):
    """A recurrent layer, a spectral norm, and a product with a buffer in fp32."""

    matrix: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(4, 8, batch_first=True)
        self.normed = spectral_norm(nn.Linear(8, 8))
        self.register_buffer("matrix", torch.eye(8))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.normed(self.recurrent(x)[0]) @ self.matrix).softmax(-1)
        logits: Tensor = self.head(y.mean(1))
        return logits


@pytest.mark.parametrize("kind", [*KINDS, "gated"])
def test_autocasts_rules_are_torchs(kind: str) -> None:
    """To the bit where processors and cards have the same rules, and as near to exact gradients where they do not."""
    batch = KINDS[kind].batch(8) if kind != "gated" else (torch.randn(8, 5, 4), torch.randint(10, (8,)))

    def gradients(way: str) -> Tensor:
        torch.manual_seed(0)
        model = Gated() if kind == "gated" else group_norm(built(kind))
        x, y = batch
        if way == "exact":
            cross_entropy(model.double(), x.double() if x.is_floating_point() else x, y).backward()
        elif way == "torch":
            with torch.autocast("cpu", torch.bfloat16):
                loss = cross_entropy(model, x, y)
            loss.backward()
        else:
            plan = ModulePlan(8, 8, Autocast("bf16", torch.bfloat16, "test"))
            parts = Parts(batch, [8], 8, CPU)
            compute_gradients(model, cross_entropy, adamw(model.parameters()), parts, plan)
        return torch.cat([p.grad.double().flatten() for p in model.parameters() if p.grad is not None])

    exact = gradients("exact")
    ours, torchs = (float((gradients(way) - exact).norm() / exact.norm()) for way in ("ours", "torch"))
    assert 1e-4 < ours <= 1.1 * torchs


class Foreign(torch.optim.SGD):
    """An optimizer whose kernel wants a device."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        raise RuntimeError("Input tensors need to be on the same device")


def test_an_optimizer_that_cannot_be_planned_is_named() -> None:
    layer = nn.Linear(4, 4)
    with pytest.raises(BadInput, match=r"test_own_loop.Foreign cannot be planned: .*same device.* one of torch\.optim"):
        frugan.plan_module(layer, mean, torch.randn(4, 4), Foreign(layer.parameters(), lr=0.1))


class Packed(nn.Module):
    """Reads the lengths of what is padded."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        return self.layer(packed)[0].data  # type: ignore[no-any-return]


def test_packed_sequences_are_refused_with_a_way_out() -> None:
    model = Packed()
    batch = (torch.randn(2, 5, 4), torch.tensor([5, 3]))
    with pytest.raises(BadInput, match=r"pack_padded_sequence reads lengths.*plan the step without packing"):
        frugan.plan_module(model, lambda m, x, n: m(x, n).mean(), batch, adamw(model.parameters()), precision="fp32")


def test_what_cannot_be_planned_is_refused() -> None:
    x = torch.randn(4, 4)
    model = Branches()
    optimizer = adamw(model.parameters())
    with pytest.raises(BadInput, match=r"Branches: its step cannot be run without data: .*looks at a tensor's value"):
        frugan.plan_module(model, mean, x, optimizer)
    layer, judge = nn.Sequential(nn.Linear(4, 4)), nn.Linear(4, 1)
    optimizer = adamw(layer.parameters())

    def plan(inputs: Any = x, loss: Any = mean, model: nn.Module = layer, **options: Any) -> None:
        frugan.plan_module(model, loss, inputs, optimizer, **options)

    with pytest.raises(BadInput, match=r"the loss gives a tensor \[4, 4\]; expected a scalar"):
        plan(loss=lambda m, x: m(x))
    with pytest.raises(BadInput, match="inputs have 2 and 4 samples"):
        plan((x, x[:2]))
    with pytest.raises(BadInput, match="inputs have no samples"):
        plan([])
    with pytest.raises(BadInput, match="inputs hold a object"):
        plan((x, object()))
    with pytest.raises(BadInput, match="block '7' is unknown"):
        plan(blocks=["7"])
    with pytest.raises(BadInput, match="normalisation_batch 5: expected 1 to 4"):
        plan(normalisation_batch=5)
    with pytest.raises(BadInput, match="precision 'int8': expected one of auto, fp32"):
        plan(precision="int8")
    with pytest.raises(BadInput, match="LBFGS runs forward and backward itself"):
        frugan.plan_module(layer, mean, x, torch.optim.LBFGS(layer.parameters()))
    with pytest.raises(BadInput, match="expected one of torch's, made for the model's parameters"):
        frugan.plan_module(layer, mean, x, torch.optim.Adam)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="blocks 'enc': expected several names"):
        plan(blocks="enc")
    with pytest.raises(BadInput, match="does the loss train parameters outside of the model"):
        frugan.plan_module(layer, lambda model, x: judge(model(x)).mean(), x, torch.optim.SGD(layer.parameters()))
    with pytest.raises(BadInput, match=r"clip_norm -1.0: expected more than 0"):
        frugan.ModuleStep(layer, mean, optimizer, frugan.plan_module(layer, mean, x, optimizer), clip_norm=-1.0)
    with pytest.raises(BadInput, match="the ReLU has no parameters"):
        plan(model=nn.ReLU())
    with pytest.raises(BadInput, match="not a size"):
        plan(memory="6")
    compiled = nn.Sequential(layer)
    compiled._orig_mod = layer  # what torch.compile makes has
    with pytest.raises(BadInput, match="the model is a Sequential: give the module inside it"):
        plan(model=compiled)
    step = frugan.ModuleStep(layer, mean, optimizer, ModulePlan(2, 2, FP32))
    with pytest.raises(BadInput, match="a batch of 4 samples: the plan is for at most 2"):
        step(x)


def test_inputs_may_be_trees_with_numbers() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)

    def loss(model: nn.Module, batch: dict[str, Any], weight: float) -> Tensor:
        value: Tensor = weight * F.cross_entropy(model(batch["x"][0]), batch["y"]) * batch["scale"]
        return value

    batch = {"x": [torch.randn(5, 4)], "y": torch.randint(3, (5,)), "scale": torch.tensor(2.0)}
    wanted = float(loss(model, batch, 0.5).detach())
    optimizer = adamw(model.parameters())
    plan = frugan.plan_module(model, loss, (batch, 0.5), optimizer)
    step = frugan.ModuleStep(model, loss, optimizer, ModulePlan(plan.batch, 2, FP32))
    assert step(batch, 0.5).loss == pytest.approx(wanted)


def blocks_of_the_page(language: str) -> list[str]:
    """Of `docs/your-own-loop.md`."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


def test_the_example_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    """It runs as it stands and learns, and prints what the page shows, but for what differs by processor."""
    short, whole, _ = blocks_of_the_page("python")
    for line in short.splitlines():  # the short loop is the whole one's
        assert re.match(r"\s*(plan|step|outcome) = .*", line) is None or line.strip() in whole, line
    names: dict[str, Any] = {}
    exec(whole.replace("torch.cuda.is_available()", "False"), names)
    printed, shown = capsys.readouterr().out.splitlines()[-3:], blocks_of_the_page("text")[0].splitlines()[-3:]
    assert [line.partition(": loss")[0] for line in printed] == [line.partition(": loss")[0] for line in shown]
    losses = [float(line.partition("loss ")[2].partition(",")[0]) for line in printed]
    assert losses[2] < losses[0] < 0.5
    assert (names["plan"].micro_batch, names["plan"].fits) == (16, True)


@pytest.mark.long
@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="the page shows what torch 2.13 takes")
def test_the_plan_of_the_page() -> None:
    _, whole, planned = blocks_of_the_page("python")
    names: dict[str, Any] = {}
    exec(whole.partition("torch.manual_seed")[0] + planned, names)
    assert str(names["plan"]) == blocks_of_the_page("text")[1].strip()
