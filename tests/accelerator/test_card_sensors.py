"""What a card's driver tells, by a made-up NVML; and the thread that asks it."""

import os
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from accelerator.made_up_nvml import MadeUpNvml, usual
from frugan.accelerator.base import Processor
from frugan.accelerator.cuda import Cuda
from frugan.accelerator.nvml import nvml_sensors
from frugan.accelerator.sensors import CardReading, CardWatch, NoSensors, mean_reading

OWN, OTHER = os.getpid(), 77


def sample(process: int, share: int, at: int) -> SimpleNamespace:
    return SimpleNamespace(pid=process, smUtil=share, timeStamp=at)


def test_a_reading_in_its_units() -> None:
    sensors = nvml_sensors("GPU-a", usual(OWN))
    assert sensors.read() == CardReading(
        busy=0.45,
        others_busy=0.0,
        others=0,
        used_bytes=6 << 30,
        temperature_c=71,
        power_w=285.4,
        clock_mhz=1410,
    )


def test_others_are_told_apart_from_this_process() -> None:
    library = usual(OWN, OTHER, 78)
    library.samples = [sample(OWN, 40, 1), sample(OTHER, 10, 2), sample(OTHER, 30, 3), sample(78, 5, 3)]
    sensors = nvml_sensors("GPU-a", library)
    reading = sensors.read()
    assert reading.others == 2
    assert reading.others_busy == pytest.approx(0.25)
    assert sensors.read().others_busy is None  # nothing newer, and they are there: unknown
    library.samples.append(sample(OTHER, 50, 4))
    assert sensors.read().others_busy == pytest.approx(0.5)  # the old samples count once


def test_in_a_container_nobody_knows_who_is_who() -> None:
    """Processes have other numbers there than the driver's: one's own would be taken for somebody else's."""
    library = usual(OTHER)
    library.samples = [sample(OTHER, 90, 1)]
    reading = nvml_sensors("GPU-a", library).read()
    assert (reading.busy, reading.others, reading.others_busy) == (0.45, None, None)


def test_what_a_card_does_not_say_is_left_out() -> None:
    library = MadeUpNvml(cards={"GPU-a": []})
    assert nvml_sensors("GPU-a", library).read() == CardReading()


def test_processes_on_all_cards() -> None:
    library = usual(OWN, OTHER)
    library.cards["GPU-b"] = [SimpleNamespace(pid=OTHER, usedGpuMemory=None)]
    held = [
        (each.card, each.number, each.process, each.size_bytes) for each in nvml_sensors("GPU-a", library).holders()
    ]
    assert held == [("GPU-a", 0, OWN, 1 << 30), ("GPU-a", 0, OTHER, 1 << 30), ("GPU-b", 1, OTHER, None)]


def test_why_a_card_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NoSensors, match=r"nvidia-ml-py is not installed: pip install 'frugan\[nvml\]'"):
        nvml_sensors("GPU-a")
    with pytest.raises(NoSensors, match="does not answer: Driver Not Loaded"):
        nvml_sensors("GPU-a", MadeUpNvml(refuses_to_begin=True))
    library = usual()
    with pytest.raises(NoSensors, match="does not know GPU-c: Not Found"):
        nvml_sensors("GPU-c", library)
    assert library.open == 0
    with pytest.raises(NoSensors, match="nothing tells of cpu"):
        Processor(torch.device("cpu")).sensors()


@pytest.mark.parametrize("uuid", ["a", "GPU-a"])
def test_a_card_is_found_with_and_without_its_kind(uuid: str) -> None:
    assert nvml_sensors(uuid, usual(OWN)).read().busy == 0.45


def test_a_part_of_a_card_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch names both kinds alike."""
    library = usual()
    library.cards["MIG-c"] = [SimpleNamespace(pid=OWN, usedGpuMemory=1 << 30)]
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="c"))
    sensors = Cuda(torch.device("cuda", 0)).sensors()
    assert sensors.read().others == 0
    assert library.open == 1


def test_the_package_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    library = usual(OWN)
    monkeypatch.setitem(sys.modules, "pynvml", library)
    sensors = nvml_sensors("GPU-a")
    assert library.open == 1
    sensors.close()
    assert library.open == 0


def test_a_thread_asks_until_the_end_and_means_are_taken_once() -> None:
    library = usual(OWN)
    watch = CardWatch(nvml_sensors("GPU-a", library), every_seconds=0.001)
    assert watch.taken() is None
    with watch:
        until = time.monotonic() + 5
        while (taken := watch.taken()) is None and time.monotonic() < until:
            time.sleep(0.005)
    assert taken is not None
    assert taken["samples"] >= 1
    assert taken["power_w"] == 285.4
    assert library.open == 0
    watch.taken()
    assert watch.taken() is None  # it has ended
    with CardWatch() as nothing:
        assert nothing.taken() is None


def test_means_leave_out_what_no_reading_holds() -> None:
    readings = [CardReading(busy=0.2, power_w=100), CardReading(busy=0.4), CardReading(busy=0.6, power_w=200)]
    assert mean_reading(readings) == {"samples": 3, "busy": 0.4, "power_w": 150}
