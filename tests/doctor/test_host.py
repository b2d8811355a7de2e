"""The computer beside the card, its limits and its packages."""

import errno
import os
import resource
import shutil
import sys
import time
import tomllib
from pathlib import Path

import pytest
import torch
from torch import distributed

from frugan.doctor.machine import (
    EXTRAS,
    environment_findings,
    extras_findings,
    host_memory_finding,
    limits_findings,
    ranks_finding,
    run_folder_finding,
    torch_finding,
)
from frugan.setup.devices import misspelt
from frugan.wording import GIB, MIB

ROOT = Path(__file__).parents[2]
FOR_WORK = ("dev", "docs", "kernels")  # for those who work on frugan


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("CUDA_VISIBLE_DEVICE", "CUDA_VISIBLE_DEVICES"),
        ("CUDA_VISABLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
        ("cuda_visible_devices", "CUDA_VISIBLE_DEVICES"),
        ("VISIBLE_CUDA_DEVICES", "CUDA_VISIBLE_DEVICES"),
        ("OMP_NUM_THREAD", "OMP_NUM_THREADS"),
        ("FRUGAN_RUN", "FRUGAN_RUNS"),
        ("CUDA_HOME", None),
        ("CUDA_DEVICE_MAX_CONNECTIONS", None),
        ("NCCL_IB_DISABLE", None),
        ("PATH", None),
    ],
)
def test_misspelt_variables(name: str, meant: str | None) -> None:
    assert misspelt({name: "1"}).get(name) == meant


def test_variables_that_are_read_are_shown_without_a_cards_number() -> None:
    (finding,) = environment_findings({"CUDA_VISIBLE_DEVICES": "GPU-11111111-aaaa", "FRUGAN_RUNS": "/home/someone"})
    assert finding.values == {"set": {"CUDA_VISIBLE_DEVICES": "GPU-…"}}
    assert environment_findings({"CUDA_LAUNCH_BLOCKING": "1"})[0].state == "limited"
    assert environment_findings({"CUDA_LAUNCH_BLOCKING": "0"})[0].state == "fine"


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_plans_do_not_know_how_torchs_allocator_is_set(name: str) -> None:
    (finding,) = environment_findings({name: "backend:cudaMallocAsync", "CUDA_LAUNCH_BLOCKING": "1"})
    assert finding.state == "limited"
    waits, planned = str(finding.cure).split("; ")
    assert waits.startswith("unset CUDA_LAUNCH_BLOCKING")
    assert planned.startswith(f"plans model torch's allocator as it is without {name}=backend:cudaMallocAsync")


def test_a_folder_is_written_to_and_left_as_it_was(tmp_path: Path) -> None:
    finding = run_folder_finding(tmp_path / "not" / "there", MIB)
    assert finding.state != "impossible"
    assert finding.values["bytes_per_s"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_folder_of_runs(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    for there in (tmp_path / "notes.txt", tmp_path / "notes.txt" / "runs"):
        finding = run_folder_finding(there, MIB)
        assert finding.state == "impossible"
        assert "notes.txt is a file" in finding.line


@pytest.mark.parametrize(
    ("error", "cure"), [(errno.EACCES, "choose another folder"), (errno.ENOSPC, "free some room, or choose")]
)
def test_a_folder_that_cannot_be_written(
    error: int, cure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "fsync", refused)
    finding = run_folder_finding(tmp_path, MIB)
    assert finding.state == "impossible"
    assert str(finding.cure).startswith(cure)


@pytest.mark.parametrize(
    ("speed", "free", "state", "cure"),
    [
        (500e6, 100 * GIB, "fine", None),
        (10e6, 100 * GIB, "limited", "322 s for 3 GiB"),
        (500e6, 5 * GIB, "limited", "several GiB each"),
        (500e6, 100 * MIB, "impossible", "free some room"),
    ],
)
def test_slow_and_full_disks(
    speed: float, free: int, state: str, cure: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter((0.0, MIB / speed))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": free}))
    finding = run_folder_finding(tmp_path, MIB)
    assert finding.state == state
    assert cure is None or cure in str(finding.cure)


def test_few_open_files_and_little_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 10240))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 64 * MIB}))
    files, shared = limits_findings(tmp_path)
    assert (files.state, files.cure) == ("limited", "ulimit -n 4096")
    assert (shared.state, shared.values["free_bytes"]) == ("limited", 64 * MIB)
    assert "--shm-size" in str(shared.cure)
    monkeypatch.setitem(sys.modules, "resource", None)  # Windows
    assert limits_findings(tmp_path / "missing") == []


def test_a_containers_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": 64 * GIB}.__getitem__)
    limit = tmp_path / "memory.max"
    limit.write_text("max\n")
    assert host_memory_finding(limit).values["total_bytes"] == 64 * GIB
    limit.write_text(f"{4 * GIB}\n")
    finding = host_memory_finding(limit)
    assert (finding.state, finding.cure) == ("limited", "allow the container more")
    assert finding.values["total_bytes"] == 4 * GIB


def test_extras_are_those_that_there_are() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    names = {
        extra: tuple(word.split(">")[0] for word in words) for extra, words in known.items() if extra not in FOR_WORK
    }
    assert {name: extra.packages for name, extra in EXTRAS.items()} == names


def test_an_extra_that_is_not_installed_is_told_with_its_command() -> None:
    findings = {
        each.name: each for each in extras_findings(lambda package: None if package == "onnxruntime" else "1.0")
    }
    assert findings["extra export"].cure == "if you want that: pip install 'frugan[export]'"
    assert "not installed: onnxruntime" in findings["extra export"].line
    assert findings["extra data"].cure is None


def test_several_cards_without_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "is_nccl_available", lambda: False)
    assert ranks_finding(1).state == "fine"
    assert ranks_finding(2).state == "limited"


@pytest.mark.parametrize(
    ("version", "state"), [("2.10.1+cu128", "impossible"), ("2.11.0", "fine"), ("3.0.0a0", "fine")]
)
def test_an_old_torch_is_refused(version: str, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert torch_finding().state == state
