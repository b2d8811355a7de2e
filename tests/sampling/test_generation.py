"""What is drawn for scores, for other programs and for people: pictures that are a function of their number."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from typer.testing import CliRunner

from evaluation.scored import drawn
from frugan.cli.application import application
from frugan.contract.family import GridRequest
from frugan.contract.layers import GroupNormalised
from frugan.data.formats.picture_set import PictureSet, picture_digest
from frugan.errors import BadInput
from frugan.metrics.provenance import Statistics
from frugan.progress import quiet
from frugan.sampling.generation import Sampler, generating
from frugan.sampling.generators import Opened
from frugan.sampling.requests import DrawRequest
from frugan.sampling.sampling import animate, check_memorisation, draw


@pytest.mark.parametrize(
    "statistics", ["running", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("standing", "batch"))]
)
def test_pictures_are_a_function_of_their_number(opened: Opened, statistics: Statistics) -> None:
    """However they are batched, wherever one begins: so that processes can share them out."""
    whole, labels = drawn(opened, DrawRequest(statistics=statistics, micro_batch=64), 0, 100)
    for micro_batch in (4, 12):
        request = DrawRequest(statistics=statistics, micro_batch=micro_batch)
        part, part_labels = drawn(opened, request, 50, 30)
        assert torch.equal(part_labels, labels[50:80])
        assert (part.int() - whole[50:80].int()).abs().max() <= 1  # rounding of another batch size
    assert len(whole.flatten(1).unique(dim=0)) == 100
    assert labels.unique().tolist() == [0, 1]


def test_statistics_differ_and_leave_no_trace(opened: Opened) -> None:
    layers = [m for n in opened.networks.values() for m in n.modules() if isinstance(m, GroupNormalised)]
    before = [{k: v.clone() for k, v in layer.named_buffers()} for layer in layers]
    pictures = [drawn(opened, DrawRequest(statistics=s))[0] for s in ("running", "standing", "batch")]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert not torch.equal(pictures[one], pictures[other])
    for layer, kept in zip(layers, before, strict=True):
        assert not layer.training
        assert all(torch.equal(value, kept[name]) for name, value in layer.named_buffers())


def test_standing_statistics_are_means_over_batches(opened: Opened) -> None:
    """Of one batch they are that batch's own, and the pictures of that batch come out as in training."""
    request = DrawRequest(statistics="standing", standing_batches=1, standing_size=8)
    with generating(opened.recipe, opened.networks, opened.layout, request):
        one = {k: v.clone() for k, v in opened.networks["G"].named_buffers() if "stored" in k}
    with generating(opened.recipe, opened.networks, opened.layout, replace(request, standing_batches=4)):
        four = {k: v.clone() for k, v in opened.networks["G"].named_buffers() if "stored" in k}
    assert one
    assert any(not torch.allclose(one[k], four[k]) for k in one)
    less = replace(request, truncation=0.1, standing_batches=4)
    with generating(opened.recipe, opened.networks, opened.layout, less):
        other = dict(opened.networks["G"].named_buffers())
        assert any(not torch.allclose(four[k], other[k]) for k in four)  # gathered anew at this truncation


def test_sample_takes_the_standing_statistics_asked_for(scored: Path, tmp_path: Path) -> None:
    runner = CliRunner()

    def drawn(*words: str) -> "np.ndarray":
        out = tmp_path / "-".join(("out", *words))
        common = ["sample", str(scored / "run"), "--out", str(out), "--npz", "4", "--device", "cpu"]
        result = runner.invoke(application(), [*common, "--statistics", "standing", *words])
        assert result.exit_code == 0, result.output
        return np.asarray(np.load(out / "samples.npz")["x"])

    plain = drawn()
    assert (plain != drawn("--standing-batches", "2", "--standing-size", "16")).any()


