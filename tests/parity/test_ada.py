"""ADA's operations and its controller against recordings of the original.

Measured, as the largest difference on pictures in [-1, 1]: 3.2e-6 with geometry, 6.5e-6 where contrast and saturation
follow it and enlarge that, 7e-7 for colour alone. With our side in float64 2.1e-6, 5.5e-6 and 1.2e-6: most of it is the
recordings' own rounding.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from frugan.augment.ada import Ada
from frugan.augment.augmentation import adapted
from frugan.augment.resampling import SYM6

FOLDER = Path(__file__).parents[1] / "golden" / "ada"
RECORDED = load_file(FOLDER / "pictures.safetensors")
LIMIT = 1e-5

SETS = {
    "blit": ("xflip", "rotate90", "xint"),
    "geom": ("scale", "rotate", "aniso", "xfrac"),
    "color": ("brightness", "contrast", "lumaflip", "hue", "saturation"),
}
SETS["bg"] = SETS["blit"] + SETS["geom"]
SETS["bgc"] = SETS["bg"] + SETS["color"]
GROUPS = {"blit": "blit", "geom": "geometry", "color": "colour"}
"""The original's names -> ours."""
ACTIVATIONS = {
    "xflip": (1,),
    "rotate90": (3,),
    "xint": (6,),
    "scale": (9,),
    "rotate": (10, 12),
    "aniso": (11,),
    "xfrac": (13,),
    "brightness": (16,),
    "contrast": (17,),
    "lumaflip": (18,),
    "hue": (19,),
    "saturation": (20,),
}
"""Operation -> columns of our uniform numbers that say whether it acts."""
SECOND_ROTATION = 8
DRAWN_UNIFORMS = (0, 1, 2, 3, 4, 5, 8, 12, 7, 9, 11, 13, 15, 20, 22, 17, 19, 21, 23, 25)
"""The original's draws in the order of our columns; draw 4 fills two."""
DRAWN_NORMALS = (6, 10, 14, 16, 18, 24)
CASES = sorted(name for name in RECORDED if name.count(".") == 3)  # a percentile has a point of its own


def at_percentile(operations: tuple[str, ...], percentile: float) -> tuple[Tensor, Tensor]:
    """Our draws by which these operations act, and no others, with the values that the original takes."""
    uniforms = torch.full((1, Ada.uniforms), percentile)
    uniforms[:, SECOND_ROTATION] = 0.5
    for operation, columns in ACTIVATIONS.items():
        uniforms[:, columns] = 0.0 if operation in operations else 1.0
    return uniforms, torch.erfinv(torch.tensor(2 * percentile - 1)).expand(1, Ada.normals)


def test_every_case_is_here() -> None:
    """12 operations at 4 percentiles; 6 of them on a grey picture; 5 sets, 3 times each."""
    assert len(CASES) == 12 * 4 + 6 + 5 * 3


@pytest.mark.parametrize("case", CASES)
def test_pictures(case: str) -> None:
    name, percentile, channels = case.replace(".p", " ").replace(".rgb", " rgb").replace(".gray", " gray").split()
    operations = SETS.get(name, (name,))
    groups = tuple(ours for theirs, ours in GROUPS.items() if set(operations) & set(SETS[theirs]))
    made = Ada(groups)(RECORDED[f"x_{channels}"], *at_percentile(operations, float(percentile)), torch.tensor(1.0))
    assert float((made[:, :, ::4] - RECORDED[case]).abs().max()) < LIMIT


def test_gradient() -> None:
    pictures = RECORDED["x_rgb"].clone().requires_grad_()
    made = Ada(tuple(GROUPS.values()))(pictures, *at_percentile(SETS["bgc"], 0.66), torch.tensor(1.0))
    (gradient,) = torch.autograd.grad((made * RECORDED["gradient.v"]).sum(), pictures)
    reference = RECORDED["gradient.dx"]
    assert float((gradient - reference).abs().max() / reference.abs().max()) < LIMIT


def test_a_random_run() -> None:
    recorded = {name.removeprefix("recorded."): value for name, value in RECORDED.items()}
    draws = {
        int(name[4:7]): value.flatten(1) if value.ndim > 1 else value[:, None]
        for name, value in recorded.items()
        if name.startswith("draw")
    }
    assert sorted((*DRAWN_UNIFORMS, *DRAWN_NORMALS)) == sorted(draws)
    uniforms, normals = (torch.cat([draws[i] for i in order], 1) for order in (DRAWN_UNIFORMS, DRAWN_NORMALS))
    made = Ada(tuple(GROUPS.values()))(recorded["x"], uniforms, normals, recorded["p"])
    assert float((made - recorded["y"]).abs().max()) < LIMIT


def test_filter() -> None:
    torch.testing.assert_close(torch.tensor(SYM6) / 2**0.5, RECORDED["filter"], rtol=0, atol=1e-7)


def test_controller() -> None:
    for run in json.loads((FOLDER / "controllers.json").read_text("utf-8")):
        probability = torch.tensor(run["p0"])
        images = run["batch"] * run["ada_interval"]
        for mean, after in zip(run["sign_means"], run["p_after"], strict=True):
            probability = adapted(probability, torch.tensor(mean), run["target"], images, run["ada_kimg"] * 1000)
            assert float(probability) == pytest.approx(after, abs=1e-7)
