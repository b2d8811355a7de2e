"""What XSeg reads, what it refuses, and where its pretraining ends."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from frugan.contract.data import SourceOptions
from frugan.contract.settings import DataSettings
from frugan.errors import BadInput
from frugan.faces.data.face import FaceType
from frugan.faces.data.faceset import open_faceset
from frugan.faces.xseg.config import XSegNetworks
from frugan.faces.xseg.needs import XSegNeeds
from frugan.recipe.loading import load_recipe
from frugan.recipes import toml_of

FACES = Path(__file__).parents[2] / "golden" / "xseg" / "faceset"
NEEDS = XSegNeeds(64, FaceType.WHOLE_FACE, pretrain=False)


def _options(lines: list[str]) -> SourceOptions:
    return SourceOptions(DataSettings(), Path(), lines.append, None, {})


def test_labelled_faces_alone_are_trained_on() -> None:
    lines: list[str] = []
    faces = NEEDS.fitted("faces", "faces", open_faceset(FACES), _options(lines))
    assert len(faces) == 8
    assert lines == ["data faces: 8 faces labelled by polygons"]


def test_faces_without_labels_are_refused() -> None:
    faces = open_faceset(FACES)
    bare = replace(faces, faces=tuple(replace(face, polygons=(), xseg_mask=None) for face in faces.faces))
    with pytest.raises(BadInput, match="none of its 9 faces has a label, expected polygons"):
        NEEDS.fitted("faces", "faces", bare, _options([]))


def test_a_stream_depends_on_position_alone() -> None:
    faces = NEEDS.fitted("faces", "faces", open_faceset(FACES), _options([]))

    def take(position: int, count: int) -> dict[str, torch.Tensor]:
        reader = NEEDS.reader(faces, {}, seed=3, stream="faces", settings=DataSettings(), workers=None)
        return reader.take(position, count)

    whole, last = take(0, 4), take(3, 1)
    assert {name: tuple(tensor.shape) for name, tensor in whole.items()} == {
        "picture": (4, 3, 64, 64),
        "mask": (4, 1, 64, 64),
    }
    for name, tensor in last.items():
        assert torch.equal(whole[name][3:], tensor), name
    assert set(whole["mask"].unique().tolist()) <= {0.0, 1.0}


def test_a_workspace_gives_both_sides(tmp_path: Path) -> None:
    for side in ("data_src", "data_dst"):
        (tmp_path / side / "aligned").mkdir(parents=True)
    for path in FACES.iterdir():
        (tmp_path / ("data_src" if path.name < "00004" else "data_dst") / "aligned" / path.name).write_bytes(
            path.read_bytes()
        )
    assert len(NEEDS.open("faces", tmp_path, _options([]))) == 9


def test_other_resolutions_are_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"resolution 250: six halvings want a multiple of 64 .* the nearest is 256"):
        XSegNetworks(resolution=250)


def test_pretraining_ends_on_a_resumption_alone(tmp_path: Path) -> None:
    assert load_recipe("xseg-pretrain").preliminary is not None
    assert load_recipe("xseg-pretrain", ["objective.pretrain=false"]).preliminary is None
    stage = '\n[[stages]]\nat = "10 steps"\nset = { "objective.pretrain" = false }\n'
    path = tmp_path / "staged.toml"
    path.write_text(toml_of("xseg-pretrain") + stage)
    with pytest.raises(BadInput, match="steps would count anew, which only a resumption does"):
        load_recipe(str(path))


def test_a_word_gives_masks_of_another_size_the_originals_places() -> None:
    samples = []
    for word in ("false", "true"):
        recipe = load_recipe("xseg-small", [f"objective.as_original={word}", "networks.face_type=f"])
        needs = recipe.kind.sources(recipe.networks, recipe.objective)["faces"]
        faces = needs.fitted("faces", "faces", open_faceset(FACES.parent / "faceset_masks"), _options([]))
        reader = needs.reader(faces, {}, seed=3, stream="faces", settings=DataSettings(), workers=None)
        samples.append(reader.take(0, 4))
    mended, misplaced = samples
    assert mended["mask"].mean() > 0.1
    assert (mended["mask"] != misplaced["mask"]).float().mean() > 0.05
