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

from frugan.augment.ada import BAND_TAPS, Ada
from frugan.augment.augmentation import adapted
from frugan.augment.resampling import SYM6

FOLDER = Path(__file__).parents[1] / "golden" / "ada"
RECORDED = load_file(FOLDER / "pictures.safetensors")
CORRUPTED = load_file(FOLDER / "corruptions.safetensors")
LIMIT = 1e-5

SETS = {
    "blit": ("xflip", "rotate90", "xint"),
    "geom": ("scale", "rotate", "aniso", "xfrac"),
    "color": ("brightness", "contrast", "lumaflip", "hue", "saturation"),
}
SETS["bg"] = SETS["blit"] + SETS["geom"]
SETS["bgc"] = SETS["bg"] + SETS["color"]
SETS["bgcf"] = (*SETS["bgc"], "imgfilter")
SETS["bgcfnc"] = (*SETS["bgcf"], "noise", "cutout")
GROUPS = {
    "blit": SETS["blit"],
    "geometry": SETS["geom"],
    "colour": SETS["color"],
    "filter": ("imgfilter",),
    "noise": ("noise",),
    "cutout": ("cutout",),
}
"""Our operations -> the original's."""
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
    "imgfilter": (21, 22, 23, 24),
    "noise": (25,),
    "cutout": (28,),
}
"""Operation -> columns of our uniform numbers that say whether it acts."""
SECOND_ROTATION = 8
STRENGTH_OF_NOISE = 11
"""Column of our normal numbers of which the absolute value counts."""
DRAWN_UNIFORMS = (0, 1, 2, 3, 4, 5, 8, 12, 7, 9, 11, 13, 15, 20, 22, 17, 19, 21, 23, 25)
"""The original's draws in the order of our columns; draw 4 fills two."""
DRAWN_NORMALS = (6, 10, 14, 16, 18, 24)
MORE_UNIFORMS = (27, 29, 31, 33, 35, 38, 37)
MORE_NORMALS = (26, 28, 30, 32, 34)
"""The same of filter, noise and cutout."""
DRAWN_NOISE = 36
PICTURES = {
    name: value
    for name, value in {**RECORDED, **CORRUPTED}.items()
    if name.count(".") == 3  # a percentile has a point of its own
}
CASES = sorted(PICTURES)


def at_percentile(operations: tuple[str, ...], percentile: float) -> tuple[Tensor, Tensor]:
    """Our draws by which these operations act, and no others, with the values that the original takes."""
    uniforms = torch.full((1, Ada.uniforms), percentile)
    uniforms[:, SECOND_ROTATION] = 0.5
    for operation, columns in ACTIVATIONS.items():
        uniforms[:, columns] = 0.0 if operation in operations else 1.0
    normals = torch.erfinv(torch.tensor(2 * percentile - 1)).repeat(1, Ada.normals)
    normals[:, STRENGTH_OF_NOISE] = torch.erfinv(torch.tensor(percentile))
    return uniforms, normals


def test_every_case_is_here() -> None:
    """15 operations at 4 percentiles; 6 of them on a grey picture; 7 sets, 3 times each."""
    assert len(CASES) == 15 * 4 + 6 + 7 * 3


@pytest.mark.parametrize("case", CASES)
def test_pictures(case: str) -> None:
    name, percentile, channels = case.replace(".p", " ").replace(".rgb", " rgb").replace(".gray", " gray").split()
    operations = SETS.get(name, (name,))
    groups = tuple(ours for ours, theirs in GROUPS.items() if set(operations) & set(theirs))
    draws = at_percentile(operations, float(percentile))
    noise = CORRUPTED[f"noise_{channels}"]
    made = Ada(groups)(RECORDED[f"x_{channels}"], *draws, torch.tensor(1.0), noise)
    assert float((made[:, :, ::4] - PICTURES[case]).abs().max()) < LIMIT


def test_gradient() -> None:
    pictures = RECORDED["x_rgb"].clone().requires_grad_()
    made = Ada(("blit", "geometry", "colour"))(pictures, *at_percentile(SETS["bgc"], 0.66), torch.tensor(1.0))
    (gradient,) = torch.autograd.grad((made * RECORDED["gradient.v"]).sum(), pictures)
    reference = RECORDED["gradient.dx"]
    assert float((gradient - reference).abs().max() / reference.abs().max()) < LIMIT


def drawn(recorded: dict[str, Tensor]) -> dict[int, Tensor]:
    """The original's draws by number, [N, n] each."""
    return {
        int(name.removeprefix("recorded.draw")[:3]): value.flatten(1) if value.ndim > 1 else value[:, None]
        for name, value in recorded.items()
        if name.startswith("recorded.draw")
    }


def test_a_random_run() -> None:
    draws = drawn(RECORDED)
    assert sorted((*DRAWN_UNIFORMS, *DRAWN_NORMALS)) == sorted(draws)
    uniforms, normals = (torch.cat([draws[i] for i in order], 1) for order in (DRAWN_UNIFORMS, DRAWN_NORMALS))
    uniforms, normals = (
        torch.nn.functional.pad(numbers, (0, count - numbers.shape[1]))
        for numbers, count in ((uniforms, Ada.uniforms), (normals, Ada.normals))
    )
    made = Ada(("blit", "geometry", "colour"))(RECORDED["recorded.x"], uniforms, normals, RECORDED["recorded.p"])
    assert float((made - RECORDED["recorded.y"]).abs().max()) < LIMIT


def test_a_random_run_of_everything() -> None:
    draws = drawn(CORRUPTED)
    orders = ((*DRAWN_UNIFORMS, *MORE_UNIFORMS), (*DRAWN_NORMALS, *MORE_NORMALS))
    assert sorted((*orders[0], *orders[1], DRAWN_NOISE)) == sorted(draws)
    uniforms, normals = (torch.cat([draws[i] for i in order], 1) for order in orders)
    x = CORRUPTED["recorded.x"]
    made = Ada(tuple(GROUPS))(x, uniforms, normals, CORRUPTED["recorded.p"], draws[DRAWN_NOISE].view_as(x))
    assert float((made[:, :, ::4] - CORRUPTED["recorded.y"]).abs().max()) < LIMIT


def test_filter() -> None:
    torch.testing.assert_close(torch.tensor(SYM6) / 2**0.5, RECORDED["filter"], rtol=0, atol=1e-7)


def test_bands() -> None:
    torch.testing.assert_close(torch.tensor(BAND_TAPS), CORRUPTED["bank"], rtol=0, atol=1e-7)


def test_controller() -> None:
    for run in json.loads((FOLDER / "controllers.json").read_text("utf-8")):
        probability = torch.tensor(run["p0"])
        images = run["batch"] * run["ada_interval"]
        for mean, after in zip(run["sign_means"], run["p_after"], strict=True):
            probability = adapted(probability, torch.tensor(mean), run["target"], images, run["ada_kimg"] * 1000)
            assert float(probability) == pytest.approx(after, abs=1e-7)
