"""Frozen layers of StyleGAN2's discriminator: nothing else changes, and what they took is saved."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from contract.rig import BF16, FP32, Rig, largest_difference
from frugan.accelerator.precision import Precision
from frugan.engine.state.optimizer_settings import named_parameters
from frugan.errors import BadInput
from frugan.families.stylegan2.family import StyleGAN2Family
from frugan.planning.step_memory import measure_step
from frugan.recipe.loading import load_recipe
from frugan.stepmemory.measurement import StepMemory

FAMILY = StyleGAN2Family()
NETWORKS = FAMILY.tiny()[0].model_copy(update={"resolution": 16})
FROZEN = NETWORKS.model_copy(update={"frozen_discriminator_layers": 5})
LAYERS = ("D.b16.fromrgb.", "D.b16.conv0.", "D.b16.conv1.", "D.b16.skip.", "D.b8.conv0.")


@pytest.mark.parametrize(
    ("precision", "recompute"),
    [
        pytest.param(FP32, False, marks=pytest.mark.long),
        (BF16, True),
        pytest.param(FP32, True, marks=pytest.mark.long),
        pytest.param(BF16, False, marks=pytest.mark.long),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_what_is_not_frozen_gets_the_same_gradients(precision: Precision, recompute: bool) -> None:
    free, frozen = (
        Rig.create(FAMILY, networks=networks, precision=precision, recompute=recompute, micro_batch=4)
        for networks in (NETWORKS, FROZEN)
    )
    before = {k: v.detach().clone() for k, v in frozen.state.networks["D"].state_dict().items()}
    for mine, other in zip(free.run(1)[0], frozen.run(1)[0], strict=True):
        if mine.phase == "D_r1":  # after the first update, in which frozen layers fell behind
            continue
        norms = dict(zip(mine.gradients.names, mine.gradients.norms.tolist(), strict=True))
        others = dict(zip(other.gradients.names, other.gradients.norms.tolist(), strict=True))
        assert norms.keys() - others.keys() == {key for key in norms if key.startswith(LAYERS)}
        assert others.keys() <= norms.keys()
        assert others == pytest.approx({key: norms[key] for key in others}, rel=1e-5)
        assert all(torch.equal(mine.terms[name], other.terms[name]) for name in mine.terms)
    after = frozen.state.networks["D"].state_dict()
    stays = {f"D.{key}" for key in before if torch.equal(before[key], after[key])}
    assert {key for key in stays if "resample" not in key} == {
        f"D.{key}" for key, p in frozen.state.networks["D"].named_parameters() if not p.requires_grad
    }


@pytest.mark.long
def test_batches_in_parts_are_the_same_training() -> None:
    whole, parts = (
        Rig.create(FAMILY, networks=FROZEN, dtype=torch.float64, micro_batch=micro_batch) for micro_batch in (8, 4)
    )
    whole.run(2)
    parts.run(2)
    one, other = (
        {k: p.detach() for k, p in named_parameters(rig.state.networks, ["G", "D"]).items()} for rig in (whole, parts)
    )
    difference, where = largest_difference(one, other)
    assert difference < 1e-5, where


def _measured(frozen: int) -> StepMemory:
    networks = NETWORKS.model_copy(update={"frozen_discriminator_layers": frozen})
    with FakeTensorMode(allow_non_fake_inputs=True):
        rig = Rig.create(FAMILY, networks=networks)
        rig.run(2)  # in the next step every phase is due
        return measure_step(rig.step, rig.state, rig.plan, FAMILY.recomputable(rig.state.networks))


@pytest.mark.long
def test_the_planner_knows_what_they_save() -> None:
    free, frozen = _measured(0), _measured(7)
    built = FAMILY.build(NETWORKS.model_copy(update={"frozen_discriminator_layers": 7}))
    trained = sum(p.numel() for p in named_parameters(built, list(built)).values())
    every = sum(p.numel() for network in built.values() for p in network.parameters())
    assert frozen.static["parameters"] == free.static["parameters"]
    # two statistics of each number that is not trained, in whole blocks of memory
    assert free.static["optimizer"] - frozen.static["optimizer"] >= 2 * 4 * (every - trained) > 0
    for phase in ("D", "D_r1"):
        assert frozen.by_phase[phase].size_bytes < free.by_phase[phase].size_bytes
    assert frozen.by_phase["D"].size_bytes < 0.9 * free.by_phase["D"].size_bytes


@pytest.mark.parametrize(
    ("architecture", "first"),
    [
        ("resnet", ["b16.fromrgb", "b16.conv0", "b16.conv1", "b16.skip", "b8.conv0"]),
        ("orig", ["b16.fromrgb", "b16.conv0", "b16.conv1", "b8.conv0", "b8.conv1"]),
        ("skip", ["b16.fromrgb", "b16.conv0", "b16.conv1", "b8.fromrgb", "b8.conv0"]),
    ],
)
def test_layers_are_counted_from_the_picture_on(architecture: str, first: list[str]) -> None:
    config = FROZEN.model_copy(update={"discriminator_architecture": architecture})
    judge = FAMILY.build(config)["D"]
    assert {name.rpartition(".")[0] for name, p in judge.named_parameters() if not p.requires_grad} == set(first)


def test_more_layers_than_there_are() -> None:
    words = ["networks.resolution=8", "networks.frozen_discriminator_layers=5"]
    with pytest.raises(BadInput, match=r"frozen_discriminator_layers 5: its blocks have 4"):
        load_recipe("stylegan2-digits-32", words)


def test_recipes_freeze_the_three_highest_blocks() -> None:
    for resolution in (256, 512, 1024):
        recipe = load_recipe(f"stylegan2-finetune-{resolution}")
        judge = recipe.kind.build(recipe.networks, "meta")["D"]
        sides = {name.partition(".")[0] for name, p in judge.named_parameters() if not p.requires_grad}
        assert sides == {f"b{resolution >> n}" for n in range(3)}
        left = [name for name, p in judge.named_parameters() if name.partition(".")[0] in sides and p.requires_grad]
        assert not left
