"""Traits of models that are not ours: masks asked for a value, learned biases, caches, and inputs of many kinds."""

import math
import threading
from collections import UserDict
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import frugan
from frugan.stepmemory.tracker import Tracker, tensors_of

WORDS, WIDTH, HEADS, LENGTH, BATCH = 40, 16, 2, 12, 4


class TinyLanguageModel(nn.Module):
    """Words [B, T] and a mask of them, 0 where one pads, or none -> mean loss of the next word.

    Args:
        learns_bias: adds a learned bias to the attention of places, as T5 does.
    """

    positions: Tensor

    def __init__(self, *, learns_bias: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.register_buffer("positions", torch.arange(LENGTH))
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.projections = nn.Linear(WIDTH, 3 * WIDTH)
        self.bias = nn.Parameter(torch.zeros(HEADS, LENGTH, LENGTH)) if learns_bias else None
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor, mask: Tensor | None) -> Tensor:
        x = self.embedding(words) + self.places(self.positions)
        if mask is None:  # as BART's decoder does
            mask = torch.ones(words.shape, device=x.device)
        seen = None
        if not mask.to(torch.bool).all():  # transformers leaves out masks that mask nothing
            seen = mask.to(torch.bool)[:, None, None, :]
        query, key, value = self.projections(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        bias = self.bias[None] if self.bias is not None else None
        if seen is not None and bias is not None:
            bias = bias.masked_fill(~seen, -1e9)
        y = F.scaled_dot_product_attention(query, key, value, seen if bias is None else bias)
        logits = self.head(y.transpose(1, 2).flatten(2))
        kept = torch.arange(LENGTH - 1).tolist()  # a constant that is asked for its numbers
        return F.cross_entropy(logits[:, kept].flatten(0, 1), words[:, 1:].flatten())


def loss(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    result: Tensor = model(**batch)
    return result


def batch_of(kind: str) -> dict[str, Any]:
    random = torch.Generator().manual_seed(0)
    mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    if kind == "padded":
        mask[1, -3:] = 0
    return {
        "words": torch.randint(WORDS, (BATCH, LENGTH), generator=random),
        "mask": None if kind == "none" else mask,
    }


@pytest.mark.parametrize("learns_bias", [False, True])
@pytest.mark.parametrize("kind", ["padded", "whole", "none"])
def test_the_peak_is_that_of_the_way_which_the_values_choose(kind: str, learns_bias: bool) -> None:
    torch.manual_seed(0)
    model, batch = TinyLanguageModel(learns_bias=learns_bias), batch_of(kind)
    optimizer = torch.optim.AdamW(model.parameters())
    report = frugan.plan_module(model, loss, batch, optimizer, precision="fp32")

    def step() -> None:
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()  # makes the optimizer's state
    held: Any = {
        "parameters": [*model.parameters(), *model.buffers()],
        "optimizer": tensors_of(list(optimizer.state.values())),
        "batch": tensors_of(batch),
    }
    with Tracker(held) as tracker:
        step()
    assert report.peak_bytes == pytest.approx(tracker.peak_bytes, abs=1024)  # scalars


def test_a_mask_costs_what_it_masks() -> None:
    """A plan goes the way of the batch that it is given."""
    model = TinyLanguageModel()
    optimizer = torch.optim.AdamW(model.parameters())
    peaks = {
        kind: frugan.plan_module(model, loss, batch_of(kind), optimizer, precision="fp32").peak_bytes
        for kind in ("padded", "whole")
    }
    assert peaks["padded"] > peaks["whole"]


class Cache:
    """Keys and values of each layer so far, as transformers keeps them."""

    def __init__(self) -> None:
        self.layers: dict[int, Tensor] = {}

    def update(self, layer: int, states: Tensor) -> Tensor:
        self.layers[layer] = torch.cat([self.layers[layer], states], 1) if layer in self.layers else states
        return self.layers[layer]


class Decoding(nn.Module):
    """A decoder's block that adds its keys to a cache, and counts its calls."""

    def __init__(self, layer: int) -> None:
        super().__init__()
        self.layer, self.calls = layer, 0
        self.projections = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH))

    def forward(self, x: Tensor, mask: Tensor | None, cache: Cache | None = None) -> Tensor:
        self.calls += 1
        query, keys = self.projections(x).chunk(2, -1)
        keys = keys if cache is None else cache.update(self.layer, keys)
        scores = query @ keys.mT
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None], -1e9)
        y: Tensor = x + scores.softmax(-1) @ keys
        return y


