"""Feature networks, by name or from a file."""

import hashlib
import importlib
import io
import os
import struct
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from frugan.errors import BadInput
from frugan.files import read_untrusted
from frugan.metrics.inception import OF_2015, TORCHVISION, Inception, Variant
from frugan.metrics.public_weights import PUBLIC, PublicWeights
from frugan.wording import GIB, first_line

MOST_PTH_BYTES = 2 * GIB
"""Largest weights file; Inception's have 91 and 104 MiB, the largest transformer that is loaded here 1.2 GiB."""
DAMAGED = (
    *(RuntimeError, ValueError, EOFError, LookupError, UnpicklingError, TypeError, AttributeError),
    *(OSError, AssertionError, OverflowError, NotImplementedError, RecursionError, struct.error),
)
"""Errors that torch's reader of weights raises for damaged files."""
NETWORKS = "inception, inception-torchvision, dinov2, clip, digits, pixels, a TorchScript file, or module:callable"
"""Names of feature networks, for messages."""
NOT_USED = ("AuxLogits.", "num_batches_tracked")
"""Parts of the names of weights that features do not depend on: torchvision's second classifier, and counters."""
INCEPTIONS: Mapping[str, tuple[PublicWeights, Variant]] = MappingProxyType(
    {name: (PUBLIC[name], of) for name, of in (("inception", OF_2015), ("inception-torchvision", TORCHVISION))}
)
"""--network's name -> its weights file and the variant of Inception."""


@dataclass(frozen=True)
class Features:
    """Features of pictures, on the host."""

    pooled: Tensor  # features that distances are measured between, fp32 [N, D]
    logits: Tensor | None  # class scores without bias, fp32 [N, K]; None: the network has no classes


class FeatureNetwork(Protocol):
    """A network of features with a name and a digest."""

    @property
    def name(self) -> str:
        """Name for people."""

    @property
    def digest(self) -> str:
        """Digest of the weights."""

    @property
    def resizer(self) -> str:
        """Description of the resizing of pictures."""

    def to(self, device: torch.device) -> None:
        """Move the network to a device, unless it has chosen its device itself."""

    def __call__(self, pictures: Tensor) -> Features:
        """Features of uint8 pictures [N, 1 or 3, H, W] of any size."""


@dataclass(frozen=True)
class NoFeatures:
    """Stands for a network where no metric needs features."""

    name: str = "none"
    digest: str = "none"
    resizer: str = "none"

    def to(self, device: torch.device) -> None:
        """Move the network to a device."""

    def __call__(self, pictures: Tensor) -> Features:
        """See `FeatureNetwork`: none of each picture [N, 0]."""
        return Features(torch.empty(len(pictures), 0), None)


PIXELS_SIDE = 16


@dataclass(frozen=True)
class PixelFeatures:
    """No network: what is left of a picture in grey, 16 by 16. It needs no weights, and tells whether variety is lost.

    Generators that had come to draw a few pictures over and over had a recall of 0 to 0.3 here. Real pictures of twelve
    kinds have 0.53 to 0.96; blurred, each pixel the mean of 3 x 3, 0.09 to 0.94 (`benchmarks/equal_time.py --floors`).
    """

    name: str = "pixels"
    digest: str = hashlib.sha256(b"grey, 16").hexdigest()
    resizer: str = f"area to {PIXELS_SIDE}, grey"

    def to(self, device: torch.device) -> None:
        """See `FeatureNetwork`: where pictures are, they are looked at."""

    def __call__(self, pictures: Tensor) -> Features:
        """See `FeatureNetwork`: pixels in [-1, 1] [N, 256]."""
        grey = pictures.float().mean(1, keepdim=True) / 127.5 - 1
        return Features(F.adaptive_avg_pool2d(grey, PIXELS_SIDE).flatten(1).cpu(), None)


def in_colour(pictures: Tensor) -> Tensor:
    """[N, 1 or 3, H, W] -> [N, 3, H, W]: networks of features take red, green and blue, which grey has all the same."""
    return pictures.expand(-1, 3, -1, -1)


