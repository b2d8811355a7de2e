"""Moments of real pictures as a file that `evaluate` and other programs read."""

from pathlib import Path

from frugan.accelerator.device import disable_reduced_precision
from frugan.contract.data import SourceOptions
from frugan.contract.settings import DataSettings
from frugan.data.formats.picture_set import PictureSet, open_prepared
from frugan.data.formats.set_file import is_prepared
from frugan.data.formats.source import local_path
from frugan.data.picture_needs import open_pictures
from frugan.errors import BadInput
from frugan.evaluation.reference import FEATURES_AT_ONCE, choose_network, reference_of
from frugan.files import Folders
from frugan.metrics.moments_file import write_moments
from frugan.metrics.scores import Moments
from frugan.progress import Progress, Say
from frugan.setup.devices import use_device


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
    _side(source, resolution)
    where, why = use_device(device)
    say(f"device: {where} ({why})")
    features = choose_network(network, network_file, where, say)
    folders = Folders.from_environment()
    real = pictures_at(source, resolution, data or DataSettings(), say, progress)
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
    about: dict[str, str | int] = {"pictures": moments.count, "resolution": real.resolution, "data_digest": real.digest}
    about |= {"network": features.name, "network_digest": features.digest, "resizer": features.resizer}
    write_moments(file, moments, about)
    return moments.count


def pictures_at(
    source: Path, resolution: int | None, data: DataSettings, say: Say, progress: Progress | None
) -> PictureSet:
    """Open real pictures that no run says the resolution of.

    Args:
        resolution: side to which pictures are brought; None: they are a prepared set, and have one.
        data: how they are brought to it.

    Raises:
        BadInput: no such pictures, or the side is missing.
    """
    side = _side(source, resolution)
    return open_pictures(source, side, SourceOptions(data, Folders.from_environment().prepared, say, progress, {}))


def _side(source: Path, resolution: int | None) -> int:
    if resolution is not None:
        return resolution
    if not is_prepared(source):
        raise BadInput("--resolution is missing: the side in pixels of the generated pictures that will be compared")
    return open_prepared(source).resolution
