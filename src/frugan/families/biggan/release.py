"""Folders in which BigGAN-PyTorch keeps an experiment's weights, as one set of files or several.

A set is `G.pth`, `D.pth`, `G_ema.pth` (state dicts), `G_optim.pth`, `D_optim.pth` (Adam's) and `state_dict.pth`
(counters and options). Files of earlier and of the best sets have a suffix: `G_copy0.pth`, `G_best1.pth`.
"""

import re
import shlex
import shutil
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

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
    Say,
    Trained,
)
from frugan.contract.name_table import NameTable, Row
from frugan.errors import BadInput
from frugan.families.biggan.family import BigGANFamily
from frugan.families.biggan.release_options import DEFAULTS
from frugan.families.biggan.release_recipe import exported_options, lines_of_differences, next_lines, release_recipe
from frugan.safe_pickle.torch_files import Layer, read_torch_file
from frugan.wording import first_lines, first_names

_BUFFERS = re.compile(
    r"(?:.*\.)?(?:u\d+|sv\d+|stored_mean|stored_var|running_mean|running_var|accumulation_counter|num_batches_tracked)"
)
COUNTER = "accumulation_counter"


def release_table(*, own_batch_norm: bool) -> NameTable:
    """Table between the tensors' names in a network of the release, and here.

    Args:
        own_batch_norm: the checkpoint was trained with option `mybn`, whose statistics lie one level deeper.
    """
    deeper = [
        Row("{path}.bn.stored_mean", "{path}.stored_mean"),
        Row("{path}.bn.stored_var", "{path}.stored_var"),
        Row("{path}.bn." + COUNTER, None),
    ]
    return NameTable([*(deeper if own_batch_norm else []), Row("{path}", "{path}")], {"path": ".+"})


def parameter_order(names: Iterable[str]) -> list[str]:
    """Names of a state dict that are parameters and not buffers, in order."""
    return [name for name in names if _BUFFERS.fullmatch(name) is None]


def means_of_sums(tensors: Mapping[str, Tensor], separator: str, statistics: Sequence[str]) -> dict[str, Tensor]:
    """Divide statistics that were accumulated over batches by the counter beside them, where that is above zero.

    Args:
        tensors: all tensors by name.
        separator: stands between the name of a layer and those of its tensors.
        statistics: names of the sums in a layer.
    """
    means = dict(tensors)
    for name, counter in tensors.items():
        if name.endswith(f"{separator}{COUNTER}") and float(counter) > 0:
            path = name.removesuffix(COUNTER)
            for statistic in statistics:
                if (key := f"{path}{statistic}") in means:
                    means[key] = means[key] / float(counter)
    return means


FIRST_COUNTERS: Mapping[str, Any] = {
    "itr": 0,
    "epoch": 0,
    "save_num": 0,
    "save_best_num": 0,
    "best_IS": 0,
    "best_FID": 999999,
}
"""Counters at the start of a training by that program."""

FORMAT = "biggan-pytorch"
STATE = "state_dict"
OPTIMIZERS = ("G", "D")
NETWORKS = ("G", "D", "G_ema")
ALL_FILES = (*NETWORKS, *(f"{name}_optim" for name in OPTIMIZERS), STATE)
"""Names of all files that a set may have."""
SLOTS = ("exp_avg", "exp_avg_sq")
_PLAIN = (int, float, bool, str, type(None))


@dataclass(frozen=True)
class AdamState:
    """Adam's state for one network."""

    settings: Mapping[str, Any]  # learning rate, betas, eps that training went on with
    # parameter -> "exp_avg", "exp_avg_sq", "step" -> tensor; parameters that never had a gradient are missing
    slots: Mapping[str, Mapping[str, Tensor]]


