"""Snapshots of the R3GAN program: networks, their average, Adam's states, and the number of pictures seen.

A snapshot's pickle asks for the program's classes by name. Here each object becomes a record of its class's name, its
plain attributes, its tensors, and the records within it. Nothing that the file names is called.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from frugan.contract.formats import RECIPE_FILE, WEIGHTS_SUFFIX, Conversion, FileFormat, Imported, OurSide, RecipeValues
from frugan.contract.name_table import NameTable, Row
from frugan.errors import BadInput
from frugan.families.r3gan.config import R3GANNetworks, propose_gamma
from frugan.families.r3gan.family import R3GANFamily
from frugan.nn.fir import fir_filter
from frugan.safe_pickle.reader import CURE, read_whole
from frugan.safe_pickle.torch_files import StateReader, Tensors

Network = Literal["G", "D"]

# Names of tensors: the generator counts stages from 4 pixels up, the discriminator from the picture on, and both count
# the layers of a stage from 0 in the order in which they run.

BLOCK_PARTS: Mapping[str, str] = MappingProxyType(
    {
        "LinearLayer1.Layer.weight": "conv1.weight",
        "LinearLayer2.Layer.weight": "conv2.weight",
        "LinearLayer3.Layer.weight": "conv3.weight",
        "NonLinearity1.Bias": "bias1",
        "NonLinearity2.Bias": "bias2",
    }
)
RESAMPLING_PARTS: Mapping[str, str] = MappingProxyType(
    {"Resampler.Kernel": "resample_filter", "LinearLayer.Layer.weight": "conv.weight"}
)


def name_table(networks: R3GANNetworks, network: Network) -> NameTable:
    """Table between the names of a network's tensors in the program's state dict, and here."""
    rows = [Row("Model.EmbeddingLayer.weight", "embed.weight")]
    if network == "G":
        rows += [
            Row("Model.MainLayers.0.Layers.0.Basis", "b4.basis"),
            Row("Model.MainLayers.0.Layers.0.LinearLayer.weight", "b4.linear.weight"),
            Row("Model.MainLayers.{stage}.Layers.0.{resampling}", "b{stage}.resample.{resampling}"),
            Row("Model.MainLayers.{stage}.Layers.{block}.{part}", "b{stage}.blocks.{block}.{part}"),
            Row("Model.AggregationLayer.Layer.weight", "torgb.weight"),
        ]
        sides, first = networks.sides, 1
    else:
        sides, first = networks.sides[::-1], 0
        rows.append(Row("Model.ExtractionLayer.Layer.weight", "fromrgb.weight"))
        for stage, (side, blocks) in enumerate(zip(sides, networks.stages("D", "blocks")[::-1], strict=True)):
            last = f"Model.MainLayers.{stage}.Layers.{blocks}."
            if side == 4:
                rows += [Row(f"{last}Basis.weight", "b4.basis.weight")]
                rows += [Row(f"{last}LinearLayer.weight", "b4.linear.weight")]
            else:
                rows.append(Row(f"{last}{{resampling}}", f"b{side}.resample.{{resampling}}"))
        rows.append(Row("Model.MainLayers.{stage}.Layers.{block}.{part}", "b{stage}.blocks.{block}.{part}"))
    rows.append(Row(None, "{path}.resample_filter", create=lambda _: fir_filter()))  # a constant, which may be missing
    most = max(networks.stages(network, "blocks"))
    holes: Mapping[str, str | Mapping[str, str]] = {
        "stage": {str(stage): str(side) for stage, side in enumerate(sides)},
        "block": {str(block + first): str(block) for block in range(most)},
        "part": BLOCK_PARTS,
        "resampling": RESAMPLING_PARTS,
        "path": ".+",
    }
    return NameTable(rows, holes)


# The pickle, read as records.

CLASSES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "training.networks": frozenset({"Generator", "Discriminator"}),
        "R3GAN.Networks": frozenset(
            {
                "Generator",
                "Discriminator",
                "GeneratorStage",
                "DiscriminatorStage",
                "ResidualBlock",
                "UpsampleLayer",
                "DownsampleLayer",
                "GenerativeBasis",
                "DiscriminativeBasis",
                "Convolution",
            }
        ),
        "R3GAN.Resamplers": frozenset(
            {
                "InterpolativeUpsampler",
                "InterpolativeDownsampler",
                "InterpolativeUpsamplerCUDA",
                "InterpolativeDownsamplerCUDA",
            }
        ),
        "R3GAN.FusedOperators": frozenset({"BiasedActivation", "BiasedActivationCUDA"}),
        "torch.nn.modules.container": frozenset({"ModuleList"}),
        "torch.nn.modules.conv": frozenset({"Conv2d"}),
        "torch.nn.modules.linear": frozenset({"Linear"}),
    }
)
"""Module -> classes of the objects in a snapshot."""
EARLIER: Mapping[str, str] = MappingProxyType(
    {"training.networks": "training.networks_baseline", "R3GAN.": "BaselineGAN."}
)
"""Beginnings of modules' names -> the beginnings that they had earlier."""
MOST_FILE_BYTES = 16 << 30
"""Largest size of a file, ten times the largest that the program writes."""
MOST_MODULES = 100_000
MOST_MODULE_LEVELS = 16
NETWORKS = ("G", "D", "G_ema")
SLOTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass(eq=False)
class Module:
    """Record of a layer, a stage or a network in a snapshot."""

    kind: str  # name of the program's class
    state: Mapping[str, Any] = field(default_factory=dict)  # attributes

    def part(self, name: str) -> dict[str, Any]:
        """Direct parameters, buffers or modules, without those that are None."""
        part = self.state.get(name, {})
        if type(part) is not dict:
            raise BadInput(f"holds a {self.kind} whose {name} are no dict. {CURE}")
        return {key: value for key, value in part.items() if value is not None}

    def modules(self) -> Iterator[tuple[str, Module]]:
        """Walk over this module and all modules within it, with the prefix of their names in a state dict.

        Raises:
            BadInput: they are nested deeper than in networks, or without end.
        """
        left, level = MOST_MODULES, {"": self}
        for _ in range(MOST_MODULE_LEVELS):
            if not level:
                return
            if (left := left - len(level)) < 0:
                break
            yield from level.items()
            inner = {f"{at}{name}.": m for at, module in level.items() for name, m in module.part("_modules").items()}
            if not all(type(module) is Module for module in inner.values()):
                raise BadInput(f"holds a layer of an unknown kind. {CURE}")
            level = inner
        raise BadInput(f"holds modules within modules without end. {CURE}")

    def tensors(self) -> tuple[dict[str, np.ndarray], list[str]]:
        """All parameters and buffers by name, and the names of the parameters in order.

        Raises:
            BadInput: one of them is no tensor.
        """
        parameters: dict[str, np.ndarray] = {}
        buffers: dict[str, np.ndarray] = {}
        for at, module in self.modules():
            parameters |= {f"{at}{name}": value for name, value in module.part("_parameters").items()}
            buffers |= {f"{at}{name}": value for name, value in module.part("_buffers").items()}
        if not all(type(value) is np.ndarray for value in (*parameters.values(), *buffers.values())):
            raise BadInput(f"holds a {self.kind} with a parameter that is no tensor. {CURE}")
        return parameters | buffers, _in_order(self, "")


