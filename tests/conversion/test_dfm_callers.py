"""DFM files as the programs that open them call them: sizes, names, types and order, without their own code.

What is known of FaceFusion and VisoMaster: the input has a name, there is a `morph_value:0` in models of another kind,
three outputs come by position, and the side of the crop is the input's; 224, 320 and 384 pixels are common ones.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray

from conversion.leras_models import NarrowFamily, NarrowNetworks
from frugan.engine.streams import derive_seed
from frugan.faces.saehd.dfm import write_dfm
from frugan.faces.saehd.networks import decode, encode, network_names, swap_code

Picture = NDArray[np.float32]
Swapped = tuple[Picture, Picture]
"""Face [R, R, 3] in BGR and its mask [R, R], both in [0, 1]."""
TOLERANCE = 1e-3


def as_facefusion(path: Path, crop: Picture) -> Swapped:
    """Inputs by name, all outputs in the file's order: the mask of what went in, the face, the face's mask."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    given = {}
    for each in session.get_inputs():
        if each.name == "in_face:0":
            assert tuple(each.shape[1:3]) == crop.shape[:2]
            given[each.name] = crop[None]
        elif each.name == "morph_value:0":
            given[each.name] = np.array([1.0], np.float32)
    _, face, mask = session.run(None, given)
    return face[0], mask[0, :, :, 0]


def as_visomaster(path: Path, crop: Picture) -> Swapped:
    """With memory of the caller's own bound to inputs and outputs, as programs do that keep pictures on a card."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs, outputs = session.get_inputs(), session.get_outputs()
    assert [each.name for each in inputs] == ["in_face:0"]
    assert inputs[0].type == "tensor(float)"
    side = int(inputs[0].shape[1])
    shapes = [(1, side, side, 1), (1, side, side, 3), (1, side, side, 1)]
    made = [np.empty(shape, np.float32) for shape in shapes]
    binding = session.io_binding()
    given = np.ascontiguousarray(crop[None])
    binding.bind_input(inputs[0].name, "cpu", 0, np.float32, given.shape, given.ctypes.data)
    for each, array in zip(outputs, made, strict=True):
        binding.bind_output(each.name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
    session.run_with_iobinding(binding)
    return made[1][0], made[2][0, :, :, 0]


@pytest.mark.parametrize("call", [as_facefusion, as_visomaster])
@pytest.mark.parametrize(
    ("resolution", "archi"),
    [(224, "df-ud"), pytest.param(320, "liae-udt", marks=pytest.mark.long), (384, "liae-ud")],
)
def test_what_opens_a_dfm_gets_our_face(
    tmp_path: Path, call: Callable[[Path, Picture], Swapped], resolution: int, archi: str
) -> None:
    family = NarrowFamily()
    config = NarrowNetworks(
        archi=archi, resolution=resolution, ae_dims=8, e_dims=4, d_dims=4, d_mask_dims=4, gan_patch_size=16
    )
    built = family.build(config)
    family.initialise(config, built, lambda name: derive_seed(1, "weights", name))
    with torch.no_grad():
        for network in built.values():  # first weights draw faces that are all but grey, and would agree anyhow
            for parameter in network.parameters():
                parameter.mul_(2)
    networks = {name: built[name].eval() for name in network_names(config.letters)}
    weights = {f"{name}.{key}": w.detach().numpy() for name, n in networks.items() for key, w in n.named_parameters()}
    path = tmp_path / "custom.dfm"
    write_dfm(path, config, weights, half=False, note={})

    crop = np.random.default_rng(0).random((resolution, resolution, 3), np.float32)  # BGR in [0, 1]
    with torch.no_grad():
        vectors = encode(networks, torch.from_numpy(crop[None]).permute(0, 3, 1, 2).contiguous())
        face, mask = decode(config.letters, networks, swap_code(config.letters, networks, vectors), "src")
    found_face, found_mask = call(path, crop)
    assert np.abs(found_face - face[0].permute(1, 2, 0).numpy()).max() < TOLERANCE
    assert np.abs(found_mask - mask[0, 0].numpy()).max() < TOLERANCE
    assert found_face.std() > 0.01
