"""`demo faces`: two drawn people, a face model that swaps them, and how far the swap is from the drawn truth."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frugan.api.data.drawn_faces import SEED, draw_faces
from frugan.api.defaults import FACES, SIDE_PIXELS
from frugan.api.networks import networks_from, read_weights, weights_file
from frugan.api.progress import Progress, Say
from frugan.api.sample.sample_grids import newest_sheet, provenance
from frugan.api.train.options import TrainingOptions
from frugan.api.train.training import train
from frugan.data.faces.alignment import alignment_matrix
from frugan.data.faces.drawn.frame import DrawnFrame, draw_frame
from frugan.data.faces.drawn.moment import draw_moment
from frugan.data.faces.drawn.people import PEOPLE
from frugan.data.faces.face_type import FaceType
from frugan.data.faces.landmark_masks import face_mask
from frugan.data.faces.opencv import opencv
from frugan.engine.events import Event
from frugan.engine.threads import threads_put_back
from frugan.engine.working_weights import prepared
from frugan.families.saehd import flows
from frugan.families.saehd.config import SAEHDNetworks
from frugan.recipe import load_recipe
from frugan.report.sheets import write_sheet

RECIPE = "saehd-demo-64"
UNSEEN = 40
"""Moments drawn after those that were trained on, for judging."""

SHOWN = 6
TITLES = ("D", "swap", "truth", "S", "SS")


@dataclass(frozen=True)
class FaceDemoResult:
    """What the demo found, on moments that no weight was fitted to; errors are mean absolute differences, 0 to 1.

    Attributes:
        swap_error: between the swap and the source person drawn in the same moment, inside the face.
        unswapped_error: between the destination's face as it is and the same truth: what doing nothing would give.
        reconstruction_error: of source faces, inside the face.
        seconds: wall time of everything.
        run: the run folder.
        workspace: the drawn faces, laid out as DeepFaceLab does.
        finished: False if it was stopped early.
        preview, comparison: the last preview; destination, swap and truth side by side.
    """

    swap_error: float
    unswapped_error: float
    reconstruction_error: float
    seconds: float
    run: Path
    workspace: Path
    finished: bool
    preview: Path
    comparison: Path


@dataclass(frozen=True)
class _Aligned:
    """Faces of one person in several moments: picture [n, 3, R, R] and mask [n, 1, R, R], fp32 in [0, 1], BGR."""

    picture: Tensor
    mask: Tensor


def _aligned(frame: DrawnFrame, side: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cut the whole face out of a frame, [R, R, 3] and [R, R]."""
    cv2 = opencv()
    matrix = alignment_matrix(frame.landmarks, side, FaceType.WHOLE_FACE)
    picture = cv2.warpAffine(frame.picture, matrix, (side, side), flags=cv2.INTER_AREA, borderMode=cv2.BORDER_REPLICATE)
    height, width = frame.picture.shape[:2]
    mask = cv2.warpAffine(face_mask(frame.landmarks, height, width), matrix, (side, side), flags=cv2.INTER_LINEAR)
    return picture.astype(np.float32) / 255, mask


def _unseen(person: int, moments_of: int, side: int) -> _Aligned:
    """A person in moments that were drawn for nobody's training."""
    found = [
        _aligned(draw_frame(PEOPLE[person], draw_moment(SEED, moments_of, FACES + at), SIDE_PIXELS * 2), side)
        for at in range(UNSEEN)
    ]
    pictures = torch.from_numpy(np.stack([p for p, _ in found])).permute(0, 3, 1, 2)
    return _Aligned(pictures.contiguous(), torch.from_numpy(np.stack([m for _, m in found]))[:, None])


def _error(made: Tensor, truth: _Aligned) -> float:
    difference = (made - truth.picture).abs() * truth.mask
    return float(difference.sum() / (truth.mask.sum() * 3))


def _judge(run: Path, folder: Path) -> tuple[float, float, float, Path]:
    """Swap and reconstruct unseen faces; the three errors and the picture."""
    weights = read_weights(weights_file(run))
    networks, recipe = networks_from(weights), weights.recipe
    config = SAEHDNetworks.model_validate(recipe.networks.model_dump())
    archi, side = config.letters, config.resolution
    source, destination, truth = _unseen(0, 0, side), _unseen(1, 1, side), _unseen(0, 1, side)
    with torch.no_grad(), prepared(torch.nn.ModuleDict(networks)):
        vectors = flows.encode(networks, destination.picture)
        swap, _ = flows.decode(archi, networks, flows.swap_code(archi, networks, vectors), "src")
        vectors = flows.encode(networks, source.picture)
        again, _ = flows.decode(archi, networks, flows.code(archi, networks, vectors, "src"), "src")
    columns = (destination.picture, swap, truth.picture, source.picture, again)
    sheet = torch.stack([column[:SHOWN] for column in columns], 1).flip(2) * 2 - 1  # [rows, columns, 3, R, R], RGB
    path = folder / "comparison.png"
    write_sheet(sheet.clamp(-1, 1), path, provenance(recipe, 0), titles=TITLES)
    return _error(swap, truth), _error(destination.picture, truth), _error(again, source), path


def demo_faces(out: Path, *, say: Say, show: Callable[[Event], None], progress: Progress | None) -> FaceDemoResult:
    """Draw two people, train `saehd-demo-64` on them, and judge the swap by what the program would have drawn.

    Args:
        out: folder for the run and the workspace; an interrupted demo goes on.
        say: is given a line for every automatic choice.
        show: is given every event.
        progress: (done, all) while faces are drawn.

    Raises:
        BadInput: OpenCV is missing.
    """
    began = time.perf_counter()
    opencv()
    run, workspace = out / "run", out / "workspace"
    if not workspace.is_dir():
        draw_faces(workspace, progress=progress)
    say(f"data: {FACES} faces of each of two people, drawn by the program, in {workspace}")
    recipe = load_recipe(RECIPE)
    options = TrainingOptions(device="cpu")
    result = train(recipe, workspace, run, options=options, say=say, show=show)
    with threads_put_back():
        torch.set_num_threads(result.threads)  # as many as were fastest in training
        swap, unswapped, again, comparison = _judge(result.run, out)
    return FaceDemoResult(
        swap_error=swap,
        unswapped_error=unswapped,
        reconstruction_error=again,
        seconds=time.perf_counter() - began,
        run=run,
        workspace=workspace,
        finished=result.finished,
        preview=newest_sheet(run / "samples", "preview"),
        comparison=comparison,
    )
