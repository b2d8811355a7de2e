"""Vision transformers whose features scores are measured by, with weights that the person has.

The network itself is not written here: it comes as a TorchScript file, or from timm with weights in a file. What
belongs to the score stands here: how pictures come to the network's size, and how they are normalised.

Source: DINOv2's features for the Fréchet distance, Stein et al. 2023 (arXiv 2306.04675); CLIP's for CMMD, Jayasumana et
al. 2024 (arXiv 2401.09603).
"""

import os
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from frugan.errors import BadInput
from frugan.metrics.feature_network import Features, full_fp32, in_colour, read_pth
from frugan.metrics.inception import DEVIATIONS, MEANS
from frugan.metrics.public_weights import MissingWeights, sha256_of
from frugan.wording import first_line


@dataclass(frozen=True)
class Transformer:
    """A vision transformer, and the preparation of its pictures."""

    name: str  # name for --network and in scores
    side: int  # side of its pictures in pixels
    means: tuple[float, float, float]  # means that red, green and blue, from 0 to 1, are normalised by
    deviations: tuple[float, float, float]  # standard deviations that they are normalised by
    features: int  # number of features
    timm: str  # name in timm

    @property
    def setting(self) -> str:
        """Environment variable that may name the file of its weights."""
        return f"FRUGAN_{self.name.upper()}"


DINOV2 = Transformer("dinov2", 224, MEANS, DEVIATIONS, 1024, "vit_large_patch14_dinov2.lvd142m")
CLIP = Transformer(
    "clip",
    336,
    (0.48145466, 0.4578275, 0.40821073),
    (0.26862954, 0.26130258, 0.27577711),
    768,
    "vit_large_patch14_clip_quickgelu_336.openai",
)
TRANSFORMERS: Mapping[str, Transformer] = MappingProxyType({variant.name: variant for variant in (DINOV2, CLIP)})


@dataclass
class TransformerFeatures:
    """A transformer as a feature network."""

    transformer: Transformer
    network: nn.Module  # normalised fp32 [N, 3, side, side] -> features [N, D], on `device`
    digest: str  # SHA-256 of its file
    device: torch.device  # device that it runs on
    # file of TorchScript, loaded anew for another device, as its constants stay where they are
    script: Path | None = None

    @property
    def name(self) -> str:
        """Name as scores give it."""
        return self.transformer.name

    @property
    def resizer(self) -> str:
        """Description of the resizing of pictures."""
        return f"bicubic with antialiasing to {self.transformer.side}"

    def to(self, device: torch.device) -> None:
        self.network = self.network.to(device) if self.script is None else _scripted(self.script, device)
        self.device = device

    @torch.no_grad()
    def __call__(self, pictures: Tensor) -> Features:
        """Features of uint8 pictures [N, 1 or 3, H, W]: pooled [N, D], no class scores.

        Raises:
            BadInput: the file's network gives something else.
        """
        of = self.transformer
        with full_fp32():
            features = self.network(prepared(of, in_colour(pictures).to(self.device)))
        expected = (len(pictures), of.features)
        if not isinstance(features, Tensor) or features.shape != expected:
            shape = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise BadInput(
                f"--network {of.name}: the file's network gave {shape} for {len(pictures)} pictures of "
                f"{of.side} pixels; expected {list(expected)}: another network, or not its features alone"
            )
        return Features(features.float().cpu(), None)


def prepared(of: Transformer, pictures: Tensor) -> Tensor:
    """uint8 [N, 3, H, W] -> what the network takes, fp32 [N, 3, side, side]."""
    x = pictures.float()
    for size in ((x.shape[2], of.side), (of.side, of.side)):  # rows, then columns, to whole levels: as Pillow does
        if x.shape[2:] != size:
            x = F.interpolate(x, size, mode="bicubic", antialias=True).round().clamp(0, 255)
    means, deviations = (x.new_tensor(variant)[:, None, None] for variant in (of.means, of.deviations))
    return (x / 255 - means) / deviations


def load_transformer(of: Transformer, path: Path | None, device: torch.device) -> TransformerFeatures:
    """Load a transformer from a TorchScript file, or its weights from a file into timm's network.

    A TorchScript file is code, and is run: name only what you trust. Of weights nothing is run.

    Args:
        path: of the file; None: what its environment variable names.

    Raises:
        MissingWeights: no file is named, or there is none.
        BadInput: it holds no such network, or timm is needed and missing.
    """
    file = file_of(of, path)
    script = file if _is_torchscript(file) else None
    network = _by_timm(of, file).eval().to(device) if script is None else _scripted(script, device)
    return TransformerFeatures(of, network, sha256_of(file), device, script)


def file_of(of: Transformer, path: Path | None) -> Path:
    """The file of a transformer on this machine.

    Raises:
        MissingWeights: none is named, or there is none.
    """
    setting = os.environ.get(of.setting)
    file = path or (Path(setting) if setting else None)
    if file is not None and file.is_file():
        return file
    missing = f"no file of {of.name}'s weights is named" if file is None else f"{file}: no such file"
    raise MissingWeights(
        f"feature network {of.name}: {missing}. Name one with --network-file or {of.setting}: a TorchScript file that "
        f"takes normalised pictures of {of.side} pixels, or weights for timm's {of.timm} (.safetensors or .pth); "
        "`frugan fetch` has none"
    )


def _is_torchscript(file: Path) -> bool:
    """Return whether a file holds code: weights alone come in the same kind of archive."""
    try:
        with zipfile.ZipFile(file) as archive:
            return any("/code/" in name for name in archive.namelist())
    except (zipfile.BadZipFile, OSError):
        return False


def _scripted(file: Path, device: torch.device) -> nn.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the files that people have are TorchScript
            network: nn.Module = torch.jit.load(str(file), map_location=device)
    except (RuntimeError, ValueError) as error:
        raise BadInput(f"{file}: no TorchScript file, or a damaged one ({first_line(error)})") from error
    return network.eval()


def _by_timm(of: Transformer, file: Path) -> nn.Module:
    try:
        weights = load_file(file) if file.suffix == ".safetensors" else read_pth(file)
    except SafetensorError as error:
        raise BadInput(f"{file}: no safetensors file, or a damaged one ({error})") from error
    try:
        timm = import_module("timm")
    except (ImportError, RuntimeError) as error:  # the latter: its torchvision is of another torch
        raise BadInput(
            f"--network {of.name}: {file} holds weights alone, and the network comes from timm, which does not load "
            f"({first_line(error)}): pip install timm; or give a TorchScript file, which needs no timm"
        ) from error
    try:
        # weights as timm's own files have them, or as the authors' have them: timm tells and brings them to this size
        network: nn.Module = timm.create_model(
            of.timm, pretrained=True, pretrained_cfg_overlay={"state_dict": weights}, img_size=of.side
        )
    except (RuntimeError, ValueError, KeyError, AttributeError) as error:
        raise BadInput(f"{file}: holds no weights of timm's {of.timm} ({first_line(error)})") from error
    return network.requires_grad_(False)
