"""What a plan is predicted to take is what the simulated card gives out and reserves, by the rules of its allocator."""

import gc
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from contract.made_up import MadeUpFamily
from contract.rig import BF16, FP16, FP32
from frugan.accelerator.precision import Precision
from frugan.contract.family import Family
from frugan.contract.ops import PLAIN
from frugan.engine.plan import Plan
from frugan.engine.run.training import Stage, Training
from frugan.engine.state.fp32_blocks import keep_in_fp32
from frugan.engine.state.optimizer_settings import AdaBeliefSettings, OptimizerSettings, RMSpropSettings, SGDSettings
from frugan.engine.state.working_weights import prepared_together
from frugan.engine.streams import Streams
from frugan.families import families
from frugan.planning.prediction import BlankPictures, predict, step_memory
from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe
from frugan.recipes import built_in
from frugan.setup.ops import kernel_names, ops_of
from frugan.setup.recipe_setup import training_of
from frugan.stepmemory.allocator import rounded
from frugan.stepmemory.measurement import STEPS
from frugan.wording import MIB
from limits import Limit
from planning.tasks import plan_of, task

Cards = Callable[..., Any]
CARD = torch.device("privateuseone", 0)  # torch's name of the first simulated card until it is registered
FAMILIES = [MadeUpFamily(), *families().values()]
SAVINGS: Mapping[str, Mapping[str, Any]] = {
    "nothing": {},
    "recompute": {"keeping": "blocks"},
    "products": {"keeping": "products"},
    "offload": {"keeping": "nothing here"},
    "offload, one ahead": {"keeping": "one ahead"},
    "slices": {"slices": True},
}


class Given(NamedTuple):
    """What a card gave out in as many steps as a plan looks at, each with its grids."""

    live_bytes: int  # most that was asked for at once
    filter_bytes: int  # what averaged networks keep of filters from one grid to the next
    taken_bytes: int  # most that blocks for it had, which are larger where too little is left over to be another block
    reserved_bytes: int  # most that was reserved
    pinned_bytes: int  # on the host, for offload


def given_out(of: Training, stage: Stage, plan: Plan, memory: Any) -> Given:
    """Run steps, and their grids, on a card."""
    built = dict(of.build("cpu"))
    for network in built.values():
        network.to(CARD)
    state = of.state(plan, CARD, networks=built, stage=stage)
    for scale in state.loss_scales.values():
        scale.found = True  # what is predicted is a step that is not repeated
    pictures = BlankPictures(stage.sources)
    step = of.step(pictures, Streams(0), stage=stage)
    del built
    gc.collect()
    memory.give_back()
    memory.reset_peaks()
    for _ in range(STEPS):
        step.run(state, plan, count_zeros=True)
        if of.make_grids is not None and not (plan.ema_on_host and state.ema.networks):
            with torch.no_grad(), prepared_together(state.shown, plan.layout(CARD)):
                of.make_grids(state.shown, plan.micro_batch, pictures)
        state.step = 0  # phases that are due now and then are, in each
    memory.settle()
    allocator = memory.allocator
    averaged: list[Any] = list(state.ema.networks.values())
    kept = [module.kernels for network in averaged for module in network.modules() if "kernels" in vars(module)]
    return Given(
        memory.peak_live_bytes,
        sum(rounded(kernel.nbytes) for kernels in kept for kernel in kernels._kernels.values()),
        allocator.peak_taken_bytes,
        allocator.peak_reserved_bytes,
        step.probe.host_copies()._blocks.total_bytes,
    )


def cases() -> list[Any]:
    short = {("made-up", "nothing", True), ("made-up", "offload, one ahead", True), ("biggan", "nothing", False)}
    return [
        pytest.param(
            family,
            saving,
            on_host,
            id=f"{family.name}-{saving}{'-on-host' if on_host else ''}",
            marks=[] if (family.name, saving, on_host) in short else pytest.mark.long,
        )
        for family in FAMILIES
        for saving in SAVINGS
        for on_host in (False, True)
        if saving != "products" or family.name in ("made-up", "biggan")  # others' blocks work in place
    ]