@dataclass(frozen=True)
class ReleaseCheckpoint:
    """Contents of a set of files."""

    folder: Path
    suffix: str  # of the files' names: "", "copy0", "best1"
    networks: Mapping[str, Mapping[str, Tensor]]  # "G", "D", "G_ema" -> state dict, as far as they exist
    optimizers: Mapping[str, AdamState]  # "G", "D" -> Adam's state, as far as they exist
    options: Mapping[str, Any]  # options of the training program, plain values only
    counters: Mapping[str, Any] = field(default_factory=dict)  # iterations done, best scores and the like

    def file(self, name: str) -> Path:
        """Path of one of the set's files: "G", "G_optim", "state_dict"."""
        return self.folder / file_name(name, self.suffix)


def file_name(name: str, suffix: str) -> str:
    """File name of "G", "G_optim" or the like in the set with a suffix."""
    return f"{name}_{suffix}.pth" if suffix else f"{name}.pth"


def suffixes(folder: Path) -> list[str]:
    """Suffixes of the sets of files in a folder; "" is the newest set."""
    all_suffixes = (_suffix(path.stem) for path in folder.glob("*.pth"))
    return sorted({suffix for suffix in all_suffixes if suffix is not None})


def _suffix(stem: str) -> str | None:
    for name in sorted(NETWORKS, key=len, reverse=True):
        if stem == name:
            return ""
        if stem.startswith(f"{name}_") and not stem.startswith(f"{name}_optim"):
            return stem.removeprefix(f"{name}_")
    return None


def read_checkpoint(folder: Path, suffix: str = "", *, optimizers: bool = True) -> ReleaseCheckpoint:
    """Read a set of files; nothing in them is run.

    Args:
        folder: folder of the experiment's weights.
        suffix: suffix of the set: "" (the newest), "copy0", "best1".
        optimizers: read Adam's states too.

    Raises:
        BadInput: files are missing, damaged, hostile, or of another program.
    """
    _check_set(folder, suffix)
    state = _state(folder / file_name(STATE, suffix))
    networks = {name: _network(path) for name in NETWORKS if (path := folder / file_name(name, suffix)).is_file()}
    states = {
        name: _adam(path, networks[name])
        for name in OPTIMIZERS
        if optimizers and name in networks and (path := folder / file_name(f"{name}_optim", suffix)).is_file()
    }
    options = {key: _plain(value) for key, value in state["config"].items() if type(value) is not Layer}
    counters = {name: _plain(state[name]) for name in FIRST_COUNTERS if name in state}
    return ReleaseCheckpoint(folder, suffix, networks, states, options, counters)


def _check_set(folder: Path, suffix: str) -> None:
    """Refuse a folder that does not exist, or has no such set of files."""
    if not folder.is_dir():
        what = "a file" if folder.is_file() else "no such folder"
        raise BadInput(
            f"{folder}: {what}; expected the folder of an experiment below BigGAN-PyTorch's weights folder, "
            "with G.pth, D.pth and state_dict.pth in it"
        )
    known = suffixes(folder)
    if not known:
        raise BadInput(
            f"{folder}: no G.pth in it; expected the folder of an experiment, with G.pth, D.pth and state_dict.pth"
        )
    if suffix not in known:
        there = ", ".join(repr(name) for name in known if name) or "none with a suffix"
        named = f"a set named {suffix!r}" if suffix else "a set without a suffix (G.pth)"
        raise BadInput(f"{folder}: {named} is not there; expected one of: {there} (--name NAME)")


def _state(path: Path) -> dict[str, Any]:
    state = read_torch_file(path)
    if type(state) is not dict or type(state.get("config")) is not dict:
        raise BadInput(f"{path}: holds no options (config); expected BigGAN-PyTorch's state_dict.pth")
    itr = state.get("itr")
    if type(itr) is not int or itr < 0:
        raise BadInput(f"{path}: itr is {itr if type(itr) in _PLAIN else type(itr).__name__!r}; expected iterations")
    if not all(type(key) is str for key in state["config"]):
        raise BadInput(f"{path}: has options without names")
    return state


