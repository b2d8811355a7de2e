"""SAEHD's phases: which networks rest, what pretraining sets aside, and that sides in sequence change nothing."""

from typing import Any

import pytest
import torch

from contract.rig import Rig, adabelief, largest_difference
from frugan.contract.phase import Phase
from frugan.errors import BadInput
from frugan.faces.saehd.config import SAEHDNetworks, SAEHDObjective
from frugan.faces.saehd.family import SAEHDFamily
from frugan.recipe.loading import load_recipe, recipe_fields

FAMILY = SAEHDFamily()


def _networks(**changes: Any) -> SAEHDNetworks:
    return FAMILY.tiny()[0].model_copy(update=changes)


def _phases(networks: SAEHDNetworks, **objective: Any) -> dict[str, Phase]:
    return {phase.name: phase for phase in FAMILY.phases(networks, SAEHDObjective(**objective))}


@pytest.mark.parametrize(
    ("archi", "recompute"),
    [
        ("df-ud", False),
        pytest.param("liae-udt", True, marks=pytest.mark.long),
        pytest.param("df-ud", True, marks=pytest.mark.long),
        pytest.param("liae-udt", False, marks=pytest.mark.long),
    ],
)
def test_sides_in_sequence_change_nothing(archi: str, recompute: bool) -> None:
    """Each term is there, and every way to run them ends at the same weights; AdaBelief, with dropout."""
    objective = SAEHDObjective(eyes_mouth_prio=True, gan_power=0.1, blur_out_mask=True)
    networks = _networks(archi=archi)
    rigs = [
        Rig.create(
            FAMILY,
            networks=networks,
            objective=objective,
            batch=2,
            group=None,
            dtype=torch.float64,
            recompute=recompute,
            parts_in_sequence=in_sequence,
            optimizers=adabelief,
            learning_rate=1e-3,
        )
        for in_sequence in (True, False)
    ]
    for rig in rigs:
        assert len(rig.phases[0].parts) == 2
        rig.run(2)
    difference, where = largest_difference(rigs[0].tensors(), rigs[1].tensors())
    assert difference < 1e-5, where


def test_styles_couple_the_sides() -> None:
    assert len(_phases(_networks())["autoencoder"].parts) == 2
    assert len(_phases(_networks(), face_style_power=1)["autoencoder"].parts) == 1
    assert len(_phases(_networks(), bg_style_power=1)["autoencoder"].parts) == 1


def test_liae_rests_its_shared_code_without_random_warp() -> None:
    liae = _networks(archi="liae-ud")
    assert _phases(liae)["autoencoder"].frozen == ()
    assert _phases(liae, random_warp=False)["autoencoder"].frozen == ("inter_AB",)
    assert _phases(liae, pretrain=True)["autoencoder"].frozen == ("inter_AB",)
    assert _phases(_networks(), random_warp=False)["autoencoder"].frozen == ()
    assert "inter_AB" in _phases(liae, random_warp=False)["autoencoder"].updates  # its optimizer state stays


def test_pretraining_sets_aside_what_the_original_does() -> None:
    every = {"gan_power": 0.1, "face_style_power": 1, "bg_style_power": 1, "true_face_power": 0.01, "ct_mode": "rct"}
    phases = _phases(_networks(), pretrain=True, random_hsv_power=0.1, **every)
    assert list(phases) == ["autoencoder"]  # no discriminator learns ...
    assert "code_discriminator" in phases["autoencoder"].uses  # ... but the true-face term stays
    assert not phases["autoencoder"].learning_rate_dropout
    sources = FAMILY.sources(_networks(), SAEHDObjective(pretrain=True, random_hsv_power=0.1, **every))
    for needs in sources.values():
        assert (needs.samples.random_warp, needs.samples.random_flip, needs.uniform_yaw) == (False, True, True)
        assert (needs.samples.hsv_power, needs.samples.colour_transfer, needs.colours_of) == (0.0, "none", None)


def test_colours_go_from_destination_to_source() -> None:
    sources = FAMILY.sources(_networks(), SAEHDObjective(ct_mode="lct", random_hsv_power=0.1))
    colours = {name: (of.samples.colour_transfer, of.colours_of, of.samples.hsv_power) for name, of in sources.items()}
    assert colours == {"src": ("lct", "dst", 0.1), "dst": ("none", None, 0.0)}


@pytest.mark.parametrize("archi", ["df", "df-c", "df-t", "df-utdc", "liae", "liae-tc", "liae-udtc", "df-d"])
def test_every_letter_makes_faces_of_the_resolution(archi: str) -> None:
    networks = _networks(archi=archi)
    built = FAMILY.build(networks)
    forwards = FAMILY.forwards(networks)
    with torch.no_grad():
        for name in built:
            made = forwards[name](built[name], 2)
            if name.startswith("decoder"):
                assert isinstance(made, tuple)
                assert [t.shape for t in made] == [(2, 3, 64, 64), (2, 1, 64, 64)]


ASKED_AT_EACH_START = (
    *("saving.backup_every", "training.duration", "training.batch", "networks.gan_patch_size", "networks.gan_dims"),
    *(f"optimizers.default.{name}" for name in ("dropout", "period", "clip_norm")),
    *(f"objective.{name}" for name in SAEHDObjective.model_fields),
)
"""Fields for the options that the original asks for at each start; another kind of optimizer may always be taken."""


def test_what_the_original_asks_for_at_each_start_may_change() -> None:
    fields = {field.key: field.changeable for field in recipe_fields(load_recipe("saehd-df-ud-256"))}
    assert [key for key in ASKED_AT_EACH_START if not fields[key]] == []


@pytest.mark.parametrize("resolution", [33, 65, 100])
def test_a_resolution_that_no_patch_divides_is_answered_with_the_nearest(resolution: int) -> None:
    with pytest.raises(BadInput, match=rf"resolution {resolution}: df-ud is defined for multiples of 32"):
        load_recipe("saehd-demo-64", [f"networks.resolution={resolution}"])
