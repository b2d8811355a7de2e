"""Which kernels of our own a training uses: where there are none, on a card where each is tried, and what is kept."""

import json
import os
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmark_programs import FOLDER
from faults.small_runs import MINIGAN, OUTSIDE
from frugan.contract.kernel import Call
from frugan.contract.ops import PLAIN, Ops
from frugan.doctor.cards import kernels_finding
from frugan.errors import BadInput
from frugan.files import Folders
from frugan.kernels import kernel as triton_kernel
from frugan.recipe.loading import load_recipe
from frugan.setup.ops import kernel, kernel_names, ops_of
from frugan.setup.recipe_setup import training_of
from frugan.stepmemory import calibration
from frugan.training import kernels
from frugan.training.kernels import kernels_beside, kernels_for, told, verdicts
from frugan.training.run import TrainingOptions
from frugan.training.training import train
from frugan.wording import GIB
from training.pictures import write_pictures, write_recipe

CPU = torch.device("cpu")
STYLEGAN2 = "stylegan2-digits-32"
STYLES = ("fir", "leaky_relu", "modulation", "styled_leaky_relu", "styles")
"""Kernels that StyleGAN2 has a use for."""


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the processor pass for a card with Triton, on which our own kernels are so many times as fast."""

    def pass_for(*, times_as_fast: float = 2.0) -> None:
        made_up = SimpleNamespace(kind="cuda", is_card=True, name="made-up card", has_bf16_units=False, free_bytes=0)
        monkeypatch.setattr(kernels, "accelerator_of", lambda _: made_up)
        monkeypatch.setattr(triton_kernel, "missing_triton", lambda _: None)
        monkeypatch.setattr(kernels, "_seconds", lambda call, tensors, ops, _: times_as_fast if ops is PLAIN else 1.0)
        monkeypatch.setattr(kernels, "_timed", lambda *_: kernels.SMALL)  # nothing is timed

    return pass_for


def chosen(words: str, said: list[str], name: str = STYLEGAN2) -> frozenset[str]:
    recipe = load_recipe(name, [words])
    return kernels_for(recipe, training_of(recipe), CPU, said.append)


def test_a_processor_has_none_and_nothing_is_said(said: list[str]) -> None:
    assert chosen("training.kernels=auto", said) == chosen("training.kernels=torch", said) == frozenset()
    assert not said
    with pytest.raises(BadInput, match=r"training\.kernels = triton: .* CUDA cards, .* cpu; .*training\.kernels=auto"):
        chosen("training.kernels=triton", said)


def test_without_triton_it_says_what_to_install(
    card: Callable[..., None], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    card()
    missing = "Triton, which is not installed: pip install"
    monkeypatch.setattr(triton_kernel, "missing_triton", lambda _: missing)
    assert chosen("training.kernels=auto", said) == frozenset()
    assert len(said) == 1
    assert missing in said[0]
    with pytest.raises(BadInput, match="pip install"):
        chosen("training.kernels=triton", said)


def test_a_card_needs_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frugan.kernels.kernel.find_spec", lambda _: None)
    assert "Triton" in (triton_kernel.missing_triton(torch.device("cuda", 0)) or "")


@pytest.mark.skipif(os.name == "nt", reason="there Triton brings its own")
def test_a_card_needs_a_c_compiler_and_pythons_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton starts its kernels by programs in C, which fails at the first one: too late for the plan."""
    monkeypatch.setattr("frugan.kernels.kernel.find_spec", lambda name: name)
    card = SimpleNamespace(capability=(8, 6))
    monkeypatch.setattr("frugan.kernels.kernel.accelerator_of", lambda _: card)
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "no-such-compiler" in (triton_kernel.missing_triton(torch.device("cuda", 0)) or "")
    monkeypatch.setenv("CC", sys.executable)  # any program that is there
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    assert "Python.h" in (triton_kernel.missing_triton(torch.device("cuda", 0)) or "")
    (tmp_path / "Python.h").touch()
    assert triton_kernel.missing_triton(torch.device("cuda", 0)) is None


