"""What the 512-pixel face recipe needs, on tensors without data: the figure that the documentation gives."""

from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from contract.rig import FP16, Rig
from frugan.engine.state.optimizer_settings import AdaBeliefSettings, RMSpropSettings
from frugan.faces.saehd.family import SAEHDFamily
from frugan.planning.prediction import BlankPictures
from frugan.recipe.loading import load_recipe
from frugan.stepmemory.tracker import Tracker

GIB = 2**30


def _held(rig: Rig) -> list[torch.Tensor]:
    optimizer = rig.state.optimizers["autoencoder"]
    masters = [p for group in optimizer.param_groups for p in group["params"]]
    return [*masters, *(value for slots in optimizer.state.values() for value in slots.values())]


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "most_gib"), [(RMSpropSettings(), 4.2), (AdaBeliefSettings(), 5.1)], ids=["rmsprop", "adabelief"]
)
def test_512_pixels_batch_8_fit_with_half_precision_and_recompute(
    settings: RMSpropSettings | AdaBeliefSettings, most_gib: float
) -> None:
    recipe = load_recipe("saehd-df-ud-512").at_step(0)
    with FakeTensorMode(allow_non_fake_inputs=True):
        rig = Rig.create(
            SAEHDFamily(),
            networks=recipe.networks,
            objective=recipe.objective,
            batch=8,
            micro_batch=8,
            group=None,
            precision=FP16,
            recompute=True,
            optimizers=lambda _: settings,
        )
        rig.state.loss_scales["autoencoder"].found = True  # nothing is there to look at
        blank = BlankPictures(recipe.kind.sources(recipe.networks, recipe.objective))
        step = replace(rig.step, pictures=blank)
        step.run(rig.state, rig.plan)
        with Tracker({"parameters": _held(rig)}) as live:
            step.run(rig.state, rig.plan)
    assert 0.8 * most_gib < live.peak_bytes / GIB <= most_gib
