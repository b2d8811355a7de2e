"""Files of the StyleGAN2 and StyleGAN3 programs in PyTorch: snapshots are read, state dicts are written.

A snapshot's pickle holds the text of the Python files that define its networks, and asks to run it. Here each network
becomes a record of its class's name, its settings, its tensors, and the records within it. The text is ignored.
"""

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn

import numpy as np
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
from frugan.files import refuse_existing
from frugan.safe_pickle.reader import CURE, ObjectReader, read_whole
from frugan.safe_pickle.torch_files import Tensors
from frugan.wording import family_name, shown_value

GROUP = 4
"""Group of the minibatch standard deviation, where the snapshot does not say."""
MOST_FILE_BYTES = 8 << 30
"""Largest size of a file, twenty times the largest published."""
MOST_MODULES = 10_000
MOST_MODULE_LEVELS = 16
NETWORKS = ("G", "D", "G_ema")
"""Names of the generator, the discriminator and the generator's average in a snapshot."""


@dataclass(frozen=True, eq=False)
class Module:
    """Record of a layer, a block or a network in a snapshot."""

    class_name: str  # name of the program's class
    settings: Mapping[str, Any]  # plain attributes
    arrays: Mapping[str, np.ndarray]  # direct parameters and buffers
    modules: Mapping[str, "Module"]  # direct modules

    def tensors(self) -> dict[str, np.ndarray]:
        """All parameters and buffers, by their names in the program's state dict.

        Raises:
            BadInput: modules are nested deeper than in networks, or without end.
        """
        left = MOST_MODULES
        tensors: dict[str, np.ndarray] = {}
        level: dict[str, Module] = {"": self}
        for _ in range(MOST_MODULE_LEVELS):
            if not level:
                return tensors
            if (left := left - len(level)) < 0:
                break
            tensors |= {f"{at}{name}": array for at, module in level.items() for name, array in module.arrays.items()}
            level = {f"{at}{name}.": m for at, module in level.items() for name, m in module.modules.items()}
        raise BadInput(f"holds modules within modules without end. {CURE}")


def read_snapshot(path: Path) -> dict[str, Module]:
    """Read the networks of a snapshot: "G", "D", "G_ema", as far as they exist.

    Raises:
        BadInput: it does not exist, is damaged, of an unknown program, or has anything that would run a program.
    """
    if not path.is_file():
        raise BadInput(f"{path}: no such file; expected a network snapshot, such as network-snapshot-001000.pkl")
    if (size := path.stat().st_size) > MOST_FILE_BYTES:
        raise BadInput(f"{path}: {size:,} bytes; a snapshot has at most {MOST_FILE_BYTES:,}")
    data = path.read_bytes()
    if data[:2] == b"PK":
        raise BadInput(
            f"{path}: a file of torch.save or a zip, no snapshot pickle of the StyleGAN2 and StyleGAN3 programs"
        )
    reader = ObjectReader(
        data,
        {
            **Tensors(len(data)).builders,
            ("torch_utils.persistence", "_reconstruct_persistent_obj"): _module,
            ("dnnlib.util", "EasyDict"): _easy_dict,
            ("dnnlib.tflib.network", "Network"): _of_tensorflow,
        },
    )
    value = read_whole(reader, f"{path}:")
    if type(value) is not dict or not any(type(value.get(name)) is Module for name in NETWORKS):
        raise BadInput(f"{path}: holds no networks; expected a snapshot with {', '.join(NETWORKS)}")
    return {name: value[name] for name in NETWORKS if type(value.get(name)) is Module}


def _module(meta: Any) -> Module:
    """Make a record of {type, version, module_src, class_name, state}, in place of the function that makes a module."""
    if type(meta) is not dict or type(meta.get("type")) is not str or meta["type"] != "class":
        raise TypeError
    name, state = meta.get("class_name"), meta.get("state")
    if type(name) is not str or type(state) is not dict:
        raise TypeError
    settings = {key: value for key, value in state.items() if key not in _PARTS}
    arrays = _arrays(state)
    modules = {key: value for key, value in _part(state, "_modules") if value is not None}
    if not all(type(value) is np.ndarray for value in arrays.values()):
        raise BadInput(f"holds a {name[:50]!a} with a parameter that is no tensor. {CURE}")
    if not all(type(value) is Module for value in modules.values()):
        raise BadInput(f"holds a {name[:50]!a} with a layer of an unknown kind. {CURE}")
    return Module(name, settings, arrays, modules)


_PARTS = frozenset({"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"})


def _arrays(state: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters, and the buffers that the program's state dict has; whether they are tensors is not checked."""
    hidden = state.get("_non_persistent_buffers_set", set())
    if type(hidden) is not set:
        raise TypeError
    return {
        key: value
        for part in ("_parameters", "_buffers")
        for key, value in _part(state, part)
        if value is not None and not (part == "_buffers" and key in hidden)
    }


def _part(state: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    part = state.get(name, {})
    if type(part) is not dict:
        raise TypeError
    yield from part.items()


def _easy_dict(*arguments: Any) -> dict[str, Any]:
    """Make a dict in place of one with access by attribute; the pickle fills it later."""
    if arguments:
        raise TypeError
    return {}


def _of_tensorflow(*arguments: Any) -> NoReturn:
    raise BadInput(
        "holds networks of the TensorFlow programs of StyleGAN; convert it first with the script for such files "
        "(legacy.py) that comes with StyleGAN2-ADA for PyTorch, and convert what that writes"
    )


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


def check_class(module: Module, expected: str) -> None:
    if module.class_name != expected:
        raise BadInput(f"holds a {module.class_name[:50]!a} where a {expected} is expected: no network of StyleGAN2")


def part_of(module: Module, name: str) -> Module:
    child = module.modules.get(name)
    if child is None:
        raise BadInput(f"its {module.class_name[:50]} has no part {name!r}: no network of StyleGAN2")
    return child


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


def clamp_of(layer: Module) -> float | None:
    value = layer.settings.get("conv_clamp")
    if value is not None and type(value) not in (int, float):
        raise BadInput(f"conv_clamp {shown_value(value)}: expected a number, or none")
    return None if value is None else float(value)


def number_of(module: Module, name: str) -> int:
    value = module.settings.get(name)
    if type(value) is not int or value < 0:
        raise BadInput(f"{name} of its {module.class_name[:50]} is {shown_value(value)}; expected a whole number")
    return value


def word_of(module: Module, name: str) -> str:
    value = module.settings.get(name)
    if type(value) is not str:
        raise BadInput(f"{name} of its {module.class_name[:50]} is {shown_value(value)}; expected a word")
    return value[:50]


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
