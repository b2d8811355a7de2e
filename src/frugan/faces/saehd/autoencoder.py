"""A face autoencoder for two sides as a family: what SAEHD and its smaller relatives have in common."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from frugan.contract.family import Family, GridRequest
from frugan.contract.phase import Networks
from frugan.faces.data.face import FaceTypeOption
from frugan.faces.data.faceset import Faceset
from frugan.faces.data.needs import FaceNeeds
from frugan.faces.data.sample import aligned_picture
from frugan.faces.data.swap import FaceSwap
from frugan.faces.saehd.config import Archi
from frugan.faces.saehd.networks import (
    CodeDiscriminator,
    Decoder,
    Encoder,
    Inter,
    code_of,
    decode,
    encode,
    features,
    initialise,
    network_names,
    swap_code,
)

COLUMNS = ("S", "SS", "D", "DD", "SD")
"""Source, its reconstruction, destination, its reconstruction, and the swap: the destination as the source's face."""
PREVIEW_ROWS = 4
EIGHTHS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
"""Widths tried, in eighths of the recipe's."""


def narrower_and_wider(networks: Any, limits: Mapping[str, tuple[int, int]]) -> tuple[Mapping[str, int], ...]:
    """Widths for the planner to try instead, all scaled together, smallest first.

    Args:
        networks: a recipe's section.
        limits: field -> least and most channels.
    """
    widths: list[Mapping[str, int]] = []
    for eighths in EIGHTHS:
        wide = {name: 2 * round(getattr(networks, name) * eighths / 16) for name in limits}
        fitting = {name: min(most, max(least, wide[name])) for name, (least, most) in limits.items()}
        if fitting not in widths:
            widths.append(fitting)
    return tuple(widths)


@runtime_checkable
class AutoencoderNetworks(Protocol):
    """Sizes of the networks, and which faces they draw; see `SAEHDNetworks`."""

    @property
    def letters(self) -> Archi: ...
    @property
    def resolution(self) -> int: ...
    @property
    def face_type(self) -> FaceTypeOption: ...
    @property
    def ae_dims(self) -> int: ...
    @property
    def e_dims(self) -> int: ...
    @property
    def d_dims(self) -> int: ...
    @property
    def d_mask_dims(self) -> int: ...


def autoencoder(n: AutoencoderNetworks) -> dict[str, nn.Module]:
    """Encoder, bottleneck and decoders, on torch's default device."""
    archi = n.letters
    length = features(archi, n.resolution, n.e_dims)
    code_channels = n.ae_dims if archi.kind == "df" else n.ae_dims * 2
    built: dict[str, nn.Module] = {"encoder": Encoder(archi, n.e_dims)}
    for name in network_names(archi)[1:]:
        if name.startswith("inter"):
            built[name] = Inter(archi, n.resolution, length, n.ae_dims, code_channels)
        else:
            code = n.ae_dims if archi.kind == "df" else n.ae_dims * 4
            built[name] = Decoder(archi, code, n.d_dims, n.d_mask_dims)
    return built


class SwappingFamily(Family):
    """Start and single swaps of face autoencoders for two sides. Nothing is averaged, as in the originals."""

    def initialise(self, networks: Any, built: Networks, seed: Callable[[str], int]) -> None:
        """Glorot uniform, zero biases; each network from a random stream of its own."""
        for name, network in built.items():
            device = next(network.parameters()).device
            initialise(network, torch.Generator(device).manual_seed(seed(name)))

    @abstractmethod
    def sources(self, networks: Any, objective: Any) -> Mapping[str, FaceNeeds]:
        """Faces of the source "src" and of the destination "dst"."""

    def recomputable(self, built: Networks) -> dict[str, tuple[str, ...]]:
        """Every scaling and residual block of the autoencoder."""
        blocks: dict[str, tuple[str, ...]] = {}
        for name, network in built.items():
            if isinstance(network, Encoder | Decoder):
                blocks[name] = network.blocks
            elif isinstance(network, Inter) and network.upscale1 is not None:
                blocks[name] = ("upscale1",)
        return blocks

    @abstractmethod
    def face_swap(self, networks: Any, built: Networks) -> FaceSwap:
        """Return what swaps faces, of prepared networks."""

    def transformed(
        self, networks: Any, built: Networks, sources: Mapping[str, Faceset], count: int, micro_batch: int
    ) -> Iterator[tuple[str, Tensor]]:
        """Swapped faces: the first ones of the destination, by their names, as they lie in their pictures."""
        faces, swap = sources["dst"], self.face_swap(networks, built)
        settings = self.sources(networks, self.objective_type())["dst"].samples
        device = next(built["encoder"].parameters()).device
        for first in range(0, min(count, len(faces)), micro_batch):
            here = range(first, min(first + micro_batch, count, len(faces)))
            pictures = [aligned_picture(faces.faces[at], faces.picture(at), settings) for at in here]
            batch = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous().to(device)  # [n, 3, R, R]
            swapped, _, _ = swap.call(batch)
            for at, picture in zip(here, swapped.cpu().flip(1).clamp(0, 1) * 2 - 1, strict=True):
                face = faces.faces[at]
                yield "-".join([*([face.person] if face.person else []), PurePath(face.name).stem]), picture


