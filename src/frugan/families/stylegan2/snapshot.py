"""Files of the StyleGAN2 and StyleGAN3 programs in PyTorch: snapshots are read, state dicts are written.

A snapshot's pickle holds the text of the Python files that define its networks, and asks to run it. Here each network
becomes a record of its class's name, its settings, its tensors, and the records within it. The text is ignored.
"""

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

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
from frugan.families.stylegan2.config import StyleGAN2Networks
from frugan.families.stylegan2.family import GAMMA, HALF_LIFE_BATCHES, StyleGAN2Family, auto_batch, auto_rate
from frugan.files import refuse_existing
from frugan.safe_pickle.reader import CURE, ObjectReader, read_whole
from frugan.safe_pickle.torch_files import Tensors
from frugan.wording import shown_value

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
    _check_class(generator, GENERATOR)
    mapping, synthesis = _child(generator, "mapping"), _child(generator, "synthesis")
    if "input" in synthesis.modules:
        raise BadInput("its generator is StyleGAN3's, of layers without aliasing; expected StyleGAN2's")
    resolution = _number(synthesis, "img_resolution")
    blocks = _blocks(synthesis, resolution)
    last = blocks[resolution]
    if (activation := _child(last, "conv1").settings.get("activation")) != "lrelu":
        raise BadInput(f"its layers have the activation {shown_value(activation)}; expected 'lrelu'")
    base, most = _channels(blocks)
    classes = _number(generator, "c_dim") or None
    if classes == 1:
        raise BadInput("its labels have one dimension (c_dim 1): a number, and no class; expected none, or 2 and more")
    values = {
        "resolution": resolution,
        "channels": _number(synthesis, "img_channels"),
        "classes": classes,
        "latent_size": _number(generator, "z_dim"),
        "style_size": _number(generator, "w_dim"),
        "mapping_layers": _number(mapping, "num_layers"),
        "channel_base": base,
        "channel_max": most,
        "generator_architecture": _word(last, "architecture"),
        "half_resolutions": sum(block.settings.get("use_fp16") is True for block in blocks.values()),
        "convolution_clamp": _clamp(_child(last, "conv1")),
    }
    if discriminator is None:
        return values
    _check_class(discriminator, DISCRIMINATOR)
    if _number(discriminator, "img_resolution") != resolution or (_number(discriminator, "c_dim") or None) != classes:
        raise BadInput("its discriminator is of another resolution or of other classes than its generator")
    spread = _child(discriminator, "b4").modules.get("mbstd")
    return values | {
        "discriminator_architecture": _word(_child(discriminator, f"b{resolution}"), "architecture"),
        "minibatch_std_channels": 0 if spread is None else _number(spread, "num_channels"),
    }


def group_size(discriminator: Module | None) -> int | None:
    """Group of the minibatch standard deviation; None: the snapshot does not say."""
    spread = None if discriminator is None else _child(discriminator, "b4").modules.get("mbstd")
    size = None if spread is None else spread.settings.get("group_size")
    return size if type(size) is int and size > 0 else None


def _check_class(module: Module, expected: str) -> None:
    if module.class_name != expected:
        raise BadInput(f"holds a {module.class_name[:50]!a} where a {expected} is expected: no network of StyleGAN2")


def _child(module: Module, name: str) -> Module:
    child = module.modules.get(name)
    if child is None:
        raise BadInput(f"its {module.class_name[:50]} has no part {name!r}: no network of StyleGAN2")
    return child


def _blocks(synthesis: Module, resolution: int) -> Mapping[int, Module]:
    """Side -> block, from 4 pixels up."""
    if resolution < 8 or resolution > 1 << 20 or resolution.bit_count() != 1:
        raise BadInput(f"its pictures have {resolution:,} pixels a side; expected a power of two from 8 on")
    sides = [1 << n for n in range(2, resolution.bit_length())]
    return {side: _child(synthesis, f"b{side}") for side in sides}


