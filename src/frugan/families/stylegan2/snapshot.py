"""Files of the StyleGAN2 and StyleGAN3 programs in PyTorch: snapshots are read, state dicts are written."""

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from frugan.contract.formats import (
    RECIPE_FILE,
    WEIGHTS_SUFFIX,
    Conversion,
    Converted,
    FileFormat,
    Imported,
    OurSide,
    RecipeValues,
)
from frugan.errors import BadInput
from frugan.families.stylegan2.config import StyledNetworks, StyleGAN2Networks
from frugan.families.stylegan2.family import (
    GAMMA,
    HALF_LIFE_BATCHES,
    StyledFamily,
    StyleGAN2Family,
    auto_batch,
    auto_rate,
)
from frugan.families.stylegan2.snapshot_modules import (
    Module,
    check_class,
    clamp_of,
    number_of,
    part_of,
    read_snapshot,
    word_of,
)
from frugan.files import refuse_existing
from frugan.wording import family_name, shown_value

GROUP = 4
"""Group of the minibatch standard deviation, where the snapshot does not say."""
GENERATOR, DISCRIMINATOR = "Generator", "Discriminator"


def network_settings(generator: Module, discriminator: Module | None) -> dict[str, Any]:
    """Values of a recipe's section `networks`.

    Args:
        generator: record of the generator.
        discriminator: record of the discriminator; None: the snapshot has none, and its settings are the defaults.

    Raises:
        BadInput: the networks are not StyleGAN2's, or variants of them that are not built here.
    """
    check_class(generator, GENERATOR)
    _, synthesis = part_of(generator, "mapping"), part_of(generator, "synthesis")
    if "input" in synthesis.modules:
        raise BadInput("its generator is StyleGAN3's, of layers without aliasing; expected StyleGAN2's")
    shared = shared_settings(generator, discriminator)
    blocks = _blocks(synthesis, shared["resolution"])
    last = blocks[shared["resolution"]]
    if (activation := part_of(last, "conv1").settings.get("activation")) != "lrelu":
        raise BadInput(f"its layers have the activation {shown_value(activation)}; expected 'lrelu'")
    widths = {side: _width(block, "conv1") for side, block in blocks.items()}
    base, most = channel_limits(widths)
    return shared | {
        "channel_base": base,
        "channel_max": most,
        "generator_architecture": word_of(last, "architecture"),
        "half_resolutions": sum(block.settings.get("use_fp16") is True for block in blocks.values()),
        "convolution_clamp": clamp_of(part_of(last, "conv1")),
    }


def shared_settings(generator: Module, discriminator: Module | None) -> dict[str, Any]:
    """Fields of `network_settings` that snapshots of all generations of StyleGAN say in the same way.

    Raises:
        BadInput: the networks are of unknown classes, or do not fit each other.
    """
    check_class(generator, GENERATOR)
    mapping, synthesis = part_of(generator, "mapping"), part_of(generator, "synthesis")
    resolution = _sides(number_of(synthesis, "img_resolution"))[-1]
    classes = number_of(generator, "c_dim") or None
    if classes == 1:
        raise BadInput("its labels have one dimension (c_dim 1): a number, and no class; expected none, or 2 and more")
    values: dict[str, Any] = {
        "resolution": resolution,
        "channels": number_of(synthesis, "img_channels"),
        "classes": classes,
        "latent_size": number_of(generator, "z_dim"),
        "style_size": number_of(generator, "w_dim"),
        "mapping_layers": number_of(mapping, "num_layers"),
    }
    if type(decay := mapping.settings.get("w_avg_beta")) is float:
        values["mean_style_decay"] = decay
    if discriminator is None:
        return values
    check_class(discriminator, DISCRIMINATOR)
    if (
        number_of(discriminator, "img_resolution") != resolution
        or (number_of(discriminator, "c_dim") or None) != classes
    ):
        raise BadInput("its discriminator is of another resolution or of other classes than its generator")
    spread = part_of(discriminator, "b4").modules.get("mbstd")
    return values | {
        "discriminator_architecture": word_of(part_of(discriminator, f"b{resolution}"), "architecture"),
        "minibatch_std_channels": 0 if spread is None else number_of(spread, "num_channels"),
    }


def discriminator_widths(discriminator: Module, resolution: int) -> dict[int, int]:
    """Side -> channels of the discriminator's block.

    Raises:
        BadInput: a block has no convolution.
    """
    return {
        side: _width(block, "conv" if side == 4 else "conv0")
        for side, block in _blocks(discriminator, resolution).items()
    }


