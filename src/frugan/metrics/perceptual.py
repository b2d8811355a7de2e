"""Perceptual distances of pictures from one picture, which are differentiable.

Source: Zhang et al. 2018 (arXiv 1801.03924): differences of features that are normalised at each place.
"""

import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from frugan.errors import BadInput
from frugan.metrics.feature_network import INCEPTIONS, in_colour, load_inception
from frugan.wording import first_line

Distance = Callable[[Tensor], Tensor]
"""Pictures [N, C, R, R] in [-1, 1] -> how far each is from the one picture [N]."""
SMALL = "small"
"""Name in --features of the network that needs no weights."""
CHANNELS = 32
"""Channels of random features."""
LAYERS = 2
"""Convolutions between the pixels and random features."""
LEAST_SIDE = 8
"""Pixels to which pictures are halved, over and over."""
MOST_SIDE = 256
"""Larger pictures are reduced to it first, as StyleGAN2's projection does."""
WITHOUT_CODE = (SMALL, *INCEPTIONS)
"""Names of features that run no code from a file."""
NAMES = "small, inception, inception-torchvision, or a TorchScript file such as LPIPS"
"""Names of features, for messages."""


@dataclass(frozen=True)
class PictureDistance:
    """A way to measure, of which there are several."""

    name: str
    to: Callable[[Tensor], Distance]  # from a picture [1, C, R, R] in [-1, 1]


def choose_distance(name: str, cache: Path, device: torch.device) -> PictureDistance:
    """A distance by name.

    Args:
        name: "small", of `INCEPTIONS`, or the path of a TorchScript file.
        cache: where public weights are looked for.

    Raises:
        MissingWeights: its weights are not there.
        BadInput: none of this name, or no file that measures pictures.
    """
    if name == SMALL:
        return PictureDistance(SMALL, lambda picture: _of_random_features(picture, device))
    if name in INCEPTIONS:
        network = load_inception(name, None, cache, device).network

        def maps(pictures: Tensor) -> Sequence[Tensor]:
            return list(network.maps(in_colour(pictures) * 127.5 + 127.5).values())

        return PictureDistance(name, lambda picture: _of_features(picture, maps))
    return _of_script(name, device)


def _of_random_features(picture: Tensor, device: torch.device) -> Distance:
    """Return the distance of features of random convolutions at several scales, and of colours.

    What random filters see is poorer than what learned ones see, but it needs no file, suits pictures of any kind and
    size, and finds edges where pixels alone are blind to all that is shifted.
    """
    random = torch.Generator().manual_seed(0)
    widths = (picture.shape[1], *[CHANNELS] * LAYERS)
    weights = [
        (torch.randn(after, before, 3, 3, generator=random) * (2 / (9 * before)) ** 0.5).to(device)
        for before, after in pairwise(widths)
    ]

    def features(pictures: Tensor) -> list[Tensor]:
        found = []
        for scale in _scales(pictures):
            x = scale
            for weight in weights:
                x = F.leaky_relu(F.conv2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), weight), 0.2)
                found.append(x)
        return found

    of_features = _of_features(picture, features)
    scales = [scale.detach() for scale in _scales(picture)]

    def distance(pictures: Tensor) -> Tensor:
        pixels = [
            (here - there).square().mean((1, 2, 3)) for here, there in zip(_scales(pictures), scales, strict=True)
        ]
        return of_features(pictures) + torch.stack(pixels).mean(0)

    return distance


def _scales(pictures: Tensor) -> list[Tensor]:
    """Pictures [N, C, R, R], halved over and over."""
    if pictures.shape[-1] > MOST_SIDE:
        pictures = F.adaptive_avg_pool2d(pictures, MOST_SIDE)
    found = [pictures]
    while found[-1].shape[-1] >= 2 * LEAST_SIDE:
        found.append(F.avg_pool2d(found[-1], 2))
    return found


def _of_features(picture: Tensor, features: Callable[[Tensor], Sequence[Tensor]]) -> Distance:
    """The mean over maps of squared differences, each place's features brought to a length of 1."""
    with torch.no_grad():
        target = [_unit(x) for x in features(picture)]

    def distance(pictures: Tensor) -> Tensor:
        distances = [
            (_unit(here) - there).square().sum(1).mean((1, 2))
            for here, there in zip(features(pictures), target, strict=True)
        ]
        return torch.stack(distances).mean(0)

    return distance


def _unit(x: Tensor) -> Tensor:
    """Features [N, C, H, W] of length 1 at each place, or nearly 0 where there is nothing."""
    return x / (x.square().sum(1, keepdim=True) + 1e-3).sqrt()


def _of_script(name: str, device: torch.device) -> PictureDistance:
    """Return the distance of a TorchScript file that computes features, or the distance of two pictures.

    Features are of pictures [N, 3, H, W] from 0 to 255, and the distance is their squared one; a file that can weight
    them as LPIPS (an argument `return_lpips`) is asked to. One that takes two gets them in [-1, 1].

    Raises:
        BadInput: no such file, or no TorchScript.
    """
    path = Path(name)
    if not path.is_file():
        raise BadInput(f"--features {name}: expected {NAMES}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the files that people have are TorchScript
            network: Any = torch.jit.load(io.BytesIO(path.read_bytes()), map_location=device).eval()
    except (RuntimeError, ValueError) as error:
        raise BadInput(f"--features {name}: no TorchScript file ({first_line(error)})") from error
    arguments = network.forward.schema.arguments[1:]
    needed = [argument.name for argument in arguments if not argument.has_default_value()]
    known = {argument.name for argument in arguments}
    if len(needed) not in (1, 2):
        raise BadInput(f"--features {name}: takes {', '.join(needed)}; expected one that takes pictures, or two")
    flags = {flag: value for flag, value in {"return_lpips": True, "resize_images": False}.items() if flag in known}

    def features(pictures: Tensor) -> Tensor:
        output: Tensor = network(in_colour(_at_most(pictures)) * 127.5 + 127.5, **flags)
        return output.float().flatten(1)

    def to(picture: Tensor) -> Distance:
        if len(needed) == 2:
            whole = in_colour(_at_most(picture))
            return lambda pictures: network(
                in_colour(_at_most(pictures)), whole.expand(len(pictures), -1, -1, -1)
            ).flatten()
        with torch.no_grad():
            target = features(picture)
        return lambda pictures: (features(pictures) - target).square().sum(1)

    return PictureDistance(path.name, to)


def _at_most(pictures: Tensor) -> Tensor:
    return F.adaptive_avg_pool2d(pictures, MOST_SIDE) if pictures.shape[-1] > MOST_SIDE else pictures