@contextmanager
def full_fp32() -> Iterator[None]:
    """Inside, cards multiply fp32 in fp32: TF32 has three digits, and features were recorded with seven.

    Read by torch's newer names, which always answer, and set by its older ones, which set both.
    """
    backends = torch.backends
    kept = (backends.cudnn.conv.fp32_precision == "tf32", backends.cuda.matmul.fp32_precision == "tf32")  # type: ignore[attr-defined]
    backends.cudnn.allow_tf32 = backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        backends.cudnn.allow_tf32, backends.cuda.matmul.allow_tf32 = kept


@dataclass(frozen=True)
class InceptionFeatures:
    """One of the networks that FID, IS and KID are published with."""

    network: Inception  # with its weights, on the device that it runs on
    digest: str  # SHA-256 of the weights file

    @property
    def name(self) -> str:
        """Which of the two it is: a score is of one of them."""
        return self.network.variant.name

    @property
    def resizer(self) -> str:
        """Description of the resizing to 299 pixels."""
        return self.network.variant.resizer

    def to(self, device: torch.device) -> None:
        self.network.to(device)

    def __call__(self, pictures: Tensor) -> Features:
        """Features of uint8 pictures [N, 1 or 3, H, W]: pooled [N, 2048], logits [N, 1008 or 1000]."""
        scores = self.network.variant.class_scores
        with full_fp32():
            features = self.network(in_colour(pictures).to(self.network.fc.weight.device), ("2048", scores))
        return Features(features["2048"].cpu(), features[scores].cpu())


@dataclass
class NamedFeatures:
    """Any callable: uint8 [N, 3, H, W] -> features [N, D], or (features, class scores)."""

    network: Callable[[Tensor], object]
    name: str  # name as it was requested
    digest: str  # digest of the file, or as the network gives it
    device: torch.device  # device that it takes pictures on
    resizer: str = "the network's own"
    # loads it for a device, as constants of TorchScript stay where they were loaded to; None: it is no such file
    load: Callable[[torch.device], Callable[[Tensor], object]] | None = None

    def to(self, device: torch.device) -> None:
        if self.load is not None:
            self.network = self.load(device)
        elif isinstance(self.network, nn.Module):
            self.network.to(device)
        self.device = device

    @torch.no_grad()
    def __call__(self, pictures: Tensor) -> Features:
        """Features of uint8 pictures [N, 1 or 3, H, W].

        Raises:
            BadInput: it gives something else.
        """
        with full_fp32():
            features = self.network(in_colour(pictures).to(self.device))
        pooled, logits = features if isinstance(features, tuple) and len(features) == 2 else (features, None)
        for output in (pooled, logits):
            if output is not None and not (
                isinstance(output, Tensor) and output.ndim == 2 and len(output) == len(pictures)
            ):
                shape = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
                raise BadInput(
                    f"feature network {self.name}: gave {shape} for {len(pictures)} pictures; expected [N, D], or "
                    "two such: features and class scores"
                )
        assert isinstance(pooled, Tensor)
        return Features(pooled.float().cpu(), None if logits is None else logits.float().cpu())


def load_inception(name: str, path: Path | None, cache: Path, device: torch.device) -> InceptionFeatures:
    """Load an Inception network's public weights file.

    Args:
        name: of `INCEPTIONS`.
        path: of the file; None: what its environment variable names, or the file of its name in `cache`.

    Raises:
        MissingWeights: no such file.
        BadInput: another file, or a damaged one.
    """
    public, variant = INCEPTIONS[name]
    file = public.found(path, cache)
    digest = public.checked(file)
    weights = {key: value for key, value in read_pth(file).items() if not any(part in key for part in NOT_USED)}
    network = Inception(variant)
    wanted = {key for key in network.state_dict() if not any(part in key for part in NOT_USED)}
    if odd := sorted(wanted ^ weights.keys()):
        raise BadInput(f"{file}: holds no weights of the network {name} ({odd[0]} is missing, or too much)")
    try:
        network.load_state_dict(weights, strict=False)
    except (RuntimeError, TypeError) as error:
        raise BadInput(f"{file}: holds no weights of the network {name} ({str(error)[:200]})") from error
    return InceptionFeatures(network.to(device), digest)


