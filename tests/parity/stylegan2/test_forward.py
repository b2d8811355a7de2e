"""Forwards of both networks, by the release's own state dicts."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from frugan.contract.family import GridRequest
from frugan.engine.plan import Layout
from frugan.engine.state.working_weights import prepared
from frugan.families.stylegan2.family import StyleGAN2Family
from parity.stylegan2.golden import CASES, Case, grouped, load

STYLES, PICTURES, OUTPUTS = 1e-5, 3e-5, 1e-5
HALF = 2e-2
"""The release's own fp16 differs from fp32 by up to 0.01."""

each_case = pytest.mark.parametrize("name", CASES)


def generated(
    case: Case, count: int, *, clamp: float | None = None, layout: Layout | None = None, **how: object
) -> Tensor:
    z, classes = case.io("z")[:count], case.classes(case.io("c")[:count])
    with prepared(case.build(clamp)["G"], layout) as generator, torch.no_grad():
        pictures: Tensor = generator(z, classes, **how)
    return pictures


def judged(case: Case, rows: Tensor, *, clamp: float | None = None, layout: Layout | None = None) -> Tensor:
    classes = case.classes(case.io("real_c"))
    with prepared(case.build(clamp)["D"], layout) as discriminator, torch.no_grad():
        outputs: Tensor = discriminator(case.pictures()[rows], None if classes is None else classes[rows])
    return outputs


def off(ours: Tensor, reference: Tensor) -> float:
    assert ours.shape == reference.shape
    return float((ours - reference).abs().max())


@each_case
@pytest.mark.parametrize(
    ("recording", "how"), [("ws", {}), ("ws_psi0.7", {"psi": 0.7}), ("ws_psi0.7_cut3", {"psi": 0.7, "cutoff": 3})]
)
def test_styles(name: str, recording: str, how: dict[str, float]) -> None:
    case = load(name)
    with prepared(case.build()["G"]) as generator, torch.no_grad():
        w = generator.mapping(case.io("z"), case.classes(case.io("c")))  # type: ignore[operator]
        ws = generator.broadcast(w, **how)  # type: ignore[operator]
    assert off(ws, case.io(recording)) <= STYLES


@each_case
@pytest.mark.parametrize(
    ("recording", "count", "how"),
    [
        ("img_unfused", 2, {}),
        ("img", 8, {}),
        ("img_psi0.7", 2, {"psi": 0.7}),
        ("img_nonoise", 2, {"noise": "none"}),
        ("img_clamp", 2, {"clamp": 0.7}),
    ],
)
def test_pictures(name: str, recording: str, count: int, how: dict[str, object]) -> None:
    case = load(name)
    assert off(generated(case, count, **how), case.io(recording)) <= PICTURES  # type: ignore[arg-type]


@each_case
def test_outputs(name: str) -> None:
    case = load(name)
    rows = grouped(8, case.settings["mbstd"])
    assert off(judged(case, rows), case.io("D_real")[rows]) <= OUTPUTS
    assert off(judged(case, torch.arange(4)), case.io("D_real_first4")) <= OUTPUTS
    assert off(judged(case, torch.arange(4), clamp=0.7), case.io("D_real_clamp")) <= OUTPUTS


@each_case
def test_outputs_on_generated_pictures(name: str) -> None:
    case = load(name)
    rows, classes = grouped(8, case.settings["mbstd"]), case.classes(case.io("c"))
    with prepared(case.build()["D"]) as discriminator, torch.no_grad():
        outputs = discriminator(case.io("img")[rows], None if classes is None else classes[rows])
    assert off(outputs, case.io("D_fake")[rows]) <= OUTPUTS


@pytest.mark.long
@each_case
def test_half_precision_in_the_highest_resolutions(name: str) -> None:
    """With the release's clamp of 256, and weights and styles scaled before."""
    case, layout = load(name), Layout(torch.float16)
    assert off(generated(case, 2, clamp=256, layout=layout), case.io("img_fp16")) <= HALF
    assert off(judged(case, torch.arange(4), clamp=256, layout=layout), case.io("D_real_fp16")) <= HALF
    assert off(generated(case, 2, clamp=256, layout=layout), case.io("img_unfused")) > PICTURES  # it was half


@each_case
def test_mixed_styles(name: str) -> None:
    """And the mean style, which the first latent moves and the second does not."""
    case = load(name)
    generator = case.build()["G"]
    classes = case.classes(case.io("c")[:4])
    before = generator.mapping.w_avg.clone()  # type: ignore[union-attr,operator]
    with prepared(generator), torch.no_grad():
        mapping: Callable[..., Tensor] = generator.mapping  # type: ignore[assignment]
        one, other = mapping(case.io("z")[:4], classes), mapping(case.io("mix_z2"), classes)
        cutoff = int(case.io("mix_cutoff"))
        ws = torch.cat([generator.broadcast(one)[:, :cutoff], generator.broadcast(other)[:, cutoff:]], 1)  # type: ignore[operator]
        assert off(ws, case.io("mix_ws")) <= STYLES
        assert off(generator.synthesis(ws), case.io("mix_img")) <= PICTURES  # type: ignore[operator]
    moved: Tensor = generator.mapping.committed("w_avg", one.mean(0))  # type: ignore[union-attr,operator]
    assert off(moved, case.io("mix_w_avg_after")) <= STYLES
    assert off(before, case.io("mix_w_avg_after")) > STYLES


@each_case
def test_the_wrong_orientation_is_noticed(name: str) -> None:
    """Upsampling weights are true convolutions: turned by half a turn, they make other pictures."""
    case = load(name)
    turned = dict(case.data)
    key = "G.synthesis.b8.conv0.weight"
    turned[key] = turned[key].flip((2, 3))
    assert off(generated(Case(name, case.settings, turned), 2), case.io("img_unfused")) > 100 * PICTURES


@each_case
@pytest.mark.parametrize(("recording", "psi"), [("img", 1.0), ("img_psi0.7", 0.7)])
def test_a_seed_gives_the_release_s_picture(name: str, recording: str, psi: float) -> None:
    """The first latent of the recordings is that of this seed."""
    case = load(name)
    seed = case.settings["seed"] + 10
    classes = case.classes(case.io("c"))
    request = GridRequest(seeds=(seed,), psi=psi, classes=None if classes is None else (int(classes[0]),))
    with prepared(case.build()["G"]) as generator:
        grid = StyleGAN2Family().sample(case.networks, {"G": generator}, request)
    assert off(grid[0], case.io(recording)[:1].clamp(-1, 1)) <= PICTURES