def _in_order(module: Module, at: str, level: int = 0) -> list[str]:
    """Names of parameters in the order of the program's optimizers: direct ones, then those of each inner module."""
    names = [f"{at}{name}" for name in module.part("_parameters")]
    if level < MOST_MODULE_LEVELS:
        for name, inner in module.part("_modules").items():
            names += _in_order(inner, f"{at}{name}.", level + 1)
    return names


class _Reader(StateReader):
    """Reader of pickles that makes records of the program's objects."""

    expected = "numbers, text, tensors and R3GAN's layers"

    def _build(self) -> None:
        module, state = self._stack[-2:]
        if type(module) is not Module:
            super()._build()
            return
        if type(state) is not dict:
            raise TypeError
        module.state = state
        self._stack.pop()


def _maker(kind: str) -> Callable[..., Module]:
    def make(*arguments: Any) -> Module:
        if arguments:
            raise TypeError
        return Module(kind)

    return make


def _makers() -> dict[tuple[str, str], Callable[..., Any]]:
    """Functions that stand for the program's classes, under the present and the earlier names of their modules."""
    makers: dict[tuple[str, str], Callable[..., Any]] = {}
    for module, kinds in CLASSES.items():
        spellings = {
            module,
            *(before + module.removeprefix(now) for now, before in EARLIER.items() if module.startswith(now)),
        }
        makers |= {(spelling, kind): _maker(kind) for spelling in spellings for kind in kinds}
    return makers


@dataclass(frozen=True)
class Snapshot:
    """Contents of a snapshot."""

    networks: Mapping[str, Module]  # "G", "D", "G_ema", as far as they exist
    images: int | None  # pictures that training has counted; None: the snapshot does not say
    optimizers: Mapping[str, Mapping[str, Any]]  # "G" and "D" -> torch's state dict, as far as they exist