def test_those_that_agree_and_are_faster_are_used_and_remembered(
    card: Callable[..., None], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    card()
    assert chosen("training.kernels=auto", said) == frozenset(STYLES)
    (line,) = said
    assert line.count("2.0 times as fast as torch's") == len(STYLES)
    assert line.endswith("off with training.kernels=torch")
    monkeypatch.setattr(kernels, "judged", lambda *_: pytest.fail("tried again"))
    assert chosen("training.kernels=auto", said) == frozenset(STYLES)
    assert kernels_finding(CPU, measures=False).values["kernels"]["leaky_relu"] == {
        "left_out": None,
        "times_as_fast": 2.0,
    }
    monkeypatch.setattr(kernels, "_key", lambda _: "another version of torch")
    assert verdicts(CPU, tries=False) == {}
    assert chosen("training.kernels=triton", said) == frozenset(kernel_names())  # asked for, it is not tried


def test_another_cards_verdicts_are_not_taken(
    card: Callable[..., None], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    card()
    assert chosen("training.kernels=auto", said) == frozenset(STYLES)
    card(times_as_fast=0.5)
    another = SimpleNamespace(kind="cuda", is_card=True, name="another card", has_bf16_units=False, free_bytes=0)
    monkeypatch.setattr(kernels, "accelerator_of", lambda _: another)
    assert verdicts(CPU, tries=False) == {}
    assert chosen("training.kernels=auto", said) == frozenset()
    card()
    assert set(verdicts(CPU, tries=False)) == {*STYLES}
    assert chosen("training.kernels=auto", said) == frozenset(STYLES)


def test_only_those_that_a_training_has_a_use_for_are_tried(
    card: Callable[..., None], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    card()
    judged, tried = kernels.judged, list[str]()
    monkeypatch.setattr(kernels, "judged", lambda name, device: tried.append(name) or judged(name, device))  # type: ignore[func-returns-value]
    assert chosen("training.kernels=auto", said, "r3gan-digits-32") == {"leaky_relu", "fir"}
    assert chosen("training.kernels=auto", said, "saehd-demo-64") == {"dssim"}
    assert chosen("training.kernels=auto", said, "biggan-digits-32") == {"batch_norm", "spectral_norm", "pooling"}
    assert tried == ["fir", "leaky_relu", "dssim", "batch_norm", "pooling", "spectral_norm"]
    assert set(verdicts(CPU, tries=False)) == {*tried}
    assert chosen("training.kernels=auto", said) == frozenset(STYLES)
    assert tried[6:] == ["modulation", "styled_leaky_relu", "styles"]


def test_another_rank_uses_what_the_first_has_chosen(
    card: Callable[..., None], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is faster there: by timings of their own, ranks and restarts would not round alike."""
    card(times_as_fast=0.5)
    recipe, first = load_recipe(STYLEGAN2, []), frozenset({"leaky_relu", "fir"})
    assert kernels_beside(first, recipe, CPU, said.append) == first
    assert kernels_beside(frozenset(), recipe, CPU, said.append) == frozenset()
    assert not said
    monkeypatch.setattr(kernel("fir"), "case", staticmethod(_wrong("fails")))
    monkeypatch.setattr(kernels, "_key", lambda _: "another card")
    assert kernels_beside(first, recipe, CPU, said.append) == {"leaky_relu"}
    assert "fir by torch, as frugan's own fails: RuntimeError" in said.pop()
    monkeypatch.setattr(triton_kernel, "missing_triton", lambda _: "no Triton")
    assert kernels_beside(first, recipe, CPU, said.append) == frozenset()
    assert said.pop() == "kernels: torch's own operations in place of the first rank's fir, leaky_relu; no Triton"
    with pytest.raises(BadInput, match="no Triton"):
        kernels_beside(first, load_recipe(STYLEGAN2, ["training.kernels=triton"]), CPU, said.append)


def test_families_without_layers_for_them_are_left_alone(card: Callable[..., None], said: list[str]) -> None:
    card()
    plain: Any = SimpleNamespace(build=lambda device: {"G": torch.nn.Linear(1, 1, device=device)})
    assert kernels_for(load_recipe(STYLEGAN2, []), plain, CPU, said.append) == frozenset()
    assert not said


@pytest.mark.parametrize(
    ("bytes_per_s", "free_bytes", "samples"),
    [(192e9, 80 * GIB, 4), (360e9, 4 * GIB, 4), (1008e9, 20 * GIB, 12), (3350e9, 75 * GIB, 36), (3350e9, 2 * GIB, 8)],
)
def test_larger_maps_are_timed_where_bytes_move_faster(
    bytes_per_s: float, free_bytes: int, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the smaller one a fast card is done before the host has started the next."""
    monkeypatch.setattr(kernels, "choose_card", lambda *_: SimpleNamespace(bytes_per_s=bytes_per_s))
    own = SimpleNamespace(kind="cuda", is_card=True, has_bf16_units=True, free_bytes=free_bytes)
    monkeypatch.setattr(kernels, "accelerator_of", lambda _: own)
    timed: list[torch.Size] = []

    def case(shape: tuple[int, ...], *_: Any) -> tuple[Callable[..., Tensor], list[Tensor]]:
        return (lambda x, ops: x * 2), [torch.ones(shape)]

    def seconds(call: Any, tensors: list[Tensor], *_: Any) -> float:
        timed.append(tensors[0].shape)
        return 1.0

    monkeypatch.setattr(kernels, "difference", lambda *_: None)
    monkeypatch.setattr(kernels, "_seconds", seconds)
    monkeypatch.setattr(kernel("leaky_relu"), "case", staticmethod(case))
    monkeypatch.setattr(kernel("leaky_relu"), "timed", (4, 1, 2, 2))
    assert kernels.judged("leaky_relu", CPU).times_as_fast == 1
    assert timed == [(samples, 1, 2, 2)] * 2


def test_a_kernel_that_is_faster_than_it_is_started_is_seen_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card that works while the host starts the next call: 100 µs of ours after 90 µs, or 110 after 60 of torch's."""
    now, busy_until = 0.0, 0.0
    ours = Ops()

    def call(x: Tensor, ops: Ops) -> Tensor:
        nonlocal now, busy_until
        host, card = (90, 100) if ops is ours else (60, 110)
        now += host
        busy_until = max(now, busy_until) + card
        return x * 2

    def synchronize() -> None:
        nonlocal now
        now = max(now, busy_until)

    monkeypatch.setattr(calibration, "accelerator_of", lambda _: SimpleNamespace(synchronize=synchronize))
    monkeypatch.setattr("time.perf_counter", lambda: now / 1e6)
    plain_seconds, kernel_seconds = (kernels._seconds(call, [torch.ones(2)], ops, CPU) for ops in (PLAIN, ours))
    assert 1.05 < plain_seconds / kernel_seconds < 1.1


def test_what_is_slower_is_left_out(card: Callable[..., None], said: list[str]) -> None:
    card(times_as_fast=0.5)
    assert chosen("training.kernels=auto", said) == frozenset()
    assert said[0].count("takes 2.0 times as long") == len(STYLES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", kernel_names())
def test_what_is_sound_is_told_from_what_differs(name: str, dtype: torch.dtype) -> None:
    """What stands in place of kernels rounds as they do; no value lies where rounding decides which slope it takes."""
    for shape in (kernels.SMALL, (5, 130, 6, 8)):
        for order in (torch.channels_last, torch.contiguous_format):
            call, tensors = kernel(name).case(shape, dtype, order, CPU)
            assert kernels.difference(call, tensors, ops_of([name])) is None


def _wrong(way: str) -> Callable[..., Any]:
    """A case whose kernel is at fault."""

    def call(x: Tensor, bias: Tensor, *, ops: Ops) -> Tensor:
        right = (x + bias.view(1, -1, 1, 1)).square()
        if ops is PLAIN:
            return right
        if way == "memory":
            raise torch.OutOfMemoryError("CUDA out of memory")
        if way == "fails":
            raise RuntimeError("no such instruction\nmore")
        if way == "result":
            return right * 1.1
        if way == "not a number":
            return right * float("nan")
        if way == "gradients":
            return right.detach() + 0 * right
        return right.detach() + (right - right.detach()) * (1 if x.grad_fn is None else 0)

    def case(
        shape: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format, device: torch.device
    ) -> tuple[Call, list[Tensor]]:
        some_map, some_bias = triton_kernel.some_map, triton_kernel.some_bias
        return call, [some_map(shape, dtype, layout, device), some_bias(shape[1], dtype, device)]

    return case


@pytest.mark.parametrize(
    ("way", "why"),
    [
        ("fails", "fails: RuntimeError: no such instruction"),
        ("result", "differs in its result"),
        ("not a number", "differs in its result"),
        ("gradients", "differs in its gradients"),
    ],
)
def test_what_is_wrong_is_left_out_and_why(
    way: str, why: str, card: Callable[..., None], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    card()
    monkeypatch.setattr(kernel("leaky_relu"), "case", staticmethod(_wrong(way)))
    assert chosen("training.kernels=auto", said) == {"styled_leaky_relu", "modulation", "styles", "fir"}
    assert why in said[0]
    assert "more" not in said[0]
    verdict = verdicts(CPU)["leaky_relu"]
    assert verdict.times_as_fast is None
    assert told("leaky_relu", verdict).startswith("leaky_relu by torch, as frugan's own ")


def test_where_memory_ran_out_they_are_tried_again(
    card: Callable[..., None], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    card()
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(kernel("leaky_relu"), "case", staticmethod(_wrong("memory")))
        assert "leaky_relu" not in chosen("training.kernels=auto", said)
    assert chosen("training.kernels=auto", said) == frozenset(STYLES)


def test_recorded_machine_code_is_of_the_kernels_as_they_are() -> None:
    code = json.loads((FOLDER / "results" / "own-kernels.json").read_text("utf-8"))["machine_code"]
    renewal = "python benchmarks/own_kernels.py --out benchmarks/results/own-kernels.json"
    assert code["written"] == kernels.digest(), f"the kernels have changed: {renewal}"
    targets = [code[target] for target in ("sm_75", "sm_86", "sm_90")]
    spilt_bytes = {case["spilt_bytes"] for target in targets for cases in target.values() for case in cases.values()}
    assert spilt_bytes == {0}


def test_a_run_gives_its_networks_those_that_were_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(OUTSIDE))
    write_pictures(tmp_path / "pictures", classes=())
    seen: set[Ops] = set()
    monkeypatch.setattr("frugan.training.beginning.kernels_for", lambda *_: frozenset({"fir"}))
    monkeypatch.setattr("frugan.engine.run.training.use_ops", lambda network, ops: seen.add(ops))
    recipe = write_recipe(tmp_path, MINIGAN.replace('"12 steps"', '"1 step"'))
    train(recipe, tmp_path / "pictures", tmp_path / "run", options=TrainingOptions(device="cpu"), say=lambda _: None)
    (ops,) = seen
    assert isinstance(ops, kernel("fir"))


def test_what_was_kept_and_is_damaged_is_tried_again(card: Callable[..., None], said: list[str]) -> None:
    card()
    assert chosen("training.kernels=auto", said) == frozenset(STYLES)
    file = Folders.from_environment().cache / kernels.FILE
    kept = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps({key: {name: {"speed": 1} for name in STYLES} for key in kept}), "utf-8")
    assert chosen("training.kernels=auto", said) == frozenset(STYLES)
    assert json.loads(file.read_text("utf-8")) == kept
