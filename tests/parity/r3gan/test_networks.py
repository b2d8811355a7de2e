"""Forwards, resampling, first weights and sizes of R3GAN's networks, against the program's."""

import math

import pytest
import torch
from torch import Tensor, nn

from frugan.contract.elementwise import leaky_relu
from frugan.engine.plan import Layout
from frugan.engine.state.working_weights import prepared
from frugan.families.r3gan.config import R3GANNetworks
from frugan.families.r3gan.family import R3GANFamily
from frugan.families.r3gan.snapshot import name_table
from frugan.nn.fir import downsample2d, fir_filter, upsample2d
from parity.r3gan.golden import CASES, Case, Network, load, read_json, tensors

LIMIT, SHARP = 1e-5, 1e-12
HALF = 0.02
"""The program's own bfloat16 differs from fp32 by as much."""

each_case = pytest.mark.parametrize("name", CASES)
each_network = pytest.mark.parametrize("network", ["G", "D"])


def off(ours: Tensor, reference: Tensor) -> float:
    assert ours.shape == reference.shape
    return float((ours.double() - reference.double()).abs().max())


def run(case: Case, built: dict[str, nn.Module], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Pictures, and outputs on real and on these pictures [n]."""
    classes = case.classes(case.io("label"))
    real = (case.io("real_u8").double() / 127.5 - 1).to(dtype)
    with torch.no_grad():
        made: Tensor = built["G"](case.io("z").to(dtype), classes)
        return made, built["D"](real, classes)[:, 0], built["D"](made, classes)[:, 0]


@each_case
def test_pictures_and_outputs(name: str) -> None:
    case = load(name)
    made, real, fake = run(case, case.build(), torch.float32)
    assert off(made, case.io("img")) <= LIMIT
    assert off(real, case.io("D_real")) <= LIMIT
    assert off(fake, case.io("D_fake")) <= LIMIT


@each_case
def test_pictures_and_outputs_in_float64(name: str) -> None:
    case = load(name)
    made, real, fake = run(case, case.build(torch.float64), torch.float64)
    assert off(made[0], case.io("f64.img_sample0")) <= SHARP
    assert off(real, case.io("f64.D_real")) <= SHARP
    assert off(fake, case.io("f64.D_fake")) <= SHARP


@each_case
def test_what_each_stage_makes(name: str) -> None:
    """Of the first sample, four channels."""
    case, built = load(name), load(name).build()
    seen: dict[str, list[Tensor]] = {"gact": [], "dact": []}
    for network, into in (("G", seen["gact"]), ("D", seen["dact"])):
        for side in built[network].sides:  # type: ignore[union-attr]
            stage = built[network].get_submodule(f"b{side}")
            stage.register_forward_hook(lambda _, __, made, into=into: into.append(made))
    run(case, built, torch.float32)
    judged_real = seen["dact"][: len(case.networks.sides)]
    for number, ours in enumerate(seen["gact"]):
        assert off(ours[0, :4], case.io(f"gact.{number}")) <= LIMIT
    for number, ours in enumerate(judged_real):
        reference = case.io(f"dact.{number}")
        assert off(ours[0, :4] if ours.ndim == 4 else ours, reference) <= LIMIT


@pytest.mark.parametrize("slope", [0.2, 0.21])
def test_another_slope_is_noticed(slope: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frugan.contract.elementwise.SLOPE", slope)
    assert float(leaky_relu(torch.full((1, 1), -1.0), torch.zeros(1))) == pytest.approx(-slope)
    case = load("uncond16")
    assert (off(run(case, case.build(), torch.float32)[0], case.io("img")) <= LIMIT) == (slope == 0.2)


def test_resampling_and_its_gradients() -> None:
    recorded = tensors("ops/resample.safetensors")
    assert off(fir_filter(), recorded["kernel"]) == 0
    for name in ("a", "b", "ones"):
        for direction, resample in (("up", upsample2d), ("down", downsample2d)):
            x = recorded[f"{name}.x"].clone().requires_grad_()
            made = resample(x, fir_filter())
            assert off(made.detach(), recorded[f"{name}.{direction}.y"]) <= LIMIT
            if f"{name}.{direction}.v" in recorded:
                (gradient,) = torch.autograd.grad(made, x, recorded[f"{name}.{direction}.v"])
                assert off(gradient, recorded[f"{name}.{direction}.dx"]) <= LIMIT


def test_bfloat16_in_the_highest_resolutions() -> None:
    """The program's pictures leave its network in bfloat16; ours are made fp32 after the same layers."""
    case, recorded = load("uncond16"), tensors("uncond16/bf16.safetensors")
    built = case.build()
    with prepared(built["G"], Layout(torch.bfloat16)) as g, prepared(built["D"], Layout(torch.bfloat16)) as d:
        made, real, fake = run(case, {"G": g, "D": d}, torch.float32)
    assert made.dtype == torch.float32
    assert off(made, recorded["img"]) <= HALF
    assert 1e-4 < off(made, case.io("img")) <= 2 * HALF  # it was half
    assert off(real, recorded["D_real"]) <= HALF / 2
    assert off(fake, recorded["D_fake"]) <= HALF / 2


# First weights and sizes.

PRESETS = read_json("presets.json")


def networks_of(preset: str) -> R3GANNetworks:
    p = PRESETS[preset]
    return R3GANNetworks(
        resolution=4 << (len(p["g_widths"]) - 1),
        classes=p["classes"] or None,
        latent_size=p["z_dim"],
        widths=p["g_widths"],
        groups=p["g_groups"],
        blocks=p["g_blocks"],
        discriminator_widths=p["d_widths"][::-1],
        discriminator_groups=p["d_groups"][::-1],
        discriminator_blocks=p["d_blocks"][::-1],
        generator_embedding=p["g_embed"] or 64,
        discriminator_embedding=p["d_embed"] or None,
    )


@pytest.mark.parametrize("preset", PRESETS)
def test_parameters_of_every_preset(preset: str) -> None:
    """As many as the program's, in all and in each stage; and the same stages in half precision."""
    p, networks = PRESETS[preset], networks_of(preset)
    built = R3GANFamily().build(networks, "meta")
    for name in ("G", "D"):
        counts = {key: value.numel() for key, value in built[name].named_parameters()}
        assert sum(counts.values()) == p[f"{name}_params"]
        sides = networks.sides if name == "G" else networks.sides[::-1]
        of_stages = [sum(count for key, count in counts.items() if key.startswith(f"b{side}.")) for side in sides]
        assert of_stages == p[f"{name}_params_per_stage"]
        half = [stage for stage, side in enumerate(sides) if networks.half_at(side)]
        assert half == sorted(p[f"{name.lower()}_bf16_stages"])


@each_network
def test_first_weights(network: Network) -> None:
    """Deviations that layers draw with are within 5 standard errors of what the program has drawn; zeros the same."""
    networks, recorded = networks_of("CIFAR10"), read_json("init_stats.json")[network]
    built = R3GANFamily().build(networks, "meta")[network]
    table = name_table(networks, network)
    stds = {f"{name}.weight": module.std for name, module in built.named_modules() if hasattr(module, "std")}
    for theirs, statistics in recorded.items():
        if theirs.endswith("Kernel"):
            continue
        (ours,) = table.to_ours({theirs: torch.empty(0)}).tensors
        count = math.prod(statistics["shape"])
        assert list(built.get_parameter(ours).shape) == statistics["shape"], ours
        std = stds.get(ours, 1.0 if ours == "b4.basis" else 0.0)
        assert (std == 0) == (statistics["std"] == 0), ours
        assert statistics["std"] == pytest.approx(std, rel=5 / math.sqrt(2 * count)), ours


@each_case
def test_first_weights_are_drawn_as_they_are_said_to_be(name: str) -> None:
    case = load(name)
    built = case.build()
    R3GANFamily().initialise(case.networks, built, lambda _: 3)
    again = case.build()
    R3GANFamily().initialise(case.networks, again, lambda _: 3)
    for network, module in built.items():
        assert all(torch.equal(a, b) for a, b in zip(module.parameters(), again[network].parameters(), strict=True))
        for key, layer in module.named_modules():
            std = getattr(layer, "std", None)
            if std is not None:
                count = layer.weight.numel()
                drawn = float(layer.weight.detach().std(correction=0))
                assert drawn == pytest.approx(std, rel=6 / math.sqrt(2 * count)), key
            for bias in ("bias1", "bias2"):
                assert not hasattr(layer, bias) or not layer.get_parameter(bias).any()
    spread = float(built["G"].get_parameter("b4.basis").detach().std())
    assert spread == pytest.approx(1, rel=0.15)


def test_a_network_without_classes_is_refused_classes_it_does_not_get() -> None:
    with pytest.raises(ValueError, match="no classes"):
        load("cond32").build()["G"](torch.zeros(1, 20))