def _plain(value: Any) -> Any:
    """Turn NumPy's scalars into Python's, and any other object that is not plain into a word for it."""
    if isinstance(value, np.generic):
        return value.item()
    return value if type(value) in _PLAIN else f"({type(value).__name__})"


def _network(path: Path) -> dict[str, Tensor]:
    read = read_torch_file(path)
    if type(read) is not dict or not read or not all(type(value) is np.ndarray for value in read.values()):
        raise BadInput(f"{path}: holds no state dict; expected names and tensors")
    if not all(type(key) is str for key in read):
        raise BadInput(f"{path}: holds tensors without names")
    return {key: torch.from_numpy(np.ascontiguousarray(value).reshape(value.shape)) for key, value in read.items()}


def _adam(path: Path, network: Mapping[str, Tensor]) -> AdamState:
    """Read Adam's state, whose lists are in the order of the network's parameters, and name its entries."""
    group, states = _group_and_states(path)
    order, indices = parameter_order(network), group.get("params")
    if type(indices) is not list or len(indices) != len(order) or not all(type(index) is int for index in indices):
        count = len(indices) if type(indices) is list else "no"
        raise BadInput(f"{path}: is of {count} parameters; the network beside it has {len(order)}")
    if unknown := states.keys() - set(indices):
        raise BadInput(
            f"{path}: has state of parameters that it does not list: {first_names(sorted(map(str, unknown)))}"
        )
    slots = {
        name: _slots(states[index], network[name], name, path)
        for index, name in zip(indices, order, strict=True)
        if index in states
    }
    return AdamState({key: value for key, value in group.items() if key != "params"}, slots)


def _group_and_states(path: Path) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Read the single group of parameters of an optimizer's file, and the state of each parameter by index."""
    read = read_torch_file(path)
    groups = read.get("param_groups") if type(read) is dict else None
    states = read.get("state") if type(read) is dict else None
    if type(groups) is not list or len(groups) != 1 or type(groups[0]) is not dict or type(states) is not dict:
        raise BadInput(f"{path}: holds no optimizer state with one group of parameters")
    return groups[0], states


def _slots(state: Any, parameter: Tensor, name: str, path: Path) -> dict[str, Tensor]:
    if type(state) is not dict:
        raise BadInput(f"{path}: {name} has no state; expected Adam's")
    step = state.get("step")
    if type(step) is np.ndarray and step.ndim == 0:
        step = step.item()
    if not isinstance(step, int | float):
        raise BadInput(f"{path}: {name} has no count of steps; expected Adam's state")
    slots = {"step": torch.tensor(float(step))}
    for slot in SLOTS:
        value = state.get(slot)
        if type(value) is not np.ndarray or value.shape != tuple(parameter.shape):
            shape = list(value.shape) if type(value) is np.ndarray else "missing"
            raise BadInput(f"{path}: {slot} of {name} is {shape}; expected {list(parameter.shape)}")
        slots[slot] = torch.from_numpy(np.ascontiguousarray(value).reshape(value.shape))
    return slots


