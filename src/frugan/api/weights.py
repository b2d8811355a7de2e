"""Weights files: where they lie in runs and checkpoints, what they say of themselves, what they hold."""

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from frugan.api.progress import Say
from frugan.engine.checkpoint import EMA_FILE, NETWORKS_FILE, newest_whole, step_in_name
from frugan.engine.run_folder import RunFolder
from frugan.engine.tensor_files import read_metadata, read_tensors
from frugan.errors import BadInput
from frugan.recipe.loading import parse_recipe
from frugan.recipe.recipe import Recipe

MOST_DIGITS = 15
"""Of a number of steps: files come from anywhere."""


def weights_metadata(
    recipe: Recipe, class_names: Sequence[str] = (), *, step: int | None = None, licence: str = ""
) -> dict[str, str]:
    """What a weights file says about itself, so that it needs nothing else to be loaded.

    Args:
        class_names: what labels mean, in their order; empty: the networks have no classes, or nobody knows.
        step: steps that they were trained for; None: the file's place says it, or nobody knows.
        licence: what others may do with them; empty: nobody has said.
    """
    text = json.dumps(recipe.model_dump(mode="json"))
    about = {"format": "frugan", "family": recipe.family, "recipe": text, "recipe_digest": recipe_digest(text)}
    about |= {"class_names": json.dumps(list(class_names), ensure_ascii=False)} if class_names else {}
    about |= {"step": str(step)} if step is not None else {}
    return about | ({"licence": licence} if licence else {})


def recipe_digest(text: str) -> str:
    """SHA-256 of a recipe as a file has it."""
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Weights:
    """Weights from a file, with the recipe they were trained by.

    Attributes:
        path: the file.
        recipe: from the file's metadata.
        tensors: "network.parameter" -> tensor.
        class_names: what labels mean, in their order; empty: there are no classes, or the file does not say.
        licence: what others may do with them; empty: the file does not say.
    """

    path: Path
    recipe: Recipe
    tensors: dict[str, Tensor]
    class_names: tuple[str, ...] = ()
    licence: str = ""

    @property
    def networks(self) -> tuple[str, ...]:
        """Networks that the file holds, in order."""
        return tuple(dict.fromkeys(key.split(".")[0] for key in self.tensors))

    def of(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Tensors of some networks."""
        return {key: value for key, value in self.tensors.items() if key.split(".")[0] in names}


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=3)


def weights_file(path: Path, content: str = EMA_FILE, say: Say = _warn) -> Path:
    """The weights file that a path means: itself, or `content` in a checkpoint, or in a run's newest whole checkpoint.

    A family that averages nothing writes no averages: its networks are meant then. `say` is told of damaged ones.

    Raises:
        BadInput: no such path, or a run without checkpoint.
    """
    if path.is_file():
        return path
    for name in (content, NETWORKS_FILE):
        if (path / name).is_file():
            return path / name
    run = RunFolder(path)
    if not path.exists():
        raise BadInput(
            f"{path} does not exist (looked from {Path.cwd()}); expected a run folder, a checkpoint or a .safetensors "
            "file"
        )
    if not run.exists:
        raise BadInput(f"{path}: expected a run folder, a checkpoint or a .safetensors file")
    newest = newest_whole(run.checkpoints)
    if newest is None:
        raise BadInput(f"{path}: the run has no checkpoint yet; train until its first one, or stop it once with Ctrl-C")
    for line in newest[2]:
        say(f"damaged checkpoint skipped: {line}")
    return weights_file(newest[0].path, content, say)


def read_weights(path: Path) -> Weights:
    """Read a weights file.

    Raises:
        BadInput: cut short, another kind of file, or not written by frugan.
    """
    tensors, metadata = read_tensors(path)
    return Weights(path, _recipe(metadata, path), tensors, _class_names(metadata, path), metadata.get("licence", ""))


def weights_of_family(source: Path, content: str, family: str, say: Say) -> Weights:
    """Read what `weights_file` finds, where only one family will do.

    Raises:
        BadInput: as both; or of another family.
    """
    weights = read_weights(weights_file(source, content, say))
    if weights.recipe.family != family:
        raise BadInput(f"{source}: weights of a {weights.recipe.family} model; expected {family}")
    return weights


def recipe_of(path: Path) -> Recipe:
    """The recipe that a weights file was trained by; its tensors are not read.

    Raises:
        BadInput: as `read_weights`.
    """
    return _recipe(read_metadata(path), path)


def class_names_of(path: Path) -> tuple[str, ...]:
    """What the labels of a weights file mean; its tensors are not read. Empty: no classes, or the file does not say.

    Raises:
        BadInput: no weights file, or its metadata are damaged.
    """
    return _class_names(read_metadata(path), path)


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


def step_of(path: Path) -> int:
    """Steps that weights have been trained for, by their checkpoint's name or by the file itself; 0: neither says."""
    if (step := step_in_name(path.parent)) is not None:
        return step
    told = read_metadata(path).get("step", "")
    return int(told) if told.isascii() and told.isdigit() and len(told) <= MOST_DIGITS else 0
