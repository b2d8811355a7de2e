"""The truncation curve as a picture: Fréchet distance against inception score, a point for each truncation."""

from collections.abc import Sequence
from pathlib import Path

from frugan.api.evaluate.scorer import Evaluation
from frugan.errors import BadInput


def plot_truncation_curve(found: Sequence[Evaluation], path: Path) -> None:
    """Draw inception score against Fréchet distance, or whichever of the two there is against truncation.

    Raises:
        BadInput: neither was measured, or matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise BadInput("--plot needs matplotlib: pip install 'frugan[report]'") from error
    has = [name for name in ("fid", "is_mean") if all(name in each.scores for each in found)]
    if not has:
        raise BadInput("--plot draws fid and is: ask for one of them with --metrics")
    labels = {"fid": "Fréchet distance (lower is better)", "is_mean": "inception score (higher is better)"}
    truncations = [each.provenance.truncation for each in found]
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.add_subplot()
    if len(has) == 2:
        across, up = ([each.scores[name] for each in found] for name in ("fid", "is_mean"))
        axes.set_xlabel(labels["fid"])
        axes.set_ylabel(labels["is_mean"])
        for x, y, truncation in zip(across, up, truncations, strict=True):
            axes.annotate(f"{truncation:g}", (x, y), textcoords="offset points", xytext=(6, 4), fontsize=8)
    else:
        across, up = truncations, [each.scores[has[0]] for each in found]
        axes.set_xlabel("truncation")
        axes.set_ylabel(labels[has[0]])
    axes.plot(across, up, marker="o")
    axes.grid(alpha=0.3)
    of = found[0].provenance
    axes.set_title(
        f"{of.samples:,} samples at step {of.step:,}; statistics: {of.statistics}; {of.network}",
        fontsize=9,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
