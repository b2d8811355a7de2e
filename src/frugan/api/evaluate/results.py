"""What becomes of scores: kept in a file or in the run, drawn as a curve; and real pictures' moments as a file."""

import json
from collections.abc import Sequence
from pathlib import Path

from frugan.api.devices import use_device
from frugan.api.evaluate.reference import FEATURES_AT_ONCE, choose_network, reference_of
from frugan.api.evaluate.scorer import Evaluation
from frugan.api.progress import Progress, Say
from frugan.contract.data import SourceOptions
from frugan.contract.settings import DataSettings
from frugan.data.formats.source import local_path
from frugan.data.picture_needs import open_pictures
from frugan.data.picture_set import open_prepared
from frugan.data.set_file import is_prepared
from frugan.engine.device import disable_reduced_precision
from frugan.engine.run_folder import RunFolder
from frugan.errors import BadInput
from frugan.files import Folders
from frugan.metrics.moments_file import write_moments
from frugan.metrics.scores import Moments


def save_evaluations(evaluations: Sequence[Evaluation], file: Path) -> None:
    """Append evaluations to a file of JSON lines."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8", newline="\n") as opened:
        for each in evaluations:
            opened.write(json.dumps(each.as_json(), ensure_ascii=False) + "\n")


def keep_in_run(evaluations: Sequence[Evaluation], say: Say = print) -> None:
    """Keep evaluations in the run whose weights they are of, for its report; nothing where they are no run's.

    Args:
        say: is told where they were kept, or why they were not.
    """
    run = RunFolder.holding(Path(evaluations[0].provenance.weights))
    if run is None:
        return
    try:
        save_evaluations(evaluations, run.scores)
    except OSError as error:
        say(f"not kept in {run.scores}, and not in the report: {error.strerror or error}")
    else:
        say(f"kept in {run.scores}: `frugan report` shows it")


def plot_truncation_curve(evaluations: Sequence[Evaluation], path: Path) -> None:
    """Draw inception score against Fréchet distance, or whichever of the two there is against truncation.

    Raises:
        BadInput: neither was measured, or matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise BadInput("--plot needs matplotlib: pip install 'frugan[report]'") from error
    has = [name for name in ("fid", "is_mean") if all(name in each.scores for each in evaluations)]
    if not has:
        raise BadInput("--plot draws fid and is: ask for one of them with --metrics")
    labels = {"fid": "Fréchet distance (lower is better)", "is_mean": "inception score (higher is better)"}
    truncations = [each.provenance.truncation for each in evaluations]
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.add_subplot()
    if len(has) == 2:
        across, up = ([each.scores[name] for each in evaluations] for name in ("fid", "is_mean"))
        axes.set_xlabel(labels["fid"])
        axes.set_ylabel(labels["is_mean"])
        for x, y, truncation in zip(across, up, truncations, strict=True):
            axes.annotate(f"{truncation:g}", (x, y), textcoords="offset points", xytext=(6, 4), fontsize=8)
    else:
        across, up = truncations, [each.scores[has[0]] for each in evaluations]
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
    figure.savefig(path, dpi=120)


def write_reference(
    pictures: str | Path,
    out: str | Path,
    *,
    resolution: int | None = None,
    data: DataSettings | None = None,
    network: str = "inception",
    network_file: Path | None = None,
    device: str = "auto",
    say: Say = print,
    progress: Progress | None = None,
) -> int:
    """Write the mean and covariance of the features of pictures into an .npz file, as `evaluate` and others read it.

    What `evaluate` keeps of these pictures is kept too, so that `--data` with them is as quick.

    Args:
        pictures: anything that `train` takes.
        out: the file, .npz; never overwritten.
        resolution: side to which pictures are brought; None: they are a prepared set, and have one.
        data: how they are brought to it; None: as recipes do.
        network, network_file: of features, as for `evaluate`.
        device: "auto", "cpu", "cuda" or "cuda:1".

    Returns:
        How many pictures there are.

    Raises:
        BadInput: no such pictures, fewer than two, no feature network, or `out` exists or is called otherwise.
    """
    source, file = local_path(pictures), Path(out)
    if file.suffix != ".npz":
        raise BadInput(f"{file}: moments go into an .npz file; give it that ending")
    if file.exists():
        raise BadInput(f"{file}: exists already; delete it, or choose another name")
    if resolution is None and not is_prepared(source):
        raise BadInput("--resolution is missing: the side in pixels of the generated pictures that will be compared")
    side = resolution if resolution is not None else open_prepared(source).resolution
    where, why = use_device(device)
    say(f"device: {where} ({why})")
    features = choose_network(network, network_file, where, say)
    folders = Folders.from_environment()
    real = open_pictures(source, side, SourceOptions(data or DataSettings(), folders.prepared, say, progress, {}))
    if len(real) < 2:
        raise BadInput(f"{source}: one picture has no covariance; expected at least 2, and better thousands")
    disable_reduced_precision()
    moments = reference_of(real, features, folders.moments, batch=FEATURES_AT_ONCE, progress=progress).moments
    assert isinstance(moments, Moments)
    if moments.count <= len(moments.mean):
        say(
            f"warning: {moments.count:,} pictures for {len(moments.mean)} feature dimensions: their covariance is "
            "singular and distances to it are far too high"
        )
    about: dict[str, str | int] = {"pictures": moments.count, "resolution": side, "data_digest": real.digest}
    about |= {"network": features.name, "network_digest": features.digest, "resizer": features.resizer}
    write_moments(file, moments, about)
    return moments.count