def read_snapshot(path: Path) -> Snapshot:
    """Read a snapshot.

    Raises:
        BadInput: it does not exist, is damaged, of another program, or has anything that would run a program.
    """
    data = _bytes(path)
    builders = {**Tensors(len(data)).builders, **_makers()}
    constants = {("torch", name): name for name in ("float32", "bfloat16", "float16")}
    value = read_whole(_Reader(data, builders, constants=constants), f"{path}:")
    entries = value if type(value) is dict else {}
    networks = {name: entries[name] for name in NETWORKS if type(entries.get(name)) is Module}
    if not networks:
        raise BadInput(f"{path}: holds no networks; expected a snapshot with {', '.join(NETWORKS)}")
    images = entries.get("cur_nimg")
    if images is not None and (type(images) is not int or images < 0):
        raise BadInput(f"{path}: cur_nimg is no count of pictures. {CURE}")
    states = {name: entries.get(f"{name}_opt_state") for name in ("G", "D")}
    return Snapshot(networks, images, {name: state for name, state in states.items() if type(state) is dict})


def _bytes(path: Path) -> bytes:
    """Read a file that may be a pickle of a plausible size."""
    if not path.is_file():
        raise BadInput(f"{path}: no such file; expected a network snapshot, such as network-snapshot-000001000.pkl")
    if (size := path.stat().st_size) > MOST_FILE_BYTES:
        raise BadInput(f"{path}: {size:,} bytes; a snapshot has at most {MOST_FILE_BYTES:,}")
    data = path.read_bytes()
    if data[:2] == b"PK":
        raise BadInput(f"{path}: a file of torch.save or a zip, no snapshot pickle of R3GAN")
    return data


# Settings of the networks, by the shapes of their tensors.


def network_settings(generator: Module, discriminator: Module | None) -> dict[str, Any]:
    """Values of a recipe's section `networks`.

    Args:
        generator: record of the generator.
        discriminator: record of the discriminator; None: the snapshot has none, and it is assumed to mirror the
            generator.

    Raises:
        BadInput: the tensors are not those of R3GAN's networks.
    """
    tensors, _ = generator.tensors()
    stages = _stages(tensors)
    embedding = tensors.get("Model.EmbeddingLayer.weight")
    classes, embedded = (None, 0) if embedding is None else (_side(embedding, 1), _side(embedding, 0))
    if classes == 1:
        raise BadInput("its labels have one dimension: a number, and no class; expected none, or 2 and more")
    half = _half_stages(generator)
    values: dict[str, Any] = {
        "resolution": 4 << (len(stages) - 1),
        "channels": _side(_tensor(tensors, "Model.AggregationLayer.Layer.weight"), 0),
        "classes": classes,
        "latent_size": _side(_tensor(tensors, "Model.MainLayers.0.Layers.0.LinearLayer.weight"), 1) - embedded,
        **_lists("", stages),
        "expansion": stages[0].expansion,
        "half_resolutions": half if half < len(stages) - 1 else max(half, 4),
    }
    if embedded:
        values["generator_embedding"] = embedded
    if discriminator is None:
        return values
    tensors, _ = discriminator.tensors()
    mirrored = _stages(tensors)[::-1]
    embedding = tensors.get("Model.EmbeddingLayer.weight")
    if len(mirrored) != len(stages) or (None if embedding is None else _side(embedding, 1)) != classes:
        raise BadInput("its discriminator is of another resolution or of other classes than its generator")
    if mirrored != stages:
        values |= _lists("discriminator_", mirrored)
    if embedding is not None and _side(embedding, 0) != mirrored[0].width:
        values["discriminator_embedding"] = _side(embedding, 0)
    return values


_FIRST_OF_A_BLOCK = re.compile(r"Model\.MainLayers\.(\d{1,3})\.Layers\.\d{1,3}\.LinearLayer1\.Layer\.weight")


@dataclass(frozen=True)
class _Stage:
    """Shape of a stage."""

    width: int
    groups: int
    blocks: int
    expansion: int