class Decoder(nn.Module):
    """[B, T, features] -> the same, through blocks that share a cache; it is made if none is given, as by default."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Decoding(layer) for layer in range(3))

    def forward(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Cache]:
        cache = Cache()
        for block in self.blocks:
            x = block(x, mask, cache=cache)
        return x, cache


def decoder_loss(model: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Asks the cache what it holds, too: another length would be another loss."""
    y, cache = model(x, mask)
    result: Tensor = y.square().mean() + sum(states.square().mean() for states in cache.layers.values())
    return result


@pytest.mark.parametrize("padded", [False, True])
def test_blocks_that_add_to_a_cache_add_once(padded: bool) -> None:
    """Right with and without a mask: without one, twice as many keys would go unnoticed, or the shapes would differ."""
    mask = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    mask[1, -3:] = False
    x, seen = torch.randn(BATCH, LENGTH, WIDTH), mask if padded else None
    results = []
    for recomputes in (False, True):
        torch.manual_seed(0)
        model = Decoder()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        report = frugan.plan_module(model, decoder_loss, (x, seen), optimizer, precision="fp32")
        assert report.search.blocks == ("blocks.0", "blocks.1", "blocks.2")
        plan = report.search.plan(BATCH, report.search.blocks if recomputes else ())
        for _ in range(3):
            outcome = frugan.ModuleStep(model, decoder_loss, optimizer, plan)(x, seen)
        results.append((model.state_dict(), outcome.loss, [block.calls for block in model.blocks]))
    plain, again = results
    assert all(torch.equal(value, again[0][key]) for key, value in plain[0].items())
    assert plain[1:] == again[1:]
    assert plain[2] == [3, 3, 3]


class Appending(nn.Module):
    """Adds its input to a list and reads all of it."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32 * features, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, x: Tensor, features: list[Tensor]) -> Tensor:
        features.append(x)
        y: Tensor = self.layers(torch.cat(features, 1))
        return y


class Writing(nn.Module):
    """Writes to what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 32), nn.ReLU())

    def forward(self, x: Tensor, features: list[Tensor]) -> Tensor:
        y: Tensor = self.layers(x.mul_(2))
        return y


class Elsewhere(Appending):
    """Adds to a list that it is not given."""

    def __init__(self, features: int, shared: list[Tensor]) -> None:
        super().__init__(features)
        self.read: Any = lambda: shared

    def forward(self, x: Tensor, features: list[Tensor]) -> Tensor:
        return super().forward(x, self.read())


class Growing(nn.Module):
    """Blocks that add to a list that they are given, as DenseNet's do, then others."""

    def __init__(self) -> None:
        super().__init__()
        shared: list[Tensor] = []
        self.given = nn.ModuleList(Appending(number) for number in (1, 2))
        self.writing = nn.ModuleList([Writing()])
        self.forget = lambda: shared.clear()  # noqa: PLW0108  (a method of a list would be copied with it)
        self.elsewhere = nn.ModuleList(Elsewhere(number, shared) for number in (1, 2))

    def forward(self, x: Tensor) -> Tensor:
        features: list[Tensor] = []
        self.forget()
        for block in (*self.given, *self.writing, *self.elsewhere):
            x = block(x, features)
        return x


def test_blocks_that_cannot_be_recomputed_are_left_out_and_named() -> None:
    model = Growing()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    report = frugan.plan_module(model, lambda m, x: m(x).mean(), torch.ones(64, 32), optimizer, precision="fp32")
    assert report.search.blocks == ("given.0", "given.1")
    assert report.search.refused.keys() == {"writing.0", "elsewhere.0", "elsewhere.1"}
    assert "what a Writing is given is written to in place" in report.search.refused["writing.0"]


class Batch(UserDict[str, Any]):
    """What tokenizers return: a mapping that is no dict, read by attributes too."""

    def __getattr__(self, name: str) -> Any:
        if name == "data":
            raise AttributeError(name)
        return self.data[name]


@dataclass(frozen=True)
class Record:
    """What collators of one's own return."""

    x: Tensor
    texts: list[str]


