"""`demo faces`: two drawn people, a face model that swaps them, and how far the swap is from the drawn truth."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from frugan.api.demo.stopped_demo import StoppedDemo
from frugan.api.networks import networks_from
from frugan.api.progress import Say
from frugan.api.sample.sample_grids import newest_sheet, provenance
from frugan.api.train.options import TrainingOptions
from frugan.api.train.training import train
from frugan.api.weights import Weights
from frugan.data.faces.drawn_faces import FACES, Unseen, unseen_faces, write_drawn_faces
from frugan.data.faces.opencv import opencv
from frugan.engine.events import Event
from frugan.engine.prepared import prepared
from frugan.engine.run_folder import RunFolder
from frugan.engine.threads import threads_put_back
from frugan.families.saehd.config import SAEHDNetworks
from frugan.families.saehd.networks import code_of, decode, encode, swap_code
from frugan.recipe.loading import load_recipe
from frugan.report.sheets import write_sheet

RECIPE = "saehd-demo-64"
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
        preview, comparison: the last preview; destination, swap and truth side by side.
    """

    swap_error: float
    unswapped_error: float
    reconstruction_error: float
    seconds: float
    run: Path
    workspace: Path
    preview: Path
    comparison: Path


def _unseen(which: Unseen) -> tuple[Tensor, Tensor]:
    """Pictures [N, 3, R, R], BGR, and masks [N, 1, R, R], fp32 in [0, 1], of a person in moments that nobody learnt."""
    faces = unseen_faces(which)
    pictures = torch.from_numpy(faces.pictures).permute(0, 3, 1, 2).float() / 255
    return pictures.contiguous(), torch.from_numpy(faces.masks)[:, None]


def _error(made: Tensor, truth: Tensor, mask: Tensor) -> float:
    return float(((made - truth).abs() * mask).sum() / (mask.sum() * 3))


def _judge(run: Path, folder: Path) -> tuple[float, float, float, Path]:
    """Swap and reconstruct unseen faces; the three errors and the picture."""
    weights = Weights.open(run)
    networks, recipe = networks_from(weights), weights.recipe
    archi = SAEHDNetworks.model_validate(recipe.networks.model_dump()).letters
    source, inside_source = _unseen(Unseen.SOURCE)
    destination, _ = _unseen(Unseen.DESTINATION)
    truth, inside_truth = _unseen(Unseen.TRUTH)
    with torch.no_grad(), prepared(torch.nn.ModuleDict(networks)):
        vectors = encode(networks, destination)
        swap, _ = decode(archi, networks, swap_code(archi, networks, vectors), "src")
        vectors = encode(networks, source)
        again, _ = decode(archi, networks, code_of(archi, networks, vectors, "src"), "src")
    columns = (destination, swap, truth, source, again)
    sheet = torch.stack([column[:SHOWN] for column in columns], 1).flip(2) * 2 - 1  # [rows, columns, 3, R, R], RGB
    path = folder / "comparison.png"
    write_sheet(sheet.clamp(-1, 1), path, provenance(recipe, 0), titles=TITLES)
    swap_error, unswapped_error = (_error(made, truth, inside_truth) for made in (swap, destination))
    return swap_error, unswapped_error, _error(again, source, inside_source), path


def demo_faces(out: Path, *, say: Say, show: Callable[[Event], None]) -> FaceDemoResult | StoppedDemo:
    """Train `saehd-demo-64` on two drawn people, and judge the swap by what was drawn of the one in the other's place.

    Args:
        out: folder for the run and the workspace; an interrupted demo goes on.
        say: is given a line for every automatic choice.
        show: is given every event.

    Returns:
        What it found; or where it was stopped, not judged.

    Raises:
        BadInput: OpenCV is missing.
    """
    began = time.perf_counter()
    opencv()
    run, workspace = out / "run", out / "workspace"
    if not workspace.is_dir():
        write_drawn_faces(workspace)
    say(f"data: {FACES} drawn faces of each of two people who do not exist, in {workspace}")
    recipe = load_recipe(RECIPE)
    options = TrainingOptions(device="cpu")
    result = train(recipe, workspace, run, options=options, say=say, show=show)
    if not result.finished:
        return StoppedDemo(result.run, result.step)
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
        preview=newest_sheet(RunFolder(run).samples, "preview"),
        comparison=comparison,
    )