def _channels(blocks: Mapping[int, Module]) -> tuple[int, int]:
    """Find channel_base and channel_max, with which each block of side R has min(base // R, max) channels.

    Raises:
        BadInput: there are no such numbers.
    """
    widths: dict[int, int] = {}
    for side, block in blocks.items():
        weight = _child(block, "conv1").arrays.get("weight")
        if weight is None or weight.ndim != 4:
            raise BadInput(f"its block of {side} pixels has no convolution: no network of StyleGAN2")
        widths[side] = weight.shape[0]
    most = max(widths.values())
    base = max((width * side for side, width in widths.items() if width < most), default=most * max(widths))
    if widths != {side: min(base // side, most) for side in widths}:
        shown = ", ".join(f"{width} at {side}" for side, width in widths.items())
        raise BadInput(f"its channels ({shown}) are not those of StyleGAN2: a largest number, halved from side to side")
    return base, most


def _clamp(layer: Module) -> float | None:
    value = layer.settings.get("conv_clamp")
    if value is not None and type(value) not in (int, float):
        raise BadInput(f"conv_clamp {shown_value(value)}: expected a number, or none")
    return None if value is None else float(value)


def _number(module: Module, name: str) -> int:
    value = module.settings.get(name)
    if type(value) is not int or value < 0:
        raise BadInput(f"{name} of its {module.class_name[:50]} is {shown_value(value)}; expected a whole number")
    return value


def _word(module: Module, name: str) -> str:
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
    width = {"channel_base": networks.channel_base, "channel_max": networks.channel_max}
    width |= {"num_fp16_res": networks.half_resolutions}
    clamp = {"conv_clamp": networks.convolution_clamp}
    pictures = {"img_resolution": networks.resolution, "img_channels": networks.channels}
    classes = {"c_dim": networks.classes or 0}
    # our fields and their constructors have equal defaults
    defaults = StyleGAN2Networks.model_construct()
    rate = {} if networks.mapping_rate == defaults.mapping_rate else {"lr_multiplier": networks.mapping_rate}
    generator = {
        "z_dim": networks.latent_size,
        **classes,
        "w_dim": networks.style_size,
        **pictures,
        "mapping_kwargs": {"num_layers": networks.mapping_layers, **rate},
        "synthesis_kwargs": {**width, **clamp, "architecture": networks.generator_architecture},
    }
    layers = {} if networks.class_layers == defaults.class_layers else {"num_layers": networks.class_layers}
    spread = {"mbstd_group_size": group, "mbstd_num_channels": networks.minibatch_std_channels}
    discriminator = {
        **classes,
        **pictures,
        "architecture": networks.discriminator_architecture,
        **width,
        **clamp,
        **({"mapping_kwargs": layers | rate} if classes["c_dim"] and layers | rate else {}),
        "epilogue_kwargs": spread,
    }
    return {"G": generator, "D": discriminator, "G_ema": generator}


class StyleGANPickle(FileFormat):
    """A network snapshot; it cannot be written, because it would have to contain their program."""

    program = "a snapshot of StyleGAN2"
    reads = frozenset[str]()
    makes = frozenset({"file", "folder"})

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
        recipe = _recipe(average, discriminator, source, ours)
        other = _tensors(recipe, "D", discriminator, source, ours) if discriminator is not None else {}
        averaged = _tensors(recipe, "G", average, source, ours)
        conversion.say(f"{recipe.summary}; {', '.join(modules)} from {source}")
        networks, averages = averaged | other, {}
        if conversion.out.suffix != WEIGHTS_SUFFIX:
            trained = _tensors(recipe, "G", modules.get("G", average), source, ours)
            networks, averages = trained | other, averaged
        resolution = recipe.values["networks"]["resolution"]
        facts = {"path": str(conversion.out), "resolution": resolution, "networks": list(modules)}
        lines = [
            f"{conversion.out}: StyleGAN2 at {resolution} pixels",
            f"Next: frugan sample {shlex.quote(str(conversion.out))} --out samples",
            _training(conversion.out, recipe, ours),
        ]
        return Imported(recipe, networks, facts, lines, averages, parts=tuple(modules))


class StyleGANSafetensors(FileFormat):
    """State dicts with the authors' names, which say too little about their networks to be read again."""

    program = "weights under the names of StyleGAN2's authors"
    writes = frozenset({"replace"})

    def write(self, conversion: Conversion, ours: OurSide) -> Converted:
        """Write state dicts; see `frugan.to_stylegan_safetensors`."""
        out = conversion.out
        if out.suffix != WEIGHTS_SUFFIX:
            raise BadInput(f"{out}: expected a name that ends in {WEIGHTS_SUFFIX}")
        refuse_existing(out, replace=conversion.replace)
        trained = ours.weights("stylegan2")
        if trained.path == trained.averaged:
            conversion.say(f"{trained.path}: has one generator, which is written as G and as G_ema")
        generator = {key: value for key, value in trained.averages.items() if key.startswith("G.")}
        if not generator:
            raise BadInput(f"{trained.averaged}: holds no generator")
        tensors = trained.networks | {f"G_ema.{key.removeprefix('G.')}": value for key, value in generator.items()}
        networks = tuple(dict.fromkeys(key.partition(".")[0] for key in tensors))
        group = trained.recipe.values["training"]["normalisation_batch"]
        arguments = constructor_arguments(trained.recipe.networks, group)
        made_with = json.dumps({name: arguments[name] for name in networks})
        ours.write_tensors(out, tensors, {"format": "stylegan2-ada-pytorch", "init_kwargs": made_with})
        facts = {"file": str(out), "networks": list(networks)}
        lines = [f"{out}: {', '.join(networks)} under the authors' names"]
        return Converted(out, facts, lines, step=trained.step, networks=networks)


def _recipe(generator: Module, discriminator: Module | None, path: Path, ours: OurSide) -> RecipeValues:
    """Make a recipe of the snapshot's networks, and of the release's choices for one card and a resumed training.

    Args:
        generator: record of the generator.
        discriminator: record of the discriminator, if there is one.
        path: path of the snapshot, for messages.
        ours: checks the recipe.

    Raises:
        BadInput: the networks are not StyleGAN2's, or no recipe can describe them.
    """
    try:
        networks = network_settings(generator, discriminator)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from error
    about = {
        "summary": f"StyleGAN2 at {networks['resolution']} pixels, imported",
        "source": f"snapshot {path.name}",
    }
    values = {"family": "stylegan2", "about": about, "networks": networks}
    return ours.recipe(values | _fine_tuning(networks["resolution"], group_size(discriminator)), str(path))


def _fine_tuning(resolution: int, group: int | None) -> dict[str, Any]:
    """Settings of the release's configuration "auto" for one card, resumed from a snapshot.

    Source: Karras et al. 2020 (arXiv 2006.06676) and its release: batch, R1, average and rate by resolution; the
    augmentation's probability moves five times as fast as in a training from scratch.
    """
    group = group or GROUP
    whole = 2 * group  # path lengths see half a batch, which must be whole groups
    batch = -(-auto_batch(resolution) // whole) * whole
    adam = {
        "learning_rate": auto_rate(resolution),
        "beta1": 0.0,
        "beta2": 0.99,
        "eps": 1e-8,
        "lazy_regularisation": True,
    }
    augmentation = {
        "method": "ada",
        "operations": ["blit", "geometry", "colour"],
        "ramp_images": 100_000,
    }
    return {
        "objective": {"r1_gamma": GAMMA * resolution**2 / batch, "augmentation": augmentation},
        "data": {"flip": True},
        "training": {"batch": batch, "normalisation_batch": group, "duration": "1M images"},
        "optimizers": {"D": adam, "G": adam},
        "ema": {"schedule": "half-life", "half_life_images": batch * HALF_LIFE_BATCHES},
        "saving": {"checkpoint_every": "20k images", "snapshot_every": "20k images", "report_every": "4k images"},
        "evaluation": {"every": "200k images", "samples": 50_000, "noise": "random"},
    }


def _tensors(recipe: RecipeValues, name: str, module: Module, source: Path, ours: OurSide) -> dict[str, Tensor]:
    """Tensors "network.parameter" of a network, which must be those of the recipe's.

    Raises:
        BadInput: they are not.
    """
    tensors = {f"{name}.{key}": torch.from_numpy(array).float() for key, array in module.tensors().items()}
    network = StyleGAN2Family().build(recipe.networks, "meta")[name]
    ours.load({name: network}, tensors, f"{source}: {name}")  # copies nothing: there is no data on "meta"
    return tensors


def _training(out: Path, recipe: RecipeValues, ours: OurSide) -> str:
    """Line that tells how to fine-tune the networks: by the recipe beside them, or by a shipped one that has them."""
    quoted = shlex.quote(str(out))
    if out.suffix != WEIGHTS_SUFFIX:
        return f"Or: frugan train {shlex.quote(str(out / RECIPE_FILE))} --init {quoted} --data PICTURES --out RUN"
    networks = recipe.networks.model_dump()
    name = f"stylegan2-finetune-{networks['resolution']}"
    if (shipped := ours.shipped(name)) is not None:
        presets = shipped.networks.model_dump()
        if all(presets[key] == value for key, value in networks.items() if key != "frozen_discriminator_layers"):
            return f"Or: frugan train {name} --init {quoted} --data PICTURES --out RUN"
    return "To fine-tune it, convert it to a folder (a name without .safetensors): its recipe.toml has these networks"
