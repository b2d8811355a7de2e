"""Recipes: what ships is what the published launch scripts say."""

import json
import re
from pathlib import Path

import pytest

from frugan.engine.state.optimizer_settings import AdamSettings
from frugan.errors import BadInput
from frugan.families.r3gan.config import R3GANNetworks, R3GANObjective
from frugan.families.stylegan3.config import StyleGAN3Networks, StyleGAN3Objective
from frugan.recipe.loading import TOY_PARAMETERS, dump_recipe, load_recipe, parse_recipe, stages_overridden
from frugan.recipe.overrides import differences
from frugan.recipes import built_in, shipped_recipes
from frugan.setup.recipe_setup import parameter_counts

GOLDEN = Path(__file__).parents[1] / "golden"
EXPECTED = {
    # recipe: resolution, batch, group, D steps, G lr, D lr, beta2, attention, z, shared, adam eps, EMA start, init
    "biggan-imagenet-128": (128, 2048, 32, 1, 1e-4, 4e-4, 0.999, (64,), 120, 128, 1e-6, "20k steps", "orthogonal"),
    "biggan-imagenet-256": (256, 2048, 32, 1, 1e-4, 4e-4, 0.999, (64,), 140, 128, 1e-6, "20k steps", "orthogonal"),
    "biggan-imagenet-512": (512, 2048, 32, 1, 1e-4, 4e-4, 0.999, (64,), 128, 128, 1e-6, "20k steps", "orthogonal"),
    "biggan-ch64-imagenet-128": (128, 2048, 32, 1, 1e-4, 4e-4, 0.999, (64,), 120, 128, 1e-6, "20k steps", "orthogonal"),
    "biggan-deep-imagenet-128": (128, 2048, 32, 1, 1e-4, 4e-4, 0.999, (64,), 128, 128, 1e-6, "20k steps", "orthogonal"),
    "biggan-deep-imagenet-256": (256, 2048, 32, 1, 1e-4, 4e-4, 0.999, (64,), 128, 128, 1e-6, "20k steps", "orthogonal"),
    "biggan-deep-imagenet-512": (512, 2048, 32, 1, 1e-4, 4e-4, 0.999, (64,), 128, 128, 1e-6, "20k steps", "orthogonal"),
    "biggan-places365-128": (128, 2048, 32, 1, 1e-4, 4e-4, 0.999, (64,), 120, 128, 1e-6, "20k steps", "orthogonal"),
    "biggan-cifar10-32": (32, 50, 50, 4, 2e-4, 2e-4, 0.999, (), 128, None, 1e-8, "1k steps", "normal"),
    "sagan-imagenet-128": (128, 256, 32, 1, 1e-4, 4e-4, 0.999, (64,), 128, None, 1e-8, "2k steps", "xavier"),
    "sngan-imagenet-128": (128, 64, 8, 5, 2e-4, 2e-4, 0.9, (), 128, None, 1e-8, "0 steps", "xavier"),
}
FACES = {
    # recipe: archi, resolution, ae, e, d, mask dims, batch, parameters without discriminators in millions
    "saehd-df-ud-256": ("df-ud", 256, 256, 64, 64, 22, 8, 82.8),
    "saehd-liae-ud-256": ("liae-ud", 256, 256, 64, 64, 22, 8, 145.3),
    "saehd-df-ud-512": ("df-ud", 512, 320, 64, 72, 22, 8, 251.5),
    "saehd-liae-udt-320": ("liae-udt", 320, 320, 64, 72, 22, 8, 159.3),
    "saehd-demo-64": ("df-ud", 64, 64, 16, 16, 16, 8, 4.0),
}
MORPHS = {
    # recipe: resolution, ae, inter, e, d, mask dims, batch, parameters without the discriminator in millions
    "amp-224": (224, 256, 1024, 64, 64, 22, 8, 101.3),
    "amp-256": (256, 256, 1024, 64, 64, 22, 8, 111.2),
    "amp-320": (320, 256, 1024, 64, 64, 22, 4, 134.9),
}
STYLES = {
    # recipe: resolution, channel_base, mapping layers, R1, batch, groups, rate, half-life of the average, ADA, millions
    "stylegan2-ffhq-256": (256, 16384, 8, 1.0, 64, 8, 0.0025, 20_000, False, 48.8),
    "stylegan2-ffhq-512": (512, 32768, 8, 0.5, 64, 8, 0.0025, 20_000, False, 59.3),
    "stylegan2-ffhq-1024": (1024, 32768, 8, 10.0, 32, 4, 0.002, 10_000, False, 59.4),
    "stylegan2-cifar10": (32, 32768, 2, 0.01, 64, 32, 0.0025, 500_000, True, 43.3),
    "stylegan2-auto": (256, 16384, 2, 0.8192, 16, 4, 0.0025, 5_000, True, 47.2),
}
SIGNALS = {
    # recipe: resolution, equivariance, generator's channels, R1, blur, share of the average, G's millions
    "stylegan3-t-256": (256, "translation", 32768, 512, 2.0, 0.0, 0.05, 28.5),
    "stylegan3-r-256": (256, "rotation", 65536, 1024, 2.0, 10.0, 0.05, 18.8),
    "stylegan3-t-512": (512, "translation", 32768, 512, 8.0, 0.0, 0.05, 24.9),
    "stylegan3-t-1024": (1024, "translation", 32768, 512, 32.0, 0.0, 0.05, 22.3),
    "stylegan3-finetune-256": (256, "translation", 32768, 512, 2.0, 0.0, None, 28.5),
    "stylegan3-finetune-512": (512, "translation", 32768, 512, 8.0, 0.0, None, 24.9),
}
PRESETS = {
    # recipe: the program's preset, its batch, the paper's duration, gamma, half-life of the average, last probability
    "r3gan-cifar10-32": ("CIFAR10", 512, "250M images", (0.05, 0.005), 5_000_000, 0.55),
    "r3gan-ffhq-64": ("FFHQ-64", 256, "100M images", (2.0, 0.2), 500_000, 0.3),
    "r3gan-ffhq-256": ("FFHQ-256", 256, "200M images", (150.0, 15.0), 500_000, 0.3),
    "r3gan-imagenet-32": ("ImageNet-32", 4096, "1000M images", (0.5, 0.05), 50_000_000, 0.5),
    "r3gan-imagenet-64": ("ImageNet-64", 4096, "1000M images", (1.0, 0.1), 50_000_000, 0.4),
}
PARAMETERS = {
    "biggan-imagenet-128": (70_433_988, 87_982_370),
    "biggan-imagenet-256": (82_235_844, 99_225_890),
    "biggan-imagenet-512": (82_296_804, 99_401_282),
    "biggan-ch64-imagenet-128": (31_978_628, 39_448_258),
    "biggan-deep-imagenet-128": (50_244_484, 34_590_210),
    "biggan-deep-imagenet-256": (55_736_708, 38_247_426),
    "biggan-deep-imagenet-512": (56_019_780, 38_301_122),
    "sagan-imagenet-128": (42_017_412, 39_448_258),
    "sngan-imagenet-128": (41_996_931, 30_005_013),
    "biggan-cifar10-32": (4_304_387, 4_207_361),
}
"""Counts of the originals, and of their mirrored extensions."""