def assert_predicted(of: Training, plan: Plan, cards: Cards) -> None:
    stage = of.stages[0]
    prediction = predict(of, plan, "card", stage)
    given = given_out(of, stage, plan, cards().memory[0])
    assert (prediction.live_bytes, prediction.unlimited_bytes) == (given.taken_bytes, given.reserved_bytes)
    if not (plan.ema_on_host or plan.optimizer_on_host):
        assert prediction.host_bytes == given.pinned_bytes
    assert bool(given.pinned_bytes) == plan.offload


@pytest.mark.parametrize(("family", "saving", "on_host"), cases())
def test_a_peak_is_the_predicted_one_to_the_byte(
    family: Family, saving: str, on_host: bool, cards: Cards, limit: Limit
) -> None:
    limit("bytes sent to the host", 1)
    of = task(family)
    for micro_batch in sorted({of.group, of.batch}):
        plan = plan_of(of, micro_batch, BF16, **SAVINGS[saving])
        plan = replace(plan, ema_on_host=on_host, optimizer_on_host=on_host)
        assert_predicted(of, plan, cards)


@pytest.mark.parametrize(
    "name", ["stylegan2", "biggan", *(pytest.param(each, marks=pytest.mark.long) for each in ("saehd", "r3gan"))]
)
def test_a_peak_by_operations_of_our_own_is_the_predicted_one(name: str, cards: Cards) -> None:
    of = replace(task(families()[name]), ops=ops_of(kernel_names()))
    plan = plan_of(of, of.group, BF16)
    assert_predicted(of, plan, cards)
    found, without = (predict(each, plan, "card", of.stages[0]) for each in (of, replace(of, ops=PLAIN)))
    assert found.live_bytes <= without.live_bytes
    assert found.work.operations < without.work.operations


@pytest.mark.long
@pytest.mark.parametrize("precision", [FP32, FP16], ids=lambda precision: precision.name)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_peak_is_the_predicted_one_in_other_precisions(
    family: Family, precision: Precision, cards: Cards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan is for a card whose convolutions in fp32 are not the faster in channels-last, as the processor's are."""
    monkeypatch.setattr("simcard.card.SimulatedCard.fp32_channels_last", False)
    of = task(family)
    assert_predicted(of, plan_of(of, of.group, precision), cards)


@pytest.mark.parametrize("saving", [pytest.param("nothing", marks=pytest.mark.long), "recompute"])
@pytest.mark.parametrize(
    "family",
    [pytest.param(f, marks=[] if f.name == "made-up" else pytest.mark.long) for f in FAMILIES],
    ids=lambda family: family.name,
)
def test_a_peak_is_the_predicted_one_with_blocks_in_fp32(family: Family, saving: str, cards: Cards) -> None:
    of = task(family)

    def build(device: str) -> dict[str, nn.Module]:
        networks = of.build(device)
        keep_in_fp32(networks, {name: blocks[:1] for name, blocks in of.recomputable(networks).items()})
        return networks

    kept = replace(of, build=build)
    plan = plan_of(kept, of.group, BF16, **SAVINGS[saving])
    assert_predicted(kept, plan, cards)
    assert predict(kept, plan, "card", of.stages[0]) != predict(of, plan, "card", of.stages[0])


@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [
        RMSpropSettings(learning_rate=1e-4, dropout=0.5),
        AdaBeliefSettings(learning_rate=1e-4, dropout=0.5),
        SGDSettings(learning_rate=1e-4),
        SGDSettings(learning_rate=1e-4, momentum=0),
    ],
)
@pytest.mark.parametrize("on_host", [False, True])
def test_a_peak_is_the_predicted_one_of_other_optimizers(
    settings: OptimizerSettings, on_host: bool, cards: Cards
) -> None:
    of = task(MadeUpFamily(), settings=settings)
    assert_predicted(of, replace(plan_of(of, of.group, BF16), optimizer_on_host=on_host), cards)


