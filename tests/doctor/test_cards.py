"""Cards that are there, that are not, and that cannot be used; no card is needed to tell."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from doctor.machines import GTX_1080, RTX_3060, driver_that_says, pretend, with_driver
from frugan.doctor import cards, machine
from frugan.doctor.cards import (
    Driver,
    ProgramOutput,
    ask_driver,
    calibration_finding,
    card_findings,
    device_finding,
    memory_finding,
    why_no_card,
)
from frugan.doctor.machine import examine
from frugan.stepmemory.calibration import save_calibration
from frugan.stepmemory.cards import PUBLISHED
from frugan.wording import GIB, MIB

CUDA = torch.device("cuda", 0)
NONE = "No CUDA GPUs are available"
OLD = (
    "The NVIDIA driver on your system is too old (found version 12040). Please update your GPU driver by downloading "
    "and installing a new version"
)
ANSWER = """0, GPU-11111111-aaaa, NVIDIA GeForce RTX 3060, 12288, 912, 580.65.06, Enabled
1, GPU-22222222-aaaa, NVIDIA GeForce GTX 1080, 8192, [N/A], 580.65.06, [Not Supported]
"""


def test_the_driver_is_read_as_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = driver_that_says(ANSWER, 0, monkeypatch)
    assert (driver.version, driver.branch) == ("580.65.06", 580)
    first, second = driver.cards
    assert (first.index, first.total_bytes, first.used_bytes, first.shows) == (0, 12288 * MIB, 912 * MIB, True)
    assert (second.name, second.used_bytes, second.shows) == ("NVIDIA GeForce GTX 1080", None, None)


def test_a_driver_that_knows_no_display_is_asked_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(words: Sequence[str]) -> ProgramOutput:
        if "display_active" in words[1]:
            return ProgramOutput(2, 'Field "display_active" is not a valid field to query.')
        return ProgramOutput(0, "0, GPU-1, NVIDIA GeForce RTX 3060, 12288, 912, 999.1\n")

    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/nvidia-smi")
    (card,) = ask_driver(run).cards
    assert (card.used_bytes, card.shows) == (912 * MIB, None)


@pytest.mark.parametrize(
    ("text", "code", "trouble"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch\n", 18, "Driver/library version mismatch"),
        ("", None, "no answer in 30 s"),
        ("", 0, "no card"),
        ("", 9, "nothing"),
    ],
)
def test_a_driver_that_does_not_answer(
    text: str, code: int | None, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = driver_that_says(text, code, monkeypatch)
    assert driver.cards == ()
    assert trouble in str(driver.trouble)


@pytest.mark.parametrize(
    ("said", "driver", "environment", "reason", "cure"),
    [
        (NONE, with_driver("580.1", RTX_3060), {"CUDA_VISIBLE_DEVICES": ""}, "leaves no card", "unset CUDA_VISIBLE"),
        (NONE, with_driver("580.1", RTX_3060), {"CUDA_VISIBLE_DEVICES": "7"}, "'7' leaves no card", "number of a card"),
        (OLD, with_driver("550.54", RTX_3060), {}, "driver 550.54 is too old", "cu126 build of torch, which it serves"),
        (OLD, with_driver("470.1", RTX_3060), {}, "needs 580", "update the driver"),
        (OLD, with_driver("550.54", RTX_3060), {"CUDA_VISIBLE_DEVICES": "0"}, "too old", "update the driver"),
        (NONE, with_driver("550.54", RTX_3060), {}, "driver 550.54 is too old", "update the driver"),
        ("Found no NVIDIA driver on your system.", Driver(found=False), {}, "no ", ""),
        (NONE, Driver(True, trouble="Driver/library version mismatch"), {}, "old half still runs", "restart"),
        ("CUDA unknown error - this may be due to", with_driver("580.1", RTX_3060), {}, "slept", "restart"),
        ("Error 802: system not yet initialized", with_driver("580.1", RTX_3060), {}, "fabric", "nvidia-fabricmanager"),
        ("Error 804: forward compatibility", with_driver("580.1", RTX_3060), {}, "in front of", "LD_LIBRARY_PATH"),
        (NONE, Driver(True, trouble="couldn't communicate with the NVIDIA driver"), {}, "does not run", "install"),
        ("something new", with_driver("580.1", RTX_3060), {}, "'something new'", "run frugan doctor again"),
    ],
)
def test_why_there_is_no_card(
    said: str, driver: Driver, environment: dict[str, str], reason: str, cure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch)
    why = why_no_card(said, driver, environment)
    assert reason in why[0]
    assert cure in why[1]


def test_an_older_build_is_no_cure_for_a_driver_that_does_not_serve_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    assert "cu126" not in why_no_card(OLD, with_driver("470.1", RTX_3060), {})[1]


def test_a_cpu_build_beside_a_card_names_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    says = "Torch not compiled with CUDA enabled"
    pretend(monkeypatch)
    monkeypatch.setattr(torch, "__version__", "2.13.0+cpu")
    monkeypatch.setattr(torch.version, "cuda", None)

    def refused() -> None:
        raise AssertionError(says)

    monkeypatch.setattr(torch.cuda, "init", refused)
    reason, cure = why_no_card(says, with_driver("580.1", RTX_3060), {})
    assert "CPU build" in reason
    assert "cu130" in cure
    (finding,) = card_findings(with_driver("580.1", RTX_3060), {})
    assert finding.state == "limited"
    assert finding.values["driver_sees"] == [RTX_3060.name]


def test_a_card_without_kernels_is_told_with_the_build_that_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, RTX_3060, GTX_1080)
    good, bad, _ = card_findings(with_driver("580.1", RTX_3060, GTX_1080), {})
    assert good.state == "fine"
    assert good.values["capability"] == [8, 6]
    assert bad.state == "limited"
    assert bad.values["served"] is False
    assert "cu126" in str(bad.cure)


def test_cards_in_another_order_than_the_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA puts the fastest first."""
    pretend(monkeypatch, RTX_3060, GTX_1080)
    there = with_driver("580.1", GTX_1080, RTX_3060)
    order = card_findings(there, {})[-1]
    assert order.values["logical_to_physical"] == {"0": 1, "1": 0}
    assert "PCI_BUS_ID" in str(order.cure)
    assert card_findings(there, {"CUDA_VISIBLE_DEVICES": "1,0"})[-1].cure is None  # as asked for
    assert card_findings(with_driver("580.1", RTX_3060, GTX_1080), {})[-1].cure is None


