"""Networks of StyleGAN2's and StyleGAN3's pickled snapshots as plain records, without running what a pickle asks for.

A snapshot's pickle holds the text of the Python files that define its networks, and asks to run it. Here each network
becomes a record of its class's name, its settings, its tensors, and the records within it. The text is ignored.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from frugan.errors import BadInput
from frugan.safe_pickle.reader import CURE, ObjectReader, read_whole
from frugan.safe_pickle.torch_files import Tensors
from frugan.wording import shown_value

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


def check_class(module: Module, expected: str) -> None:
    if module.class_name != expected:
        raise BadInput(f"holds a {module.class_name[:50]!a} where a {expected} is expected: no network of StyleGAN2")


def part_of(module: Module, name: str) -> Module:
    child = module.modules.get(name)
    if child is None:
        raise BadInput(f"its {module.class_name[:50]} has no part {name!r}: no network of StyleGAN2")
    return child


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
