"""Named blocks compute in fp32 while the rest runs in half precision."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from contract.made_up import MadeUpFamily
from contract.rig import BF16, FP16, FP32, Rig, largest_difference
from frugan.accelerator.precision import Precision
from frugan.contract.family import Family
from frugan.engine.plan import Layout, Plan
from frugan.engine.state.fp32_blocks import marked, named_blocks
from frugan.engine.state.working_weights import prepared
from frugan.errors import BadInput
from frugan.families import families
from frugan.families.biggan.config import BigGANNetworks
from frugan.planning.prediction import step_memory
from frugan.planning.recipe_predictions import subject
from frugan.recipe.loading import load_recipe
from frugan.setup.recipe_setup import build_networks, training_of

NO_SAVERS: dict[str, Any] = {}
FAMILIES = {family.name: family for family in (MadeUpFamily(), *families().values())}
SMALL = "biggan-small-32"


def some_blocks(family: Family) -> dict[str, tuple[str, ...]]:
    """The first block of each network."""
    return {n: b[:1] for n, b in family.recomputable(family.build(family.tiny()[0], "meta")).items() if b}


def marked_blocks(rig: Rig) -> list[nn.Module]:
    return [block for network in rig.state.networks.values() for block in marked(network)]


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *((name, BF16) for name in FAMILIES),
        *(pytest.param(name, FP16, marks=[] if name == "made-up" else pytest.mark.long) for name in FAMILIES),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_blocks_compute_in_fp32_and_give_half(name: str, precision: Precision) -> None:
    family = FAMILIES[name]
    rig = Rig.create(family, precision=precision, fp32_blocks=some_blocks(family))
    assert marked_blocks(rig)
    seen: list[tuple[set[torch.dtype], torch.dtype]] = []

    def look(block: nn.Module, _: object, made: Any) -> None:
        seen.append(({p.dtype for p in block.parameters()}, first_of(made).dtype))

    for block in marked_blocks(rig):
        block.register_forward_hook(look)
    (results,) = rig.run(1)
    assert {(tuple(weights), output) for weights, output in seen} == {((torch.float32,), precision.dtype)}
    assert precision == FP16 or all(bool(result.accepted) for result in results)  # fp16 has to find its scale first
    assert not any("forward" in block.__dict__ for block in marked_blocks(rig))  # all is put back


@pytest.mark.parametrize("name", FAMILIES)
def test_numbers_inside_a_block_are_those_of_fp32(name: str) -> None:
    """Of what a block is given in half precision it makes what fp32 makes of the same numbers, rounded at its end."""
    family = FAMILIES[name]
    chosen = some_blocks(family)
    rig = Rig.create(family, precision=BF16, fp32_blocks=chosen)
    given: dict[nn.Module, tuple[Any, ...]] = {}
    for block in marked_blocks(rig):
        block.register_forward_pre_hook(lambda block, args: given.setdefault(block, args) and None)
    rig.run(1)
    assert given
    for network, (first,) in chosen.items():
        whole = rig.state.networks[network]
        block = whole.get_submodule(first)
        if block not in given:
            continue
        made = {}
        for dtype in (torch.float32, torch.bfloat16):
            args = [a.to(dtype) if isinstance(a, Tensor) and a.dtype == torch.bfloat16 else a for a in given[block]]
            with torch.no_grad(), prepared(whole, Layout(dtype)):
                made[dtype] = first_of(block(*args))
        assert made[torch.bfloat16].dtype == torch.bfloat16
        # Weights lie in the same order in both, so that kernels add up alike.
        assert torch.equal(made[torch.bfloat16], made[torch.float32].bfloat16())


def first_of(made: Any) -> Tensor:
    return torch.as_tensor(made[0] if isinstance(made, tuple) else made)


@pytest.mark.parametrize(
    ("name", "savers"),
    [
        ("biggan", {"recompute": True}),
        ("biggan", {"recompute": True, "offload": True}),
        ("stylegan2", {"recompute": True}),
        ("made-up", {"recompute": True, "keep_products": True}),
    ],
    ids=["recompute", "offload", "stylegan2", "products"],
)
def test_savers_change_nothing(name: str, savers: dict[str, Any]) -> None:
    family = FAMILIES[name]
    rigs = [Rig.create(family, precision=BF16, fp32_blocks=some_blocks(family), **each) for each in (NO_SAVERS, savers)]
    for rig in rigs:
        rig.run(1)
    difference, where = largest_difference(*(rig.tensors() for rig in rigs))
    assert difference == 0, where


def test_recompute_keeps_what_a_block_is_given_in_half_precision() -> None:
    """The casts are inside of what is made again."""
    family = FAMILIES["biggan"]
    rig = Rig.create(family, precision=BF16, fp32_blocks=some_blocks(family), recompute=True)
    given: list[torch.dtype] = []
    for block in marked_blocks(rig):
        block.register_forward_pre_hook(lambda _, args: given.append(args[0].dtype))
    rig.run(1)
    assert set(given) <= {torch.bfloat16, torch.float32}
    assert torch.bfloat16 in given


def test_in_fp32_nothing_changes() -> None:
    family = FAMILIES["biggan"]
    rigs = [Rig.create(family, fp32_blocks=blocks) for blocks in ({}, some_blocks(family))]
    for rig in rigs:
        rig.run(1)
    assert largest_difference(*(rig.tensors() for rig in rigs))[0] == 0


def test_a_layer_before_the_first_block_stays_in_half_precision() -> None:
    """BigGAN-deep's discriminator begins with a convolution that belongs to no block."""
    family = FAMILIES["biggan"]
    networks = BigGANNetworks.model_validate({**family.tiny()[0].model_dump(), "architecture": "biggan-deep"})
    rig = Rig.create(family, networks=networks, precision=BF16, fp32_blocks={"D": ("blocks.0.0",)})
    (results,) = rig.run(1)
    assert all(bool(result.accepted) for result in results)