def test_what_ships_is_what_is_checked_here() -> None:
    others = {"biggan-digits-32", *(f"biggan-small-{resolution}" for resolution in (32, 64, 128))}
    others |= {"stylegan2-digits-32", "stylegan2-small-64", "stylegan3-small-64"}
    others |= {"biggan-finetune-128", *(f"stylegan2-finetune-{resolution}" for resolution in (256, 512, 1024))}
    others |= {"r3gan-digits-32", "r3gan-small-32", "r3gan-small-64"}
    others |= {"quick96", "xseg", "xseg-pretrain", "xseg-small", "amp-small-64", *MORPHS}
    assert set(built_in()) == {*EXPECTED, *others, *FACES, *STYLES, *SIGNALS, *PRESETS}


@pytest.mark.parametrize("name", PRESETS)
def test_presets_of_r3gan(name: str) -> None:
    """Networks, and all that changes during training, are the recorded presets'."""
    preset, batch, duration, gamma, half_life, probability = PRESETS[name]
    recorded = json.loads((GOLDEN / "r3gan" / "presets.json").read_text("utf-8"))[preset]
    recipe = load_recipe(name)
    networks, objective, adam = recipe.networks, recipe.objective, recipe.optimizer_settings()["D"]
    assert isinstance(networks, R3GANNetworks)
    assert isinstance(objective, R3GANObjective)
    assert isinstance(adam, AdamSettings)
    assert recipe.optimizer_settings()["G"] == adam
    assert {
        "g_widths": list(networks.stages("G", "widths")),
        "g_groups": list(networks.stages("G", "groups")),
        "g_blocks": list(networks.stages("G", "blocks")),
        "d_widths": list(networks.stages("D", "widths"))[::-1],
        "z_dim": networks.latent_size,
        "classes": networks.classes or 0,
        "expansion": networks.expansion,
    }.items() <= recorded.items()
    for network in ("G", "D"):
        assert (
            sum(p.numel() for p in recipe.kind.build(networks, "meta")[network].parameters())
            == (recorded[f"{network}_params"])
        )
    ema, augmentation = recipe.ema, objective.augmentation
    changing = {
        "lr": (adam.learning_rate, adam.final_learning_rate),
        "beta2": (adam.beta2, adam.final_beta2),
        "gamma": (objective.gamma, objective.final_gamma),
        "ema": (ema.half_life_images, ema.final_half_life_images),
        "aug": (augmentation.probability, augmentation.final_probability),
    }
    assert (changing["gamma"], changing["ema"][1], changing["aug"][1]) == (gamma, half_life, probability)
    for key, (first, final) in changing.items():
        assert (first, final) == (recorded["schedule"][key]["base_value"], recorded["schedule"][key]["final_value"])
        course = recipe.training.course
        assert (course.images, course.cosine) == (recorded["schedule"][key]["total_nimg"], True)
    assert (recipe.training.batch, str(recipe.training.duration), recipe.data.flip) == (batch, duration, True)
    assert (augmentation.colour_share, augmentation.chosen) == (0.5, ("blit", "geometry", "colour", "cutout"))


