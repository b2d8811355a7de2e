"""`data.masks`: a face model learns with the masks of an XSeg, and no file of a face changes."""

from pathlib import Path

import pytest

from frugan.contract.formats import Conversion
from frugan.conversion.convert import convert
from frugan.errors import BadInput
from frugan.faces.data.faceset import open_faceset
from frugan.faces.masks.applying import MaskOptions, apply_masks
from frugan.faces.saehd.leras_files import unpickled
from frugan.faces.xseg.leras import DATA
from frugan.progress import quiet
from frugan.recipe.loading import load_recipe
from frugan.safe_pickle.writer import dump_pickle
from frugan.setup.networks import build, save
from frugan.setup.run_data_sources import open_sources


@pytest.fixture(scope="module")
def run(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "masks"
    convert(Conversion(original.parent, out, quiet), made_by="leras-xseg")
    return out


@pytest.fixture
def side(faces: Path) -> Path:
    """Faces that are all whole ones, as the recipe wants."""
    for name in ("00006_0.jpg", "00007_0.jpg"):
        (faces / name).unlink()
    return faces


def test_sources_have_the_masks_of_the_run(
    run: Path, side: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRUGAN_PREPARED", str(tmp_path / "prepared"))
    before, lines = {path: path.read_bytes() for path in side.iterdir()}, list[str]()
    apply_masks(side, run, tmp_path / "applied", MaskOptions(), quiet, None)
    recipe = load_recipe("saehd-demo-64", [f"data.masks={run}"])
    data = {"src": side, "dst": side}
    for _ in range(2):
        sources = open_sources(recipe, data, lines.append, None)
        for face, applied in zip(sources["src"].faces, open_faceset(tmp_path / "applied").faces, strict=True):
            assert face.xseg_mask == applied.xseg_mask
    assert {path: path.read_bytes() for path in side.iterdir()} == before
    assert [("kept" in line) for line in lines if "masks of" in line] == [False, True, True, True]  # both are one set


def test_what_finds_no_masks_is_refused(run: Path, side: Path, tmp_path: Path) -> None:
    recipe = load_recipe("saehd-demo-64", [f"data.masks={tmp_path / 'none'}"])
    with pytest.raises(BadInput, match=r"data.masks=.*does not exist"):
        open_sources(recipe, {"src": side, "dst": side}, quiet, None)
    with pytest.raises(BadInput, match=r"data.masks=.*for faces alone"):
        load_recipe("biggan-digits-32", [f"data.masks={run}"])


def test_the_originals_folder_needs_no_conversion(
    original: Path, run: Path, side: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRUGAN_PREPARED", str(tmp_path / "prepared"))
    model, lines = tmp_path / "model", list[str]()
    convert(Conversion(run, model, quiet), to="leras-xseg")
    found = []
    for weights in (run, original, model):
        recipe = load_recipe("saehd-demo-64", [f"data.masks={weights}"])
        sources = open_sources(recipe, {"src": side, "dst": side}, lines.append, None)
        found.append([face.xseg_mask for face in sources["src"].faces])
    assert found[0] == found[1] == found[2]
    said = [line for line in lines if line.startswith("data src: masks of")]
    assert ["not there to say" in line for line in said] == [False, True, False]

    data = unpickled(model / DATA)  # the same weights, for faces cut otherwise, are another network
    (model / DATA).write_bytes(dump_pickle({**data, "options": {**data["options"], "face_type": "f"}}))
    sources = open_sources(recipe, {"src": side, "dst": side}, quiet, None)
    assert [face.xseg_mask for face in sources["src"].faces] != found[0]

    (model / "XSeg_128.npy").write_bytes(b"")
    with pytest.raises(BadInput, match=r"data.masks=.*several: XSeg_128.npy, XSeg_256.npy"):
        open_sources(recipe, {"src": side, "dst": side}, quiet, None)


def test_of_other_weights_other_masks(run: Path, side: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRUGAN_PREPARED", str(tmp_path / "prepared"))
    other = tmp_path / "other.safetensors"
    save(build("xseg-small", ["networks.base=2"]), load_recipe("xseg-small", ["networks.base=2"]), other)
    found = []
    for weights in (run, other):
        recipe = load_recipe("saehd-demo-64", [f"data.masks={weights}"])
        sources = open_sources(recipe, {"src": side, "dst": side}, quiet, None)
        found.append([face.xseg_mask for face in sources["src"].faces])
    assert found[0] != found[1]
