"""AMP's phases and pictures: what never moves, what is drawn anew, and which faces previews hold."""

from dataclasses import replace

import pytest
import torch

from contract.rig import Rig, adabelief
from frugan.contract.family import GridRequest
from frugan.errors import BadInput
from frugan.faces.amp.config import AMPObjective
from frugan.faces.amp.family import COLUMNS, MORPHS, AMPFamily
from frugan.faces.amp.networks import INTERS
from frugan.faces.amp.phases import CHANNELS
from frugan.recipe.loading import load_recipe

FAMILY = AMPFamily()


def trained(objective: AMPObjective) -> Rig:
    rig = Rig.create(
        FAMILY, objective=objective, batch=2, group=None, dtype=torch.float32, optimizers=adabelief, learning_rate=1e-3
    )
    rig.run(2)
    return rig


@pytest.mark.parametrize("trains", [False, True])
def test_inter_networks_move_and_have_statistics_only_where_they_are_trained(trains: bool) -> None:
    """Memory of statistics follows from what a phase updates."""
    fresh = Rig.create(FAMILY, batch=2, group=None, dtype=torch.float32, optimizers=adabelief, learning_rate=1e-3)
    rig = trained(AMPObjective(train_inters=trains))
    weights = {key: value for key, value in fresh.tensors().items() if key.startswith(INTERS)}
    assert len(weights) == 4
    assert all(torch.equal(rig.tensors()[key], value) != trains for key, value in weights.items())
    assert rig.phases[0].updates == (("encoder", *INTERS, "decoder") if trains else ("encoder", "decoder"))


def test_each_phase_draws_channels_of_its_own() -> None:
    networks, objective = FAMILY.tiny()
    phases = FAMILY.phases(networks, objective)
    assert [phase.name for phase in phases] == ["autoencoder", "patch_discriminator"]
    for phase in phases:
        assert phase.draws[CHANNELS].shape == (networks.inter_dims,)
        assert phase.sources == ("src", "dst")


def faces(rows: int) -> dict[str, dict[str, torch.Tensor]]:
    random = torch.Generator().manual_seed(2)
    return {
        side: {"target": torch.rand(rows, 3, 64, 64, generator=random), "mask": torch.ones(rows, 1, 64, 64)}
        for side in ("src", "dst")
    }


def preview(request: GridRequest) -> torch.Tensor:
    networks, _ = FAMILY.tiny()
    built = FAMILY.build(networks)
    FAMILY.initialise(networks, built, lambda name: sum(name.encode()))
    return FAMILY.sample(networks, built, replace(request, pictures=faces(3)))


def test_a_preview_goes_from_the_destination_to_the_source() -> None:
    request = FAMILY.snapshots(FAMILY.tiny()[0])["preview"]
    assert request.titles == (*COLUMNS, "25%", "50%", "65%", "75%", "100%")
    assert request.morphs == MORPHS
    grid = preview(request.with_morphs((0.0, 0.5, 1.0)))
    assert grid.shape == (3, 7, 3, 64, 64)
    assert torch.equal(grid[:, 4], grid[:, 3])  # at 0 the swap is the destination's reconstruction
    assert not torch.equal(grid[:, 5], grid[:, 4])
    assert torch.equal(grid[:, 0], faces(3)["src"]["target"].flip(1) * 2 - 1)


def test_a_preview_is_the_same_in_any_micro_batch() -> None:
    request = FAMILY.snapshots(FAMILY.tiny()[0])["preview-masked"]
    whole, single = preview(replace(request, micro_batch=3)), preview(replace(request, micro_batch=1))
    torch.testing.assert_close(whole, single, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("networks.resolution=240", "AMP is defined for multiples of 32 from 64 to 640; the nearest is 256"),
        ("networks.e_dims=33", "e_dims 33: expected an even number; the nearest is 34"),
        ("networks.gan_patch_size=640", "which does not divide 224 pixels"),
        ("objective.morph_factor=0.6", "morph_factor"),
        ("networks.face_type=h", "face_type"),
    ],
)
def test_what_the_original_does_not_build_is_refused(override: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        load_recipe("amp-224", [override])


def test_options_of_the_original_are_words() -> None:
    assert FAMILY.foreign_option("morph_factor", "0.33") == ["objective.morph_factor=0.33"]
    assert FAMILY.foreign_option("inter_dims", "512") == ["networks.inter_dims=512"]
    assert FAMILY.foreign_option("clipgrad", "y") == ["optimizers.default.clip_norm=1.0"]
    assert FAMILY.foreign_option("adabelief", "n") is None