@pytest.mark.parametrize("name", EXPECTED)
def test_settings(name: str) -> None:
    recipe = load_recipe(name)
    networks, training = recipe.networks.model_dump(), recipe.training
    g, d = recipe.optimizers["G"], recipe.optimizers["D"]
    assert isinstance(g, AdamSettings)
    assert isinstance(d, AdamSettings)
    settings = (
        networks["resolution"],
        training.batch,
        training.normalisation_batch,
        recipe.objective.model_dump()["discriminator_steps"],
        g.learning_rate,
        d.learning_rate,
        g.beta2,
        networks["generator_attention"],
        networks["latent_size"],
        networks["shared_embedding"],
        g.eps,
        str(recipe.ema.start),
        networks["generator_initialisation"],
    )
    assert settings == EXPECTED[name]
    assert (d.beta1, d.beta2, d.eps) == (g.beta1, g.beta2, g.eps) == (0.0, g.beta2, g.eps)
    assert networks["discriminator_attention"] == networks["generator_attention"]


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_the_originals(name: str) -> None:
    recipe = load_recipe(name)
    built = recipe.kind.build(recipe.networks, "meta")
    assert tuple(sum(p.numel() for p in built[n].parameters()) for n in ("G", "D")) == PARAMETERS[name]


@pytest.mark.parametrize("name", built_in())
def test_a_resolved_recipe_reads_back_as_itself(name: str) -> None:
    recipe = load_recipe(name)
    again = parse_recipe(recipe.model_dump(mode="json"), "again")
    assert again == recipe
    assert differences(recipe, again) == {}


@pytest.mark.parametrize("text", ["[fid,pr]", "[fid, pr]", "[ fid ,pr ]", '["fid", "pr"]'])
def test_words_of_a_list_need_no_quotes(text: str) -> None:
    assert load_recipe(
        "biggan-small-32", [f"evaluation.metrics={text}", "evaluation.best_by=fid"]
    ).evaluation.metrics == ("fid", "pr")