class BigGANPyTorch(FileFormat):
    """A checkpoint folder of the PyTorch release."""

    program = "a checkpoint of BigGAN-PyTorch"
    reads = frozenset({"overrides", "name", "raw", "verify"})
    writes = frozenset({"replace"})
    makes = frozenset({"run", "file"})

    def read(self, conversion: Conversion, ours: OurSide) -> Imported:
        """Read a checkpoint.

        For a run, both networks and their average are read; for a file, the averaged generator (with `raw`, as it was
        trained), and the discriminator if there is one.
        """
        to_file = conversion.out.suffix == WEIGHTS_SUFFIX
        checkpoint = _complete(
            read_checkpoint(conversion.source, conversion.name or "", optimizers=not to_file), conversion.say
        )
        if not to_file and (missing := [n for n in ("G", "D") if n not in checkpoint.networks]):
            raise BadInput(
                f"{checkpoint.file(missing[0])}: missing; training goes on with both networks. Weights alone become a "
                f"file: frugan convert {shlex.quote(str(conversion.source))} weights{WEIGHTS_SUFFIX} --from {FORMAT}"
            )
        iteration, options = int(checkpoint.counters["itr"]), checkpoint.options
        rates = {} if to_file else _adam_settings(checkpoint)
        recipe = release_recipe(options, iteration, rates, str(checkpoint.file(STATE)), ours, trains=not to_file)
        parts = tuple(checkpoint.networks)
        conversion.say(f"{recipe.summary}; {', '.join(parts)} at iteration {iteration:,}")
        facts = {"path": str(conversion.out), "networks": list(parts), "step": iteration}
        headline = f"{conversion.out}: {recipe.summary}, iteration {iteration:,}"
        if to_file:
            networks = _chosen(checkpoint, recipe, conversion, ours)
            lines = [headline, *next_lines(conversion.out, recipe, ours, discriminator="D" in parts)]
            return Imported(recipe, networks, facts, lines, step=iteration, parts=parts)
        for line in lines_of_differences(recipe, options):
            conversion.say(line)
        networks = _translated(checkpoint, "G", recipe, ours) | _translated(checkpoint, "D", recipe, ours)
        average = "G_ema" if "G_ema" in parts else "G"
        if average == "G" and options["ema"] is True:
            conversion.say(f"{checkpoint.file('G_ema')} is not there: the average starts as a copy of G")
        return Imported(
            recipe,
            networks,
            facts,
            [
                headline,
                f"Next: frugan train {shlex.quote(str(conversion.out / RECIPE_FILE))} --data PICTURES "
                f"--out {shlex.quote(str(conversion.out))}",
            ],
            averages=_translated(checkpoint, average, recipe, ours),
            optimizers=_optimizer(checkpoint, "G", conversion.say) | _optimizer(checkpoint, "D", conversion.say),
            step=iteration,
            event={"format": FORMAT, "options": options, "counters": checkpoint.counters, "set": checkpoint.suffix},
            parts=parts,
        )

    def write(self, conversion: Conversion, ours: OurSide) -> Converted:
        """Write G.pth, D.pth, G_ema.pth, Adam's states and state_dict.pth, as far as there are contents for them.

        With `replace`, existing files of such names are removed even if no new file takes their place.
        """
        trained, folder = ours.weights("biggan"), conversion.out
        imported = trained.imported() or {}
        imported = imported if imported.get("format") == FORMAT else {}
        options, lines = exported_options(trained.recipe, imported.get("options"), ours)
        for line in lines:
            conversion.say(line)
        files = _states(trained, options)
        if trained.optimizers is not None and trained.step:
            files |= _adam_files(trained.optimizers(), files, trained.recipe)
        else:
            conversion.say(f"{trained.path}: no optimizer state beside it; that program begins with fresh statistics")
        counters = {**FIRST_COUNTERS, **imported.get("counters", {}), "itr": trained.step}
        if imported and imported.get("counters", {}).get("itr") != trained.step:
            conversion.say("epoch, best_IS and best_FID are those of the imported checkpoint")
        files[STATE] = {**counters, "config": options | _activations(options)}
        _write(folder, files, replace=conversion.replace)
        written = [file_name(name, "") for name in files]
        where = shlex.join(["--weights_root", str(folder.parent), "--experiment_name", folder.name])
        return Converted(
            folder,
            {"folder": str(folder), "files": written, "step": trained.step},
            [
                f"{folder}: {', '.join(written)} at iteration {trained.step:,}",
                f"In that program: train.py --resume {where}, with the options in state_dict.pth",
            ],
            step=trained.step,
            networks=tuple(name for name in NETWORKS if name in files),
        )


def _complete(checkpoint: ReleaseCheckpoint, say: Say) -> ReleaseCheckpoint:
    """Add default values for options that an older version of the program did not write."""
    if missing := [name for name in DEFAULTS if name not in checkpoint.options]:
        shown = ", ".join(f"{name} {DEFAULTS[name]}" for name in missing)
        say(f"{checkpoint.file(STATE)}: says nothing of some options, which are taken as by default: {shown}")
    return replace(checkpoint, options={**DEFAULTS, **checkpoint.options})


