"""BigGAN generators of TensorFlow Hub: names and layouts of their variables, and the networks that they belong to.

A module holds every weight twice, as trained and averaged (".../ema_b999900"), u vectors of both sides (`u1` is not
needed), and for each normalisation the sums of means and variances with the number of summands.

Source: the published modules' variables (biggan-128/2, biggan-256/2, biggan-512/2).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from frugan.contract.formats import WEIGHTS_SUFFIX, Conversion, FileFormat, Imported, OurSide, RecipeValues
from frugan.contract.name_table import Change, NameTable, Row
from frugan.errors import BadInput
from frugan.families.biggan.config import BOTTOM, GENERATOR, discriminator_channels_at
from frugan.families.biggan.family import BigGANFamily
from frugan.families.biggan.release import COUNTER, means_of_sums
from frugan.families.biggan.release_recipe import fine_tuning, next_lines
from frugan.tf_checkpoint import Bundle, read_bundle

AVERAGED = re.compile(r"(.+)/ema_[^/]+")
LATENT = "Generator/G_Z/G_linear/w"
"""End of a name that every module has; all names begin like this one."""
SUMS = ("accumulated_mean", "accumulated_var")


def without_prefix(name: str, prefix: str) -> str | None:
    """Strip a variable's prefix and TensorFlow's ":0"; None: the name has another prefix, and is not of the model."""
    return name.removeprefix(prefix).removesuffix(":0") if name.startswith(prefix) else None


def prefix_of(names: Mapping[str, object]) -> str | None:
    """Prefix of all names ("module/"); None: these are not the variables of such a generator."""
    for name in names:
        plain = name.removesuffix(":0")
        if plain.endswith(LATENT):
            return plain.removesuffix(LATENT)
    return None


@dataclass(frozen=True)
class HubShape:
    """Numbers of a generator that its table of names depends on."""

    blocks: int  # number of blocks
    attention: int | None  # block that self-attention follows; None: there is none
    chunk: int  # size of the part of z for each block
    channels: int  # channels of the first feature map


def hub_table(shape: HubShape) -> NameTable:
    """Table between variables of one kind (trained or averaged), without prefix, and the generator's tensors."""
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
        Row(None, "{path}.sv0", create=lambda size: torch.ones(*size)),
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
    """A vector of any shape -> [1, N]."""
    return value.reshape(1, -1)


def _scalar(value: Tensor) -> Tensor:
    return value.reshape(())


def _last_norm_back(value: Tensor) -> Tensor:
    return value.reshape(1, 1, 1, -1)


def _condition(chunk: int) -> tuple[Change, Change]:
    """[chunk + class, C] with z before the class -> [C, class + chunk] with the class before z; and back."""

    def to_ours(value: Tensor) -> Tensor:
        return torch.cat([value[chunk:], value[:chunk]]).T

    def to_theirs(value: Tensor) -> Tensor:
        return torch.cat([value.T[-chunk:], value.T[:-chunk]])

    return to_ours, to_theirs


def _first_rows(channels: int) -> tuple[Change, Change]:
    """Reorder the first features from (row, column, channel) to (channel, row, column); and back."""

    def to_ours(value: Tensor) -> Tensor:
        rest = value.shape[1:]
        return value.reshape(BOTTOM, BOTTOM, channels, *rest).movedim(2, 0).reshape(-1, *rest)

    def to_theirs(value: Tensor) -> Tensor:
        rest = value.shape[1:]
        return value.reshape(channels, BOTTOM, BOTTOM, *rest).movedim(0, 2).reshape(-1, *rest)

    return to_ours, to_theirs


def _first_linear(channels: int) -> tuple[Change, Change]:
    """[chunk, features] -> [features, chunk] with the features in our order; and back."""
    to_ours, to_theirs = _first_rows(channels)
    return (lambda value: to_ours(value.T)), (lambda value: to_theirs(value).T)


def _first_u(channels: int) -> tuple[Change, Change]:
    """Vectors u [1, features] -> the same with the features in our order; and back."""
    to_ours, to_theirs = _first_rows(channels)
    return (lambda value: to_ours(value.reshape(-1))[None]), (lambda value: to_theirs(value.reshape(-1))[None])


Shapes = Mapping[str, tuple[int, ...]]

