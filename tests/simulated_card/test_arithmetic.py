"""What the simulated card computes is what a card would; and what is trained there is a processor's up to rounding."""

import importlib
import json
import math
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch

from contract.made_up import MadeUpFamily
from contract.rig import FP16, Rig
from frugan.contract.family import Family
from frugan.doctor import checks
from frugan.doctor.checks import trains_as_the_processor
from frugan.doctor.comparison import EVERYTHING
from frugan.doctor.trial import OPTIMIZERS, other_losses, tiny_subject
from frugan.engine.state.optimizer_settings import OptimizerSettings
from frugan.families import families

Cards = Callable[..., Any]
CARD, CPU = torch.device("privateuseone", 0), torch.device("cpu")  # torch's name of the first until it is registered
FAMILIES = [MadeUpFamily(), *families().values()]
TWENTY_STEPS, TWENTY_STEPS_IN_HALF = 0.1, 1.0
"""Shares of what all networks together moved; 0.05 was seen of faces. Rounding grows with every step, and in one
network alone without bounds."""
TURN = dict(zip(("biggan", "r3gan", "saehd", "stylegan2"), OPTIMIZERS, strict=True)) | {
    "quick96": OPTIMIZERS[2],
    "stylegan3": OPTIMIZERS[0],
    "xseg": OPTIMIZERS[2],
    "amp": OPTIMIZERS[2],
}
"""Which optimizer a family has in short mode; the made-up one has all of them."""


def _marks(family: Family, settings: OptimizerSettings) -> list[Any]:
    if family.name == "made-up" or TURN[family.name] is settings:
        return []
    return [pytest.mark.long]


def cases() -> list[Any]:
    return [
        pytest.param(
            family,
            settings,
            marks=_marks(family, settings),
            id=f"{family.name}-{settings.kind}",
        )
        for family, settings in product(FAMILIES, OPTIMIZERS)
    ]


@pytest.mark.parametrize(("family", "settings"), cases())
def test_a_card_trains_as_the_processor(
    family: Family, settings: OptimizerSettings, cards: Cards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the doctor asks a real one, with all kernels of our own."""
    cards()
    monkeypatch.setattr(checks, "what_is_missing", lambda _: None)
    outcomes = trains_as_the_processor(tiny_subject(family, settings), CARD, settings.kind)
    assert [each.name.rsplit(" ", 1)[1] for each in outcomes] == ["fp32", "fp16", "bf16"]
    for each in outcomes:
        assert each.state == "passed", each.line
        assert each.values["apart"] > 0, "the processor's own bits"
        assert each.values["kernels"]


@pytest.mark.long
@pytest.mark.parametrize("settings", OPTIMIZERS, ids=lambda settings: settings.kind)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_twenty_steps_are_a_processors(
    family: Family, settings: OptimizerSettings, cards: Cards, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards()
    monkeypatch.setattr(checks, "what_is_missing", lambda _: None)
    monkeypatch.setattr(checks, "COMPARED_STEPS", 20)
    for each in trains_as_the_processor(tiny_subject(family, settings), CARD, settings.kind):
        limit = TWENTY_STEPS if each.name.endswith("fp32") else TWENTY_STEPS_IN_HALF
        assert each.values["shares"][EVERYTHING] < limit, each.line


@pytest.mark.parametrize(
    ("family", "loss"),
    [pytest.param(each, loss, id=f"{each.name}-{loss}") for each in FAMILIES for loss in other_losses(each)],
)
def test_every_loss_is_a_processors(family: Family, loss: str, cards: Cards, monkeypatch: pytest.MonkeyPatch) -> None:
    cards()
    monkeypatch.setattr(checks, "half_precisions", lambda _: ())
    subject = tiny_subject(family, objective=other_losses(family)[loss])
    (outcome,) = trains_as_the_processor(subject, CARD, loss)
    assert outcome.state == "passed", outcome.line


# The arithmetic itself.


@pytest.fixture
def arithmetic(simulated: Any) -> Any:
    return importlib.import_module("simcard.arithmetic")


def test_an_operation_that_nobody_has_said_anything_of_is_refused(cards: Cards) -> None:
    cards()
    x = torch.ones(3, device=CARD)
    with pytest.raises(RuntimeError, match=r"special_bessel_j0.*say in simcard/arithmetic.py what a card computes"):
        torch.special.bessel_j0(x)


def test_the_list_holds_what_steps_ask_for(arithmetic: Any) -> None:
    """`python -m simulated_card.recorded_operations` renews it."""
    records = importlib.import_module("simulated_card.recorded_operations")  # which asks for the card's module
    listed = json.loads(records.FILE.read_text("utf-8"))
    with records.a_cards_ways(), records.Recorder() as recorder:
        Rig.create(MadeUpFamily(), precision=FP16, recompute=True).run(2)
    assert recorder.found.keys() <= listed.keys()
    for name, given in listed.items():
        if name.startswith("aten::"):
            packet = getattr(torch.ops.aten, name.removeprefix("aten::"))
            assert arithmetic.kind_of(getattr(packet, packet.overloads()[0])) == given["kind"], name


def adam(beta1: float, steps: float) -> torch.Tensor:
    """A weight of 1 after an update on a card."""
    weight, gradient, mean, square = (torch.full((1,), x, device=CARD) for x in (1.0, 0.5, 0.0, 0.0))
    step = torch.full((), steps, device=CARD)
    options: dict[str, Any] = {"weight_decay": 0.0, "eps": 1e-8, "amsgrad": False, "maximize": False}
    torch._fused_adam_([weight], [gradient], [mean], [square], [], [step], lr=0.1, beta1=beta1, beta2=0.9, **options)
    return weight.cpu()


def test_a_fused_update_has_its_scalars_in_fp32(cards: Cards) -> None:
    """A beta next to 1 is 1 there, and its correction a division by 0; used as documented it moves by the rate."""
    cards()
    assert float(adam(0.9, 1.0)) == pytest.approx(0.9, abs=1e-6)
    assert not math.isfinite(float(adam(1 - 2.0**-53, math.inf)))


def test_a_division_by_a_hosts_number_takes_its_reciprocal(cards: Cards) -> None:
    cards()
    x = torch.arange(1, 200.0)
    on_card = (x.to(CARD) / 3.0).cpu()
    assert not torch.equal(on_card, x / 3.0)
    torch.testing.assert_close(on_card, x / 3.0)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda a, b: a @ b, id="product"),
        pytest.param(lambda a, b: (a * b).sum(0), id="sum"),
        pytest.param(lambda a, b: torch.exp(a), id="exponential"),
        pytest.param(lambda a, b: torch.addcmul(a, a, b, value=0.3), id="product that is added"),
        pytest.param(lambda a, b: torch.softmax(a, 1), id="softmax"),
    ],
)
def test_last_bits_are_others_and_the_same_every_time(call: Callable[..., torch.Tensor], cards: Cards) -> None:
    cards()
    random = torch.Generator().manual_seed(0)
    a, b = (torch.randn(16, 16, generator=random) for _ in range(2))
    first, again = (call(a.to(CARD), b.to(CARD)).cpu() for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, call(a, b))
    torch.testing.assert_close(first, call(a, b), rtol=1e-6, atol=1e-6)


def test_whole_numbers_are_exact(cards: Cards) -> None:
    cards()
    x = torch.arange(64.0).view(8, 8)
    assert torch.equal((x.to(CARD) @ x.to(CARD)).cpu(), x @ x)
    assert torch.equal(x.to(CARD).lerp(x.to(CARD), 0.3).cpu(), x)
