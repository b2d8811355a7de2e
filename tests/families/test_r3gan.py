"""R3GAN: a step by any split of its batch, the penalties and their cheaper forms, schedules, bad input."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from contract.rig import Rig, largest_difference
from frugan.accelerator.precision import resolve_precision
from frugan.augment.augmentation import OPERATIONS, AugmentationSettings
from frugan.contract.family import GridRequest
from frugan.contract.layers import penalised
from frugan.contract.phase import MicroBatch, PhaseState
from frugan.engine.plan import Layout, Plan
from frugan.engine.state.working_weights import lay_out_masters, prepared
from frugan.errors import BadInput
from frugan.families.biggan.config import BigGANObjective
from frugan.families.biggan.family import BigGANFamily
from frugan.families.r3gan.config import R3GANNetworks, R3GANObjective, propose_gamma
from frugan.families.r3gan.family import R3GANFamily
from frugan.families.r3gan.phases import phases
from frugan.families.stylegan2.config import StyleGAN2Objective
from frugan.families.stylegan2.family import StyleGAN2Family
from frugan.objectives import r1_by_differences, r1_penalty, relativistic
from frugan.recipe.loading import load_recipe, parse_recipe
from frugan.sampling.generation import pixels
from frugan.setup.recipe_setup import training_of
from parity.float64 import InFloat64

FAMILY = R3GANFamily()
TINY, _ = FAMILY.tiny()
LABELS = torch.tensor([2, 0, 1, 2])
SHARP = 1e-10
"""In float64, between two ways of the same step."""

AUGMENTATION = AugmentationSettings(
    method="ada", operations=OPERATIONS["ada"], probability=0.7, target=None, colour_share=0.5
)
CHEAP: Mapping[str, Mapping[str, Any]] = {
    "exact": {},
    "augmented": {"augmentation": AUGMENTATION},
    "by differences": {"penalty": "finite-difference", "augmentation": AUGMENTATION},
    "every 2 steps": {"penalty_every": 2},
}


def stepped(objective: R3GANObjective, dtype: torch.dtype, **plan: Any) -> dict[str, Tensor]:
    """What a step of four pictures has moved, with W3 and biases away from the zeros that they begin with."""
    rig = Rig.create(FAMILY, objective=objective, batch=4, group=None, dtype=dtype, **plan)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for network in rig.state.networks.values():
            for each in network.parameters():
                each.add_(0.1 * torch.randn(each.shape, generator=random))
    rig.run(1)
    return rig.tensors()


@pytest.mark.parametrize("name", CHEAP)
def test_a_step_does_not_depend_on_micro_batches_or_recomputation(name: str) -> None:
    objective = R3GANObjective(gamma=1.0, **CHEAP[name])
    with InFloat64():
        whole = stepped(objective, torch.float64)
        for plan in ({"micro_batch": 1}, {"micro_batch": 2, "recompute": True}):
            difference, where = largest_difference(whole, stepped(objective, torch.float64, **plan))
            assert difference < SHARP, (plan, where)


@pytest.mark.long
def test_nor_does_it_in_single_precision() -> None:
    objective = R3GANObjective(gamma=1.0)
    whole = stepped(objective, torch.float32)
    for plan in ({"micro_batch": 1}, {"micro_batch": 2}, {"recompute": True}):
        difference, where = largest_difference(whole, stepped(objective, torch.float32, **plan))
        assert difference < 1e-5, (plan, where)


def test_weights_of_micro_batches_that_are_wrong_would_be_noticed() -> None:
    whole = stepped(R3GANObjective(gamma=1.0), torch.float64)
    other = stepped(R3GANObjective(gamma=1.001), torch.float64)
    assert largest_difference(whole, other)[0] > 1e3 * SHARP


class Mixed(TorchDispatchMode):
    """Operations that were given two maps of 8 pixels and more in different orders."""

    def __init__(self) -> None:
        super().__init__()
        self.names = list[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        maps = [x for x in args if isinstance(x, Tensor) and x.ndim == 4 and x.shape[1] > 1 and x.shape[2] >= 8]
        if len({x.is_contiguous() for x in maps}) > 1:
            self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_maps_and_gradients_are_in_the_order_of_the_weights() -> None:
    """In fp32 on a processor: 1x1 weights do not say which that is."""
    networks = FAMILY.build(R3GANNetworks(resolution=16, widths=(8, 8, 8), groups=(2, 2, 2), blocks=(1, 1, 1)))
    for network in networks.values():
        lay_out_masters(network, Layout(channels_last=True))
    with Mixed() as mixed, penalised(networks.values()):
        pictures = networks["G"](torch.randn(2, 64))
        r1_penalty(networks["D"](pictures), pictures, torch.ones(())).sum().backward()
    assert mixed.names == []


# What the phases see.


def micro_batch(draws: Mapping[str, Tensor] | None = None) -> MicroBatch:
    random = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, (4, 3, 16, 16), generator=random, dtype=torch.uint8)
    z = torch.randn(4, TINY.latent_size, generator=random)
    return MicroBatch({"images": {"pictures": pictures, "labels": LABELS}}, {"z": z, **(draws or {})}, 4)


def terms_of(objective: R3GANObjective, name: str, micro: MicroBatch, course: float = 0.0) -> dict[str, Tensor]:
    networks = FAMILY.build(TINY)
    FAMILY.initialise(TINY, networks, lambda _: 3)
    phase = next(phase for phase in phases(TINY, objective) if phase.name == name)
    with prepared(networks["G"]), prepared(networks["D"]):
        (part,) = phase.parts
        return part(networks, micro, PhaseState({}, torch.ones(()), course))


def test_the_generated_picture_of_a_pair_has_the_real_one_s_class() -> None:
    """Terms by hand."""
    micro, networks = micro_batch(), FAMILY.build(TINY)
    FAMILY.initialise(TINY, networks, lambda _: 3)
    with prepared(networks["G"]) as g, prepared(networks["D"]) as d:
        pictures = micro.pictures["images"]["pictures"] / 127.5 - 1
        with torch.no_grad():
            fake = g(micro.draws["z"], LABELS)
        both = [each.requires_grad_() for each in (pictures, fake)]
        outputs = [d(each, LABELS) for each in both]
        penalties = [r1_penalty(o, p, torch.ones(())).mean() for o, p in zip(outputs, both, strict=True)]
    ours = terms_of(R3GANObjective(gamma=3.0), "D", micro)
    torch.testing.assert_close(ours["relativistic"], relativistic(*outputs))
    torch.testing.assert_close(ours["r1"], 3 * penalties[0])
    torch.testing.assert_close(ours["r2"], 3 * penalties[1])
    torch.testing.assert_close(
        terms_of(R3GANObjective(gamma=3.0), "G", micro)["adversarial"], relativistic(outputs[1], outputs[0])
    )
    assert float(relativistic(*outputs).detach()) != float(relativistic(outputs[1], outputs[0]).detach())


def test_each_phase_has_real_pictures_of_its_own() -> None:
    rig = Rig.create(FAMILY)
    streams: list[str] = []
    own = rig.step.pictures

    class Noted:
        def take(self, source: str, stream: str, position: int, count: int) -> Mapping[str, Tensor]:
            streams.append(stream)
            return own.take(source, stream, position, count)

    rig.step = replace(rig.step, pictures=Noted())
    rig.run(1)
    assert streams == ["images/D", "images/G"]


def test_gamma_and_probability_follow_the_course() -> None:
    micro, objective = micro_batch(), R3GANObjective(gamma=2.0, final_gamma=0.2)
    first, half, last = (float(terms_of(objective, "D", micro, course)["r1"].detach()) for course in (0.0, 0.5, 1.0))
    assert half == pytest.approx(first * 1.1 / 2)
    assert last == pytest.approx(first / 10)
    assert "r1" not in terms_of(R3GANObjective(penalty_every=4), "D", micro)
    every = next(phase for phase in phases(TINY, R3GANObjective(penalty_every=4)) if phase.name == "D_penalty")
    assert (every.every, every.gain) == (4, 4)


# Penalties without a second backward.


def all_directions() -> Tensor:
    """As many noises [768, 3, 16, 16] as they have numbers, orthogonal, of deviation 1: a mean over them is exact."""
    signs = torch.ones(1, 1)
    for _ in range(8):
        signs = torch.cat([torch.cat([signs, signs], 1), torch.cat([signs, -signs], 1)])  # [256, 256] at last
    colours = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)))[0] * 3**0.5
    return torch.kron(colours.contiguous(), signs).view(768, 3, 16, 16)


def bent() -> dict[str, torch.nn.Module]:
    """Networks that are not the linear ones that they begin as."""
    networks = FAMILY.build(TINY)
    FAMILY.initialise(TINY, networks, lambda _: 3)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for network in networks.values():
            for each in network.parameters():
                each.add_(0.2 * torch.randn(each.shape, generator=random))
    return networks


@pytest.mark.parametrize(("deviation", "least", "most"), [(0.001, 0, 0.01), (0.01, 0, 0.05), (1.0, 0.1, 1)])
def test_a_penalty_by_differences(deviation: float, least: float, most: float) -> None:
    """Its error against the exact penalty at one picture, in the mean over all noises."""
    picture = micro_batch().pictures["images"]["pictures"][:1] / 127.5 - 1
    with prepared(bent()["D"]) as d:
        exact = r1_penalty(d(picture.requires_grad_(), LABELS[:1]), picture, torch.ones(()))
        with torch.no_grad():
            noisy = d(picture + deviation * all_directions(), LABELS[:1].expand(768))
            estimates = r1_by_differences(d(picture, LABELS[:1]), noisy, deviation)
    error = abs(float(estimates.mean()) / float(exact.detach()) - 1)
    assert least <= error < most, error


def test_penalties_of_a_phase_by_differences() -> None:
    """By hand: each picture has its own noise, and the pictures that are compared are those without."""
    noise = torch.randn(4, 2, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    micro, networks = micro_batch({"noise": noise}), FAMILY.build(TINY)
    FAMILY.initialise(TINY, networks, lambda _: 3)
    ours = terms_of(R3GANObjective(gamma=3.0, penalty="finite-difference", penalty_noise=0.1), "D", micro)
    with prepared(networks["G"]) as g, prepared(networks["D"]) as d, torch.no_grad():
        real = micro.pictures["images"]["pictures"] / 127.5 - 1
        for name, pictures, own in (("r1", real, noise[:, 0]), ("r2", g(micro.draws["z"], LABELS), noise[:, 1])):
            change = (d(pictures + 0.1 * own, LABELS) - d(pictures, LABELS)) / 0.1
            torch.testing.assert_close(ours[name].detach(), 3 * change.square().mean() / 2)


def test_penalties_by_differences_need_no_second_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("a gradient was taken inside a part")

    monkeypatch.setattr(torch.autograd, "grad", refused)
    objective = R3GANObjective(penalty="finite-difference")
    assert "r1" in terms_of(objective, "D", micro_batch({"noise": torch.ones(4, 2, 3, 16, 16)}))
    with pytest.raises(AssertionError, match="inside a part"):
        terms_of(R3GANObjective(), "D", micro_batch())


@pytest.mark.parametrize(
    ("family", "objective"),
    [
        (BigGANFamily(), lambda: BigGANObjective(r2_gamma=2.0)),
        (BigGANFamily(), lambda: BigGANObjective(loss="relativistic", r1_gamma=1.0, r2_gamma=2.0, r1_every=1)),
        (StyleGAN2Family(), lambda: StyleGAN2Objective(r2_gamma=2.0, r1_every=1)),
    ],
    ids=["biggan", "biggan-paired", "stylegan2"],
)
def test_other_families_have_r2(family: Any, objective: Callable[[], Any]) -> None:
    """Of generated pictures, in the phase of R1; the generator gets no gradient of it."""
    rig = Rig.create(family, objective=objective())
    (results,) = rig.run(1)
    result = next(result for result in results if result.phase == "D_r1")
    asked = {name for name in ("r1", "r2") if getattr(objective(), f"{name}_gamma")}
    assert set(result.terms) == asked
    assert all(float(result.terms[name].sum()) > 0 for name in asked)
    assert {name.split(".")[0] for name in result.gradients.names} == {"D"}


# Grids.


def test_grids_without_classes() -> None:
    networks = TINY.model_copy(update={"classes": None})
    built = FAMILY.build(networks)
    FAMILY.initialise(networks, built, lambda _: 3)
    assert FAMILY.sample(networks, built, GridRequest(rows=2, columns=3)).shape == (2, 3, 3, 16, 16)
    assert FAMILY.sample(networks, built, GridRequest(rows=2, columns=3, interpolate="latent")).shape[:2] == (2, 3)
    for wrong in (GridRequest(psi=0.5), GridRequest(classes=(1,)), GridRequest(interpolate="class")):
        with pytest.raises(BadInput):
            FAMILY.sample(networks, built, wrong)


# Bad input.


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["networks.resolution=64"], "widths has 4 numbers; 64 pixels have 5 stages"),
        (["networks.resolution=48"], "resolution 48: expected 8, 16, 32"),
        (["networks.groups=[96,96,96,100]"], "groups 100 at 32 pixels: do not divide the 1536 widened channels"),
        (["networks.groups=[96,96,96,100]"], "expected such as 96 or 128"),
        (["networks.groups=[96,96,96,9999]"], "expected such as 1536"),
        (["networks.discriminator_groups=[5,96,96,96]"], "discriminator_groups 5 at 4 pixels"),
        (["networks.blocks=[2,2,2,0]"], "blocks 0: expected 1 to 64"),
        (["objective.gamma=0"], "objective.gamma: must be greater than 0"),
        (["objective.final_gamma=-1"], "objective.final_gamma: must be greater than 0"),
        (["training.burn_in=3h"], "expected steps or images"),
        (["training.burn_in=1.5"], "a share of the duration: above 0, at most 1"),
        (["training.burn_in=0.5", "training.duration=3h"], "training.burn_in in steps or images, such as"),
        (["training.burn_in=none", "training.duration=endless"], "final_"),
        (["objective.augmentation.target=0.6"], "final_probability 0.55: goes with"),
        (["ema.schedule=constant", "ema.half_life_images=none"], "final_half_life_images goes with"),
        (["ema.final_half_life_images=none"], "half_life_images 0: averages nothing"),
    ],
)
def test_bad_recipes_say_what_is_wrong(words: list[str], said: str) -> None:
    with pytest.raises(BadInput) as refused:
        load_recipe("r3gan-cifar10-32", words)
    assert said in str(refused.value)


def test_what_a_later_stage_drops_is_carried_until_then() -> None:
    cpu = torch.device("cpu")
    words = ["networks.widths=[8,8,8,8]", "networks.groups=[2,2,2,2]", "networks.channels=1"]
    values = load_recipe("r3gan-digits-32", words).model_dump(mode="json")
    values["objective"]["augmentation"] |= {"method": "ada", "probability": 0.2, "target": 0.6}
    for key, later in (("method", None), ("probability", 0.3), ("target", None)):
        stage = {"at": "6 steps", "set": {f"objective.augmentation.{key}": later}}
        training = training_of(parse_recipe(values | {"stages": [stage]}, "a test"))
        carried = training.state(Plan(training.batch, resolve_precision("fp32", cpu)), cpu).carried
        assert [round(float(value[0]), 3) for value in carried.values()] == [0.2]


def test_stages_of_wrong_length_in_python() -> None:
    with pytest.raises(ValueError, match="discriminator_blocks has 1 numbers"):
        R3GANNetworks(resolution=16, widths=(8, 8, 8), groups=(1, 1, 1), blocks=(1, 1, 1), discriminator_blocks=(1,))


# The guess of the penalties' strength.


def test_a_guessed_gamma_goes_through_the_authors_values() -> None:
    assert propose_gamma(64, classes=False) == 2
    assert propose_gamma(256, classes=False) == 150
    assert propose_gamma(64, classes=True) == 1
    assert 0.05 < propose_gamma(32, classes=True) < 0.5


@pytest.mark.parametrize("resolution", [32, 64])
def test_the_rule_follows_a_change_of_the_resolution(resolution: int) -> None:
    small, other = load_recipe(f"r3gan-small-{resolution}"), 96 - resolution
    assert load_recipe(f"r3gan-small-{resolution}", [f"networks.resolution={resolution}"]) == small
    followed = load_recipe(f"r3gan-small-{resolution}", [f"networks.resolution={other}"])
    assert followed.networks == load_recipe(f"r3gan-small-{other}").networks
    with pytest.raises(BadInput, match="R3GAN has one rule"):
        FAMILY.follow("auto", 64, None)


# Scores as the program takes them.


def test_bytes_in_bfloat16_are_a_third_of_them_a_level_higher() -> None:
    """The program's formula on bfloat16 pictures against the same in fp32: measured 39.5 % of uniform values."""
    pictures = torch.rand(1000, 100, generator=torch.Generator().manual_seed(0)) * 2 - 1
    exact = (pictures.bfloat16().float() * 127.5 + 128).clamp(0, 255).to(torch.uint8)
    higher = pixels(pictures, "bf16").int() - exact.int()
    assert set(higher.unique().tolist()) == {0, 1}
    assert float(higher.float().mean()) == pytest.approx(0.395, abs=0.01)
    assert float((pixels(pictures).int() - exact.int()).abs().float().mean()) < 0.2