ATTENTION: Mapping[int, int] = {128: 64, 256: 128, 512: 64}
"""Resolution -> side at which the published generators have self-attention."""
DISCRIMINATOR_ATTENTION = 64
LEAST_ATTENTION_CHANNELS = 8
NORM_EPS = 1e-4
LAST_NORM_EPS: Mapping[int, float] = {128: 1e-4, 256: 1e-4, 512: 1e-5}
MOST_SHOWN = 8
_BLOCK = re.compile(r"Generator/GBlock(?:_(\d+))?/conv0/w")


def hub_networks(shapes: Shapes) -> tuple[dict[str, Any], HubShape]:
    """Values of a recipe's section `networks`, and the numbers for the table of names.

    Args:
        shapes: shapes of the variables of one kind (trained or averaged), without prefix.

    Raises:
        BadInput: this is not BigGAN's generator of 128, 256 or 512 pixels.
    """
    if any(name.startswith("Generator/GenZ/") for name in shapes):
        raise BadInput("its generator is BigGAN-deep's; modules of biggan-128, biggan-256 and biggan-512 are read here")
    blocks = sorted(int(match[1] or 0) for name in shapes if (match := _BLOCK.fullmatch(name)))
    sides = {len(stages): side for side, stages in GENERATOR.items() if side in ATTENTION}
    if blocks != list(range(len(blocks))) or len(blocks) not in sides:
        expected = ", ".join(f"{count} ({side} pixels)" for count, side in sorted(sides.items()))
        raise BadInput(f"its generator has {len(blocks)} blocks; expected {expected}")
    side = sides[len(blocks)]
    stages = GENERATOR[side]
    chunk, features = _matrix(shapes, LATENT)
    classes, embedding = _matrix(shapes, "linear/w")
    channels, odd = divmod(features, BOTTOM**2 * stages[0][0])
    if odd or channels < 1:
        raise BadInput(
            f"{LATENT} [{chunk}, {features}]: the first feature map of {side} pixels has {stages[0][0]} times as many "
            f"channels as the last, at {BOTTOM**2} places: {features} does not divide by it"
        )
    attention = _attention(shapes, side, channels)
    deeper = discriminator_channels_at(side, deep=False, reference_at_32=False)
    fits = deeper[DISCRIMINATOR_ATTENTION] * channels >= LEAST_ATTENTION_CHANNELS
    values = {
        "resolution": side,
        "classes": classes,
        "generator_channels": channels,
        "discriminator_channels": channels,
        "latent_size": chunk * (len(blocks) + 1),
        "shared_embedding": embedding,
        "hierarchical_latent": True,
        "generator_attention": [] if attention is None else [BOTTOM << (attention + 1)],
        "discriminator_attention": [DISCRIMINATOR_ATTENTION] if fits else [],
        "batch_norm_eps": NORM_EPS,
        "output_norm_eps": LAST_NORM_EPS[side],
        "spectral_norm_eps": NORM_EPS,
    }
    return values, HubShape(len(blocks), attention, chunk, stages[0][0] * channels)