def test_a_length_by_the_clock_is_answered_with_how_a_time_is_kept() -> None:
    with pytest.raises(BadInput, match=r"^(recipe biggan-small-32:\s+)?type --for 5min or training\.time=5min instead"):
        load_recipe("biggan-small-32", ["training.duration=5min"])


def test_words_in_place_of_a_list_are_answered_with_its_spelling() -> None:
    with pytest.raises(BadInput, match=r"must be a list, such as evaluation.metrics=\[fid,pr\] \(got 'fid,pr'\)"):
        load_recipe("biggan-small-32", ["evaluation.metrics=fid,pr"])


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("data.allow_upscale=perhaps", "data.allow_upscale: must be true or false, or 'leave-out' (got 'perhaps')"),
        (
            "objective.augmentation.operations=[flip]",
            "objective.augmentation.operations.0: must be 'colour', 'translation' or 'cutout', or 'blit', 'geometry', "
            "'colour', 'filter', 'noise' or 'cutout' (got 'flip')",
        ),
        (
            "training.precision=tf32",
            "training.precision: must be 'auto', 'fp32', 'fp16' or 'bf16'; did you mean training.tf32=true? (got "
            "'tf32')",
        ),
        (
            "training.precision=BFloat16",
            "training.precision: must be 'auto', 'fp32', 'fp16' or 'bf16'; did you mean training.precision=bf16? (got "
            "'BFloat16')",
        ),
        ("evaluation.metrics=[]", "evaluation.metrics: must have at least 1 item (got [])"),
        (
            "evaluation.metrics=[fido]",
            "evaluation.metrics.0: must be 'fid', 'is', 'kid', 'pr', 'dc', 'intra-fid', 'cmmd' or 'two-sample' (got "
            "'fido')",
        ),
        (f"data.background={'x' * 41}", f"data.background: must have at most 40 characters (got '{'x' * 41}')"),
    ],
)
def test_a_wrong_value_is_answered_in_one_sentence(word: str, expected: str) -> None:
    with pytest.raises(BadInput) as refused:
        load_recipe("stylegan2-digits-32", [word])
    first, sentence, description = str(refused.value).splitlines()
    assert (first, sentence) == ("recipe stylegan2-digits-32:", expected)
    assert description.startswith("  ")


def test_overrides_are_typed_and_listed_as_differences() -> None:
    before = load_recipe("biggan-cifar10-32")
    words = [
        "networks.generator_attention=[16]",
        "training.duration=2k steps",
        "networks.shared_embedding=8",
        "optimizers.G.learning_rate=1e-3",
        "saving.backup_every=1k steps",
    ]
    after = load_recipe("biggan-cifar10-32", words)
    changed = {key: (str(d.after), d.changeable) for key, d in differences(before, after).items()}
    assert changed == {
        "networks.generator_attention": ("(16,)", False),
        "training.duration": ("2k steps", True),
        "networks.shared_embedding": ("8", False),
        "optimizers.G.learning_rate": ("0.001", True),
        "saving.backup_every": ("1k steps", True),
    }
    assert load_recipe("biggan-imagenet-128", ["networks.shared_embedding=none", "networks.hierarchical_latent=false"])


def test_a_training_may_have_no_end_but_nothing_else(tmp_path: Path) -> None:
    recipe = load_recipe("saehd-df-ud-256", ["training.duration=endless"])
    assert str(recipe.training.duration) == "endless"
    assert parse_recipe(recipe.model_dump(mode="json"), "again") == recipe
    path = tmp_path / "endless.toml"
    path.write_text(dump_recipe(recipe), "utf-8")
    assert load_recipe(str(path)) == recipe
    with pytest.raises(BadInput, match=r"needs an end, and endless has none"):
        load_recipe("saehd-df-ud-256", ["training.duration=endless", "optimizers.default.final_learning_rate=0"])
    with pytest.raises(BadInput, match="checkpoint_every"):
        load_recipe("saehd-df-ud-256", ["saving.checkpoint_every=endless"])


def test_a_recipe_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('family = "biggan"\nunknown = 1\n', "utf-8")
    with pytest.raises(BadInput, match=r"unknown: unknown key"):
        load_recipe(str(path))
    with pytest.raises(BadInput, match="no such file"):
        load_recipe(str(tmp_path / "none.toml"))


