"""Cards that are there and that this torch has no kernels for; no card is needed to tell."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from frugan.errors import BadInput
from frugan.evaluation.evaluation import evaluate
from frugan.evaluation.scorer import EvaluationOptions
from frugan.planning.network_costs import info
from frugan.recipe.loading import load_recipe
from frugan.sampling.sampling import sample
from frugan.setup.devices import Capability, choose_device, cpu_build, has_kernels, serving_build
from frugan.setup.networks import save
from frugan.setup.recipe_setup import build_networks
from frugan.training.run import TrainingOptions
from frugan.training.shorter_training import _cards
from frugan.training.training import train
from training.pictures import write_pictures, write_recipe

CU126 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
CU130 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


@pytest.mark.parametrize(
    ("capability", "built_for", "runs"),
    [
        ((6, 1), CU126, True),  # 6.0's binaries run on 6.1
        ((6, 1), CU130, False),  # GTX 10xx
        ((7, 0), CU130, False),  # V100
        ((7, 5), CU130, True),
        ((8, 9), CU130, True),  # RTX 40xx by 8.6's
        ((8, 9), ["sm_90"], False),
        ((8, 0), ["sm_86"], False),
        ((12, 0), CU126, False),  # RTX 50xx
        ((12, 1), CU130, True),
        ((13, 0), CU130, True),  # compiled by the driver
        ((13, 0), CU130[:-1], False),
        ((9, 0), ["sm_90a"], True),
        ((9, 1), ["sm_90a"], False),
        ((10, 3), ["sm_100f"], True),
        ((12, 0), ["compute_90a"], False),
        ((9, 0), ["gfx90a"], True),  # AMD's are not judged
        ((8, 6), [], True),
    ],
)
def test_a_build_runs_on_what_it_has_kernels_for(capability: Capability, built_for: list[str], runs: bool) -> None:
    assert has_kernels(capability, built_for) is runs


def _machine(monkeypatch: pytest.MonkeyPatch, *cards: tuple[str, Capability], built_for: list[str] = CU130) -> None:
    """Pretend that these cards are here."""
    monkeypatch.setattr(torch, "__version__", "2.13.0+cu130")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(cards))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(cards))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: cards[device.index][1])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: cards[device.index][0])
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: built_for)


OLD, NEW = ("NVIDIA GeForce GTX 1060", (6, 1)), ("NVIDIA GeForce RTX 3060", (8, 6))


def test_a_card_older_than_the_build_is_passed_over_and_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch, OLD)
    device, why = choose_device()
    assert device.type == "cpu"
    serves = r"GTX 1060 has compute capability 6.1.*for 7.5, 8.0.*torch 2.13.0 in its cu126 build"
    assert re.search(serves, why)
    for asked in ("cuda", "cuda:0"):
        with pytest.raises(BadInput, match=f"--device {asked}: NVIDIA GeForce {serves}"):
            choose_device(asked)


def test_a_card_that_is_served_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch, NEW)
    assert choose_device() == (torch.device("cuda", 0), "a CUDA card is there; override with --device")
    assert choose_device("cuda") == (torch.device("cuda", 0), "asked for")


def test_of_two_cards_the_one_that_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch, OLD, NEW)
    device, why = choose_device()
    assert device == torch.device("cuda", 1)
    assert "GTX 1060" in why
    assert choose_device("cuda:1")[0].index == 1


def test_a_card_that_no_build_serves_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch, ("Tesla K80", (3, 7)))
    assert "no build of this version serves it" in choose_device()[1]


def test_a_card_that_no_build_serves_is_advised_to_nobody() -> None:
    assert (serving_build((3, 7)), serving_build((5, 2)), serving_build((12, 0))) == (None, "cu126", "cu130")
    advised = {card.name for card in _cards()}
    assert "k80" not in advised
    assert {"gtx-titan-x", "rtx-5090"} <= advised


def test_a_cpu_build_says_that_it_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    assert choose_device()[0].type == "cpu"
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert choose_device()[1] == f"this torch ({torch.__version__}) is a CPU build; override with --device"
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/nvidia-smi")
    assert "cu130 build" in choose_device()[1]  # a driver is there, so a card is
    with pytest.raises(BadInput, match=r"--device cuda: this torch \(\S+\) is a CPU build; .*cu130 build"):
        choose_device("cuda")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert cpu_build(wanted=True) is None
    with pytest.raises(BadInput, match=r"sees 0 CUDA cards; `nvidia-smi`"):
        choose_device("cuda")


class CurrentCardError(Exception):
    """A card was made torch's current one."""


def _begin_training(folder: Path) -> None:
    train(write_recipe(folder), write_pictures(folder / "pictures"), folder / "run", options=SECOND)


def _begin_sampling(folder: Path) -> None:
    sample(_weights(folder), folder / "sheets", device="cuda:1")


def _begin_evaluation(folder: Path) -> None:
    evaluate(_weights(folder), folder, EvaluationOptions(device="cuda:1"))


def _begin_info(folder: Path) -> None:
    info(write_recipe(folder), device="cuda:1")


def _weights(folder: Path) -> Path:
    recipe = load_recipe(write_recipe(folder))
    save(build_networks(recipe), recipe, folder / "weights.safetensors")
    return folder / "weights.safetensors"


SECOND = TrainingOptions(device="cuda:1")


@pytest.mark.parametrize("begin", [_begin_training, _begin_sampling, _begin_evaluation, _begin_info])
def test_every_command_makes_the_card_that_it_is_given_the_current_one(
    begin: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def set_device(device: torch.device) -> None:
        raise CurrentCardError(str(device))

    _machine(monkeypatch, NEW, NEW)
    monkeypatch.setattr(torch.cuda, "set_device", set_device)
    with pytest.raises(CurrentCardError, match=r"^cuda:1$"):
        begin(tmp_path)
