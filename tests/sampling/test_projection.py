"""Pictures are found again in the generator that made them; files are fitted, decoded with care, and morphed."""

import re
import struct
import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import frugan
from frugan.cli.application import application
from frugan.errors import BadInput
from frugan.metrics.perceptual import choose_distance
from frugan.progress import quiet
from frugan.reporting.grids import ROWS_KEYWORD
from frugan.sampling.explorer import Explorer, Points, explore, space_of
from frugan.sampling.films import GAP
from frugan.sampling.projection import Projection, read_fitted, reduced_distances, search
from frugan.sampling.requests import DrawRequest
from sampling.generators import MODELS, write

STEPS = 40


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("generators")
    return {name: write(MODELS[name], folder / f"{name}.safetensors") for name in ("stylegan2", "biggan", "r3gan")}


@pytest.fixture(scope="module")
def styled(files: dict[str, Path]) -> Iterator[Explorer]:
    with explore(files["stylegan2"], device="cpu") as explorer:
        yield explorer


def own_picture(explorer: Explorer, seed: int = 5, class_: int = 2) -> torch.Tensor:
    with explorer.in_full():
        return explorer.draw(explorer.seeds((seed,), (class_,)))[0]


@pytest.mark.parametrize(
    ("name", "space", "of"),
    [("stylegan2", "w", STEPS), ("stylegan2", "w+", STEPS), ("biggan", "z", STEPS), ("r3gan", "z", 2 * STEPS)],
)
def test_a_picture_of_the_generator_is_found_again(name: str, space: str, of: int, files: dict[str, Path]) -> None:
    steps: list[int] = []
    with explore(files[name], device="cpu") as explorer:
        target = own_picture(explorer)
        layout = explorer.layout
        found = search(explorer, target, steps=of, space=space, progress=lambda done, _: steps.append(done))
        assert explorer.layout == layout
        with explorer.in_full():
            again = explorer.draw(found.points)[0]
    assert steps == list(range(1, of + 1))
    assert found.after < found.before / 4
    assert found.nearness.startswith("near: about as near as yours reduced to ")
    assert f"distance {found.after:.3g}, that of the mean picture {found.before:.3g}; features: " in found.nearness
    far = [float((picture - target).square().mean()) for picture in (found.picture, found.start)]
    assert far[0] < far[1] / 3
    torch.testing.assert_close(again, found.picture)
    vectors = found.points.vectors[0]
    assert bool((vectors == vectors[0]).all()) == (space != "w+")
    if found.points.shares is not None:
        assert float(found.points.shares.sum()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("after", "before", "told"),
    [
        (
            0.04,
            2.0,
            "near: about as near as yours reduced to 16 x 16 pixels (distance 0.04, that of the mean picture 2;",
        ),
        (0.10, 2.0, "near: about as near as yours reduced to 8 x 8 pixels ("),
        (0.02, 0.02, "near: about as near as yours reduced to 16 x 16 pixels ("),  # the mean picture itself
        (0.156, 2.57, "somewhat alike: about as near as yours reduced to 4 x 4 pixels ("),  # a smear
        (0.8, 2.57, "hardly alike: farther than yours reduced to 4 x 4 pixels ("),
        (0.2, 0.25, "hardly nearer than the mean picture: about as near as yours reduced to 4 x 4 pixels ("),
        (2.0, 2.57, "hardly nearer than the mean picture: farther than yours reduced to 4 x 4 pixels ("),
    ],
)
def test_nearness_is_that_of_a_copy_with_few_pixels(after: float, before: float, told: str) -> None:
    nothing = torch.zeros(3, 32, 32)
    points = Points(torch.zeros(1, 1, 8), None)
    reduced = {4: 0.27, 8: 0.15, 16: 0.04}
    found = Projection(points, nothing, nothing, nothing, before, after, reduced, "small", "w", 300, points)
    assert found.nearness.startswith(told)


