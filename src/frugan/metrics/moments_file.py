"""Mean and covariance of features in an .npz file, as programs exchange them: `mu` and `sigma`.

So written by pytorch-fid (`--save-stats`), by BigGAN-PyTorch (`*_inception_moments.npz`), and beside the pictures of
guided-diffusion's reference batches. Those say neither which network made them nor of how many pictures; ours do.
"""

import hashlib
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray

from frugan.errors import BadInput
from frugan.files import atomic_file
from frugan.metrics.scores import Moments, Normal

MEAN, COVARIANCE = "mu", "sigma"
ASYMMETRY = 1e-4
"""Allowed asymmetry of a covariance relative to its largest value: fp32 rounds, another matrix has far more."""
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


@dataclass(frozen=True)
class FileMoments:
    """Moments from a file."""

    path: Path  # the file
    digest: str  # SHA-256 of the file
    normal: Normal  # contents
    pictures: int | None = None  # number of pictures; None: the file does not say
    network_digest: str | None = None  # digest of the feature network; None: the file does not say
    resolution: int | None = None  # side of the pictures in pixels; None: the file does not say


def read_moments(path: Path, features: int) -> FileMoments:
    """Read an .npz file of `mu` [D] and `sigma` [D, D], of any floating dtype; what else it holds is left alone.

    Nothing is unpickled, and no memory is taken before the sizes fit.

    Args:
        features: D of the network that they are compared by.

    Raises:
        BadInput: no such file, a folder, another format, other keys, of another D, or values that are no moments.
    """
    if path.is_dir():
        raise BadInput(
            f"--reference {path}: a folder; expected an .npz file with {MEAN} and {COVARIANCE} (`frugan prepare "
            "PICTURES FILE.npz --reference` makes one); pictures are given with --data"
        )
    try:
        with path.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        with zipfile.ZipFile(path) as archive:
            return _read(path, digest, archive, features)
    except FileNotFoundError:
        raise BadInput(f"--reference {path}: no such file (looked from {Path.cwd()})") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:  # the last: compressed in another way
        raise BadInput(f"--reference {path}: no .npz file, or a damaged one ({error})") from error
    except OSError as error:
        raise BadInput(f"--reference {path}: {error.strerror or error}") from error


def write_moments(path: Path, moments: Moments, about: dict[str, str | int]) -> None:
    """Write moments as other programs read them, and what they are of.

    Args:
        path: ends in .npz.
        about: "pictures", "resolution", "network", "network_digest", "resizer", "data_digest".
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {MEAN: moments.mean.numpy(), COVARIANCE: moments.covariance.numpy()}
    with atomic_file(path) as beside, beside.open("wb") as opened:
        np.savez(opened, **arrays, **{name: np.array(value) for name, value in about.items()})  # type: ignore[arg-type]


def _read(path: Path, digest: str, archive: zipfile.ZipFile, features: int) -> FileMoments:
    names = [name.removesuffix(".npy") for name in archive.namelist()]
    if missing := [name for name in (MEAN, COVARIANCE) if name not in names]:
        raise BadInput(
            f"--reference {path}: holds {', '.join(names[:8]) or 'nothing'}, and no {' and no '.join(missing)}; "
            f"expected the mean {MEAN} [D] and the covariance {COVARIANCE} [D, D] of features"
        )
    mean = _array(path, archive, MEAN, (features,))
    covariance = _array(path, archive, COVARIANCE, (features, features))
    largest = np.abs(covariance).max()
    if np.abs(covariance - covariance.T).max() > ASYMMETRY * largest or covariance.diagonal().min() < 0:
        raise BadInput(
            f"--reference {path}: {COVARIANCE} is no covariance: it should be symmetric, with a diagonal of at least 0"
        )
    normal = Normal(torch.from_numpy(mean), torch.from_numpy((covariance + covariance.T) / 2))
    if not {"pictures", "network_digest", "resolution"} <= set(names):
        return FileMoments(path, digest, normal)
    pictures, network, resolution = (_scalar(path, archive, n) for n in ("pictures", "network_digest", "resolution"))
    return FileMoments(path, digest, normal, int(pictures), str(network), int(resolution))


def _array(path: Path, archive: zipfile.ZipFile, name: str, expected: tuple[int, ...]) -> NDArray[Any]:
    """One array of finite numbers of the expected shape, as float64."""
    with archive.open(f"{name}.npy") as member:
        shape, dtype = _header(path, member, name)
    if dtype.kind != "f":
        what = "objects, which would have to be unpickled" if dtype.hasobject else str(dtype)
        raise BadInput(f"--reference {path}: {name} holds {what}; expected floating numbers")
    if shape != expected:
        raise BadInput(
            f"--reference {path}: {name} is {list(shape)}, the features here give {list(expected)}: another network "
            "made it, or it is no such file; name the network with --network"
        )
    with archive.open(f"{name}.npy") as member:
        values = _values(path, member, name).astype(np.float64)
    if not np.isfinite(values).all():
        bad = int((~np.isfinite(values)).sum())
        raise BadInput(f"--reference {path}: {bad:,} of {values.size:,} values of {name} are not finite; make it again")
    return values


def _scalar(path: Path, archive: zipfile.ZipFile, name: str) -> Any:
    with archive.open(f"{name}.npy") as member:
        shape, dtype = _header(path, member, name)
    if shape or dtype.kind not in "iU" or dtype.itemsize > 1024:
        raise BadInput(f"--reference {path}: {name} is {dtype} {list(shape)}; expected one number or word")
    with archive.open(f"{name}.npy") as member:
        return _values(path, member, name).item()


def _header(path: Path, member: IO[bytes], name: str) -> tuple[tuple[int, ...], "np.dtype[Any]"]:
    try:
        shape, _, dtype = HEADERS[npy.read_magic(member)](member)
    except (ValueError, KeyError) as error:
        raise BadInput(f"--reference {path}: {name} is no array that NumPy wrote ({error})") from error
    return shape, dtype


def _values(path: Path, member: IO[bytes], name: str) -> NDArray[Any]:
    try:
        return np.asarray(npy.read_array(member, allow_pickle=False))
    except ValueError as error:
        raise BadInput(f"--reference {path}: {name} is cut short or damaged ({error})") from error
