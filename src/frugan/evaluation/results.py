"""Storing scores in a file or in the run, and plotting them."""

import json
from collections.abc import Sequence
from pathlib import Path

from frugan.engine.run.run_folder import RunFolder
from frugan.errors import BadInput
from frugan.evaluation.scorer import Evaluation
from frugan.files import atomic_file
from frugan.metrics.provenance import NONE
from frugan.progress import Say


def save_evaluations(evaluations: Sequence[Evaluation], file: Path) -> None:
    """Append evaluations to a file of JSON lines."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8", newline="\n") as opened:
        for evaluation in evaluations:
            opened.write(json.dumps(evaluation.as_json(), ensure_ascii=False) + "\n")


def keep_in_run(evaluations: Sequence[Evaluation], say: Say = print) -> None:
    """Keep evaluations in the run whose weights they are of, for its report; nothing where they are no run's.

    Args:
        say: is told where they were kept, or why they were not.
    """
    weights = evaluations[0].provenance.weights
    run = None if weights == NONE else RunFolder.holding(Path(weights))
    if run is None:
        return
    try:
        save_evaluations(evaluations, run.scores)
    except OSError as error:
        say(f"not kept in {run.scores}, and not in the report: {error.strerror or error}")
    else:
        say(f"kept in {run.scores}: `frugan report` shows it")


def refuse_plot(path: Path, metrics: Sequence[str]) -> None:
    """Refuse a curve that could not be drawn, before anything is measured.

    Raises:
        BadInput: neither of what it shows is measured, matplotlib is missing or writes no such file, or the file is
            there already.
    """
    try:
        from matplotlib.backend_bases import FigureCanvasBase  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise BadInput("--plot needs matplotlib: pip install 'frugan[report]'") from error
    if not {"fid", "is"} & {*metrics}:
        raise BadInput("--plot draws fid and is: ask for one of them with --metrics")
    kinds = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.removeprefix(".") not in kinds or path.is_dir():
        raise BadInput(
            f"--plot {path}: expected a file that ends in .png, or in .{', .'.join(sorted({*kinds} - {'png'}))}"
        )
    if path.exists():
        raise BadInput(f"--plot {path}: is there already; choose another name, or delete it first")


def plot_truncation_curve(evaluations: Sequence[Evaluation], path: Path) -> None:
    """Draw inception score against Fréchet distance, or whichever of the two there is against truncation."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)

    has = [name for name in ("fid", "is_mean") if all(name in evaluation.scores for evaluation in evaluations)]
    labels = {"fid": "Fréchet distance (lower is better)", "is_mean": "inception score (higher is better)"}
    truncations = [evaluation.provenance.truncation for evaluation in evaluations]
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.add_subplot()
    if len(has) == 2:
        across, up = ([evaluation.scores[name] for evaluation in evaluations] for name in ("fid", "is_mean"))
        axes.set_xlabel(labels["fid"])
        axes.set_ylabel(labels["is_mean"])
        for x, y, truncation in zip(across, up, truncations, strict=True):
            axes.annotate(f"{truncation:g}", (x, y), textcoords="offset points", xytext=(6, 4), fontsize=8)
    else:
        across, up = truncations, [evaluation.scores[has[0]] for evaluation in evaluations]
        axes.set_xlabel("truncation")
        axes.set_ylabel(labels[has[0]])
    axes.plot(across, up, marker="o")
    axes.grid(alpha=0.3)
    of = evaluations[0].provenance
    axes.set_title(
        f"{of.samples:,} samples at step {of.step:,}; statistics: {of.statistics}; {of.network}",
        fontsize=9,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as beside:
        figure.savefig(beside, dpi=120)