def on_zeros(*shape: int) -> Callable[[nn.Module, int], object]:
    """Return a forward of a network on zeros of a sample's shape."""

    def forward(network: nn.Module, samples: int) -> object:
        return network(torch.zeros(samples, *shape, device=next(network.parameters()).device))

    return forward


class AutoencoderFamily(SwappingFamily):
    """Previews and swaps of networks that `autoencoder` made."""

    def forwards(self, networks: AutoencoderNetworks) -> Mapping[str, Callable[[nn.Module, int], object]]:
        """Each network on zeros."""
        archi, side = networks.letters, networks.resolution
        built = self.build(networks, "meta")
        code_side = archi.code_side(side)
        runs: dict[str, Callable[[nn.Module, int], object]] = {}
        for name, network in built.items():
            if isinstance(network, Inter):
                runs[name] = on_zeros(network.dense1.in_features)
            elif isinstance(network, Decoder):
                runs[name] = on_zeros(networks.ae_dims * (1 if archi.kind == "df" else 4), code_side, code_side)
            elif isinstance(network, CodeDiscriminator):
                runs[name] = on_zeros(networks.ae_dims, code_side, code_side)
            else:
                runs[name] = on_zeros(3, side, side)
        return runs

    @torch.no_grad()
    def sample(self, networks: AutoencoderNetworks, built: Networks, request: GridRequest) -> Tensor:
        """A row for each face: S, SS, D, DD, SD; or the same through the masks. [rows, 5, 3, R, R], RGB, on the host.

        Masked: S and D times their own masks, DD times its made mask, SD times the made mask that the merger uses: both
        sides' masks multiplied, and the swap's alone for whole heads.

        Raises:
            ValueError: the request holds no faces.
        """
        if not request.pictures:
            raise ValueError("a preview of faces needs pictures of src and dst")
        archi = networks.letters
        device = next(built["encoder"].parameters()).device
        src, dst = request.pictures["src"], request.pictures["dst"]
        rows = []
        for first in range(0, len(src["target"]), request.micro_batch):
            here = slice(first, first + request.micro_batch)
            s, d = src["target"][here].to(device), dst["target"][here].to(device)
            vectors = encode(built, s)
            ss, _ = decode(archi, built, code_of(archi, built, vectors, "src"), "src")
            vectors = encode(built, d)
            dd, dd_mask = decode(archi, built, code_of(archi, built, vectors, "dst"), "dst")
            sd, sd_mask = decode(archi, built, swap_code(archi, built, vectors), "src")
            if request.masked:
                s_mask, d_mask = src["mask"][here].to(device), dst["mask"][here].to(device)
                merged = sd_mask if networks.face_type == "head" else sd_mask * dd_mask
                s, d, dd, sd = s * s_mask, d * d_mask, dd * dd_mask, sd * merged
            rows.append(torch.stack([s, ss, d, dd, sd], 1).float().cpu())  # [n, 5, 3, R, R]
        return torch.cat(rows).flip(2).clamp(0, 1) * 2 - 1  # BGR to RGB

    def face_swap(self, networks: AutoencoderNetworks, built: Networks) -> FaceSwap:
        """The source's decoder on the destination's faces, and the mask of its own decoder."""
        archi = networks.letters

        @torch.no_grad()
        def call(faces: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            vectors = encode(built, faces)
            swapped, swap_mask = decode(archi, built, swap_code(archi, built, vectors), "src")
            _, dst_mask = decode(archi, built, code_of(archi, built, vectors, "dst"), "dst")
            return swapped.float(), swap_mask.float(), dst_mask.float()

        return FaceSwap(networks.resolution, networks.face_type, call)

    def snapshots(self, networks: AutoencoderNetworks) -> Mapping[str, GridRequest]:
        """The preview, and the same through the masks."""
        rows, titles = PREVIEW_ROWS, COLUMNS
        return {
            "preview": GridRequest(rows=rows, columns=len(titles), titles=titles),
            "preview-masked": GridRequest(rows=rows, columns=len(titles), titles=titles, masked=True),
        }