@pytest.mark.parametrize("kind", [Batch, Record])
def test_batches_of_other_kinds_and_texts_are_split(kind: Any) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[tuple[int, list[str]]] = []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        assert isinstance(batch, kind)
        seen.append((len(batch.x), batch.texts))
        result: Tensor = model(batch.x).mean()
        return result

    batch = kind(x=torch.ones(4, 3), texts=["a", "b", "c", "d"])
    report = frugan.plan_module(model, loss, batch, optimizer, precision="fp32")
    plan = frugan.ModulePlan(report.batch, 2, report.precision, (), split_wanted=True)
    seen.clear()
    frugan.ModuleStep(model, loss, optimizer, plan)(batch)
    assert seen == [(2, ["a", "b"]), (2, ["c", "d"])]


class Locked(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 1)
        self.lock = threading.Lock()


class Remembering(nn.Linear):
    """Keeps what it gave in a list."""

    def __init__(self) -> None:
        super().__init__(3, 1)
        self.given = [self(torch.ones(2, 3))]


def half_base() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3).bfloat16().requires_grad_(False), nn.Linear(3, 1))


X = torch.ones(4, 3)


def mean_of(model: nn.Module, x: Tensor) -> Tensor:
    result: Tensor = model(x).mean()
    return result


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("model", "changed", "message"),
    [
        (nn.Linear(3, 1), {"memory": 6}, r"memory=6: that is 6 bytes"),
        (nn.Linear(3, 1), {"inputs": DataLoader(TensorDataset(X))}, r"next\(iter\(loader\)\)"),
        (nn.Linear(3, 1), {"loss": nn.CrossEntropyLoss()}, "expected a function of the model and a batch"),
        (nn.Linear(3, 1).requires_grad_(False), {}, "no parameters that train"),
        (nn.LazyLinear(1), {}, "run the model once on a batch"),
        (nn.Embedding(10, 4, sparse=True), {"inputs": torch.zeros(4, dtype=torch.int64)}, "sparse=False"),
        (Locked(), {}, "cannot be copied, to be planned without data"),
        (Remembering(), {}, "the Remembering cannot be copied, to be planned without data: Only Tensors created"),
        (nn.Linear(3, 1), {"blocks": ["nope"]}, "block 'nope' is unknown"),
        (nn.Linear(3, 1), {"blocks": [0]}, "block 0 is unknown"),
        (nn.Linear(3, 1), {"memory": math.nan}, "memory=nan: that is nan bytes"),
        (nn.Linear(3, 1), {"card": 3060}, "card 3060: expected a name"),
        (nn.Linear(3, 1), {"micro_batch": "2"}, "micro_batch '2': expected 1 to 4, the batch"),
        (nn.Linear(3, 1), {"micro_batch": 2.5}, "micro_batch 2.5: expected 1 to 4, the batch"),
        (nn.Linear(3, 1), {"inputs": None}, "inputs are a NoneType: expected one batch"),
        (nn.Linear(3, 1), {"loss": "mse"}, "the loss is a str: expected a function"),
        (nn.Linear(3, 1), {"inputs": (X, X)}, r"the loss cannot be called with the model and 2 inputs: too many pos"),
    ],
    ids=lambda of: type(of).__name__ if isinstance(of, nn.Module) else None,
)
def test_what_cannot_be_planned_is_said(model: nn.Module, changed: dict[str, Any], message: str) -> None:
    options = {"loss": mean_of, "inputs": X, **changed}
    with pytest.raises(frugan.BadInput, match=message):
        frugan.plan_module(model, options.pop("loss"), options.pop("inputs"), sgd(model), **options)