LEFT_OVER_BYTES = 2 * MIB
"""Of blocks that are not divided."""
SMALL: Mapping[str, Mapping[str, int]] = {
    "biggan": {"classes": 3, "generator_channels": 4, "discriminator_channels": 8, "latent_size": 16},
    "r3gan": {"latent_size": 16},
    "stylegan2": {"latent_size": 16, "style_size": 16, "mapping_layers": 2, "channel_max": 8},
    "saehd": {"ae_dims": 32, "e_dims": 16, "d_dims": 16, "d_mask_dims": 16, "gan_dims": 4, "resolution": 64},
}
"""Family -> fields of a recipe's networks that make a step one of seconds, and leave every layer where it is."""
AWAY: Mapping[str, Mapping[str, Any]] = {
    "averages": {"ema_on_host": True},
    "optimizer": {"optimizer_on_host": True},
    "recompute-averages": {"ema_on_host": True},
    "all": {"ema_on_host": True, "optimizer_on_host": True},
}
SAVERS: Mapping[str, Mapping[str, Any]] = {
    **SAVINGS,
    "micro-batch": {},
    "averages": {},
    "optimizer": {},
    "recompute-averages": {"keeping": "blocks"},
    "all": {"keeping": "nothing here", "slices": True},
}
"""Those of one card, one by one and together; with what `AWAY` says."""
IN_MICRO_BATCHES = {"micro-batch", "recompute-averages", "all"}


def small_relative(name: str) -> Recipe:
    """A shipped recipe in little: its layers, losses, optimizers and stages, with few channels and samples."""
    recipe = load_recipe(name)
    fields: dict[str, object] = {f"networks.{key}": value for key, value in SMALL[recipe.family].items()}
    networks = recipe.networks.model_dump()
    if networks.get("shared_embedding"):
        fields["networks.shared_embedding"] = 8
    if "channel_base" in networks:
        fields["networks.channel_base"] = max(networks["resolution"], 128)
    if "widths" in networks:
        stages = len(networks["widths"])
        fields |= {"networks.widths": [16] * stages, "networks.groups": [4] * stages}
    group = 2 if recipe.training.normalisation_batch else 1
    fields |= {"training.batch": 3 * group, "training.normalisation_batch": group if group > 1 else "none"}
    return load_recipe(name, [f"{key}={value}" for key, value in fields.items()])


def can_keep_products(name: str) -> bool:
    """Whether no block works in place, and none is differentiated twice."""
    recipe = load_recipe(name)
    return recipe.family == "biggan" and not recipe.objective.model_dump()["r1_gamma"]


def recipe_cases() -> list[Any]:
    """Every recipe with all savings at once; one recipe of each family also with each by itself, and with none."""
    short = {("stylegan2-digits-32", "all")}
    first = {load_recipe(name).family: name for name in reversed(built_in())}.values()
    return [
        pytest.param(name, saver, id=f"{name}-{saver}", marks=[] if (name, saver) in short else pytest.mark.long)
        for name in built_in()
        for saver in SAVERS
        if (name in first or saver == "all") and (saver != "products" or can_keep_products(name))
    ]


@pytest.mark.parametrize(("name", "saver"), recipe_cases())
def test_a_shipped_recipes_peak_is_the_predicted_one_to_the_byte(
    name: str, saver: str, cards: Cards, limit: Limit
) -> None:
    """Of its small relative, in every stage.

    A plan does not count what the averaged networks' filters take, 512 bytes each, once a grid has been drawn. And
    which blocks have something left over depends on where all that lived before the step came to lie.
    """
    limit("bytes sent to the host", 1)
    of = training_of(small_relative(name))
    plan = plan_of(of, of.group if saver in IN_MICRO_BATCHES else of.batch, BF16, **SAVERS[saver])
    plan = replace(plan, **AWAY.get(saver, {}))
    for stage in of.distinct_stages:
        given = given_out(of, stage, plan, cards().memory[0])
        predicted = step_memory(of, plan, "card", stage)
        assert given.live_bytes - predicted.peak.size_bytes in {0, given.filter_bytes}
        assert abs(predicted.on_card.taken_bytes - given.taken_bytes) <= LEFT_OVER_BYTES