def _attention(shapes: Shapes, side: int, channels: int) -> int | None:
    """Number of the block that attention follows: the published one, or else the only one with as many channels.

    Raises:
        BadInput: no block has as many channels, or several blocks have.
    """
    theta = shapes.get("Generator/attention/theta/w")
    if theta is None:
        return None
    wanted = theta[2] if len(theta) == 4 else 0
    fitting = [i for i, (_, outputs) in enumerate(GENERATOR[side]) if outputs * channels == wanted]
    published = (ATTENTION[side] // BOTTOM).bit_length() - 2
    if published in fitting:
        return published
    if len(fitting) != 1:
        raise BadInput(
            f"its self-attention is of {wanted} channels, which {len(fitting)} of its blocks give; expected exactly one"
        )
    return fitting[0]


def _matrix(shapes: Shapes, name: str) -> tuple[int, int]:
    shape = shapes.get(name)
    if shape is None:
        raise BadInput(f"has no variable {name}: no generator of BigGAN's")
    if len(shape) != 2 or min(shape) < 1:
        raise BadInput(f"its variable {name} is {list(shape)}; expected a matrix")
    return shape[0], shape[1]


Kind = Literal["trained", "averaged"]


@dataclass(frozen=True)
class HubModule:
    """An opened module."""

    bundle: Bundle  # the module's checkpoint
    # variable, without the prefix and the mark of an average -> kind -> name in the file
    names: Mapping[str, Mapping[Kind, str]]

    @property
    def index(self) -> Path:
        """File that lists the variables."""
        return self.bundle.index

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each variable, in the first of its kinds."""
        return {name: self.bundle.entries[next(iter(kinds.values()))].shape for name, kinds in self.names.items()}

    @property
    def has_average(self) -> bool:
        """Whether any variable has an average."""
        return any("averaged" in kinds for kinds in self.names.values())

    def read(self, *, averaged: bool) -> dict[str, Tensor]:
        """Read all variables in one kind, or in the other where there is only that.

        Raises:
            BadInput: the data file is cut off or damaged.
        """
        first: Kind = "averaged" if averaged else "trained"
        second: Kind = "trained" if averaged else "averaged"
        return {
            name: torch.from_numpy(self.bundle.tensor(kinds.get(first) or kinds[second]))
            for name, kinds in self.names.items()
        }


def read_module(path: Path) -> HubModule:
    """Open a module without reading its tensors.

    Args:
        path: the module's folder, its folder `variables`, or the .index file there.

    Raises:
        BadInput: there is no module, it is damaged, or of another model.
    """
    bundle = read_bundle(path)
    prefix = prefix_of(bundle.entries)
    if prefix is None:
        raise BadInput(f"{bundle.index}: no generator of BigGAN's; expected the module biggan-128, -256 or -512")
    names: dict[str, dict[Kind, str]] = {}
    for name in bundle.entries:
        plain = without_prefix(name, prefix)
        if plain is None:
            continue
        average = AVERAGED.fullmatch(plain)
        key = plain if average is None else average[1]
        kind: Kind = "trained" if average is None else "averaged"
        if kind in names.setdefault(key, {}):
            raise BadInput(f"{bundle.index}: has {key} twice, as {names[key][kind]} and as {name}")
        names[key][kind] = name
    return HubModule(bundle, names)


class BigGANHub(FileFormat):
    """A generator of TensorFlow Hub (biggan-128, -256, -512), read without TensorFlow; nothing in it is run."""

    program = "a generator of TensorFlow Hub"
    reads = frozenset({"raw", "verify"})
    makes = frozenset({"file", "folder"})

    def read(self, conversion: Conversion, ours: OurSide) -> Imported:
        """Read a module: for a file the average (with `raw`, the generator as trained); for a folder both."""
        module = read_module(conversion.source)
        if not module.has_average:
            conversion.say("the module has no EMA: the generator as it was trained is used instead")
        recipe, shape = _recipe(module, ours)
        conversion.say(f"{recipe.summary}, from {module.index}")
        chosen = _generator(module, recipe, shape, ours, averaged=not conversion.raw)
        trained, averages = chosen, {}
        if conversion.out.suffix != WEIGHTS_SUFFIX:
            trained, averages = _generator(module, recipe, shape, ours, averaged=False), chosen
        resolution = recipe.values["networks"]["resolution"]
        facts = {
            "path": str(conversion.out),
            "resolution": resolution,
            "averaged": module.has_average and not conversion.raw,
        }
        lines = next_lines(conversion.out, recipe, ours, discriminator=False)
        return Imported(recipe, trained, facts, [f"{conversion.out}: BigGAN at {resolution} pixels", *lines], averages)


def _recipe(module: HubModule, ours: OurSide) -> tuple[RecipeValues, HubShape]:
    try:
        networks, shape = hub_networks(module.shapes)
    except BadInput as error:
        raise BadInput(f"{module.index}: {error}") from error
    about = {
        "summary": f"BigGAN at {networks['resolution']} pixels, imported",
        "source": f"TensorFlow Hub's module {module.index.parent.parent.name}",
    }
    values = {"family": "biggan", "about": about, "networks": networks, **fine_tuning(ours)}
    return ours.recipe(values, str(module.index)), shape


def _generator(
    module: HubModule, recipe: RecipeValues, shape: HubShape, ours: OurSide, *, averaged: bool
) -> dict[str, Tensor]:
    """Read the tensors "G.parameter", which must be those of the recipe's generator."""
    published = BigGANFamily().build(recipe.networks, "meta")["G"]
    expected = {key: tuple(value.shape) for key, value in published.state_dict().items()}
    read = hub_table(shape).to_ours(means_of_sums(module.read(averaged=averaged), "/", SUMS), expected)
    if read.faults:
        shown = read.faults[:MOST_SHOWN] + (["…"] if len(read.faults) > MOST_SHOWN else [])
        raise BadInput(f"{module.index}: not the generator that it looks like:\n  " + "\n  ".join(shown))
    tensors = {f"G.{key}": value.float().contiguous() for key, value in read.tensors.items()}
    ours.load({"G": published}, tensors, str(module.index))  # copies nothing: there is no data on "meta"
    return tensors
