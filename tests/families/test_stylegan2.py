"""StyleGAN2's settings, grids and schedules."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import frugan
from frugan.contract.family import GridRequest, Noise, StyleMixing
from frugan.engine.state.optimizer_settings import AdamSettings
from frugan.engine.state.working_weights import prepared
from frugan.errors import BadInput
from frugan.families.biggan.family import BigGANFamily
from frugan.families.stylegan2.config import StyleGAN2Networks
from frugan.families.stylegan2.family import StyleGAN2Family
from frugan.families.stylegan2.grids import seeded_latents
from frugan.recipe.loading import load_recipe

PARAMETERS: dict[tuple[int, int, int, int | None], tuple[int, int]] = {
    # resolution, channel_base, mapping_layers, classes: generator, discriminator, as the release has them
    (64, 16384, 2, None): (22_243_608, 23_407_361),
    (256, 16384, 8, None): (24_767_458, 24_001_089),
    (1024, 32768, 8, None): (30_370_060, 29_012_513),
}


@pytest.mark.parametrize("case", PARAMETERS)
def test_parameters_of_the_published_networks(case: tuple[int, int, int, int | None]) -> None:
    resolution, base, layers, classes = case
    config = StyleGAN2Networks(resolution=resolution, channel_base=base, mapping_layers=layers, classes=classes)
    built = StyleGAN2Family().build(config, "meta")
    assert tuple(sum(p.numel() for p in built[name].parameters()) for name in ("G", "D")) == PARAMETERS[case]


def test_the_published_cifar_networks() -> None:
    config = StyleGAN2Networks(resolution=32, mapping_layers=2, classes=10, discriminator_architecture="orig")
    built = StyleGAN2Family().build(config, "meta")
    assert tuple(sum(p.numel() for p in built[n].parameters()) for n in ("G", "D")) == (20_215_315, 23_089_664)


@pytest.mark.parametrize("architecture", ["skip", "orig", "resnet"])
@pytest.mark.parametrize("classes", [None, 3])
def test_every_architecture_draws_and_judges(architecture: str, classes: int | None) -> None:
    tiny, _ = StyleGAN2Family().tiny()
    config = tiny.model_copy(
        update={"generator_architecture": architecture, "discriminator_architecture": architecture, "classes": classes}
    )
    family = StyleGAN2Family()
    built = family.build(config)
    family.initialise(config, built, lambda name: 3)
    for name, forward in family.forwards(config).items():
        with prepared(built[name]), torch.no_grad():
            made = forward(built[name], 2)
        assert isinstance(made, Tensor)
        assert made.shape == ((2, 3, 16, 16) if name == "G" else (2, 1))
        assert bool(torch.isfinite(made).all())
    coloured = [key for key, _ in built["G"].named_modules() if key.endswith("torgb")]
    assert len(coloured) == (3 if architecture == "skip" else 1)


def drawn(request: GridRequest, classes: int | None = None, strength: float = 0.0) -> Tensor:
    family = StyleGAN2Family()
    config = family.tiny()[0].model_copy(update={"classes": classes})
    built = family.build(config)
    family.initialise(config, built, lambda name: 3)
    mapping = built["G"].get_submodule("mapping")
    mapping.get_buffer("w_avg").copy_(torch.linspace(-1, 1, 8))
    for name, parameter in built["G"].named_parameters():
        if name.endswith("noise_strength"):
            nn.init.constant_(parameter, strength)
    with prepared(built["G"]):
        return family.sample(config, {"G": built["G"]}, request)


def test_psi_moves_styles_to_the_mean_and_beyond() -> None:
    """At 0 all pictures are the mean one; at -1 a picture is the mirror image of its style, and neither of both."""
    asked = {psi: drawn(GridRequest(rows=2, columns=3, psi=psi)) for psi in (1.0, 0.5, 0.0, -1.0)}
    assert asked[1.0].shape == (2, 3, 3, 16, 16)
    spread = {psi: float(grid.flatten(0, 1).std(0).mean()) for psi, grid in asked.items()}
    assert spread[0.0] < 1e-6 < spread[0.5] < spread[1.0]
    assert not torch.allclose(asked[-1.0], asked[1.0], atol=1e-2)
    assert not torch.allclose(asked[-1.0], asked[0.0], atol=1e-2)


def test_psi_of_some_layers() -> None:
    every, some, none = (
        drawn(GridRequest(rows=1, columns=2, psi=psi, psi_layers=layers))
        for psi, layers in ((0.5, None), (0.5, 2), (1.0, None))
    )
    assert not torch.allclose(every, some, atol=1e-3)
    assert not torch.allclose(some, none, atol=1e-3)
    assert torch.equal(every, drawn(GridRequest(rows=1, columns=2, psi=0.5, psi_layers=100)))


@pytest.mark.parametrize("spherical", [False, True])
def test_interpolations_begin_and_end_where_they_should(spherical: bool) -> None:
    request = GridRequest(rows=2, columns=4, interpolate="both", classes=(0, 2), spherical=spherical)
    grid = drawn(request, classes=3)
    assert grid.shape == (2, 4, 3, 16, 16)
    latents = drawn(GridRequest(rows=2, columns=4, interpolate="latent", classes=(0, 2), spherical=spherical), 3)
    torch.testing.assert_close(grid[:, 0], latents[:, 0])
    assert not torch.allclose(grid[:, -1], latents[:, -1], atol=1e-3)


def test_a_column_for_each_seed() -> None:
    """Whatever else is drawn; in every class with the same latent."""
    one = drawn(GridRequest(seeds=(7, 42, 7), classes=(2, 0)), classes=3)
    assert one.shape == (2, 3, 3, 16, 16)
    assert torch.equal(one[:, 0], one[:, 2])
    assert not torch.allclose(one[:, 0], one[:, 1], atol=1e-3)
    other = drawn(GridRequest(seeds=(42,), classes=(0,), seed=5), classes=3)
    torch.testing.assert_close(other[0, 0], one[1, 1], rtol=0, atol=1e-5)
    latent = np.random.RandomState(42).randn(1, 8)
    np.testing.assert_array_equal(seeded_latents((42,), 8).numpy(), latent.astype(np.float32))


def test_styles_are_mixed_layer_by_layer() -> None:
    """The columns' in the layers that are named; the row's in all others. Here: all, none but the last, the first."""
    rows, columns = (1, 2), (3, 4, 5)
    own = {seeds: drawn(GridRequest(seeds=seeds))[0] for seeds in (rows, columns)}
    mixed = {
        layers: drawn(GridRequest(mixing=StyleMixing(rows, columns, layers))) for layers in ((*range(6),), (0,), (5,))
    }
    for grid in mixed.values():
        assert grid.shape == (3, 4, 3, 16, 16)
        assert bool((grid[0, 0] == -1).all())
        torch.testing.assert_close(grid[0, 1:], own[columns], rtol=0, atol=1e-5)
        torch.testing.assert_close(grid[1:, 0], own[rows], rtol=0, atol=1e-5)
    torch.testing.assert_close(mixed[*range(6),][1:, 1:], own[columns].expand(2, -1, -1, -1, -1), rtol=0, atol=1e-5)
    for one in ((0,), (5,)):
        assert not torch.allclose(mixed[one][1, 1], own[rows][0], atol=1e-4)
        assert not torch.allclose(mixed[one][1, 1], own[columns][0], atol=1e-4)


def test_noise_of_its_own_for_each_picture_or_none() -> None:
    """Drawn from the sheet's seed, whatever the micro-batch."""

    def of(noise: Noise, seed: int = 0, micro_batch: int = 16) -> Tensor:
        return drawn(GridRequest(seeds=(1, 1), noise=noise, seed=seed, micro_batch=micro_batch), strength=0.5)[0]

    constant, none, random = of("const"), of("none"), of("random")
    assert torch.equal(constant[0], constant[1])
    assert not torch.allclose(random[0], random[1], atol=1e-3)
    assert not torch.allclose(constant, none, atol=1e-3)
    torch.testing.assert_close(of("random", micro_batch=1), random, rtol=0, atol=1e-5)
    assert not torch.allclose(of("random", seed=1), random, atol=1e-3)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            GridRequest(seeds=(1, 2), interpolate="latent"),
            "seeds: rows that go by them are drawn from the latent space",
        ),
        (GridRequest(mixing=StyleMixing((1,), (2,), (5, 6))), "layers 6: expected 0 to 5; at 16 pixels 6 layers take"),
        (GridRequest(truncation=0.7), "truncation 0.7: scales latents, .* psi moves its styles"),
        (GridRequest(classes=(1,)), "classes: these networks were made without"),
        (GridRequest(interpolate="class"), 'interpolate "class": these networks were made without classes'),
    ],
)
def test_what_cannot_be_drawn_is_refused(request_: GridRequest, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        drawn(request_)


def test_biggan_refuses_psi() -> None:
    family = BigGANFamily()
    config, _ = family.tiny()
    with pytest.raises(BadInput, match=r"psi 0\.7: BigGAN has no styles"):
        family.sample(config, family.build(config), GridRequest(psi=0.7))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("networks.resolution=100", "resolution 100: expected 8, 16, 32"),
        ("networks.channel_base=16", "channel_base 16: leaves no channel at 32 pixels; expected at least 32"),
        ("networks.minibatch_std_channels=3", "minibatch_std_channels 3: the 64 channels at 4 pixels do not divide"),
        ("networks.classes=1", "networks.classes"),
        ("objective.path_length_decay=0", "objective.path_length_decay"),
        ("networks.generator_architecture=skipp", "networks.generator_architecture"),
    ],
)
def test_bad_settings_are_refused(override: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        load_recipe("stylegan2-digits-32", [override])


def test_a_recipes_rates_are_slowed_down_for_lazy_phases() -> None:
    settings = load_recipe("stylegan2-ffhq-256").optimizer_settings()
    generator, discriminator = settings["G"], settings["D"]
    assert isinstance(generator, AdamSettings)
    assert isinstance(discriminator, AdamSettings)
    assert (generator.learning_rate, generator.beta2) == pytest.approx((0.002, 0.99**0.8))
    assert (discriminator.learning_rate, discriminator.beta2) == pytest.approx((0.0025 * 16 / 17, 0.99 ** (16 / 17)))
    without = load_recipe("stylegan2-ffhq-256", ["objective.path_length_weight=0"]).optimizer_settings()["G"]
    assert without.learning_rate == 0.0025


def test_the_highest_resolutions_are_half() -> None:
    """Of 256 pixels: 32 to 256, as in the release; mapping, styles, noise strengths and the epilogue are fp32."""
    config = load_recipe("stylegan2-ffhq-256").networks
    assert isinstance(config, StyleGAN2Networks)
    assert [side for side in config.sides if config.half_at(side)] == [32, 64, 128, 256]
    none = config.model_copy(update={"half_resolutions": 0})
    assert not any(none.half_at(side) for side in none.sides)
    tiny, _ = StyleGAN2Family().tiny()
    built = StyleGAN2Family().build(tiny)
    half = {name: half_parameters(network) for name, network in built.items()}
    assert {key.split(".")[1] for key in half["G"]} == {"b16"}
    assert {key.split(".")[0] for key in half["D"]} == {"b16"}
    assert not any("affine" in key or "noise_strength" in key for key in half["G"])


def half_parameters(network: nn.Module) -> set[str]:
    """Names of the parameters that are half in half precision."""
    return {
        f"{name}.{key}"
        for name, module in network.named_modules()
        for key, _ in module.named_parameters(recurse=False)
        if key not in getattr(module, "fp32_parameters", ())
    }


def test_a_micro_batch_below_the_group_is_refused_with_the_reason() -> None:
    """The minibatch standard deviation looks at 4 samples together: 2 would be another model."""
    with pytest.raises(BadInput, match=r"micro-batch 2: expected a multiple of 4 from 4 to 16 .*groups of 4.*recipe"):
        frugan.plan("stylegan2-auto", "80GiB", options=frugan.PlanOptions(micro_batch=2))