def _stages(tensors: Mapping[str, np.ndarray]) -> list[_Stage]:
    """Stages of a network, in the order in which they run.

    Raises:
        BadInput: some are missing, or they are not R3GAN's.
    """
    first: dict[int, set[tuple[int, int, int]]] = {}
    blocks: dict[int, int] = {}
    for key, tensor in tensors.items():
        if (match := _FIRST_OF_A_BLOCK.fullmatch(key)) is None:
            continue
        wide, width = _side(tensor, 0), _side(tensor, 1)
        group_width = _side(_tensor(tensors, key.replace("LinearLayer1", "LinearLayer2")), 1)
        if not width or not group_width or wide % width or wide % group_width:
            raise BadInput(f"{key} has the shape {list(tensor.shape)}: no residual block of R3GAN")
        stage = int(match[1])
        first.setdefault(stage, set()).add((width, wide // group_width, wide // width))
        blocks[stage] = blocks.get(stage, 0) + 1
    if not first or sorted(first) != list(range(len(first))) or len(first) > 16:
        raise BadInput("has no stages of residual blocks (Model.MainLayers.0, 1, ...): no network of R3GAN")
    stages = []
    for number in range(len(first)):
        if len(first[number]) != 1:
            raise BadInput(f"its stage {number} has residual blocks of different widths; expected one width for all")
        ((width, groups, expansion),) = first[number]
        stages.append(_Stage(width, groups, blocks[number], expansion))
    if len({stage.expansion for stage in stages}) != 1:
        raise BadInput("its stages widen by different factors inside their blocks; expected one for all")
    return stages


def _lists(prefix: str, stages: list[_Stage]) -> dict[str, list[int]]:
    """Recipe fields with a number for each stage, from 4 pixels up."""
    return {
        f"{prefix}widths": [stage.width for stage in stages],
        f"{prefix}groups": [stage.groups for stage in stages],
        f"{prefix}blocks": [stage.blocks for stage in stages],
    }


def _half_stages(generator: Module) -> int:
    """Number of stages that compute in bfloat16; in the program these are the highest."""
    return sum(module.state.get("DataType") == "bfloat16" for _, module in generator.modules())


def _tensor(tensors: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    if name not in tensors:
        raise BadInput(f"has no {name}: no network of R3GAN")
    return tensors[name]


def _side(tensor: np.ndarray, axis: int) -> int:
    if tensor.ndim <= axis:
        raise BadInput(f"has a tensor {list(tensor.shape)} where one of more dimensions is expected. {CURE}")
    return int(tensor.shape[axis])


# The format.

DEFAULT_BATCH = 256


class R3GANPickle(FileFormat):
    """A network snapshot."""

    program = "a snapshot of R3GAN"
    reads = frozenset({"overrides", "raw"})
    makes = frozenset({"run", "file"})

    def read(self, conversion: Conversion, ours: OurSide) -> Imported:
        """Read a snapshot; see `frugan.from_r3gan_pickle`."""
        source = conversion.source
        snapshot = read_snapshot(source)
        there = snapshot.networks
        average, discriminator = there.get("G_ema", there.get("G")), there.get("D")
        if average is None:
            raise BadInput(f"{source}: holds no generator (G_ema or G); nothing could be drawn with it")
        recipe = _recipe(average, discriminator, source, ours)
        averaged = _tensors(recipe, "G", average, source, ours)
        other = {} if discriminator is None else _tensors(recipe, "D", discriminator, source, ours)
        trained = _tensors(recipe, "G", there.get("G", average), source, ours)
        for name, loss in {"D": "in training it starts afresh", "G": "G_ema is used instead"}.items():
            if name not in there:
                conversion.say(f"the snapshot has no {name}: {loss}")
        headline = f"{conversion.out}: R3GAN at {recipe.networks.resolution} pixels"
        facts = {"path": str(conversion.out), "resolution": recipe.networks.resolution, "networks": list(there)}
        if conversion.out.suffix == WEIGHTS_SUFFIX:
            shown = trained if conversion.raw else averaged
            lines = [headline, f"Next: frugan sample {shlex.quote(str(conversion.out))} --out samples"]
            return Imported(recipe, shown | other, facts, lines, parts=tuple(there))
        batch = int(recipe.values["training"]["batch"])
        step = (snapshot.images or 0) // batch
        if snapshot.images is None:
            conversion.say("the snapshot does not say how many pictures it has seen: the run begins at step 0")
        optimizers: dict[str, Tensor] = {}
        for network in ("G", "D"):
            if network not in snapshot.optimizers or network not in there:
                conversion.say(f"the snapshot has no state of {network}'s optimizer, which starts afresh")
            else:
                optimizers |= _optimizer(recipe, network, snapshot, source)
        return Imported(
            recipe,
            trained | other,
            facts,
            [
                f"{headline}, after {step:,} steps of {batch}",
                f"Next: frugan train {shlex.quote(str(conversion.out / RECIPE_FILE))} --data PICTURES "
                f"--out {shlex.quote(str(conversion.out))}",
            ],
            averages=averaged,
            optimizers=optimizers,
            step=step,
            event={"format": "r3gan-pickle", "images": snapshot.images},
            parts=tuple(there),
        )


def _recipe(generator: Module, discriminator: Module | None, path: Path, ours: OurSide) -> RecipeValues:
    """Find a shipped recipe with these networks, or else make one with the authors' schedules and a guessed gamma.

    Raises:
        BadInput: the networks are not R3GAN's, or no recipe can describe them.
    """
    try:
        networks = network_settings(generator, discriminator)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from error
    about = {"summary": f"R3GAN at {networks['resolution']} pixels, imported", "source": f"snapshot {path.name}"}
    try:
        found: R3GANNetworks | None = R3GANNetworks.model_validate(networks)
    except ValidationError:  # no preset has such networks; checking the recipe below says what is wrong
        found = None
    for name in PRESETS:
        shipped = ours.shipped(name)
        if shipped is not None and shipped.networks == found:
            return ours.recipe(shipped.values | {"about": about}, str(path))
    return ours.recipe({"family": "r3gan", "about": about, "networks": networks} | _guess(networks), str(path))


PRESETS = ("r3gan-cifar10-32", "r3gan-ffhq-64", "r3gan-ffhq-256", "r3gan-imagenet-32", "r3gan-imagenet-64")


def _guess(networks: Mapping[str, Any]) -> dict[str, Any]:
    """Other sections of a recipe for networks that no preset has."""
    gamma = propose_gamma(networks["resolution"], classes=networks["classes"] is not None)
    return {
        "objective": {"gamma": gamma, "final_gamma": gamma / 10},
        "training": {"batch": DEFAULT_BATCH, "duration": "100M images", "burn_in": "20M images"},
        "optimizers": {
            "default": {
                "learning_rate": 2e-4,
                "final_learning_rate": 5e-5,
                "beta1": 0.0,
                "beta2": 0.9,
                "final_beta2": 0.99,
            }
        },
        "ema": {"schedule": "half-life", "half_life_images": 0, "final_half_life_images": 500_000},
    }


def _tensors(recipe: RecipeValues, network: Network, module: Module, source: Path, ours: OurSide) -> dict[str, Tensor]:
    """Tensors "network.parameter" of a network, which must be those of the recipe's.

    Raises:
        BadInput: they are not, or resampling has another filter.
    """
    built = R3GANFamily().build(recipe.networks, "meta")[network]
    theirs = {key: torch.from_numpy(array).float() for key, array in module.tensors()[0].items()}
    shapes = {key: tuple(value.shape) for key, value in built.state_dict().items()}
    translated = name_table(recipe.networks, network).to_ours(theirs, shapes)
    if translated.faults:
        raise BadInput(f"{source}: {network}: {'; '.join(translated.faults[:3])}. {CURE}")
    for key, value in translated.tensors.items():
        if key.endswith("resample_filter") and not (value.shape == (4, 4) and torch.equal(value, fir_filter())):
            raise BadInput(f"{source}: {network}.{key}: another filter than [1, 3, 3, 1]; only that is built here")
    tensors = {f"{network}.{key}": value for key, value in translated.tensors.items()}
    ours.load({network: built}, tensors, f"{source}: {network}")  # copies nothing: there is no data on "meta"
    return tensors


def _optimizer(recipe: RecipeValues, network: Network, snapshot: Snapshot, source: Path) -> dict[str, Tensor]:
    """Adam's state under the names that frugan's checkpoints have for it.

    The snapshot has statistics by the numbers of parameters, in the program's order.
    """
    _, order = snapshot.networks[network].tensors()
    states, table = snapshot.optimizers[network].get("state"), name_table(recipe.networks, network)
    if type(states) is not dict or not all(type(n) is int and 0 <= n < len(order) for n in states):
        raise BadInput(f"{source}: {network}_opt_state: not the state of Adam for {len(order)} parameters. {CURE}")
    found: dict[str, Tensor] = {}
    for number, state in states.items():
        if type(state) is not dict or not all(type(state.get(slot)) is np.ndarray for slot in SLOTS):
            raise BadInput(f"{source}: {network}_opt_state: parameter {number} lacks one of {', '.join(SLOTS)}. {CURE}")
        (parameter,) = table.to_ours({order[number]: torch.empty(0)}).tensors
        for slot in SLOTS:
            value = torch.from_numpy(state[slot]).float()
            found[f"{network}/{network}.{parameter}/{slot}"] = value.reshape(()) if slot == "step" else value
    return found
