"""Networks built by a recipe, and weights files: finding, describing, reading and writing them."""

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from frugan.engine.run.checkpoint import (
    EMA_FILE,
    NETWORKS_FILE,
    OPTIMIZERS_FILE,
    STATE_FILE,
    load_networks,
    newest_whole,
    refuse_others,
    step_in_name,
)
from frugan.engine.run.run_folder import RunFolder
from frugan.engine.run.tensor_files import read_metadata, read_names, read_tensors, write_tensors
from frugan.engine.state.fp32_blocks import keep_in_fp32
from frugan.engine.state.working_weights import make_callable, set_normalisation_batch
from frugan.errors import BadInput, checked
from frugan.files import read_json
from frugan.progress import Say
from frugan.recipe.loading import load_recipe, parse_recipe
from frugan.recipe.recipe import Recipe
from frugan.setup.recipe_setup import build_networks
from frugan.wording import family_name, first_names

MOST_DIGITS = 15
"""Largest number of digits that a file may have for its step; files come from anywhere."""


def weights_metadata(
    recipe: Recipe, class_names: Sequence[str] = (), *, step: int | None = None, licence: str = ""
) -> dict[str, str]:
    """Metadata of a weights file, with which it can be loaded alone.

    Args:
        recipe: recipe of the networks.
        class_names: meaning of the labels, in their order; empty: there are no classes, or it is unknown.
        step: steps that the networks were trained for; None: the file's place says it, or it is unknown.
        licence: licence for others; empty: unknown.
    """
    text = json.dumps(recipe.model_dump(mode="json"))
    about = {"format": "frugan", "family": recipe.family, "recipe": text, "recipe_digest": recipe_digest(text)}
    about |= {"class_names": json.dumps(list(class_names), ensure_ascii=False)} if class_names else {}
    about |= {"step": str(step)} if step is not None else {}
    return about | ({"licence": licence} if licence else {})


def recipe_digest(text: str) -> str:
    """SHA-256 of a recipe's JSON text."""
    return hashlib.sha256(text.encode()).hexdigest()


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=3)


@dataclass(frozen=True)
class Weights:
    """Weights of a run, a checkpoint or a file, which `open` finds and verifies; tensors are read later."""

    path: Path  # the file
    metadata: Mapping[str, str]
    checkpoint: Path | None = None  # folder of the checkpoint that the file belongs to; None: it is a single file
    named: Path | None = None  # run, checkpoint or file that `open` was given; None: made otherwise

    @classmethod
    def open(cls, source: "str | Path | Weights", say: Say = _warn, *, optimizers: bool = False) -> "Weights":
        """Open a weights file, or the averages of a checkpoint or of a run's newest whole checkpoint.

        Where a family averages nothing, its networks are opened. Files of a run's checkpoint are checked against their
        digests.

        Args:
            source: path of the run, checkpoint or file; or opened weights, which are returned as they are.
            say: is told of damaged checkpoints.
            optimizers: whether their file is needed too.

        Raises:
            BadInput: there is no such path, it is a run without a whole checkpoint, or no file of weights.
        """
        if isinstance(source, Weights):
            return source
        path = Path(source)
        if path.is_file():
            return cls(path, read_metadata(path), named=path)
        contents = (EMA_FILE, NETWORKS_FILE)
        here = any((path / name).is_file() for name in contents)
        return replace(cls._of_checkpoint(path if here else _newest(path, say, optimizers), contents), named=path)

    @classmethod
    def _of_checkpoint(cls, folder: Path, contents: Sequence[str]) -> "Weights":
        """Open the first of some files that a folder has."""
        for file in (folder / name for name in contents):
            if file.is_file():
                return cls(file, read_metadata(file), folder)
        raise BadInput(f"{folder}: expected a run folder, a checkpoint or a .safetensors file")

    @property
    def trained(self) -> "Weights":
        """Networks as trained, of the same checkpoint; a single file stands for itself."""
        return self if self.checkpoint is None else self._of_checkpoint(self.checkpoint, (NETWORKS_FILE,))

    @property
    def ours(self) -> bool:
        """Whether the file says that frugan wrote it."""
        return self.metadata.get("format") == "frugan"

    @cached_property
    def recipe(self) -> Recipe:
        """Recipe that the networks were trained by.

        Raises:
            BadInput: the file was not written by frugan, or its recipe is damaged.
        """
        return _recipe(self.metadata, self.path)

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """Meaning of the labels, in their order; empty: there are no classes, or the file does not say.

        Raises:
            BadInput: the names are damaged.
        """
        return _class_names(self.metadata, self.path)

    @property
    def licence(self) -> str:
        """Licence for others; empty: the file does not say."""
        return self.metadata.get("licence", "")

    @property
    def step(self) -> int:
        """Steps of training, by the checkpoint or by the file; 0: neither says."""
        if (step := step_in_name(self.path.parent)) is not None:
            return step
        if isinstance(step := read_json(self.path.parent / STATE_FILE).get("step"), int):  # a renamed checkpoint
            return step
        told = self.metadata.get("step", "")
        return int(told) if told.isascii() and told.isdigit() and len(told) <= MOST_DIGITS else 0

    @cached_property
    def networks(self) -> tuple[str, ...]:
        """Names of the networks in the file, in order."""
        return tuple(dict.fromkeys(key.split(".")[0] for key in read_names(self.path)))

    def read(self) -> dict[str, Tensor]:
        """Read the tensors, "network.parameter" -> tensor, without keeping them.

        Raises:
            BadInput: the file is damaged, or gone.
        """
        return read_tensors(self.path)[0]

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Tensors of `read`, which are kept here."""
        return self.read()

    def of(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Tensors of some networks."""
        return {key: value for key, value in self.tensors.items() if key.split(".")[0] in names}