def test_samples_for_other_programs(scored: Path, opened: Opened, tmp_path: Path) -> None:
    paths = draw(scored / "run", tmp_path, DrawRequest(), npz=70, pngs=9, sheet=(2, 3), device="cpu", say=quiet)
    assert [path.name for path in paths] == ["samples.npz", "pngs", "random.png"]
    expected, labels = drawn(opened, DrawRequest(), count=70)
    with np.load(paths[0]) as archive:
        np.testing.assert_array_equal(archive["x"], expected.numpy())
        np.testing.assert_array_equal(archive["y"], labels.numpy())
    files = sorted(paths[1].rglob("*.png"), key=lambda p: p.name)
    assert [int(p.parent.name) for p in files] == labels[:9].tolist()
    with Image.open(files[0]) as picture:
        np.testing.assert_array_equal(np.asarray(picture), expected[0].permute(1, 2, 0).numpy())
        assert "synthetic" in picture.info["Description"]
    with pytest.raises(BadInput, match="holds something already"):
        draw(scored / "run", tmp_path, DrawRequest(), pngs=1, device="cpu", say=quiet)


@pytest.mark.parametrize("count", [{"npz": 10**12}, {"pngs": 10**12}])
def test_what_the_disk_cannot_hold_is_refused_before_it_is_drawn(
    count: dict[str, Any], scored: Path, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=r"needs at least .* for 1,000,000,000,000 pictures; the disk has"):
        draw(scored / "run", tmp_path, DrawRequest(), **count, device="cpu", say=quiet)
    assert not list(tmp_path.iterdir())


def test_samples_are_whole_or_not_there(scored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, blocks = Sampler._drawn, iter(range(2))

    def interrupted(sampler: Sampler, number: int) -> tuple[Tensor, Tensor]:
        if next(blocks, None) is None:
            raise KeyboardInterrupt
        return made(sampler, number)

    monkeypatch.setattr(Sampler, "_drawn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        draw(scored / "run", tmp_path, DrawRequest(), pngs=500, device="cpu", say=quiet)
    assert not list(tmp_path.iterdir())


def test_black_pictures_are_counted_for_each_file_by_itself(
    scored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    made = Sampler._drawn

    def with_one_bad(sampler: Sampler, number: int) -> tuple[Tensor, Tensor]:
        grid, labels = made(sampler, number)
        return grid.index_fill(0, torch.tensor([0]), torch.nan), labels

    monkeypatch.setattr(Sampler, "_drawn", with_one_bad)
    draw(scored / "run", tmp_path, DrawRequest(), npz=5, pngs=4, sheet=(2, 3), device="cpu", say=said.append)
    warned = [line for line in said if line.startswith("warning: ")]
    assert [
        f"{tmp_path / name}: 1 pictures hold" in line
        for name, line in zip(("samples.npz", "pngs", "random.png"), warned, strict=True)
    ] == [True] * 3


@pytest.mark.parametrize("kind", ["gif", "mp4"])
def test_a_film_goes_there_and_back(scored: Path, tmp_path: Path, kind: str) -> None:
    request = GridRequest(interpolate="latent", columns=6, rows=3, spherical=True)
    path = animate(scored / "run", tmp_path / f"film.{kind}", request, device="cpu", say=quiet)
    if kind == "gif":
        with Image.open(path) as film:
            assert film.n_frames == 10  # type: ignore[attr-defined]
            assert film.size[0] >= 256
    else:
        assert cv2.VideoCapture(str(path)).get(cv2.CAP_PROP_FRAME_COUNT) == 10
    with pytest.raises(BadInput, match=r"ends in \.gif, \.webp or \.mp4"):
        animate(scored / "run", tmp_path / "film.avi", request, device="cpu", say=quiet)


def test_copies_of_training_pictures_are_found(scored: Path, opened: Opened, tmp_path: Path) -> None:
    """Half of the set are the samples themselves, one of them mirrored."""
    pictures, _ = drawn(opened, DrawRequest(), count=6)
    noise = np.random.default_rng(0).integers(0, 255, (40, 3, 32, 32)).astype(np.uint8)
    array = np.concatenate([noise, pictures[:3].numpy(), pictures[3:4].flip(-1).numpy()])
    labels = np.arange(len(array), dtype=np.int64) % 2
    own = PictureSet(array, labels, ("a", "b"), True, picture_digest(array, labels))
    check = check_memorisation(scored / "run", own, tmp_path, samples=6, nearest=2, device="cpu", say=quiet)
    assert check.ratios[:4] == pytest.approx([0, 0, 0, 0], abs=0.01)
    assert set(check.suspicious) >= {1, 2, 3, 4}
    with Image.open(check.sheets[0]) as grid:
        assert grid.width < grid.height