def read_pth(file: Path) -> dict[str, Tensor]:
    """Read tensors by name from a file of `torch.save`; nothing else is built, and nothing is run.

    Raises:
        BadInput: it is damaged, or holds anything else.
    """
    try:
        # out of memory: from a file, torch makes room for whatever length stands there
        weights = torch.load(io.BytesIO(read_untrusted(file, MOST_PTH_BYTES)), map_location="cpu", weights_only=True)
    except BadInput:
        raise
    except DAMAGED as error:
        # torch's own words advise to run what the file says
        raise BadInput(f"{file}: no weights file of PyTorch, or a damaged one ({type(error).__name__})") from error
    if not isinstance(weights, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in weights.items()
    ):
        raise BadInput(f"{file}: holds other things than tensors by name")
    return weights


def load_named(name: str, device: torch.device) -> NamedFeatures:
    """Load a feature network by the path of a TorchScript file, or as "module:callable".

    Both run code: name only what you trust. What is kept of real pictures is kept under the callable's name, the code
    of its module, and its attribute `digest` if it has one: one that loads weights should.

    Raises:
        BadInput: not there, or nothing that can be called.
    """
    path = Path(name)
    if path.is_file():
        script = path.read_bytes()
        load = partial(_load_script, script)
        try:
            network = load(device)
        except (RuntimeError, ValueError) as error:
            raise BadInput(f"--network {name}: no TorchScript file ({first_line(error)})") from error
        return NamedFeatures(network, path.name, hashlib.sha256(script).hexdigest(), device, load=load)
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise BadInput(f"--network {name}: expected {NETWORKS}")
    try:
        named = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise BadInput(f"--network {name}: {error}") from error
    if not callable(named):
        raise BadInput(f"--network {name}: a {type(named).__name__}, which cannot be called")
    file = Path(str(getattr(importlib.import_module(module_name), "__file__", "")))
    code = file.read_bytes() if file.is_file() else b""
    digest = str(getattr(named, "digest", "")).encode()  # a callable that loads weights can say which
    return NamedFeatures(named, name, hashlib.sha256(b"\0".join((name.encode(), digest, code))).hexdigest(), device)


def _load_script(script: bytes, device: torch.device) -> Callable[[Tensor], object]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the files that people have are TorchScript
        network: nn.Module = torch.jit.load(io.BytesIO(script), map_location=device)
    return network.eval()


class RowStore:
    """Rows written one after the other, and then mapped from the file.

    Written, not mapped, while they come: on a full disk a write fails, where a map would end the process.

    Args:
        path: the .npy file, made anew.
        rows, dimensions: its shape, known beforehand.
    """

    def __init__(self, path: Path, rows: int, dimensions: int) -> None:
        self.path = path
        self._missing = rows
        self._file = path.open("wb")
        header = {"descr": "<f4", "fortran_order": False, "shape": (rows, dimensions)}
        np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, features: Tensor) -> None:
        """Add rows [N, D]; those beyond the last one are left out.

        Raises:
            OSError: the disk is full.
        """
        rows = features[: self._missing].float().cpu().numpy()
        self._file.write(np.ascontiguousarray(rows, dtype="<f4").tobytes())
        self._missing -= len(rows)

    def close(self) -> None:
        """End the file.

        Raises:
            ValueError: rows are missing.
        """
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        if self._missing:
            raise ValueError(f"{self.path}: {self._missing} rows are missing")

    def rows(self) -> NDArray[np.float32]:
        """All of them [N, D], mapped."""
        self.close()
        rows: NDArray[np.float32] = np.load(self.path, mmap_mode="r", allow_pickle=False)
        return rows


@contextmanager
def temporary_rows(rows: int, dimensions: int) -> Iterator[RowStore]:
    """A store whose file goes with the block."""
    with TemporaryDirectory(prefix="frugan-features-", ignore_cleanup_errors=True) as folder:
        store = RowStore(Path(folder) / "rows.npy", rows, dimensions)
        try:
            yield store
        finally:
            store._file.close()
