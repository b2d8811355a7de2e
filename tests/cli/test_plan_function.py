"""`frugan plan module:function`: a step of one's own, planned from a terminal."""

import json
import sys
from pathlib import Path

import pytest

from cli.calling import Frugan

MODULE = """
import torch
from torch import nn

made = []

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(2048, 2048), nn.GELU()) for _ in range(4))
        self.head = nn.Linear(2048, 1)
        self.register_buffer("rates", 1 / torch.arange(1, 5))
        made.append(self.head.weight.device.type)
        if checks:
            assert self.head.weight.isfinite().all()

    def forward(self, x, mask):
        for layer in self.layers:
            x = layer(x)
        return self.head(x if mask.all() else x * mask[:, None])

def setup(device="cuda"):
    model = Model().to(device)
    batch = torch.randn(32, 2048), torch.ones(32, dtype=torch.long, device=device)
    return model, lambda m, x, mask: m(x, mask).mean(), batch, torch.optim.AdamW(model.parameters())

checks = False

def checked():
    global checks
    checks = True
    return setup("cpu")

def three():
    return setup()[:3]

def with_options():
    model, loss, batch, optimizer = setup()
    options = {"precision": "autocast", "micro_batch": 4, "weight": lambda x, mask: mask.sum()}
    return model, loss, batch, optimizer, options

def misspelt():
    return *setup(), {"precison": "fp32"}

def raises():
    raise KeyError("weights")

def needs(device, size=3):
    return setup()

number = 3
"""


@pytest.fixture
def own_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_project").mkdir()
    (tmp_path / "own_project" / "train.py").write_text(MODULE, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("own_project", "own_project.train"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.mark.usefixtures("own_project")
def test_a_function_of_ones_own_is_planned_without_its_weights(frugan: Frugan) -> None:
    """Moved to a card that is not here, and asked for the value of a mask."""
    ended = frugan("plan", "own_project.train:setup", "--card", "rtx-3060", "--memory", "2GiB", "--json")
    assert ended.returncode == 0, ended.stderr
    values = json.loads(ended.stdout)
    assert (values["model"], values["fits"], values["batch"], values["budget_bytes"]) == ("Model", True, 32, 2**31)
    assert values["categories_bytes"]["parameters"] == pytest.approx(4 * (4 * 2049 * 2048 + 2049), rel=1e-3)
    assert not any(line.startswith("weights: made") for line in values["decisions"])
    assert sys.modules["own_project.train"].made == ["meta"]


@pytest.mark.usefixtures("own_project")
def test_weights_that_are_looked_at_are_made_and_that_is_said(frugan: Frugan) -> None:
    ended = frugan("plan", "own_project.train:checked", "--memory", "2GiB", "--micro-batch", "8")
    assert ended.returncode == 0, ended.stderr
    assert "Model fits 2.00 GiB" in ended.stdout
    assert "micro-batch 8, 4 forwards" in ended.stdout
    assert (
        "weights: made for this plan, as it does not run without them: own_project.train:checked raised" in ended.stdout
    )


@pytest.mark.usefixtures("own_project")
@pytest.mark.parametrize("words", [(), ("--micro-batch", "8")])
def test_a_function_may_return_options_of_the_plan(frugan: Frugan, words: tuple[str, ...]) -> None:
    ended = frugan("plan", "own_project.train:with_options", "--card", "rtx-3060", "--json", *words)
    assert ended.returncode == 0, ended.stderr
    values = json.loads(ended.stdout)
    assert values["micro_batch"] == (8 if words else 4)
    assert values["decisions"][0].startswith("precision: bf16 by autocast's rules")


@pytest.mark.usefixtures("own_project")
def test_a_function_that_does_not_fit_ends_as_a_recipe_does(frugan: Frugan) -> None:
    """With 0 and "fits" false: that is an answer, and no error."""
    ended = frugan("plan", "own_project.train:setup", "--memory", "900MiB", "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["fits"] is False


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("own_project.train:setpu",), "has no function setpu (did you mean setup?)"),
        (("own_project.tran:setup",), "No module named 'own_project.tran'"),
        (("own_project.train:three",), "expected a tuple (model, loss, batch, optimizer)"),
        (("own_project.train:misspelt",), "returns option 'precison' (did you mean precision?)"),
        (("own_project.train:raises",), "raised KeyError: 'weights'"),
        (("own_project.train:needs",), "needs device; expected a function without arguments"),
        (("own_project.train:number",), "is 3; expected a function that returns"),
        (("own_project.train:raises", "--card", "rtx-3o60"), "the nearest are rtx-3060"),
        (("own_project.train:setup", "--largest", "batch"), "--largest batch: for recipes"),
        (("own_project.train:setup", "training.batch=3"), "for recipes"),
        (("own_project.train:setup", "--memory", "9MiB"), "bad input: a budget of 9 MiB"),  # and nothing of CUDA
        (("own_project.train:setup", "--micro-batch", "99"), "bad input: micro_batch 99: expected 1 to 32, the batch"),
    ],
)
@pytest.mark.usefixtures("own_project")
def test_functions_that_cannot_be_planned(frugan: Frugan, words: tuple[str, ...], message: str) -> None:
    ended = frugan("plan", *words)
    assert ended.returncode == 2
    assert message in ended.stderr