def _adam_settings(checkpoint: ReleaseCheckpoint) -> dict[str, dict[str, Any]]:
    """Adam's settings of "G" and "D" in their optimizers' files, which training goes on with."""
    rates: dict[str, dict[str, Any]] = {}
    for name, state in checkpoint.optimizers.items():
        file, settings = checkpoint.file(f"{name}_optim"), state.settings
        betas = settings.get("betas")
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            raise BadInput(f"{file}: has no betas; expected Adam's state")
        rates[name] = {
            "learning_rate": settings.get("lr"),
            "beta1": betas[0],
            "beta2": betas[1],
            "eps": settings.get("eps"),
        }
        if not all(type(value) in (int, float) for value in rates[name].values()):
            raise BadInput(f"{file}: its rate, betas and eps are no numbers")
        if settings.get("weight_decay", 0) or settings.get("amsgrad", False):
            raise BadInput(f"{file}: weight_decay and amsgrad have no recipe field")
    return rates


def _chosen(
    checkpoint: ReleaseCheckpoint, recipe: RecipeValues, conversion: Conversion, ours: OurSide
) -> dict[str, Tensor]:
    """Tensors "network.parameter" of the generator to write, and of the discriminator if there is one."""
    wanted, other = ("G", "G_ema") if conversion.raw else ("G_ema", "G")
    generator = wanted if wanted in checkpoint.networks else other
    if generator not in checkpoint.networks:
        raise BadInput(f"{checkpoint.folder}: holds no generator (G_ema.pth or G.pth); nothing could be drawn with it")
    if generator != wanted:
        conversion.say(f"{checkpoint.file(wanted)} is not there: {generator} is used instead")
    tensors = _translated(checkpoint, generator, recipe, ours)
    if "D" not in checkpoint.networks:
        conversion.say(f"{checkpoint.file('D')} is not there: in training it starts afresh")
        return tensors
    return tensors | _translated(checkpoint, "D", recipe, ours)


def _translated(checkpoint: ReleaseCheckpoint, name: str, recipe: RecipeValues, ours: OurSide) -> dict[str, Tensor]:
    """Tensors "network.parameter" of a network, which must be those of the recipe's.

    Raises:
        BadInput: names are missing or left over, or shapes differ.
    """
    network = "G" if name == "G_ema" else name
    built = BigGANFamily().build(recipe.networks, "meta")[network]
    expected = {key: tuple(value.shape) for key, value in built.state_dict().items()}
    table = release_table(own_batch_norm=checkpoint.options["mybn"] is True)
    read = table.to_ours(means_of_sums(checkpoint.networks[name], ".", ("stored_mean", "stored_var")), expected)
    if read.faults:
        raise BadInput(
            f"{checkpoint.file(name)}: not the network that its options stand for:\n  {first_lines(read.faults)}"
        )
    tensors = {f"{network}.{key}": value.float() for key, value in read.tensors.items()}
    ours.load({network: built}, tensors, str(checkpoint.file(name)))  # copies nothing: there is no data on "meta"
    return tensors


def _optimizer(checkpoint: ReleaseCheckpoint, name: str, say: Say) -> dict[str, Tensor]:
    """Adam's state under the names that frugan's checkpoints have for it."""
    file = checkpoint.file(f"{name}_optim")
    adam = checkpoint.optimizers.get(name)
    if adam is None:
        say(f"{file} is not there: the optimizer's statistics start afresh")
        return {}
    if unmoved := set(parameter_order(checkpoint.networks[name])) - adam.slots.keys():
        keys = first_lines(sorted(f"{name}.{key}" for key in unmoved), ", ")
        say(f"{file}: has no state for {keys}, which starts afresh")
    table = release_table(own_batch_norm=False)  # parameters are named alike with and without
    found: dict[str, Tensor] = {}
    for key, slots in adam.slots.items():
        (parameter,) = table.to_ours({key: slots["exp_avg"]}).tensors
        found |= {f"{name}/{name}.{parameter}/{slot}": value for slot, value in slots.items()}
    return found


