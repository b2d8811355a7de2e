"""Which device a rank takes, and what is refused where several processes run."""

import pytest
import torch

from doctor.machines import RTX_3060, pretend
from frugan.engine.ranks.place import Place
from frugan.errors import BadInput
from frugan.setup.devices import device_of_rank, misspelt_cards
from frugan.training.precision_comparison import compare_precision

THIRD = Place(rank=6, size=8, local_rank=2, local_size=4)


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A machine with four cards; which were made current."""
    current: list[str] = []
    pretend(monkeypatch, *[RTX_3060] * 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: current.append(str(device)))
    return current


@pytest.mark.parametrize("asked", ["auto", "cuda"])
def test_each_rank_takes_its_own_card_first_of_all(asked: str, cards: list[str]) -> None:
    assert device_of_rank(asked, THIRD) == torch.device("cuda", 2)
    assert cards == ["cuda:2"]


def test_a_launcher_may_leave_each_rank_one_card(cards: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert device_of_rank("auto", THIRD) == torch.device("cuda", 0)


def test_more_ranks_than_cards_are_refused(cards: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(BadInput, match=r"4 ranks and 2 CUDA cards; start it with --nproc-per-node=2"):
        device_of_rank("auto", THIRD)
    with pytest.raises(BadInput, match="8 ranks take a card each: expected auto, cuda or cpu"):
        device_of_rank("cuda:1", THIRD)
    assert cards == []


def test_processors_need_no_card() -> None:
    assert device_of_rank("cpu", THIRD) == torch.device("cpu")


def test_the_misspelt_variable_is_pointed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert misspelt_cards() is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICE", "1")
    assert misspelt_cards() == "CUDA_VISIBLE_DEVICE is set, and nothing reads it: the variable is CUDA_VISIBLE_DEVICES"


def test_a_comparison_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    places = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    for name, value in (places | {"MASTER_ADDR": "here", "MASTER_PORT": "1"}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BadInput, match="run it without torchrun"):
        compare_precision("biggan-digits-32", "pictures", "out", "bf16")