@pytest.mark.parametrize("name", FACES)
def test_face_recipes(name: str) -> None:
    recipe = load_recipe(name)
    n = recipe.networks.model_dump()
    built = recipe.kind.build(recipe.networks, "meta")
    count = sum(p.numel() for key in built if not key.endswith("discriminator") for p in built[key].parameters())
    sizes = (n["ae_dims"], n["e_dims"], n["d_dims"], n["d_mask_dims"])
    assert (n["archi"], n["resolution"], *sizes, recipe.training.batch, round(count / 1e6, 1)) == FACES[name]
    assert n["face_type"] == "wf"


@pytest.mark.parametrize("name", MORPHS)
def test_recipes_of_two_faces(name: str) -> None:
    recipe = load_recipe(name)
    n = recipe.networks.model_dump()
    built = recipe.kind.build(recipe.networks, "meta")
    count = sum(p.numel() for key in built if not key.endswith("discriminator") for p in built[key].parameters())
    sizes = tuple(n[key] for key in ("resolution", "ae_dims", "inter_dims", "e_dims", "d_dims", "d_mask_dims"))
    assert (*sizes, recipe.training.batch, round(count / 1e6, 1)) == MORPHS[name]


def test_one_field_of_one_optimizer_leaves_its_kind() -> None:
    recipe = load_recipe("saehd-df-ud-256", ["optimizers.patch_discriminator.learning_rate=1e-5"])
    changed, kept = (recipe.optimizer_settings()[name] for name in ("patch_discriminator", "autoencoder"))
    assert (changed.kind, changed.learning_rate, kept.learning_rate) == ("adabelief", 1e-5, 5e-5)
    values = recipe.model_dump(mode="json") | {
        "stages": [{"at": "5 steps", "set": {"optimizers.code_discriminator.learning_rate": 2e-5}}]
    }
    staged = parse_recipe(values, "mine").at_step(5).optimizer_settings()["code_discriminator"]
    assert (staged.kind, staged.learning_rate) == ("adabelief", 2e-5)


def test_another_kind_of_optimizer_drops_the_fields_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(dump_recipe(load_recipe("saehd-demo-64")))
    words = ["optimizers.default.decay=0.8", "optimizers.default.kind=rmsprop"]
    for name in (str(path), "saehd-demo-64"):
        settings = load_recipe(name, words).optimizer_settings()["autoencoder"]
        assert (settings.kind, settings.learning_rate, settings.model_dump()["decay"]) == ("rmsprop", 3e-4, 0.8)
    with pytest.raises(BadInput, match=r"optimizers\.default\.beta1: unknown key"):
        load_recipe(str(path), ["optimizers.default.beta1=0.5", "optimizers.default.kind=rmsprop"])


def test_what_is_given_as_an_override_is_set_by_no_stage() -> None:
    words = ["objective.gan_power=0.0", "optimizers.default.dropout=0.2"]
    recipe = load_recipe("saehd-df-ud-256", words)
    now = recipe.at_step(900_000)
    assert now.objective.model_dump()["gan_power"] == 0
    assert now.optimizer_settings()["autoencoder"].model_dump()["dropout"] == 0.2
    assert now.objective.model_dump()["random_warp"] is False
    assert recipe.stage_steps() == [300_000]
    assert [line.split(" ")[0] for line in stages_overridden("saehd-df-ud-256", words)] == [
        "optimizers.default.dropout=0.2",
        "objective.gan_power=0.0",
    ]


