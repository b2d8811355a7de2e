"""XSeg as ONNX: the original's names and shapes, and the network's masks."""

from pathlib import Path

import numpy as np
import pytest
import torch

from frugan.contract.formats import Conversion
from frugan.conversion.convert import convert
from frugan.errors import BadInput
from frugan.faces.xseg.networks import XSeg, initialise
from frugan.progress import quiet
from frugan.recipe.loading import load_recipe
from frugan.setup.networks import save

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    network, path = XSeg(128, 2), tmp_path_factory.mktemp("weights") / "xseg.safetensors"
    generator = torch.Generator().manual_seed(3)
    initialise(network, generator)
    with torch.no_grad():  # as trained: no eps near 0
        for name, parameter in network.named_parameters():
            if ".frn." in name or ".tlu." in name:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    save({"xseg": network}, load_recipe("xseg-small", ["networks.base=2"]), path)
    return path


def test_file_computes_the_networks_masks(weights: Path, tmp_path: Path) -> None:
    converted = convert(Conversion(weights, tmp_path / "xseg.onnx", quiet), to="xseg-onnx")
    assert converted.difference is not None
    assert converted.difference < 1e-5  # 2e-6: 36 normalisations enlarge what fp32 rounds
    model = onnx.load(str(converted.path))
    onnx.checker.check_model(model)
    (face,), (mask,) = model.graph.input, model.graph.output
    sizes = [[one.dim_value for one in value.type.tensor_type.shape.dim][1:] for value in (face, mask)]
    assert (face.name, mask.name, sizes) == ("in_face:0", "out_mask:0", [[128, 128, 3], [128, 128, 1]])
    assert [(one.domain, one.version) for one in model.opset_import] == [("", 13)]


def test_another_computation_is_not_written(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frugan.faces.xseg.onnx_file.check_onnx", lambda path, pictures: np.zeros((2, 128, 128, 1)))
    with pytest.raises(BadInput, match="not written"):
        convert(Conversion(weights, tmp_path / "xseg.onnx", quiet), to="xseg-onnx")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(BadInput, match=r"ends in \.onnx"):
        convert(Conversion(weights, tmp_path / "xseg.dfm", quiet), to="xseg-onnx")
