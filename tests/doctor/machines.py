"""Machines that are not here: what the driver says of them, and what torch would."""

import shutil
from dataclasses import dataclass, replace

import pytest
import torch

from frugan.doctor import cards
from frugan.doctor.cards import Driver, PhysicalCard, ProgramOutput, ask_driver
from frugan.wording import GIB, MIB

CU130 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]
RTX_3060 = PhysicalCard(
    0, "GPU-11111111-aaaa-bbbb-cccc-000000000001", "NVIDIA GeForce RTX 3060", 12 * GIB, 900 * MIB, True
)
GTX_1080 = PhysicalCard(
    1, "GPU-22222222-aaaa-bbbb-cccc-000000000002", "NVIDIA GeForce GTX 1080", 8 * GIB, 10 * MIB, False
)
CAPABILITIES = {RTX_3060.name: (8, 6), GTX_1080.name: (6, 1)}


@dataclass(frozen=True)
class Properties:
    """As torch gives them."""

    name: str
    major: int
    minor: int
    total_memory: int
    uuid: str


def properties_of(card: PhysicalCard) -> Properties:
    assert card.total_bytes is not None
    return Properties(card.name, *CAPABILITIES[card.name], card.total_bytes, card.uuid.removeprefix("GPU-"))


def pretend(monkeypatch: pytest.MonkeyPatch, *logical: PhysicalCard, free_bytes: int = 10 * GIB) -> None:
    """Let torch have these cards, in this order."""
    seen = [properties_of(card) for card in logical]

    def named(index: int | torch.device | None) -> Properties:
        return seen[(index.index or 0) if isinstance(index, torch.device) else index or 0]

    monkeypatch.setattr(torch, "__version__", "2.13.0+cu130")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(seen))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(seen))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: CU130)
    monkeypatch.setattr(torch.cuda, "get_device_properties", named)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index=0: named(index).name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index=0: (named(index).major, named(index).minor))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free_bytes, seen[0].total_memory))
    monkeypatch.setattr(cards, "free_bytes", lambda _: (free_bytes - 500 * MIB, seen[0].total_memory))


def driver_that_says(text: str, code: int | None, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """What is made of the driver's answer."""
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/nvidia-smi")
    return ask_driver(lambda _: ProgramOutput(code, text))


def with_driver(version: str, *there: PhysicalCard) -> Driver:
    return Driver(found=True, version=version, cards=tuple(replace(card, index=i) for i, card in enumerate(there)))