def _activations(options: Mapping[str, Any]) -> dict[str, nn.Module]:
    """Layers of activations, which that program keeps among its options."""
    return {f"{name}_activation": nn.ReLU(inplace=options[f"{name}_nl"] != "relu") for name in ("G", "D")}


def _states(trained: Trained, options: Mapping[str, Any]) -> dict[str, Any]:
    """State dicts of the networks, by the names of their files."""
    own_norm = options["mybn"] is True
    built = BigGANFamily().build(trained.recipe.networks, "meta")
    files: dict[str, Any] = {}
    for name, weights, network in (
        ("G", trained.networks, "G"),
        ("D", trained.networks, "D"),
        ("G_ema", trained.averages, "G"),
    ):
        prefix = f"{network}."
        tensors = {key.removeprefix(prefix): value for key, value in weights.items() if key.startswith(prefix)}
        if not tensors or (name == "G_ema" and not options["ema"]):
            continue
        ordered = {key: tensors[key] for key in built[network].state_dict()}
        state = release_table(own_batch_norm=own_norm).to_theirs(ordered).tensors
        files[name] = OrderedDict(_with_counters(state) if own_norm else state)
    if "G" not in files:
        raise BadInput(f"{trained.path}: holds no generator")
    return files


def _with_counters(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Add the counts of accumulated batches that `mybn` keeps; they are 0, as the statistics are not sums."""
    counted: dict[str, Tensor] = {}
    for key, value in tensors.items():
        counted[key] = value
        if key.endswith(".bn.stored_var"):
            counted[key.removesuffix("stored_var") + COUNTER] = torch.zeros(1)
    return counted


def _adam_files(tensors: Mapping[str, Tensor], files: Mapping[str, Any], recipe: RecipeValues) -> dict[str, Any]:
    """Adam's states in the order of the networks' parameters, by the names of their files."""
    table = release_table(own_batch_norm=False)  # parameters are named alike with and without
    found: dict[str, Any] = {}
    for name in ("G", "D"):
        settings = recipe.optimizers[name]
        if name not in files or settings["kind"] != "adam":
            continue
        order = parameter_order(files[name])
        state = {}
        for index, key in enumerate(order):
            (parameter,) = table.to_ours({key: files[name][key]}).tensors
            slots = {slot: tensors.get(f"{name}/{name}.{parameter}/{slot}") for slot in ("step", *SLOTS)}
            if all(value is not None for value in slots.values()):
                state[index] = slots
        betas = (settings["beta1"], settings["beta2"])
        adam = torch.optim.Adam([torch.zeros(())], lr=settings["learning_rate"], betas=betas, eps=settings["eps"])
        (group,) = adam.state_dict()["param_groups"]  # with all that torch keeps there
        found[f"{name}_optim"] = {"state": state, "param_groups": [group | {"params": list(range(len(order)))}]}
    return found


def _write(folder: Path, files: Mapping[str, Any], *, replace: bool) -> None:
    there = [name for name in (file_name(part, "") for part in ALL_FILES) if (folder / name).exists()]
    if there and not replace:
        raise BadInput(f"{folder / there[0]}: is there already; choose another folder, or add --replace")
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder}: is no folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(mkdtemp(prefix=f".{folder.name}.unfinished-", dir=folder.parent))
    try:
        for name, content in files.items():
            torch.save(content, beside / file_name(name, ""))
        folder.mkdir(parents=True, exist_ok=True)
        for name in files:
            (beside / file_name(name, "")).replace(folder / file_name(name, ""))
        for name in there:
            if not any(name == file_name(part, "") for part in files):
                (folder / name).unlink()  # it belongs to another state, and that program would go on with it
    finally:
        shutil.rmtree(beside, ignore_errors=True)
