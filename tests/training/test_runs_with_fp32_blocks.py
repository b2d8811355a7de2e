"""Runs whose recipe keeps blocks in fp32: what they say, and how they go on."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from faults.small_runs import recipe_and_pictures
from frugan.engine.plan import Layout
from frugan.engine.state.fp32_blocks import marked
from frugan.engine.state.working_weights import prepared
from frugan.errors import BadInput
from frugan.setup.networks import Weights, networks_from
from frugan.training.run import TrainingOptions
from frugan.training.training import train

CPU = TrainingOptions(device="cpu")
KEPT = ["training.precision=bf16", 'training.fp32_blocks=["G.blocks.1", "D.blocks.0"]']


def steps(number: int) -> str:
    return f"training.duration={number} steps"


def tensors(run: Path) -> dict[str, torch.Tensor]:
    newest = sorted((run / "checkpoints").iterdir())[-1]
    return {f"{f.name}/{k}": v for f in sorted(newest.glob("*.safetensors")) for k, v in load_file(f).items()}


def test_runs_go_on_bit_for_bit_and_samples_are_drawn_with_the_same_blocks(tmp_path: Path, said: list[str]) -> None:
    recipe, pictures = recipe_and_pictures(tmp_path)
    for run, stops in (("whole", (2,)), ("resumed", (1, 2))):
        for stop in stops:
            train(recipe, pictures, tmp_path / run, options=CPU, overrides=[*KEPT, steps(stop)], say=said.append)
    whole, resumed = tensors(tmp_path / "whole"), tensors(tmp_path / "resumed")
    assert [key for key in whole if not torch.equal(whole[key], resumed[key])] == []
    assert "in fp32 while the rest computes in bf16: G.blocks.1, D.blocks.0 (training.fp32_blocks)" in said

    with pytest.raises(BadInput, match=r"training\.fp32_blocks"):
        train(recipe, pictures, tmp_path / "whole", options=CPU, overrides=[KEPT[0], steps(3)])

    generator = networks_from(Weights.open(tmp_path / "whole"))["G"]
    (block,) = marked(generator)
    assert block is generator.get_submodule("blocks.1.0")
    with prepared(generator, Layout(torch.bfloat16)):
        assert {p.dtype for p in block.parameters()} == {torch.float32}
        assert torch.bfloat16 in {p.dtype for p in generator.parameters()}


def test_in_fp32_a_line_says_that_nothing_changes(tmp_path: Path, said: list[str]) -> None:
    recipe, pictures = recipe_and_pictures(tmp_path)
    train(recipe, pictures, tmp_path / "plain", options=CPU, overrides=[steps(1)], say=said.append)
    assert not any("fp32_blocks" in line for line in said)
    words = ["training.precision=fp32", KEPT[1], steps(1)]
    train(recipe, pictures, tmp_path / "kept", options=CPU, overrides=words, say=said.append)
    assert "training.fp32_blocks changes nothing: everything computes in fp32" in said
    plain, kept = tensors(tmp_path / "plain"), tensors(tmp_path / "kept")
    assert [key for key in plain if not torch.equal(plain[key], kept[key])] == []
