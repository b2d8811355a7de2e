"""The folder in which BigGAN-PyTorch keeps an experiment's weights: one set of files, or several.

`G.pth`, `D.pth`, `G_ema.pth` (state dicts), `G_optim.pth`, `D_optim.pth` (Adam's) and `state_dict.pth` (counters and
options); earlier and best ones beside them with a suffix: `G_copy0.pth`, `G_best1.pth`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from frugan.contract.name_table import NameTable, Row
from frugan.errors import BadInput
from frugan.pickles.torch_files import Layer, read_torch_file

_BUFFERS = re.compile(
    r"(?:.*\.)?(?:u\d+|sv\d+|stored_mean|stored_var|running_mean|running_var|accumulation_counter|num_batches_tracked)"
)
COUNTER = "accumulation_counter"


def release_table(*, own_batch_norm: bool) -> NameTable:
    """Names within a network.

    Args:
        own_batch_norm: the checkpoint is of option `mybn`, whose statistics lie one level deeper.
    """
    deeper = [
        Row("{path}.bn.stored_mean", "{path}.stored_mean"),
        Row("{path}.bn.stored_var", "{path}.stored_var"),
        Row("{path}.bn." + COUNTER, None),
    ]
    return NameTable([*(deeper if own_batch_norm else []), Row("{path}", "{path}")], {"path": ".+"})


def is_parameter(name: str) -> bool:
    """Whether a tensor of a state dict is a parameter, and no buffer."""
    return _BUFFERS.fullmatch(name) is None


def parameter_order(names: Iterable[str]) -> list[str]:
    """Parameters of a state dict, in order."""
    return [name for name in names if is_parameter(name)]


def averaged_statistics(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """State dict whose accumulated statistics are means: sums are divided by their counter where it is above zero."""
    counters = {name.removesuffix(COUNTER): value for name, value in tensors.items() if name.endswith(f".{COUNTER}")}
    found = dict(tensors)
    for path, counter in counters.items():
        count = float(counter)
        for statistic in ("stored_mean", "stored_var"):
            if count > 0 and (name := f"{path}{statistic}") in found:
                found[name] = found[name] / count
    return found


STATE = "state_dict"
OPTIMIZERS = ("G", "D")
NETWORKS = ("G", "D", "G_ema")
SLOTS = ("exp_avg", "exp_avg_sq")
COUNTERS = ("itr", "epoch", "save_num", "save_best_num", "best_IS", "best_FID")
_PLAIN = (int, float, bool, str, type(None))


@dataclass(frozen=True)
class AdamState:
    """Adam's state for one network.

    Attributes:
        settings: learning rate, betas, eps: that training went on with.
        slots: parameter -> "exp_avg", "exp_avg_sq", "step" -> tensor; a parameter that never had a gradient has none.
    """

    settings: Mapping[str, Any]
    slots: Mapping[str, Mapping[str, Tensor]]


@dataclass(frozen=True)
class ReleaseCheckpoint:
    """What a set of files holds.

    Attributes:
        folder: that it lies in.
        suffix: of its files: "", "copy0", "best1".
        networks: "G", "D", "G_ema" -> state dict, as far as they are there.
        optimizers: "G", "D" -> Adam's state.
        options: of the training program; plain values only.
        counters: iterations done, best scores and the like.
    """

    folder: Path
    suffix: str
    networks: Mapping[str, Mapping[str, Tensor]]
    optimizers: Mapping[str, AdamState]
    options: Mapping[str, Any]
    counters: Mapping[str, Any] = field(default_factory=dict)

    def file(self, name: str) -> Path:
        """Where a part of it lies: "G", "G_optim", "state_dict"."""
        return self.folder / file_name(name, self.suffix)


def file_name(name: str, suffix: str) -> str:
    """Name of a file of a set."""
    return f"{name}_{suffix}.pth" if suffix else f"{name}.pth"


def all_names() -> tuple[str, ...]:
    """Of the files that a set may have."""
    return (*NETWORKS, *(f"{name}_optim" for name in OPTIMIZERS), STATE)


def suffixes(folder: Path) -> list[str]:
    """Sets of files in a folder, by the suffixes of their networks; "" is the newest."""
    found = (_suffix(path.stem) for path in folder.glob("*.pth"))
    return sorted({suffix for suffix in found if suffix is not None})


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
        folder: of the experiment's weights.
        suffix: of the set: "" (the newest), "copy0", "best1".
        optimizers: whether Adam's state is wanted.

    Raises:
        BadInput: files are missing, damaged, hostile, or of another program.
    """
    if not folder.is_dir():
        what = "a file" if folder.is_file() else "no such folder"
        raise BadInput(
            f"{folder}: {what}; expected the folder of an experiment below BigGAN-PyTorch's weights folder, "
            "with G.pth, D.pth and state_dict.pth in it"
        )
    known = suffixes(folder)
    if suffix not in known:
        there = ", ".join(repr(each) for each in known if each) or "none with a suffix"
        named = f"a set named {suffix!r}" if suffix else "a set without a suffix (G.pth)"
        raise BadInput(f"{folder}: {named} is not there; expected one of: {there} (--name NAME)")
    state = _state(folder / file_name(STATE, suffix))
    networks = {name: _network(path) for name in NETWORKS if (path := folder / file_name(name, suffix)).is_file()}
    found = {
        name: _adam(path, networks[name])
        for name in OPTIMIZERS
        if optimizers and name in networks and (path := folder / file_name(f"{name}_optim", suffix)).is_file()
    }
    options = {key: _plain(value) for key, value in state["config"].items() if type(value) is not Layer}
    counters = {name: _plain(state[name]) for name in COUNTERS if name in state}
    return ReleaseCheckpoint(folder, suffix, networks, found, options, counters)


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
    """NumPy's scalars become Python's; what is neither plain nor one of them is a word for it."""
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
    """Adam's state by the names of the parameters, in whose order its lists are."""
    read = read_torch_file(path)
    groups = read.get("param_groups") if type(read) is dict else None
    states = read.get("state") if type(read) is dict else None
    if type(groups) is not list or len(groups) != 1 or type(groups[0]) is not dict or type(states) is not dict:
        raise BadInput(f"{path}: holds no optimizer state with one group of parameters")
    order, indices = parameter_order(network), groups[0].get("params")
    if type(indices) is not list or len(indices) != len(order) or not all(type(index) is int for index in indices):
        count = len(indices) if type(indices) is list else "no"
        raise BadInput(f"{path}: is of {count} parameters; the network beside it has {len(order)}")
    if unknown := states.keys() - set(indices):
        raise BadInput(f"{path}: has state of parameters that it does not list: {_few(unknown)}")
    slots = {
        name: _slots(states[index], network[name], name, path)
        for index, name in zip(indices, order, strict=True)
        if index in states
    }
    return AdamState({key: value for key, value in groups[0].items() if key != "params"}, slots)


def _slots(state: Any, parameter: Tensor, name: str, path: Path) -> dict[str, Tensor]:
    if type(state) is not dict:
        raise BadInput(f"{path}: {name} has no state; expected Adam's")
    step = state.get("step")
    if type(step) is np.ndarray and step.ndim == 0:
        step = step.item()
    if not isinstance(step, int | float):
        raise BadInput(f"{path}: {name} has no count of steps; expected Adam's state")
    found = {"step": torch.tensor(float(step))}
    for slot in SLOTS:
        value = state.get(slot)
        if type(value) is not np.ndarray or value.shape != tuple(parameter.shape):
            shape = list(value.shape) if type(value) is np.ndarray else "missing"
            raise BadInput(f"{path}: {slot} of {name} is {shape}; expected {list(parameter.shape)}")
        found[slot] = torch.from_numpy(np.ascontiguousarray(value).reshape(value.shape))
    return found


def _few(values: Iterable[Any]) -> str:
    listed = sorted(map(str, values))
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")