def _newest(path: Path, say: Say, optimizers: bool) -> Path:
    """Find the newest whole checkpoint of a run.

    Raises:
        BadInput: there is no such run, or it has none.
    """
    run = RunFolder(path)
    if not path.exists():
        raise BadInput(
            f"{path} does not exist (looked from {Path.cwd()}); expected a run folder, a checkpoint or a .safetensors "
            "file"
        )
    if not run.exists:
        runs = sorted(str(inner) for inner in path.iterdir() if RunFolder(inner).exists)
        which = f"; it holds runs, of which one is to be named: {first_names(runs)}" if runs else ""
        raise BadInput(f"{path}: expected a run folder, a checkpoint or a .safetensors file{which}")
    newest = newest_whole(run.checkpoints, () if optimizers else (OPTIMIZERS_FILE,))
    if newest is None:
        raise BadInput(f"{path}: the run has no checkpoint yet; train until its first one, or stop it once with Ctrl-C")
    for line in newest[2]:
        say(f"damaged checkpoint skipped: {line}")
    return newest[0].path


def weights_of_family(source: Path, families: Sequence[str], say: Say) -> tuple[Weights, Weights]:
    """Open the trained and the averaged networks of a source, which must be of one of some families.

    Raises:
        BadInput: see `Weights.open`; or they are of another family.
    """
    averaged = Weights.open(source, say, optimizers=True)
    trained = averaged.trained
    for weights in (trained, averaged):
        if weights.recipe.family not in families:
            raise BadInput(
                f"{source}: weights of {family_name(weights.recipe.family)}, and this format holds those of "
                f"{' or '.join(map(family_name, families))} alone; `frugan export` writes any generator as ONNX"
            )
    return trained, averaged


def recipe_of(path: Path) -> Recipe:
    """Read the recipe in a weights file.

    Raises:
        BadInput: see `Weights.recipe`.
    """
    return _recipe(read_metadata(path), path)