def test_a_copy_with_fewer_pixels_is_farther(styled: Explorer) -> None:
    target = own_picture(styled)
    distance = choose_distance("small", Path(), styled.device).to(target[None])
    reduced = reduced_distances(target, distance)
    assert [*reduced] == [4, 8, 16]
    assert [*reduced.values()] == sorted(reduced.values(), reverse=True)
    flat = reduced_distances(torch.full_like(target, 0.3), distance)
    assert max(flat.values()) > 0  # of another picture than the one that distances are from
    own = choose_distance("small", Path(), styled.device).to(torch.full_like(target, 0.3)[None])
    assert max(reduced_distances(torch.full_like(target, 0.3), own).values()) < 1e-6  # nothing is lost of it


def test_a_search_is_the_same_twice_and_can_be_broken_off(styled: Explorer) -> None:
    target = own_picture(styled)
    found = [search(styled, target, steps=3).points.vectors for _ in range(2)]
    assert torch.equal(found[0], found[1])

    def stop(done: int, _: int) -> None:
        if done == 2:
            raise InterruptedError

    layout = styled.layout
    with pytest.raises(InterruptedError):
        search(styled, target, steps=9, progress=stop)
    assert styled.layout == layout
    assert not styled.draw(styled.seeds((1,), (0,))).requires_grad


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"space": "z"}, r"--space z: expected w or w\+"),
        ({"steps": 0}, "--steps 0: expected 1 to 100,000"),
        ({"features": "vgg"}, "--features vgg: expected small, inception"),
        ({"features": "inception"}, "frugan fetch inception"),
    ],
)
def test_what_cannot_be_searched(styled: Explorer, words: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        search(styled, torch.zeros(1, 32, 32), **words)  # type: ignore[arg-type]


def picture_file(path: Path, size: tuple[int, int], colour: str = "red") -> Path:
    picture = Image.new("RGB", size, "white")
    picture.paste(colour, (0, 0, size[0] // 2, size[1]))
    picture.save(path)
    return path


def test_projected_pictures_are_moved_and_morphed(files: dict[str, Path], tmp_path: Path) -> None:
    pictures = [picture_file(tmp_path / f"{name}.png", (50, 40), name) for name in ("red", "black")]
    said: list[str] = []
    paths = frugan.project(files["stylegan2"], pictures, tmp_path / "out", steps=4, device="cpu", say=said.append)
    told = r": (near|somewhat alike|hardly alike|hardly nearer than the mean picture): .* pixels \(distance .*\), in w "
    for picture in pictures:
        assert [line for line in said if re.match(re.escape(str(picture)) + told, line)]
    assert [path.name for path in paths] == ["projections.png", "red.safetensors", "black.safetensors"]
    with Image.open(paths[0]) as sheet:
        assert str(sheet.info[ROWS_KEYWORD]).splitlines() == ["red", "black"]
        assert "frugan.project(" in str(sheet.info["Python"])
        assert f"--project {pictures[1]}" in str(sheet.info["Command"])
    latents = paths[1:]
    both = frugan.sample(files["stylegan2"], tmp_path / "a", DrawRequest(latents=latents), device="cpu", say=quiet)
    assert [path.name for path in both] == ["latents.png", "latents-red.png", "latents-black.png"]
    moved = DrawRequest(latents=latents, directions="sefa", moves={"sefa-1": 3.0})
    other = frugan.sample(files["stylegan2"], tmp_path / "b", moved, device="cpu", say=quiet)
    assert Image.open(other[1]).tobytes() != Image.open(both[1]).tobytes()
    walk = DrawRequest(latents=latents, interpolate="latent", columns=5)
    assert frugan.sample(files["stylegan2"], tmp_path / "c", walk, device="cpu", say=quiet)[0].is_file()
    with pytest.raises(BadInput, match="of other weights"):
        frugan.sample(files["biggan"], tmp_path / "d", walk, device="cpu", say=quiet)


def test_two_pictures_of_one_name(files: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="each of a name of its own"):
        frugan.project(files["stylegan2"], ["a/x.png", "b/x.png"], tmp_path, say=quiet)


def bomb(side: int = 100_000) -> bytes:
    """A PNG that says it is of so many pixels a side."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"0")) + chunk(b"IEND", b"")


def test_pictures_are_fitted_as_for_training(tmp_path: Path) -> None:
    recipe = frugan.load_recipe("stylegan2-digits-32")
    path = picture_file(tmp_path / "wide.png", (60, 30), "black")
    cropped = read_fitted(path, recipe)
    assert cropped.shape == (1, 32, 32)
    assert [float(cropped[0, :, column].mean()) for column in (0, -1)] == [-1, 1]
    padded = read_fitted(path, frugan.load_recipe("stylegan2-digits-32", ["data.fit=pad", "data.background=black"]))
    assert float(padded[0, 0].max()) == -1
    assert float(padded.max()) == 1
    colour = read_fitted(path, frugan.load_recipe("stylegan2-digits-32", ["networks.channels=3"]))
    assert colour.shape == (3, 32, 32)


@pytest.mark.parametrize(
    ("content", "message"), [(bomb(), "decompression bomb"), (b"GIF89a", "cannot be read"), (b"", "not a picture")]
)
def test_what_is_no_picture_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    recipe = frugan.load_recipe("stylegan2-digits-32")
    path = tmp_path / "x.png"
    path.write_bytes(content)
    for given in (path, BytesIO(content)):
        with pytest.raises(BadInput, match=message):
            read_fitted(given, recipe)
    with pytest.raises(BadInput, match="No such file"):
        read_fitted(tmp_path / "none.png", recipe)


def test_faces_have_no_latents() -> None:
    recipe = frugan.load_recipe("saehd-demo-64")
    with pytest.raises(BadInput, match="saehd: has no latent space to look around in: it makes pictures of given ones"):
        space_of(recipe, {})


def test_levels_of_a_grey_picture_are_kept(tmp_path: Path) -> None:
    levels = np.random.default_rng(0).integers(0, 256, (32, 32), np.uint8)
    Image.fromarray(levels).save(tmp_path / "grey.png")
    fitted = read_fitted(tmp_path / "grey.png", frugan.load_recipe("stylegan2-digits-32"))
    assert ((fitted[0] + 1) * 127.5).round().numpy().astype(np.uint8).tolist() == levels.tolist()


def test_a_search_is_written_as_a_film(files: dict[str, Path], tmp_path: Path) -> None:
    pictures = [picture_file(tmp_path / f"{name}.png", (32, 32), name) for name in ("red", "black")]
    words = ["sample", str(files["biggan"]), "--steps", "6", "--animate", "search.webp", "--frames", "5"]
    words += [word for picture in pictures for word in ("--project", str(picture))]
    done = CliRunner().invoke(application(), [*words, "--device", "cpu", "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    with Image.open(tmp_path / "out" / "search.webp") as film:
        assert film.size == ((2 * 32 + GAP) * 4, (2 * 32 + GAP) * 4)
        shown = []
        for number in range(film.n_frames):  # type: ignore[attr-defined]
            film.seek(number)
            shown.append(np.asarray(film.convert("RGB")).astype(int))
        told = film.getexif()[270]
    assert "--animate search.webp --frames 5" in told
    assert "animate='search.webp', frames=5" in told
    size = 32 * 4
    beside = [frame[:size, size + GAP * 4 :] for frame in shown]
    assert max(np.abs(frame - beside[0]).mean() for frame in beside) < 2  # the given picture stays
    assert len(shown) >= 5


def test_the_way_of_a_search_goes_from_the_mean_to_what_was_found(files: dict[str, Path]) -> None:
    with explore(files["biggan"], device="cpu") as explorer:
        target = own_picture(explorer)
        found = search(explorer, target, steps=STEPS)
        walk = found.walk(12)
        with explorer.in_full():
            pictures = explorer.draw(walk)
    assert len(walk) == 12
    torch.testing.assert_close(pictures[0], found.start)
    torch.testing.assert_close(pictures[-1], found.picture)
    torch.testing.assert_close(walk.vectors[2], found.way.vectors[1])  # a sixth of the frames leads to the start
    steps = (found.way.vectors[2:] - found.way.vectors[1:-1]).flatten(1).norm(dim=1)
    assert steps.max() < (found.way.vectors[1] - found.way.vectors[0]).norm() / 4  # one start's, without leaps
