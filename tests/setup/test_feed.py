"""How many processes make face samples, and what a feed of faces tells."""

import os
import shutil
from multiprocessing import active_children
from pathlib import Path

import pytest
import torch

from frugan.faces.data.faceset import open_faceset
from frugan.recipe.loading import load_recipe
from frugan.setup.run_data_sources import MOST_WORKERS, default_workers, feeding

FACES = Path(__file__).parents[1] / "golden" / "saehd" / "faceset" / "aligned"


@pytest.mark.long
def test_workers_are_counted_over_all_sources() -> None:
    faces, before = open_faceset(FACES), active_children()
    recipe = load_recipe("saehd-demo-64", ["networks.face_type=f", "objective.ct_mode=rct"])
    with feeding({"src": faces, "dst": faces}, recipe, torch.device("cpu"), workers=2) as feed:
        for source, stream in (("src", "src"), ("dst", "dst"), ("src", "again")):
            assert feed.take(source, stream, 0, 2)["target"].shape == (2, 3, 64, 64)
        assert len(active_children()) - len(before) == 2
    assert active_children() == before


def test_faces_that_were_written_since_the_start_are_told_of_once(tmp_path: Path) -> None:
    folder = tmp_path / "aligned"
    shutil.copytree(FACES, folder)
    faces, said = open_faceset(folder), list[str]()
    for path in sorted(folder.glob("*.jpg")):
        os.utime(path, (0, 0))
    recipe = load_recipe("saehd-demo-64", ["networks.face_type=f"])
    with feeding({"src": faces, "dst": faces}, recipe, torch.device("cpu"), workers=0, say=said.append) as feed:
        for position in range(0, 12, 2):
            feed.take("src", "src", position, 2)
    (line,) = [line for line in said if "changed since the start" in line]
    assert line.startswith(f"data src: {len(faces)} faces changed since the start, so far: read again as they come")


@pytest.mark.parametrize(("cores", "workers"), [(None, 1), (1, 1), (6, 3), (64, MOST_WORKERS)])
def test_workers_by_the_machine(monkeypatch: pytest.MonkeyPatch, cores: int | None, workers: int) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert default_workers(torch.device("cuda")) == workers
    assert default_workers(torch.device("cpu")) == 0
