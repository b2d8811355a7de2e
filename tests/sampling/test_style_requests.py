"""Seeds, mixed styles, psi and noise: who may ask for them, and what comes of it."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import frugan
from frugan.cli.options import parse_mixing, parse_numbers
from frugan.contract.family import GridRequest, StyleMixing
from frugan.errors import BadInput
from frugan.sampling.requests import DrawRequest, check_draw, check_request
from frugan.sampling.sampling import _requests
from frugan.setup.networks import save
from frugan.setup.recipe_setup import build_networks

STYLED = "stylegan2-digits-32"
WITHOUT = ("biggan-digits-32", "saehd-demo-64")
MIXING = StyleMixing((1,), (2,), (0,))


@pytest.mark.parametrize("name", WITHOUT)
@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (GridRequest(psi=0.7), "--psi: .*(has no mapping network|shows what it makes of given pictures)"),
        (GridRequest(psi_layers=2), "--psi-layers: .*(has no mapping network|shows what it makes of given pictures)"),
        (GridRequest(noise="none"), "--noise: .* has no mapping network"),
        (GridRequest(mixing=MIXING), "--style-mixing: .* has no mapping network and no styles"),
    ],
)
def test_families_without_styles_refuse(name: str, request_: GridRequest, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        check_request(request_, frugan.load_recipe(name))


def test_evaluation_refuses_psi_without_styles() -> None:
    """The same check stands before what `frugan evaluate` and --npz draw."""
    with pytest.raises(BadInput, match="--psi: biggan has no mapping network"):
        check_draw(DrawRequest(psi=0.5), frugan.load_recipe("biggan-digits-32"))
    check_draw(DrawRequest(psi=-0.5, noise="random"), frugan.load_recipe(STYLED))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (GridRequest(seeds=(-1,)), "--seeds -1: expected a whole number from 0 to 4294967295"),
        (GridRequest(seeds=(2**32,)), "--seeds 4294967296: expected"),
        (GridRequest(seeds=range(20_000)), "1 x 20,000 pictures"),
        (GridRequest(mixing=StyleMixing((2**32,), (1,), (0,))), "--style-mixing rows 4294967296"),
        (GridRequest(mixing=StyleMixing((), (1,), (0,))), "expected a row, a column and a layer"),
        (GridRequest(mixing=MIXING, seeds=(1,)), "--style-mixing: not with --seeds"),
        (GridRequest(mixing=MIXING, interpolate="latent"), "--style-mixing: not with"),
        (GridRequest(psi=float("nan")), "--psi nan: expected a number"),
        (GridRequest(psi_layers=0), "--psi-layers 0: expected at least 1"),
    ],
)
def test_what_cannot_be_drawn_is_refused(request_: GridRequest, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        check_request(request_, frugan.load_recipe(STYLED))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (DrawRequest(interpolate="latent"), "--interpolate latent: not with --random, --npz or --pngs"),
        (DrawRequest(seeds=(1, 2)), "--seeds: goes with sample grids"),
        (DrawRequest(mixing=MIXING), "--style-mixing and --random, --npz, --pngs: one kind at a time"),
        (DrawRequest(standing_size=8), "--standing-size 8: goes with --statistics standing"),
        (DrawRequest(psi_layers=2), "--psi-layers 2: says for how many layers --psi holds, which is 1"),
    ],
)
def test_what_does_not_go_with_single_pictures_is_refused_in_python_too(request_: DrawRequest, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        check_draw(request_, frugan.load_recipe(STYLED))


def test_what_does_not_go_with_grids_is_refused_in_python_too() -> None:
    for request, message in (
        (DrawRequest(statistics="batch"), "--statistics batch: goes with --random"),
        (GridRequest(spherical=True), "--spherical: goes with --interpolate or --animate"),
        (GridRequest(seeds=(1, 2), interpolate="latent", spherical=True), "between which walks are straight"),
        (DrawRequest(latents=(Path("a"),), truncation=0.5), "--truncation: says where pictures of --seeds lie"),
    ):
        with pytest.raises(BadInput, match=message):
            check_request(request, frugan.load_recipe("biggan-digits-32"))
    check_request(DrawRequest(interpolate="latent", spherical=True), frugan.load_recipe("biggan-digits-32"))


def test_a_grid_nearer_to_the_mean_is_so_unless_a_place_is_asked_for() -> None:
    recipe = frugan.load_recipe(STYLED)
    for asked, places in ((1.0, {"samples": 1.0, "truncated": 0.7}), (0.5, {"samples": 0.5})):
        drawn = _requests(recipe, DrawRequest(psi=asked))
        assert {name: each.psi for name, each in drawn.items() if each.interpolate is None} == places


def test_words_of_the_commands() -> None:
    assert parse_numbers("42,600-603", "--seeds") == (42, 600, 601, 602, 603)
    assert parse_mixing("rows=1,2  cols=3-4 layers=0") == StyleMixing((1, 2), (3, 4), (0,))


@pytest.mark.parametrize("text", ["", "rows=1 cols=2", "rows=1 cols=2 layers=0 rows=3", "rows=1 cols=2 styles=0", "x"])
def test_a_mixture_that_is_none(text: str) -> None:
    with pytest.raises(BadInput, match="expected rows, cols and layers, such as 'rows=85,100"):
        parse_mixing(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3-1", "expected numbers"),
        ("a", "expected numbers"),
        ("", "expected"),
        ("0-4294967295", "more than 10,000,000"),
    ],
)
def test_numbers_that_are_none(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=f"--seeds {text}: {message}"):
        parse_numbers(text, "--seeds")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Untrained weights of small networks."""
    words = ["networks.resolution=8", "networks.channel_base=64", "networks.channel_max=8", "networks.latent_size=8"]
    recipe = frugan.load_recipe(STYLED, [*words, "networks.style_size=8"])
    path = tmp_path_factory.mktemp("styles") / "w.safetensors"
    save(build_networks(recipe), recipe, path)
    return path


def test_pictures_of_seeds_are_files_of_their_own(weights: Path, tmp_path: Path) -> None:
    request = GridRequest(seeds=(42, 7), classes=(3, 5))
    paths = frugan.sample(weights, tmp_path, request, say=lambda _: None)
    assert [path.name for path in paths] == [
        "seeds.png",
        *("seed0042-class3.png", "seed0007-class3.png", "seed0042-class5.png", "seed0007-class5.png"),
    ]
    alone = frugan.sample(weights, tmp_path / "x", GridRequest(seeds=(7,), classes=(5,)), say=lambda _: None)[1]
    assert alone.name == "seed0007.png"
    one, other = (np.asarray(Image.open(path)) for path in (alone, paths[-1]))
    np.testing.assert_array_equal(one, other)
    assert one.shape == (8, 8)


def test_a_grid_of_mixed_styles_and_a_film_by_seeds(weights: Path, tmp_path: Path) -> None:
    (grid,) = frugan.sample(weights, tmp_path, GridRequest(mixing=MIXING), say=lambda _: None)
    assert grid.name == "style-mixing.png"
    request = GridRequest(seeds=(1, 2, 3), columns=7)
    film = frugan.animate(weights, tmp_path / "film.gif", request, say=lambda _: None)
    with Image.open(film) as opened:
        assert opened.n_frames == 12  # type: ignore[attr-defined]  # there and back again