def _recipe(metadata: Mapping[str, str], path: Path) -> Recipe:
    if metadata.get("format") != "frugan" or "recipe" not in metadata:
        raise BadInput(
            f"{path}: not written by frugan (its metadata name no recipe); expected a run or one of its files"
        )
    if recipe_digest(metadata["recipe"]) != metadata.get("recipe_digest", recipe_digest(metadata["recipe"])):
        raise BadInput(
            f"{path}: the recipe in its metadata is not the one of its digest: it was changed, or is damaged"
        )
    try:
        values = json.loads(metadata["recipe"])
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: the recipe in its metadata is damaged: {error}") from error
    if not isinstance(values, dict):
        raise BadInput(f"{path}: the recipe in its metadata is damaged: it is no table")
    return parse_recipe(values, str(path))


def _class_names(metadata: Mapping[str, str], path: Path) -> tuple[str, ...]:
    try:
        names = json.loads(metadata.get("class_names", "[]"))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: the class names in its metadata are damaged: {error}") from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadInput(f"{path}: the class names in its metadata are no list of names")
    return tuple(names)


def networks_from(weights: Weights, device: torch.device | str = "cpu") -> dict[str, nn.Module]:
    """Load the networks of a weights file, for the engine.

    Raises:
        BadInput: its tensors are not those of its recipe, which is found before networks take memory.
    """
    kind, config = weights.recipe.kind, weights.recipe.networks
    described = kind.build(config, "meta")
    if unknown := set(weights.networks) - set(described):
        raise BadInput(f"{weights.path}: holds {sorted(unknown)}, unknown to family {weights.recipe.family}")
    tensors = weights.read()
    refuse_others({name: described[name] for name in weights.networks}, tensors, str(weights.path))
    built = kind.build(config, device)
    keep_in_fp32(built, weights.recipe.fp32_blocks)
    present = {name: network for name, network in built.items() if name in weights.networks}
    load_networks(present, tensors, str(weights.path))
    return present


def _callable(networks: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    return {name: make_callable(network.eval()) for name, network in networks.items()}


@checked
def build(recipe: str, overrides: Sequence[str] = (), device: torch.device | str = "cpu") -> dict[str, nn.Module]:
    """Build a recipe's networks with their initial weights.

    They are in evaluation mode and can be called as they are: each call prepares its weights (spectral norm), and
    nothing moves.

    Args:
        recipe: built-in name, or path of a TOML file.
        overrides: `key.sub=value` words.
        device: where to build them; "meta" gives shapes only.

    Returns:
        Networks by name ("G", "D").

    Raises:
        BadInput: a recipe, key or value is unknown.
    """
    loaded = load_recipe(recipe, overrides)
    networks = build_networks(loaded, device)
    for network in networks.values():
        set_normalisation_batch(network, loaded.training.normalisation_batch)
    return _callable(networks)


@checked
def load(path: str | Path, device: torch.device | str = "cpu") -> dict[str, nn.Module]:
    """Load networks from a weights file, a checkpoint or a run; family and config are in the file.

    A checkpoint or a run gives its averaged networks (EMA), from which samples are drawn; for the networks as trained,
    name the file `networks.safetensors` in a checkpoint. Like those of `build`, they can be called as they are.

    Raises:
        BadInput: it does not exist, is damaged, or not frugan's.
    """
    return _callable(networks_from(Weights.open(path), device))


@checked
def save(
    networks: Mapping[str, nn.Module],
    recipe: Recipe,
    path: str | Path,
    class_names: Sequence[str] = (),
    *,
    step: int | None = None,
    licence: str = "",
) -> None:
    """Write networks as a weights file that `load` reads: one safetensors file with family, recipe and its digest.

    Args:
        networks: networks by name.
        recipe: recipe of the networks.
        path: where to write.
        class_names: meaning of the labels, in their order; empty: not written.
        step: steps that the networks were trained for; None: not written.
        licence: licence for others, such as "cc-by-4.0"; empty: not written.
    """
    tensors = {f"{name}.{key}": value for name, n in networks.items() for key, value in n.state_dict().items()}
    write_tensors(Path(path), tensors, weights_metadata(recipe, class_names, step=step, licence=licence))
