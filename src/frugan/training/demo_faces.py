"""`demo faces`: a face model on two drawn people, judged by what was drawn of the one in the other's place."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from frugan.contract.family import GridRequest
from frugan.engine.run.events import Event
from frugan.engine.run.run_folder import RunFolder
from frugan.engine.run.threads import threads_put_back
from frugan.engine.state.working_weights import prepared
from frugan.faces.data.drawn_faces import FACES, Unseen, unseen_faces, write_drawn_faces
from frugan.faces.data.geometry import opencv
from frugan.progress import Say
from frugan.recipe.loading import load_recipe
from frugan.reporting.grids import write_grid
from frugan.sampling.generators import provenance
from frugan.setup.networks import Weights, networks_from
from frugan.training.run import TrainingOptions, TrainingResult
from frugan.training.training import train

FACES_RECIPE = "saehd-demo-64"
SHOWN = 6
MINUTES = (1, 7)
"""Least and most that it took on two cores that did nothing else: with units for bf16, and with AVX2 alone
(benchmarks/results/demo-faces-*.json)."""
TITLES = ("D", "swap", "truth", "S", "SS")


class SwapErrors(NamedTuple):
    """Mean absolute differences, 0 to 1, inside faces that no weight was fitted to."""

    swap_error: float  # between the swap and the source person drawn in the same moment
    unswapped_error: float  # between the destination's face as it is and the same truth: what doing nothing would give
    reconstruction_error: float  # of source faces


class UnseenSwap(NamedTuple):
    """Faces of both people in moments that nobody learnt, [N, 3, R, R] each, RGB in [-1, 1]."""

    # source, again: faces of the source, and these reconstructed
    source: Tensor
    again: Tensor
    # destination, swap, truth: faces of the destination, with the source's face, and the source drawn in their place
    destination: Tensor
    swap: Tensor
    truth: Tensor
    # inside_source, inside_truth: 1 inside the face [N, 1, R, R]
    inside_source: Tensor
    inside_truth: Tensor

    def errors(self) -> SwapErrors:
        """Compute the errors of the swap, the unswapped pictures and the reconstruction."""
        swap, unswapped = (_error(picture, self.truth, self.inside_truth) for picture in (self.swap, self.destination))
        return SwapErrors(swap, unswapped, _error(self.again, self.source, self.inside_source))


def _load_unseen(which: Unseen) -> tuple[Tensor, Tensor]:
    """Pictures [N, 3, R, R], BGR, and masks [N, 1, R, R], fp32 in [0, 1], of a person in moments that nobody learnt."""
    faces = unseen_faces(which)
    pictures = torch.from_numpy(faces.pictures).permute(0, 3, 1, 2).float() / 255
    return pictures.contiguous(), torch.from_numpy(faces.masks)[:, None]


def _error(pictures: Tensor, truth: Tensor, mask: Tensor) -> float:
    """Return the mean absolute error of pictures [N, 3, R, R] in [-1, 1] inside masks [N, 1, R, R], halved."""
    return float(((pictures - truth).abs() / 2 * mask).sum() / (mask.sum() * 3))


def swap_unseen(weights: Weights) -> UnseenSwap:
    """Swap and reconstruct the drawn people's unseen faces."""
    networks, recipe = networks_from(weights), weights.recipe
    (sources, inside_source), (destinations, _) = _load_unseen(Unseen.SOURCE), _load_unseen(Unseen.DESTINATION)
    truths, inside_truth = _load_unseen(Unseen.TRUTH)
    request = GridRequest(pictures={"src": {"target": sources}, "dst": {"target": destinations}})
    with torch.no_grad(), prepared(torch.nn.ModuleDict(networks)):
        preview = recipe.kind.sample(recipe.networks, networks, request)
    source, again, destination, _, swap = preview.unbind(1)
    return UnseenSwap(source, again, destination, swap, truths.flip(1) * 2 - 1, inside_source, inside_truth)


@dataclass(frozen=True)
class FaceDemoResult:
    """Errors of the face demo, and where its files are."""

    # swap_error, unswapped_error, reconstruction_error: as in `SwapErrors`
    swap_error: float
    unswapped_error: float
    reconstruction_error: float
    seconds: float  # wall time of everything
    run: Path  # the run folder
    workspace: Path  # the drawn faces, laid out as DeepFaceLab does
    # preview, comparison: the last preview; destination, swap and truth side by side
    preview: Path
    comparison: Path


def demo_faces(out: Path, *, say: Say, show: Callable[[Event], None]) -> FaceDemoResult | TrainingResult:
    """Train `saehd-demo-64` on two drawn people, and judge the swap by what was drawn of the one in the other's place.

    Args:
        out: folder for the run and the workspace; an interrupted demo goes on.
        say: is given a line for every automatic choice.
        show: is given every event.

    Returns:
        What it found; or the training that was stopped, not judged.

    Raises:
        BadInput: OpenCV is missing.
    """
    began = time.perf_counter()
    opencv()
    run, workspace = out / "run", out / "workspace"
    if not workspace.is_dir():
        write_drawn_faces(workspace)
    say(f"data: {FACES} drawn faces of each of two people who do not exist, in {workspace}")
    recipe = load_recipe(FACES_RECIPE)
    least, most = MINUTES
    say(
        f"time: {recipe.training.duration} take {least} to {most} minutes on two idle cores, several times as long on "
        "a busy machine; the estimate for this one follows"
    )
    options = TrainingOptions(device="cpu")
    result = train(recipe, workspace, run, options=options, say=say, show=show)
    if not result.finished:
        return result
    with threads_put_back():
        torch.set_num_threads(result.threads)  # as many as were fastest in training
        weights = Weights.open(result.run)
        swaps = swap_unseen(weights)
    shown = (swaps.destination, swaps.swap, swaps.truth, swaps.source, swaps.again)
    grid = torch.stack([column[:SHOWN] for column in shown], 1)  # [SHOWN, 5, 3, R, R]
    comparison = out / "comparison.png"
    write_grid(grid, comparison, provenance(weights.recipe, 0), titles=TITLES)
    return FaceDemoResult(
        **swaps.errors()._asdict(),
        seconds=time.perf_counter() - began,
        run=run,
        workspace=workspace,
        preview=RunFolder(run).newest_grid("preview"),
        comparison=comparison,
    )