def group_size(discriminator: Module | None) -> int | None:
    """Group of the minibatch standard deviation; None: the snapshot does not say."""
    spread = None if discriminator is None else part_of(discriminator, "b4").modules.get("mbstd")
    size = None if spread is None else spread.settings.get("group_size")
    return size if type(size) is int and size > 0 else None


def _sides(resolution: int) -> list[int]:
    """Sides of the blocks of networks for pictures of some resolution, from 4 pixels up."""
    if resolution < 8 or resolution > 1 << 20 or resolution.bit_count() != 1:
        raise BadInput(f"its pictures have {resolution:,} pixels a side; expected a power of two from 8 on")
    return [1 << n for n in range(2, resolution.bit_length())]


def _blocks(network: Module, resolution: int) -> Mapping[int, Module]:
    """Side -> block."""
    return {side: part_of(network, f"b{side}") for side in _sides(resolution)}


def _width(block: Module, layer: str) -> int:
    """Output channels of a block's convolution."""
    weight = part_of(block, layer).arrays.get("weight")
    if weight is None or weight.ndim != 4:
        raise BadInput(f"its {block.class_name[:50]} has no convolution {layer!r}: no network of StyleGAN2")
    return int(weight.shape[0])


def channel_limits(widths: Mapping[int, int]) -> tuple[int, int]:
    """Find channel_base and channel_max, with which each block of side R has min(base // R, max) channels.

    Raises:
        BadInput: there are no such numbers.
    """
    most = max(widths.values())
    base = max((width * side for side, width in widths.items() if width < most), default=most * max(widths))
    if widths != {side: min(base // side, most) for side in widths}:
        shown = ", ".join(f"{width} at {side}" for side, width in widths.items())
        raise BadInput(f"its channels ({shown}) are not those of StyleGAN2: a largest number, halved from side to side")
    return base, most


def constructor_arguments(networks: StyleGAN2Networks, group: int | None) -> dict[str, dict[str, Any]]:
    """Arguments to construct the authors' classes with, by network: "G", "D", "G_ema".

    Args:
        networks: settings of the networks.
        group: group of the minibatch standard deviation; None: a whole batch.
    """
    generator = mapping_arguments(networks) | {
        "synthesis_kwargs": {
            "channel_base": networks.channel_base,
            "channel_max": networks.channel_max,
            "num_fp16_res": networks.half_resolutions,
            "conv_clamp": networks.convolution_clamp,
            "architecture": networks.generator_architecture,
        }
    }
    return {"G": generator, "D": discriminator_arguments(networks, group), "G_ema": generator}


def mapping_arguments(networks: StyledNetworks) -> dict[str, Any]:
    """Arguments of a generator of any generation, without those of its synthesis network."""
    return {
        "z_dim": networks.latent_size,
        "c_dim": networks.classes or 0,
        "w_dim": networks.style_size,
        **_pictures(networks),
        "mapping_kwargs": {"num_layers": networks.mapping_layers, **_rate(networks)},
    }


def discriminator_arguments(networks: StyledNetworks, group: int | None) -> dict[str, Any]:
    """Arguments of the discriminator; see `constructor_arguments`."""
    defaults = StyledNetworks.model_construct()  # our fields and their constructors have equal defaults
    layers = {} if networks.class_layers == defaults.class_layers else {"num_layers": networks.class_layers}
    mapping = layers | _rate(networks) if networks.classes else {}
    return {
        "c_dim": networks.classes or 0,
        **_pictures(networks),
        "architecture": networks.discriminator_architecture,
        "channel_base": networks.channel_base,
        "channel_max": networks.channel_max,
        "num_fp16_res": networks.half_resolutions,
        "conv_clamp": networks.convolution_clamp,
        **({"mapping_kwargs": mapping} if mapping else {}),
        "epilogue_kwargs": {
            "mbstd_group_size": group,
            "mbstd_num_channels": networks.minibatch_std_channels,
        },
    }


def _pictures(networks: StyledNetworks) -> dict[str, int]:
    return {"img_resolution": networks.resolution, "img_channels": networks.channels}


def _rate(networks: StyledNetworks) -> dict[str, float]:
    default = StyledNetworks.model_construct().mapping_rate
    return {} if networks.mapping_rate == default else {"lr_multiplier": networks.mapping_rate}


@dataclass(frozen=True)
class Generation:
    """How snapshots of one generation of StyleGAN (2 or 3) become a recipe and weights."""

    family: StyledFamily
    network_settings: Callable[[Module, Module | None], dict[str, Any]]
    fine_tuning: Callable[[dict[str, Any], int | None], dict[str, Any]]  # section `networks`, group -> other sections

    @property
    def title(self) -> str:
        """Name for people."""
        return family_name(self.family.name)


class StyleGANPickle(FileFormat):
    """A network snapshot; it cannot be written, because it would have to contain their program."""

    program = "a snapshot of StyleGAN2"
    reads = frozenset[str]()
    makes = frozenset({"file", "folder"})

    def generation(self, generator: Module) -> Generation:
        """Generation of StyleGAN that a generator is of."""
        return STYLEGAN2

    def read(self, conversion: Conversion, ours: OurSide) -> Imported:
        """Read a snapshot; see `frugan.from_stylegan_pickle`."""
        source = conversion.source
        modules = read_snapshot(source)
        average, discriminator = modules.get("G_ema", modules.get("G")), modules.get("D")
        if average is None:
            raise BadInput(f"{source}: holds no generator (G_ema or G); nothing could be drawn with it")
        for name, loss in {
            "G_ema": "G is used instead",
            "G": "G_ema is used instead",
            "D": "in training it starts afresh",
        }.items():
            if name not in modules:
                conversion.say(f"the snapshot has no {name}: {loss}")
        generation = self.generation(average)
        recipe = _recipe(generation, average, discriminator, source, ours)
        built = generation.family.build(recipe.networks, "meta")
        other = _tensors(built, "D", discriminator, source, ours) if discriminator is not None else {}
        averaged = _tensors(built, "G", average, source, ours)
        conversion.say(f"{recipe.summary}; {', '.join(modules)} from {source}")
        networks, averages = averaged | other, {}
        if conversion.out.suffix != WEIGHTS_SUFFIX:
            trained = _tensors(built, "G", modules.get("G", average), source, ours)
            networks, averages = trained | other, averaged
        resolution = recipe.values["networks"]["resolution"]
        facts = {"path": str(conversion.out), "resolution": resolution, "networks": list(modules)}
        lines = [
            f"{conversion.out}: {generation.title} at {resolution} pixels",
            f"Next: frugan sample {shlex.quote(str(conversion.out))} --out samples",
            _training(conversion.out, generation, recipe, ours),
        ]
        return Imported(recipe, networks, facts, lines, averages, parts=tuple(modules))


class StyleGANSafetensors(FileFormat):
    """State dicts with the authors' names, which say too little about their networks to be read again."""

    program = "weights under the names of StyleGAN2's authors"
    writes = frozenset({"replace"})
    # family -> function of networks and a group that gives the arguments of the authors' classes
    constructors: ClassVar[Mapping[str, Callable[[Any, int | None], dict[str, dict[str, Any]]]]] = MappingProxyType(
        {"stylegan2": constructor_arguments}
    )
    formats: ClassVar[Mapping[str, str]] = MappingProxyType({"stylegan2": "stylegan2-ada-pytorch"})

    def write(self, conversion: Conversion, ours: OurSide) -> Converted:
        """Write state dicts; see `frugan.to_stylegan_safetensors`."""
        out = conversion.out
        if out.suffix != WEIGHTS_SUFFIX:
            raise BadInput(f"{out}: expected a name that ends in {WEIGHTS_SUFFIX}")
        refuse_existing(out, replace=conversion.replace)
        trained = ours.weights(*self.constructors)
        if trained.path == trained.averaged:
            conversion.say(f"{trained.path}: has one generator, which is written as G and as G_ema")
        generator = {key: value for key, value in trained.averages.items() if key.startswith("G.")}
        if not generator:
            raise BadInput(f"{trained.averaged}: holds no generator")
        tensors = trained.networks | {f"G_ema.{key.removeprefix('G.')}": value for key, value in generator.items()}
        networks = tuple(dict.fromkeys(key.partition(".")[0] for key in tensors))
        group = trained.recipe.values["training"]["normalisation_batch"]
        family = trained.recipe.values["family"]
        arguments = self.constructors[family](trained.recipe.networks, group)
        made_with = json.dumps({name: arguments[name] for name in networks})
        ours.write_tensors(out, tensors, {"format": self.formats[family], "init_kwargs": made_with})
        facts = {"file": str(out), "networks": list(networks)}
        lines = [f"{out}: {', '.join(networks)} under the authors' names"]
        return Converted(out, facts, lines, step=trained.step, networks=networks)


def _recipe(
    generation: Generation, generator: Module, discriminator: Module | None, path: Path, ours: OurSide
) -> RecipeValues:
    """Make a recipe of the snapshot's networks, and of the release's choices for one card and a resumed training.

    Args:
        generation: generation of the generator.
        generator: record of the generator.
        discriminator: record of the discriminator, if there is one.
        path: path of the snapshot, for messages.
        ours: checks the recipe.

    Raises:
        BadInput: the networks are not of this generation, or no recipe can describe them.
    """
    try:
        networks = generation.network_settings(generator, discriminator)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from error
    about = {
        "summary": f"{generation.title} at {networks['resolution']} pixels, imported",
        "source": f"snapshot {path.name}",
    }
    values = {"family": generation.family.name, "about": about, "networks": networks}
    return ours.recipe(values | generation.fine_tuning(networks, group_size(discriminator)), str(path))


RESUMED_AUGMENTATION: Mapping[str, Any] = MappingProxyType(
    {"method": "ada", "operations": ["blit", "geometry", "colour"], "ramp_images": 100_000}
)
"""Augmentation of a resumed training, whose probability moves five times as fast as in one from scratch."""
RESUMED_SAVING: Mapping[str, str] = MappingProxyType(
    {"checkpoint_every": "20k images", "snapshot_every": "20k images", "report_every": "4k images"}
)


def _fine_tuning(networks: dict[str, Any], group: int | None) -> dict[str, Any]:
    """Settings of the release's configuration "auto" for one card, resumed from a snapshot.

    Source: Karras et al. 2020 (arXiv 2006.06676) and its release: batch, R1, average and rate by resolution; the
    augmentation's probability moves five times as fast as in a training from scratch.
    """
    group, resolution = group or GROUP, networks["resolution"]
    whole = 2 * group  # path lengths see half a batch, which must be whole groups
    batch = -(-auto_batch(resolution) // whole) * whole
    adam = {
        "learning_rate": auto_rate(resolution),
        "beta1": 0.0,
        "beta2": 0.99,
        "eps": 1e-8,
        "lazy_regularisation": True,
    }
    return {
        "objective": {"r1_gamma": GAMMA * resolution**2 / batch, "augmentation": RESUMED_AUGMENTATION},
        "data": {"flip": True},
        "training": {"batch": batch, "normalisation_batch": group, "duration": "1M images"},
        "optimizers": {"D": adam, "G": adam},
        "ema": {"schedule": "half-life", "half_life_images": batch * HALF_LIFE_BATCHES},
        "saving": RESUMED_SAVING,
        "evaluation": {"every": "200k images", "samples": 50_000, "noise": "random"},
    }


STYLEGAN2 = Generation(StyleGAN2Family(), network_settings, _fine_tuning)


def _tensors(
    built: Mapping[str, nn.Module], name: str, module: Module, source: Path, ours: OurSide
) -> dict[str, Tensor]:
    """Tensors "network.parameter" of a network, which must be those of the recipe's, built on "meta".

    Raises:
        BadInput: they are not.
    """
    tensors = {f"{name}.{key}": torch.from_numpy(array).float() for key, array in module.tensors().items()}
    ours.load({name: built[name]}, tensors, f"{source}: {name}")  # copies nothing: there is no data on "meta"
    return tensors


def _training(out: Path, generation: Generation, recipe: RecipeValues, ours: OurSide) -> str:
    """Line that tells how to fine-tune the networks: by the recipe beside them, or by a shipped one that has them."""
    quoted = shlex.quote(str(out))
    if out.suffix != WEIGHTS_SUFFIX:
        return f"Or: frugan train {shlex.quote(str(out / RECIPE_FILE))} --init {quoted} --data PICTURES --out RUN"
    networks = recipe.networks.model_dump()
    name = f"{generation.family.name}-finetune-{networks['resolution']}"
    if (shipped := ours.shipped(name)) is not None:
        presets = shipped.networks.model_dump()
        if all(presets[key] == value for key, value in networks.items() if key != "frozen_discriminator_layers"):
            return f"Or: frugan train {name} --init {quoted} --data PICTURES --out RUN"
    return "To fine-tune it, convert it to a folder (a name without .safetensors): its recipe.toml has these networks"