def test_a_device_that_is_not_here_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    finding, device = device_finding("cuda:3")
    assert (finding.state, device) == ("impossible", None)
    assert device_finding("auto")[1] == torch.device("cpu")


@pytest.mark.parametrize(
    ("held", "system", "state", "said", "cure"),
    [
        (100 * MIB, "Linux", "fine", "to plan with", None),
        (4 * GIB, "Linux", "limited", "the desktop and other programs held 4.00 GiB", "close other programs"),
        (100 * MIB, "Windows", "limited", "spills into system memory", "Sysmem Fallback Policy"),
    ],
)
def test_memory_that_others_hold(
    held: int, system: str, state: str, said: str, cure: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, RTX_3060)
    card = RTX_3060.__class__(**{**vars(RTX_3060), "used_bytes": held})
    finding = memory_finding(CUDA, with_driver("580.1", card), system)
    assert finding.state == state
    assert said in finding.line
    assert (cure is None and finding.cure is None) or (cure is not None and cure in str(finding.cure))
    assert finding.values["others_bytes"] == held


@pytest.mark.parametrize(
    ("error", "cure"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "close other programs"),
        (RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable\nmore"), "--compute-mode=DEFAULT"),
        (RuntimeError("CUDA error: unspecified launch failure"), "update the driver"),
    ],
)
def test_a_card_that_does_not_work(error: RuntimeError, cure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told in words, and not measured any further."""
    pretend(monkeypatch, RTX_3060)

    def fails(_: torch.device) -> tuple[int, int]:
        raise error

    monkeypatch.setattr(cards, "free_bytes", fails)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(machine, "calibration_finding", lambda *_: pytest.fail("measured"))
    findings = examine("cuda:0", Path.cwd(), driver=with_driver("580.1", RTX_3060), environment={})
    (finding,) = [each for each in findings if each.name == "card memory"]
    assert finding.state == "limited"
    assert cure in str(finding.cure)


def test_what_was_measured_before_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, RTX_3060)
    card = PUBLISHED["rtx-3060"].card(RTX_3060.name)
    save_calibration(card, tmp_path)
    finding = calibration_finding(CUDA, tmp_path)
    assert "measured before" in finding.line
    assert finding.values["context_bytes"] == card.context_bytes


def test_a_card_too_full_to_be_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, RTX_3060)

    def full(_: torch.device) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(cards, "calibrate", full)
    finding = calibration_finding(CUDA, tmp_path)
    assert finding.values == {}
    assert finding.state == "limited"
    assert "--calibrate" in str(finding.cure)