def test_blocks_that_are_fp32_by_themselves_stay_as_they_are() -> None:
    recipe = load_recipe("stylegan2-digits-32", ["networks.half_resolutions=1", 'training.fp32_blocks=["G", "D"]'])
    networks = build_networks(recipe, "meta")
    names = {name for name, module in networks["G"].named_modules() if module in marked(networks["G"])}
    assert names == {"synthesis.b32"}


def test_names() -> None:
    blocks = {"G": ("blocks.1.0", "blocks.1.1", "blocks.10.0"), "D": ("b4",)}
    assert named_blocks(["D.b4", "G.blocks.1"], blocks) == {"G": ("blocks.1.0", "blocks.1.1"), "D": ("b4",)}
    with pytest.raises(ValueError, match=r"G\.block\.10\.0: no such block \(did you mean G\.blocks\.10\.0\?\)"):
        named_blocks(["G.block.10.0"], blocks)
    with pytest.raises(ValueError, match=r"did you mean G\.blocks\.1\?"):
        named_blocks(["G.block.1"], blocks)
    with pytest.raises(ValueError, match="these networks have no blocks"):
        named_blocks(["G.x"], {})
    with pytest.raises(BadInput, match=r"did you mean G\.blocks\.1\.0\?.*the blocks are G\.blocks\.0\.0, "):
        load_recipe(SMALL, ['training.fp32_blocks=["G.block.1.0"]'])
    with pytest.raises(BadInput, match=r"must be a list, such as training\.fp32_blocks=\[D\] \(got 'D'\)"):
        load_recipe(SMALL, ["training.fp32_blocks=D"])


def test_they_belong_to_what_is_predicted_and_an_empty_list_does_not() -> None:
    plain, kept = load_recipe(SMALL), load_recipe(SMALL, ['training.fp32_blocks=["D.blocks.0"]'])
    assert "fp32_blocks" not in subject(plain)
    assert subject(kept) == subject(plain) | {"fp32_blocks": {"D": ["blocks.0.0"]}}


def test_a_prediction_counts_them() -> None:
    """Blocks in fp32 take more than in bf16, and less than everything in fp32."""
    words = 'training.fp32_blocks=["G", "D"]'
    peaks = []
    for overrides, precision in (([], BF16), ([words], BF16), ([words], FP32)):
        training = training_of(load_recipe(SMALL, overrides))
        plan = Plan(training.micro_batch, precision)
        peaks.append(step_memory(training, plan, "cpu", training.stages[0]).peak.size_bytes)
    assert peaks[0] < peaks[1] < peaks[2]
