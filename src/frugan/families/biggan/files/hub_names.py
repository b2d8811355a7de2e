"""Names of variables in TensorFlow Hub's BigGAN generators, and how their tensors lie.

A module holds every weight twice, as trained and averaged (".../ema_b999900"), u vectors of both sides (`u1` is not
needed), and for each normalisation sums of means and variances with a count of how many were added.

Source: the published modules' variables (biggan-128/2, biggan-256/2, biggan-512/2).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from frugan.contract.name_table import Change, NameTable, Row

AVERAGED = re.compile(r"(.+)/ema_[^/]+")
LATENT = "Generator/G_Z/G_linear/w"
"""A name that every module has; what stands before it stands before all."""
COUNTER = "accumulation_counter"
BOTTOM = 4


def without_prefix(name: str, prefix: str) -> str | None:
    """A variable's name after what stands before all of them and without TensorFlow's ":0"; None: not of the model."""
    return name.removeprefix(prefix).removesuffix(":0") if name.startswith(prefix) else None


def prefix_of(names: Mapping[str, object]) -> str | None:
    """What stands before all names ("module/"); None: these are no variables of such a generator."""
    for name in names:
        plain = name.removesuffix(":0")
        if plain.endswith(LATENT):
            return plain.removesuffix(LATENT)
    return None


def means_of_sums(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Accumulated means and variances divided by their counters, where these are above zero."""
    found = dict(tensors)
    for name, counter in tensors.items():
        if name.endswith(f"/{COUNTER}") and float(counter) > 0:
            path = name.removesuffix(COUNTER)
            for statistic in ("accumulated_mean", "accumulated_var"):
                if (of := f"{path}{statistic}") in found:
                    found[of] = found[of] / float(counter)
    return found


@dataclass(frozen=True)
class HubShape:
    """What the table has to know of the networks.

    Attributes:
        blocks: of the generator.
        attention: block that self-attention follows; None: there is none.
        chunk: of z for each block.
        channels: of the first feature map.
    """

    blocks: int
    attention: int | None
    chunk: int
    channels: int


def hub_table(shape: HubShape) -> NameTable:
    """Variables without prefix, of one kind (as trained, or averaged) -> tensors of the generator."""
    rows = [
        Row("linear/w", "shared.weight"),
        Row("Generator/G_Z/G_linear/w", "linear.weight", *_first_linear(shape.channels)),
        Row("Generator/G_Z/G_linear/b", "linear.bias", *_first_rows(shape.channels)),
        Row("Generator/G_Z/G_linear/u0", "linear.u0", *_first_u(shape.channels)),
        Row("Generator/GBlock{block}/{conv}/w", "blocks.{block}.0.{conv}.weight", _conv, _conv_back),
        Row("Generator/GBlock{block}/{conv}/b", "blocks.{block}.0.{conv}.bias", _flat, _flat),
        Row("Generator/GBlock{block}/{conv}/u0", "blocks.{block}.0.{conv}.u0", _row, _row),
        Row(
            "Generator/GBlock{block}/HyperBN{norm}/{part}/w",
            "blocks.{block}.0.bn{norm}.{part}.weight",
            *_condition(shape.chunk),
        ),
        Row("Generator/GBlock{block}/HyperBN{norm}/{part}/u0", "blocks.{block}.0.bn{norm}.{part}.u0", _row, _row),
        Row(
            "Generator/GBlock{block}/CrossReplicaBN{norm}/accumulated_{moment}",
            "blocks.{block}.0.bn{norm}.stored_{moment}",
        ),
        Row("Generator/ScaledCrossReplicaBN/gamma", "output_layer.0.gain", _flat, _last_norm_back),
        Row("Generator/ScaledCrossReplicaBN/beta", "output_layer.0.bias", _flat, _last_norm_back),
        Row("Generator/ScaledCrossReplicaBNbn/accumulated_{moment}", "output_layer.0.stored_{moment}"),
        Row("Generator/conv_2d/w", "output_layer.2.weight", _conv, _conv_back),
        Row("Generator/conv_2d/b", "output_layer.2.bias", _flat, _flat),
        Row("Generator/conv_2d/u0", "output_layer.2.u0", _row, _row),
        Row("{path}/u1", None),
        Row("{path}/" + COUNTER, None),
        Row(None, "{path}.sv0", made=lambda size: torch.ones(*size)),
    ]
    if shape.attention is not None:
        at = f"blocks.{shape.attention}.1"
        rows += [
            Row("Generator/attention/{map}/w", at + ".{map}.weight", _conv, _conv_back),
            Row("Generator/attention/{map}/u0", at + ".{map}.u0", _row, _row),
            Row("Generator/attention/gamma", f"{at}.gamma", _scalar, _scalar),
        ]
    holes: dict[str, str | Mapping[str, str]] = {
        "path": ".+",
        "block": {"" if i == 0 else f"_{i}": str(i) for i in range(shape.blocks)},
        "norm": {"": "1", "_1": "2"},
        "conv": {"conv0": "conv1", "conv1": "conv2", "conv_sc": "conv_sc"},
        "part": {"gamma": "gain", "beta": "bias"},
        "moment": "mean|var",
        "map": {"theta": "theta", "phi": "phi", "g": "g", "o_conv": "o"},
    }
    return NameTable(rows, holes)


def _conv(value: Tensor) -> Tensor:
    """[kh, kw, in, out] -> [out, in, kh, kw]."""
    return value.permute(3, 2, 0, 1)


def _conv_back(value: Tensor) -> Tensor:
    return value.permute(2, 3, 1, 0)


def _flat(value: Tensor) -> Tensor:
    return value.reshape(-1)


def _row(value: Tensor) -> Tensor:
    """[1, N], whatever else stands around it."""
    return value.reshape(1, -1)


def _scalar(value: Tensor) -> Tensor:
    return value.reshape(())


def _last_norm_back(value: Tensor) -> Tensor:
    return value.reshape(1, 1, 1, -1)


def _condition(chunk: int) -> tuple[Change, Change]:
    """[chunk + class, C], z before the class -> [C, class + chunk], the class before z; and back."""

    def to_ours(value: Tensor) -> Tensor:
        return torch.cat([value[chunk:], value[:chunk]]).T

    def to_theirs(value: Tensor) -> Tensor:
        return torch.cat([value.T[-chunk:], value.T[:-chunk]])

    return to_ours, to_theirs


def _first_rows(channels: int) -> tuple[Change, Change]:
    """First features by (row, column, channel) -> by (channel, row, column); and back."""

    def to_ours(value: Tensor) -> Tensor:
        rest = value.shape[1:]
        return value.reshape(BOTTOM, BOTTOM, channels, *rest).movedim(2, 0).reshape(-1, *rest)

    def to_theirs(value: Tensor) -> Tensor:
        rest = value.shape[1:]
        return value.reshape(channels, BOTTOM, BOTTOM, *rest).movedim(0, 2).reshape(-1, *rest)

    return to_ours, to_theirs


def _first_linear(channels: int) -> tuple[Change, Change]:
    """[chunk, features] -> [features, chunk], features in our order; and back."""
    to_ours, to_theirs = _first_rows(channels)
    return (lambda value: to_ours(value.T)), (lambda value: to_theirs(value).T)


def _first_u(channels: int) -> tuple[Change, Change]:
    """[1, features]; and back."""
    to_ours, to_theirs = _first_rows(channels)
    return (lambda value: to_ours(value.reshape(-1))[None]), (lambda value: to_theirs(value.reshape(-1))[None])
