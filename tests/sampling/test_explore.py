"""Directions, moves, walks and latents: against what is known by hand, by each family's own forward, and from files."""

import json
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from typer.testing import CliRunner

import frugan
from frugan.cli.application import application
from frugan.contract.family import GridRequest, LatentSpace, StyleMixing
from frugan.engine.plan import Layout
from frugan.engine.run.tensor_files import read_tensors, write_tensors
from frugan.errors import BadInput
from frugan.progress import quiet
from frugan.sampling.directions import Direction, Directions, factorised, find, of_activations, principal
from frugan.sampling.explorer import Explorer, Points, explore
from frugan.sampling.requests import DrawRequest
from frugan.sampling.sheets import drawn, sheets
from sampling.generators import MODELS, torch_pictures, write

CPU = torch.device("cpu")
STYLED, CONDITIONED = "stylegan2", "biggan"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Weights files of the small generators."""
    folder = tmp_path_factory.mktemp("generators")
    return {name: write(model, folder / f"{name}.safetensors") for name, model in MODELS.items()}


@pytest.fixture(scope="module", params=(STYLED, CONDITIONED))
def explorer(request: pytest.FixtureRequest, files: dict[str, Path]) -> Iterator[Explorer]:
    with explore(files[request.param], device="cpu") as opened:
        yield opened


def linear_space(matrix: Tensor, layers: int = 1) -> LatentSpace:
    """Of a generator that is one linear map, times 2 in each further layer."""
    return LatentSpace(
        network="G",
        name="z",
        latent_size=matrix.shape[1],
        size=matrix.shape[1],
        layers=layers,
        classes=0,
        class_free=True,
        place=lambda z, _: z,
        draw=lambda z, *_: (z[:, 0] @ matrix.T)[:, :, None, None],
        maps=lambda chosen: torch.cat([matrix * 2**layer for layer in chosen]),
        activations=lambda z, _: z @ matrix.T,
    )


def turned(*lengths: float) -> tuple[Tensor, Tensor]:
    """A map [2n, n] that makes known unit vectors as long as is said, and those vectors in that order [n, n]."""
    random = torch.Generator().manual_seed(0)
    size = len(lengths)
    left = torch.linalg.qr(torch.randn(2 * size, size, generator=random)).Q
    right = torch.linalg.qr(torch.randn(size, size, generator=random)).Q
    return left @ torch.diag(torch.tensor(lengths)) @ right.T, right.T


def same_lines(found: Tensor, known: Tensor, tolerance: float = 1e-4) -> bool:
    """Whether unit vectors lie on the same lines, whichever way they point."""
    return bool(((found * known).sum(1).abs() > 1 - tolerance).all())


def test_a_factorisation_that_is_known_by_hand() -> None:
    found = factorised(torch.tensor([[0.0, 3.0], [1.0, 0.0], [0.0, 0.0]]))
    torch.testing.assert_close(found, torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    matrix, known = turned(5.0, 3.0, 2.0, 0.5)
    assert same_lines(factorised(matrix), known)


def test_components_of_vectors_and_of_activations_that_are_known() -> None:
    matrix, known = turned(5.0, 3.0, 1.5, 0.5)
    random = torch.Generator().manual_seed(1)
    drawn = torch.randn(20_000, 8, generator=random) @ matrix
    assert same_lines(principal(drawn), known, 0.01)
    space = linear_space(matrix)
    assert space.activations is not None
    assert same_lines(of_activations(space, space.activations, None, CPU), known, 0.01)


def test_found_directions_have_units_and_layers() -> None:
    matrix, known = turned(4.0, 2.0, 1.0)
    found = find("sefa", linear_space(matrix, layers=3), "digest", (1, 2), None, CPU)
    assert [direction.name for direction in found.entries] == ["sefa-1", "sefa-2", "sefa-3"]
    assert same_lines(torch.stack([direction.vector for direction in found.entries]), known)
    assert all(direction.deviation == pytest.approx(1, abs=0.03) for direction in found.entries)
    shift = found.shift({"sefa-1": 2.0, "sefa-3": -1.0}, 3)
    first, third = found["sefa-1"], found["sefa-3"]
    expected = 2 * first.deviation * first.vector - third.deviation * third.vector
    torch.testing.assert_close(shift, torch.stack([torch.zeros(3), expected, expected]))


@pytest.mark.parametrize("name", list(MODELS))
def test_pictures_of_seeds_are_those_of_the_generator(name: str, files: dict[str, Path]) -> None:
    model, psi = MODELS[name], 0.6 if MODELS[name].psi else 1.0
    classes = (3, 1) if model.classes else None
    with explore(files[name], device="cpu") as explorer:
        explorer.prepare(Layout())
        drawn = explorer.draw(explorer.seeds((5, 8), classes, psi=psi))
        size = explorer.space.latent_size
        sefa = explorer.directions("sefa")
    z = torch.from_numpy(np.concatenate([np.random.RandomState(seed).randn(1, size) for seed in (5, 8)])).float()
    z, labels = (z.repeat(2, 1), torch.tensor([3, 3, 1, 1])) if classes else (z, torch.zeros(2, dtype=torch.int64))
    np.testing.assert_allclose(drawn.numpy(), torch_pictures(model, files[name], z, labels, psi), atol=2e-5)
    vectors = torch.stack([direction.vector for direction in sefa.entries])
    torch.testing.assert_close(vectors @ vectors.T, torch.eye(len(vectors)), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "method", "times"), [(STYLED, "sefa", 2), (STYLED, "pca", 2), (CONDITIONED, "pca", 1.5)]
)
def test_first_directions_change_pictures_more_than_last_ones(
    name: str, method: str, times: float, files: dict[str, Path]
) -> None:
    with explore(files[name], device="cpu") as explorer:
        compare_first_and_last(explorer, method, times)


def compare_first_and_last(explorer: Explorer, method: str, times: float) -> None:
    found = explorer.directions(method)
    points = explorer.seeds(range(8), [2])
    before = explorer.draw(points)

    def change(direction: Direction) -> float:
        shift = found.shift({direction.name: 2.0}, explorer.space.layers)
        return float((explorer.draw(points.moved(shift)) - before).abs().mean())

    first, last = change(found.entries[0]), change(found.entries[-1])
    assert first > times * last
    assert first > 0.01


def test_the_family_draws_the_same_seeds(files: dict[str, Path], tmp_path: Path) -> None:
    request = GridRequest(seeds=(3, 9), classes=(4,), psi=0.5, psi_layers=2, noise="none")
    frugan.sample(files[STYLED], tmp_path, request, device="cpu", say=quiet)
    with explore(files[STYLED], device="cpu") as explorer:
        drawn = explorer.draw(explorer.seeds((3, 9), (4,), psi=0.5, psi_layers=2), "none")
    levels = ((drawn[1].numpy() + 1) * 127.5).round().clip(0, 255)
    np.testing.assert_allclose(
        np.asarray(Image.open(tmp_path / "seed0009.png")), levels.transpose(1, 2, 0)[:, :, 0], atol=1
    )


def test_walks_go_by_their_stations() -> None:
    points = Points(torch.tensor([0.0, 1.0, 3.0]).view(3, 1, 1), torch.eye(3))
    walk = points.walk(5)
    assert walk.vectors.flatten().tolist() == [0, 0.5, 1, 2, 3]
    assert cast(Tensor, walk.shares)[1].tolist() == [0.5, 0.5, 0]
    assert points[:1].walk(2).vectors.flatten().tolist() == [0, 0]


def test_styles_are_mixed_by_layer(files: dict[str, Path]) -> None:
    with explore(files[STYLED], device="cpu") as explorer:
        one, other = explorer.seeds((1,), (0,)), explorer.seeds((2,), (0,))
        mixed = one.mixed(other, (0, 1))
    assert torch.equal(mixed.vectors[:, :2], other.vectors[:, :2])
    assert torch.equal(mixed.vectors[:, 2:], one.vectors[:, 2:])


def test_directions_are_kept_and_named_by_hand(explorer: Explorer, tmp_path: Path) -> None:
    found = explorer.directions("sefa")
    path = tmp_path / "kept" / "directions.json"
    found.renamed({"sefa-2": "slant"}).write(path)
    path.write_text(path.read_text().replace('"sefa-1"', '"weight of the stroke"'))
    read = explorer.directions(path)
    assert [direction.name for direction in read.entries[:3]] == ["weight of the stroke", "slant", "sefa-3"]
    for one, other in zip(read.entries, found.entries, strict=True):
        torch.testing.assert_close(one.vector, other.vector)
        assert (one.layers, one.deviation) == (other.layers, other.deviation)
    with pytest.raises(BadInput, match=r"no direction is called 'slent' \(did you mean slant\?\); there are weight of"):
        _ = read["slent"]
    with pytest.raises(BadInput, match="two directions are called 'slant'"):
        read.renamed({"sefa-3": "slant"})


def test_names_are_not_lost_when_others_are_found(explorer: Explorer, tmp_path: Path, said: list[str]) -> None:
    path, request = tmp_path / "directions.json", DrawRequest(seeds=(1,), rows=2, columns=2)
    sheets(explorer, replace(request, directions="sefa"), (), tmp_path, quiet)
    explorer.directions(path).renamed({"sefa-3": "slant"}).write(path)
    for method, others in (("sefa", ["sefa-1", "sefa-2", "sefa-4"]), ("pca", ["pca-1", "pca-2", "pca-3"])):
        sheet = sheets(explorer, replace(request, directions=method), (), tmp_path, quiet)["directions"]
        assert sheet.labels == (f"{method}-1", f"{method}-2")
        assert [direction.name for direction in explorer.directions(path).entries[:4]] == ["slant", *others]
    path.write_text("{}")
    sheets(explorer, replace(request, directions="sefa"), (), tmp_path, said.append)
    assert (tmp_path / "directions-before-1.json").read_text() == "{}"
    assert "set aside as directions-before-1.json" in said[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "x"}, "its format is not 'frugan directions'"),
        ({"weights": "0" * 64}, "directions of other weights"),
        ({"directions": []}, "holds no direction"),
        ({"directions": 3}, "no file of directions, or a damaged one"),
        ({"vector": [1.0]}, "finite numbers as its vector"),
        ({"vector": "abc"}, "no file of directions"),
        ({"deviation": -1}, "expected a number above 0"),
        ({"layers": [99]}, "layers"),
        ({"layers": [[0]]}, "no file of directions"),
        ({"name": "a\nb"}, "expected 1 to 60 letters"),
        ({"name": "sefa-2"}, "two directions are called 'sefa-2'"),
    ],
)
def test_damaged_directions_are_refused(
    explorer: Explorer, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = tmp_path / "directions.json"
    explorer.directions("sefa").write(path)
    values = json.loads(path.read_text())
    for key, value in change.items():
        (values if key in values else values["directions"][0])[key] = value
    path.write_text(json.dumps(values))
    with pytest.raises(BadInput, match=message):
        explorer.directions(path)


def test_what_is_no_file_of_directions(explorer: Explorer, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file; expected sefa, pca, or a file"):
        explorer.directions(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("{")
    with pytest.raises(BadInput, match="no file of directions, or a damaged one"):
        explorer.directions(tmp_path / "text.json")
    for words in ("sefa layers=99", "sefa layers=a", "pca rows=3", "sefa layers="):
        with pytest.raises(BadInput, match="with some of the layers 0 to"):
            explorer.directions(words)


def test_latents_are_kept(explorer: Explorer, files: dict[str, Path], tmp_path: Path) -> None:
    points, path = explorer.seeds((1, 2), (3,)), tmp_path / "two.safetensors"
    explorer.write(points, path)
    read = explorer.read(path)
    assert torch.equal(read.vectors, points.vectors)
    assert (read.shares is None) == explorer.space.class_free
    explorer.write(replace(points, vectors=points.vectors * torch.nan), path)
    with pytest.raises(BadInput, match="values that are not finite"):
        explorer.read(path)
    explorer.write(replace(points, vectors=points.vectors[:, :, 1:]), path)
    with pytest.raises(BadInput, match="expected vectors"):
        explorer.read(path)
    with pytest.raises(BadInput, match="no file of latents"):
        explorer.read(files[STYLED])
    with explore(files["r3gan"], device="cpu") as other:
        other.write(other.seeds((1,)), path)
    with pytest.raises(BadInput, match="of other weights"):
        explorer.read(path)


def test_latents_of_an_earlier_checkpoint_name_it(files: dict[str, Path], tmp_path: Path) -> None:
    run, latents = tmp_path / "my run", tmp_path / "tulip.safetensors"
    places = [run / "backups" / "step-000000002", run / "checkpoints" / "step-000000004"]
    for place, seed in zip(places, (1, 2), strict=True):
        place.mkdir(parents=True)
        tensors, about = read_tensors(files[STYLED])
        write_tensors(place / "ema.safetensors", {key: value + seed for key, value in tensors.items()}, about)
    (run / "events.jsonl").touch()
    (run / "recipe.json").touch()
    with explore(places[0], device="cpu") as earlier:
        earlier.write(earlier.seeds((1,)), latents)
    with explore(places[1], device="cpu") as later:
        with pytest.raises(BadInput, match=r"they are of step 2: .* take '.*backups/step-000000002' in place"):
            later.read(latents)
        shutil.rmtree(places[0])
        with pytest.raises(BadInput, match="of step 2, which the run has no checkpoint of; project them again"):
            later.read(latents)


# `frugan sample` and `frugan.sample`.


def pixels(path: Path) -> bytes:
    with Image.open(path) as opened:
        return opened.tobytes()


@pytest.mark.parametrize("name", [STYLED, CONDITIONED])
def test_a_sheet_of_directions_carries_what_makes_it_again(
    name: str, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = DrawRequest(seeds=(7,), classes=(2,), directions="sefa", rows=3, columns=4)
    (sheet,) = frugan.sample(files[name], tmp_path / "a", request, device="cpu", say=quiet)
    with Image.open(sheet) as opened:
        told = dict(opened.info)
    assert sheet.name == "directions.png"
    assert str(told["Rows"]).splitlines() == ["sefa-1", "sefa-2", "sefa-3"]
    before = pixels(sheet)
    words = shlex.split(str(told["Command"]), comments=True)
    monkeypatch.chdir(tmp_path)
    words[words.index("--out") + 1] = "again"
    result = CliRunner().invoke(application(), words[1:])
    assert result.exit_code == 0, result.output
    assert pixels(tmp_path / "again" / "directions.png") == before
    sheet.unlink()
    exec(str(told["Python"]), {})
    assert pixels(sheet) == before


def test_moved_pictures_and_the_middle_of_a_row(explorer: Explorer, tmp_path: Path) -> None:
    usual = DrawRequest(seeds=(7,), classes=(2,))

    def pictures(name: str, request: DrawRequest) -> Tensor:
        return drawn(explorer, sheets(explorer, request, (), tmp_path, quiet)[name], request)

    along = replace(usual, directions="sefa", moves={"sefa-2": (-2.0, 2.0)}, columns=4)
    row = pictures("directions", along)[0]  # [5, C, R, R]
    moved = replace(usual, directions=tmp_path / "directions.json", moves={"sefa-2": 2.0})
    torch.testing.assert_close(row[2], pictures("seeds", usual)[0, 0], atol=1e-4, rtol=0)
    torch.testing.assert_close(row[4], pictures("seeds", moved)[0, 0], atol=1e-4, rtol=0)
    assert not torch.allclose(row[2], row[4], atol=1e-3)


@pytest.mark.parametrize("columns", [3, 11, 12, 25])
def test_the_middle_of_a_row_is_named_zero(columns: int, explorer: Explorer, tmp_path: Path) -> None:
    request = DrawRequest(seeds=(3,), directions="sefa", rows=1, columns=columns)
    above = sheets(explorer, request, (), tmp_path, quiet)["directions"].titles
    assert above[len(above) // 2] == "0"
    assert (above[0], above[-1]) == ("-3", "+3")


def test_mixed_styles_are_moved(files: dict[str, Path], tmp_path: Path) -> None:
    mixing = StyleMixing((1, 2), (3,), (0, 1))
    with explore(files[STYLED], device="cpu") as explorer:
        request = DrawRequest(mixing=mixing, classes=(1,), directions="sefa layers=2-3", moves={"sefa-1": 1.0})
        (sheet,) = sheets(explorer, request, (), tmp_path, quiet).values()
        rows, columns = explorer.seeds((1, 2), (1,)), explorer.seeds((3, 3), (1,))
        torch.testing.assert_close(sheet.points.vectors[:, :2], columns.vectors[:, :2])
        torch.testing.assert_close(sheet.points.vectors[:, 4:], rows.vectors[:, 4:])
        assert not torch.allclose(sheet.points.vectors[:, 2:4], rows.vectors[:, 2:4])
    assert (sheet.rows, sheet.columns, sheet.titles) == (2, 1, ("3",))


def test_a_sheet_for_each_of_several_pictures(explorer: Explorer, tmp_path: Path) -> None:
    request = DrawRequest(seeds=(7, 8), classes=(2, 0), directions="sefa", rows=2, columns=3)
    found = sheets(explorer, request, ("zero", "one", "two"), tmp_path, quiet)
    assert list(found) == [f"directions-{seed}-class{number}" for number in (2, 0) for seed in (7, 8)]
    sheet = found["directions-8-class0"]
    assert (sheet.titles, sheet.labels, len(sheet.points)) == (("-3", "0", "+3"), ("sefa-1", "sefa-2"), 6)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (DrawRequest(moves={"a": 1.0}), "--move: goes with --directions"),
        (
            DrawRequest(directions="sefa", mixing=None, spherical=True, interpolate="latent"),
            "--directions sefa: goes with",
        ),
        (
            DrawRequest(directions="sefa", moves={"sefa-1": float("nan")}),
            "--move sefa-1=nan: expected standard deviations",
        ),
        (DrawRequest(directions="sefa", moves={"sefa-1": 1e9}), "expected standard deviations from -100 to 100"),
        (DrawRequest(directions="sefa", moves={"sefa-1": (0.0, 1.0)}, interpolate="latent"), "is a row by itself"),
        (
            DrawRequest(directions="sefa", moves={"sefa-1": 1.0}, interpolate="latent"),
            "a walk goes between two or more",
        ),
        (
            DrawRequest(directions="sefa", moves={"safe-1": 1.0}),
            r"no direction is called 'safe-1' \(did you mean sefa-1",
        ),
        (DrawRequest(directions="sefa", columns=1, moves={"sefa-1": (0.0, 1.0)}), "at least its 2 ends"),
        (DrawRequest(seeds=(1, 2), interpolate="class"), "walks by --seeds or --latents are of kind latent"),
        (
            DrawRequest(seeds=(1, 2, 3), classes=(1, 2), interpolate="both"),
            "--seeds and --classes: 3 seeds and 2 classes; expected as many of both, or one",
        ),
        (DrawRequest(seeds=(1,), interpolate="both"), "a walk goes between two or more"),
        (DrawRequest(seeds=(1,), statistics="standing"), "use the running statistics"),
        (DrawRequest(latents=(Path("none"),), classes=(1, 2)), "--latents: hold the classes of their pictures"),
        (DrawRequest(latents=(Path("none"),)), "none: no such file"),
    ],
)
def test_what_cannot_be_explored_is_refused(
    request_: DrawRequest, message: str, files: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=message):
        frugan.sample(files[CONDITIONED], tmp_path, request_, device="cpu", say=quiet)


def test_shorter_latents_of_styles_and_families_without_latents(files: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="psi moves its styles"):
        frugan.sample(files[STYLED], tmp_path, DrawRequest(directions="sefa", truncation=0.5), device="cpu", say=quiet)


def test_walks_and_films_of_any_family(files: dict[str, Path], tmp_path: Path) -> None:
    request = DrawRequest(seeds=(1, 2, 3), classes=(0,), interpolate="latent", columns=5)
    (walk,) = frugan.sample(files["r3gan"], tmp_path, request, device="cpu", say=quiet)
    assert walk.name == "interpolation-latent.png"
    along = DrawRequest(seeds=(1,), directions="sefa", moves={"sefa-1": (-2.0, 2.0)}, columns=5)
    film = frugan.animate(files["r3gan"], tmp_path / "film.gif", along, device="cpu", say=quiet)
    with Image.open(film) as opened:
        assert opened.n_frames == 8  # type: ignore[attr-defined]  # there and back again


def test_directions_of_nothing() -> None:
    with pytest.raises(BadInput, match="no direction is called"):
        _ = Directions("", "z", "", ())["a"]