def test_stages_take_over_in_order() -> None:
    recipe = load_recipe("saehd-df-ud-256")
    assert recipe.stage_steps() == [300_000, 450_000]

    def warp_dropout_gan(step: int) -> tuple[object, object, object]:
        now = recipe.at_step(step)
        objective, optimizer = now.objective.model_dump(), now.optimizer_settings()["patch_discriminator"].model_dump()
        return objective["random_warp"], optimizer["dropout"], objective["gan_power"]

    assert warp_dropout_gan(299_999) == (True, None, 0.0)
    assert warp_dropout_gan(300_000) == (False, 0.3, 0.0)
    assert warp_dropout_gan(450_000) == (False, 0.3, 0.1)
    assert {phase.name for phase in recipe.kind.phases(recipe.networks, recipe.at_step(450_000).objective)} == {
        "autoencoder",
        "patch_discriminator",
    }


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ({"at": "1k steps", "set": {"objective.random_wrap": False}}, "did you mean objective.random_warp"),
        ({"at": "1k steps", "set": {"networks.ae_dims": 128}}, "cannot change while training goes on"),
        ({"at": "1k steps", "set": {"networks.gan_dims": 32}}, "cannot change while training goes on"),
        ({"at": "1h", "set": {"objective.random_warp": False}}, "expected steps or images"),
        ({"at": "1k steps", "set": {"objective.gan_power": 9}}, "less than or equal to 5"),
        ({"at": "1k steps", "set": {}}, "at least 1"),
        ({"at": "1k steps", "set": {"training.duration": "9k steps"}}, "training.duration cannot change while"),
        ({"at": "1k steps", "set": {"saving.keep_checkpoints": 9}}, "keep_checkpoints cannot change while"),
        ({"at": "1k steps", "set": {"optimizers.default.kind": "rmsprop"}}, "kind cannot change while"),
        ({"at": "1k steps", "set": {"optimizers.autoencoder.kind": "adam"}}, "kind cannot change while"),
        ({"at": "1k steps", "set": {"stages": []}}, "stages cannot change while"),
    ],
)
def test_stages_that_cannot_be(stage: dict[str, object], message: str) -> None:
    values = load_recipe("saehd-demo-64").model_dump(mode="json") | {"stages": [stage]}
    with pytest.raises(BadInput, match=message):
        parse_recipe(values, "mine")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["networks.resolution=500"], "nearest is 512"),
        (["networks.resolution=272"], "multiples of 32 from 64 to 640; the nearest is 2"),
        (["networks.archi=dfl"], "expected df or liae"),
        (["networks.archi=df-uu"], "each once"),
        (["networks.e_dims=63"], "the nearest is 64"),
        (["networks.gan_patch_size=700"], "less than or equal to 640"),
        (["networks.resolution=96", "networks.gan_patch_size=128"], "does not divide 96 pixels; the nearest that does"),
        (["networks.archi=liae-ud", "objective.true_face_power=0.01"], "only df has a code of its own"),
        (["objective.face_style=1"], "did you mean objective.face_style_power"),
        (["data.flip=true"], "random_src_flip"),
        (["optimizers.default.beta1=2"], "less than 1"),
        (
            [
                "optimizers.default.kind=adam",
                "optimizers.default.learning_rate=1e-4",
                "optimizers.default.beta2=0.9999999",
            ],
            "less than or equal to 0.999999",
        ),
    ],
)
def test_face_recipes_that_cannot_be(overrides: list[str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        load_recipe("saehd-df-ud-256", overrides)


def test_no_colour_transfer_can_be_said() -> None:
    recipe = load_recipe("saehd-demo-64", ["objective.ct_mode=rct"])
    assert recipe.objective.model_dump()["ct_mode"] == "rct"
    assert load_recipe("saehd-demo-64", ["objective.ct_mode=none"]).objective.model_dump()["ct_mode"] == "none"


@pytest.mark.parametrize("resolution", [80, 496, 528, 640])
def test_the_default_patch_always_fits(resolution: int) -> None:
    recipe = load_recipe("saehd-df-ud-256", ["networks.archi=df", f"networks.resolution={resolution}"])
    assert recipe.networks.model_dump()["gan_patch_size"] == pytest.approx(resolution // 8, abs=10)


def test_another_kind_of_optimizer_may_take_over() -> None:
    before = load_recipe("saehd-demo-64")
    after = load_recipe("saehd-demo-64", ["optimizers.default.kind=rmsprop"])
    (change,) = differences(before, after).values()
    assert change.changeable


def test_a_field_that_restarts_a_network_says_so() -> None:
    after = load_recipe("saehd-demo-64", ["networks.gan_dims=32"])
    change = differences(load_recipe("saehd-demo-64"), after)["networks.gan_dims"]
    assert (change.changeable, change.restarts) == (True, ("patch_discriminator",))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluation.standing_size=64"], "go with statistics = 'standing'"),
        (["evaluation.standing_batches=8"], "go with statistics = 'standing'"),
        (
            ["evaluation.statistics=standing", "evaluation.standing_size=30"],
            "normalisation batch, 50",
        ),
        (["evaluation.statistics=standing", "evaluation.standing_batches=0"], "evaluation.standing_batches"),
    ],
)
def test_standing_statistics_that_cannot_be(words: list[str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        load_recipe("biggan-cifar10-32", words)


def test_standing_statistics_of_scores_are_fields() -> None:
    words = ["evaluation.statistics=standing", "evaluation.standing_size=100", "evaluation.standing_batches=8"]
    settings = load_recipe("biggan-cifar10-32", words).evaluation
    assert (settings.standing_size, settings.standing_batches) == (100, 8)


@pytest.mark.parametrize("name", STYLES)
def test_published_stylegan2_recipes(name: str) -> None:
    recipe = load_recipe(name)
    networks, objective = recipe.networks.model_dump(), recipe.objective.model_dump()
    rates = {settings.learning_rate for settings in recipe.optimizers.values()}
    chosen = (
        *(networks[key] for key in ("resolution", "channel_base", "mapping_layers")),
        objective["r1_gamma"],
        recipe.training.batch,
        recipe.training.normalisation_batch,
        *rates,
        recipe.ema.half_life_images,
        objective["augmentation"]["method"] == "ada",
        round(sum(parameter_counts(recipe).values()) / 1e6, 1),
    )
    assert chosen == STYLES[name]
    assert (networks["mapping_rate"], networks["class_layers"]) == (0.01, 8)


@pytest.mark.parametrize("name", SIGNALS)
def test_stylegan3_recipes(name: str) -> None:
    recipe = load_recipe(name)
    networks, objective, ema = recipe.networks, recipe.objective, recipe.ema
    assert isinstance(networks, StyleGAN3Networks)
    assert isinstance(objective, StyleGAN3Objective)
    generator = recipe.kind.build(networks, "meta")["G"]
    assert SIGNALS[name] == (
        networks.resolution,
        networks.equivariance,
        networks.generator_channel_base,
        networks.generator_channel_max,
        objective.r1_gamma,
        objective.blur,
        ema.half_life_share,
        round(sum(parameter.numel() for parameter in generator.parameters()) / 1e6, 1),
    )
    assert (networks.mapping_layers, networks.layers, networks.mean_style_decay) == (2, 14, 0.998)
    assert networks.magnitude_decay == pytest.approx(0.5 ** (recipe.training.batch / 20_000), abs=1e-6)
    rates = {optimizer: settings.learning_rate for optimizer, settings in recipe.optimizers.items()}
    assert rates == {"G": 0.0025, "D": 0.002}
    assert (recipe.training.batch, recipe.training.normalisation_batch, ema.half_life_images) == (32, 4, 10_000)


LAUNCHED = (
    *("biggan-imagenet-128", "biggan-imagenet-256", "biggan-imagenet-512", "biggan-ch64-imagenet-128"),
    *("biggan-deep-imagenet-128", "biggan-deep-imagenet-256", "biggan-deep-imagenet-512", "biggan-places365-128"),
    *("sagan-imagenet-128", "sngan-imagenet-128", "biggan-cifar10-32"),
)
"""Recipes of BigGAN-PyTorch's launch scripts."""
RELEASED = (
    *("stylegan2-auto", "stylegan2-cifar10", "stylegan2-ffhq-256", "stylegan2-ffhq-512", "stylegan2-ffhq-1024"),
    *("stylegan2-finetune-256", "stylegan2-finetune-512", "stylegan2-finetune-1024"),
)
"""Recipes of StyleGAN2's release."""


@pytest.mark.parametrize("name", LAUNCHED)
def test_a_launch_scripts_recipe_is_scored_as_the_script_scores(name: str) -> None:
    found = load_recipe(name).evaluation
    every, statistics = ("5k steps", "batch") if name == "biggan-cifar10-32" else ("2k steps", "running")
    assert (str(found.every), found.statistics, found.samples) == (every, statistics, 50_000)
    assert (found.network, found.metrics, found.best_by) == ("inception-torchvision", ("is", "fid"), "is_mean")
    assert found.keep_best == 5


@pytest.mark.parametrize("name", RELEASED)
def test_a_releases_recipe_is_scored_at_its_snapshots(name: str) -> None:
    found = load_recipe(name).evaluation
    assert (str(found.every), found.metrics, found.samples) == ("200k images", ("fid",), 50_000)
    assert (found.network, found.noise, found.best_by) == ("inception", "random", "fid")


def test_recipes_of_our_own_are_scored_without_weights() -> None:
    recipes = [load_recipe(name) for name in built_in()]
    own = [recipe for recipe in recipes if recipe.about.source == "frugan's own" and not recipe.shows_given]
    scored = [recipe.evaluation for recipe in own if recipe.evaluation.every is not None]
    assert len(scored) >= 8
    by = {(each.metrics, each.network, each.best_by, each.keep_best) for each in scored}
    assert by == {(("two-sample", "pr"), "pixels", "two_sample", 1)}
    small = [recipe for name, recipe in zip(built_in(), recipes, strict=True) if "small" in name]
    assert all(recipe.evaluation.every is not None for recipe in small if not recipe.shows_given)


def test_noise_of_scores_is_of_networks_with_styles() -> None:
    with pytest.raises(BadInput, match=r"evaluation\.noise random: biggan has no mapping network"):
        load_recipe("biggan-small-32", ["evaluation.noise=random"])


def test_a_folder_in_the_place_of_a_recipe_is_taken_for_pictures(tmp_path: Path) -> None:
    pictures = tmp_path / "my pictures 我的图"
    pictures.mkdir()
    with pytest.raises(BadInput, match=re.escape(f"(a folder of pictures is given as --data '{pictures}')")):
        load_recipe(str(pictures))


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("saehd", "saehd-df-ud-256, saehd-liae-ud-256, saehd-liae-udt-320 or saehd-df-ud-512"),
        ("saehd_df", "saehd-df-ud-256 or saehd-df-ud-512"),
        ("sahed", "saehd-df-ud-256, saehd-liae-ud-256, saehd-liae-udt-320 or saehd-df-ud-512"),
        ("BigGAN", "biggan-finetune-128, biggan-cifar10-32, biggan-imagenet-128 or biggan-places365-128"),
        ("stylegan2-ffhq", "stylegan2-ffhq-256, stylegan2-ffhq-512 or stylegan2-ffhq-1024"),
        ("amp", "amp-320, amp-224, amp-256 or amp-small-64"),
        ("biggan-digit", "biggan-digits-32"),
        ("biggan-imagenet-129", "biggan-imagenet-128"),
    ],
)
def test_a_word_that_fits_several_recipes_names_real_ones_first(word: str, meant: str) -> None:
    with pytest.raises(BadInput, match=re.escape(f"recipe {word!r} is unknown (did you mean {meant}?)")):
        load_recipe(word)


@pytest.mark.parametrize("family", sorted({name.partition("-")[0] for name in built_in()} - set(built_in())))
def test_no_toy_is_meant_where_a_family_has_more(family: str) -> None:
    with pytest.raises(BadInput) as told:
        load_recipe(family)
    first = str(told.value).partition("did you mean ")[2].split("?")[0].split(",")[0].split(" or ")[0]
    sizes = {row["name"]: row["parameters"] for row in shipped_recipes() if row["name"].startswith(f"{family}-")}
    assert sizes[first] >= min(TOY_PARAMETERS, max(sizes.values()))


def test_a_string_in_place_of_words_is_refused() -> None:
    with pytest.raises(
        BadInput,
        match=re.escape("a list of str, not 'networks.classes=2'; write ['networks.classes=2']"),
    ):
        load_recipe("biggan-digits-32", "networks.classes=2")


@pytest.mark.parametrize("word", ["foo", "x", "-", "runs/a"])
def test_a_word_that_fits_no_recipe_names_none(word: str) -> None:
    with pytest.raises(BadInput, match=rf"^recipe '{word}' is unknown; `frugan recipes` lists"):
        load_recipe(word)
