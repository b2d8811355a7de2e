"""A run becomes a DFM file, with which DeepFaceLive swaps faces; what it computes is compared with the networks."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from frugan.api.convert.deepfacelab.face_agreement import check_agreement
from frugan.api.convert.deepfacelab.trained_faces import TrainedFaces, find_trained_faces
from frugan.api.data.sources import Data
from frugan.api.progress import Say
from frugan.api.sample.sample_grids import provenance
from frugan.contract.phase import Networks
from frugan.engine.checkpoint import load_networks
from frugan.errors import BadInput
from frugan.families.saehd import SAEHDNetworks, flows
from frugan.families.saehd.dfm import check_dfm, write_dfm

TOLERANCE, HALF_TOLERANCE = 1e-4, 2e-2
"""Largest difference of a colour or a mask, of a range of 1, in float32 and in half precision."""


@dataclass(frozen=True)
class ExportedDfm:
    """What `to_dfm` wrote.

    Attributes:
        path: the file.
        step: steps done.
        difference: the largest of any colour or mask between file and networks, on test pictures; the range is 1.
    """

    path: Path
    step: int
    difference: float


def to_dfm(
    source: str | Path,
    path: str | Path,
    *,
    half: bool = False,
    replace: bool = False,
    data: Data | None = None,
    say: Say = print,
) -> ExportedDfm:
    """Write a run as a DFM file.

    Args:
        source: run or checkpoint.
        path: the file; must end in ".dfm".
        half: convolutions in half precision.
        replace: the file may be there.
        data: faces to compare with the options, as for training.
        say: is given lines.

    Raises:
        BadInput: nothing to write, the faces do not fit, the file is there, onnx or onnxruntime are missing, or the
            file would not compute what the networks do.
        OSError: the disk is full or the path cannot be written.
    """
    path = Path(path)
    if path.suffix != ".dfm":
        raise BadInput(f"{path}: expected a name that ends in .dfm")
    if path.exists() and not replace:
        raise BadInput(f"{path}: is there already; choose another name, or add --replace")
    trained = find_trained_faces(Path(source), say)
    if data:
        check_agreement(trained.recipe, data, trained.trained_on, say)
    networks = _networks(trained)
    weights = {f"{name}.{key}": w.detach().numpy() for name, n in networks.items() for key, w in n.named_parameters()}
    note = provenance(trained.recipe, trained.step) | {"Iteration": str(trained.step)}
    unchecked = path.with_name(f".unchecked-{path.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        write_dfm(unchecked, _config(trained), weights, half=half, note=note)
        difference = _difference(unchecked, trained, networks)
        if not difference <= (HALF_TOLERANCE if half else TOLERANCE):
            cure = "export without --half" if half else "please report this, with the recipe"
            raise BadInput(f"{path}: not written; it would differ by {difference:.2g} from the networks. Next: {cure}")
        unchecked.replace(path)
    finally:
        unchecked.unlink(missing_ok=True)
    return ExportedDfm(path, trained.step, difference)


def _config(trained: TrainedFaces) -> SAEHDNetworks:
    networks = trained.recipe.networks
    assert isinstance(networks, SAEHDNetworks)
    return networks


def _networks(trained: TrainedFaces) -> Networks:
    """The autoencoder's networks."""
    names = flows.network_names(_config(trained).letters)
    built = trained.recipe.kind.build(_config(trained))
    found = {name: built[name].eval() for name in names}
    load_networks(found, trained.weights.of(names), str(trained.weights.path))
    return found


@torch.no_grad()
def _difference(path: Path, trained: TrainedFaces, networks: Networks) -> float:
    """The largest one on test pictures. NaN if either makes one."""
    archi, pictures = _config(trained).letters, _pictures(_config(trained).resolution)
    vectors = flows.encode(networks, torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous())
    face, face_mask = flows.decode(archi, networks, flows.swap_code(archi, networks, vectors), "src")
    _, mask = flows.decode(archi, networks, flows.code(archi, networks, vectors, "dst"), "dst")
    expected = [value.permute(0, 2, 3, 1).numpy() for value in (mask, face, face_mask)]
    found = check_dfm(path, pictures)
    return float(max(np.abs(a - b).max() for a, b in zip(found, expected, strict=True)))


def _pictures(resolution: int) -> NDArray[Any]:
    """One of noise and two smooth ones. [3, R, R, 3]."""
    random = np.random.default_rng(0)
    rows, columns = np.mgrid[0 : 1 : resolution * 1j, 0 : 1 : resolution * 1j]
    phases = random.random((2, 1, 1, 3)) * 6
    smooth = 0.5 + 0.5 * np.sin(phases + 4 * rows[..., None] + 7 * columns[..., None] * phases / 6)
    return np.concatenate([random.random((1, resolution, resolution, 3)), smooth]).astype(np.float32)