def test_steps_refuse_plans_that_are_none_or_of_another_model_and_models_without_data() -> None:
    model = nn.Linear(3, 1)
    plan = frugan.plan_module(model, mean_of, X, sgd(model))
    with pytest.raises(frugan.BadInput, match=r"plan '6GiB': expected what frugan.plan_module returns"):
        frugan.ModuleStep(model, mean_of, sgd(model), "6GiB")  # type: ignore[arg-type]
    other = nn.Sequential(nn.Linear(3, 1))
    with pytest.raises(frugan.BadInput, match="the plan is of a Linear, and the model is a Sequential"):
        frugan.ModuleStep(other, mean_of, sgd(other), plan)
    for wider, words in (
        (nn.Linear(3, 2), r"its weight is \[1, 3\], the model's \[2, 3\]; plan this one"),
        (nn.Linear(3, 1, bias=False), r"its bias is \[1\], the model's missing"),
    ):
        with pytest.raises(frugan.BadInput, match=f"the plan is of another Linear: {words}"):
            frugan.ModuleStep(wider, mean_of, sgd(wider), plan)
    with pytest.raises(frugan.BadInput, match=r"the optimizer moves none of the Linear's parameters"):
        frugan.plan_module(model, mean_of, X, sgd(other))
    blank = nn.Linear(3, 1, device="meta")
    with pytest.raises(frugan.BadInput, match="on the device meta, without data"):
        frugan.ModuleStep(blank, mean_of, sgd(blank), plan)
    with pytest.raises(frugan.BadInput, match=r"the model is a str: expected a torch\.nn\.Module"):
        frugan.plan_module("bert", mean_of, X, sgd(model))  # type: ignore[arg-type]
    with pytest.raises(frugan.BadInput, match="the loss cannot be called with the model and 2 inputs"):
        frugan.ModuleStep(model, mean_of, sgd(model), plan)(X, X)


def test_a_frozen_base_in_half_precision_is_planned_and_trained_on() -> None:
    """As adapters on a large model are: only what trains has to be in fp32."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        base, head = model.children()
        result: Tensor = head(base(x.bfloat16()).float()).mean()
        return result

    model = half_base()
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.1)
    plan = frugan.plan_module(model, loss, X, optimizer, precision="fp32")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert not frugan.ModuleStep(model, loss, optimizer, plan)(X).skipped
    moved = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert moved == {"1.weight", "1.bias"}


class Adapter(nn.Module):
    """A frozen layer, and what trains beside it (LoRA, Hu et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(64, 64).requires_grad_(False)
        self.down = nn.Linear(64, 4, bias=False)
        self.up = nn.Linear(4, 64, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x) + self.up(self.down(x))
        return y


def adapted() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Adapter(), nn.GELU(), Adapter())


def mean_square(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(model(x).float(), y)


@pytest.mark.parametrize("masters", [True, False])
@pytest.mark.parametrize("whole", [False, True], ids=["adapters", "whole model"])
def test_models_in_half_precision_are_planned_and_trained(whole: bool, masters: bool) -> None:
    """With fp32 masters small updates count, as in a model in fp32; left in half, they are lost."""
    x, y = torch.randn(8, 64).bfloat16(), torch.randn(8, 64)
    model = adapted().bfloat16()
    if whole:
        model.requires_grad_()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=1e-4)
    report = frugan.plan_module(model, mean_square, (x, y), optimizer, masters=masters)
    assert report.precision.name == "bf16"
    assert ("the step makes them fp32" if masters else "they stay so, and lose updates") in str(report)
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())
    assert all(parameter.dtype == torch.bfloat16 for parameter in model.parameters())
    plan = report.search.plan(3, ())
    step = frugan.ModuleStep(model, mean_square, optimizer, plan)
    outcomes = [step(x, y) for _ in range(3)]
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {p.dtype for p in trained.values()} == {torch.float32 if masters else torch.bfloat16}
    assert all(p.dtype == torch.bfloat16 for p in model.parameters() if not p.requires_grad)
    still = {name for name, p in trained.items() if torch.equal(p.to(torch.bfloat16).float(), p.float())}
    assert (len(still) == 0) == masters

    exact = adapted().double().requires_grad_(whole)
    for name in trained:
        exact.get_parameter(name).requires_grad_()
    exact.load_state_dict({name: value.double() for name, value in before.items()})
    value = mean_square(exact, x.double(), y)
    value.backward()
    assert outcomes[0].loss == pytest.approx(float(value), rel=1e-2)
    gradients = [p.grad.flatten() for p in exact.parameters() if p.grad is not None]
    norm = float(torch.cat(gradients).norm())
    assert outcomes[0].grad_norm == pytest.approx(norm, rel=2e-2)

    with Tracker({"parameters": list(model.parameters()), "batch": [x, y]}) as tracker:
        step(x, y)
    predicted = report.search.taken(3, ()).live_bytes
    assert predicted == pytest.approx(tracker.peak_bytes, rel=0.02)


def test_weights_that_stay_in_half_precision_train_in_it() -> None:
    model = adapted().bfloat16()
    with pytest.raises(frugan.BadInput, match=r"precision 'fp32': weights that stay in bf16 train in it"):
        frugan.plan_module(model, mean_square, (X, X), sgd(model), masters=False, precision="fp32")
