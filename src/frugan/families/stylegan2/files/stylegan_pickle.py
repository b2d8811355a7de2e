"""A network snapshot of the StyleGAN2 and StyleGAN3 programs in PyTorch, as numbers and settings.

Such a pickle holds the text of the Python files that define its networks, and asks to run it. Here each network becomes
a record: the class's name, its settings, its tensors, and the records within it. The text is passed over.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from frugan.errors import BadInput
from frugan.pickles.arrays import CURE
from frugan.pickles.objects import ObjectReader
from frugan.pickles.reader import read_whole
from frugan.pickles.torch_tensors import Tensors

MOST_FILE_BYTES = 8 << 30
"""Twenty times the largest published."""
MOST_MODULES = 10_000
MOST_MODULE_LEVELS = 16
NETWORKS = ("G", "D", "G_ema")
"""Names in a snapshot: the generator, the discriminator, and the generator's average."""


@dataclass(frozen=True, eq=False)
class Module:
    """What a snapshot says of a layer, a block or a network.

    Attributes:
        class_name: of the program's class.
        settings: its plain attributes.
        arrays: its own parameters and buffers.
        modules: those within it.
    """

    class_name: str
    settings: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]
    modules: Mapping[str, "Module"]

    def tensors(self) -> dict[str, np.ndarray]:
        """All parameters and buffers, by the names that the program's state dict has.

        Raises:
            BadInput: modules are nested deeper than networks are, or without end.
        """
        left = MOST_MODULES
        found: dict[str, np.ndarray] = {}
        level: dict[str, Module] = {"": self}
        for _ in range(MOST_MODULE_LEVELS):
            if not level:
                return found
            if (left := left - len(level)) < 0:
                break
            found |= {f"{at}{name}": array for at, module in level.items() for name, array in module.arrays.items()}
            level = {f"{at}{name}.": m for at, module in level.items() for name, m in module.modules.items()}
        raise BadInput(f"holds modules within modules without end. {CURE}")


def read_snapshot(path: Path) -> dict[str, Module]:
    """Networks of a snapshot: "G", "D", "G_ema", as far as they are there.

    Raises:
        BadInput: not there, damaged, of a program that is not known, or with anything that would run a program.
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
    """Stand for what makes a module of {type, version, module_src, class_name, state}."""
    if type(meta) is not dict or type(meta.get("type")) is not str or meta["type"] != "class":
        raise TypeError
    name, state = meta.get("class_name"), meta.get("state")
    if type(name) is not str or type(state) is not dict:
        raise TypeError
    hidden = state.get("_non_persistent_buffers_set", set())
    if type(hidden) is not set:
        raise TypeError
    settings = {key: value for key, value in state.items() if key not in _PARTS}
    arrays = {
        key: value
        for part in ("_parameters", "_buffers")
        for key, value in _part(state, part)
        if value is not None and not (part == "_buffers" and key in hidden)
    }
    modules = {key: value for key, value in _part(state, "_modules") if value is not None}
    if not all(type(value) is np.ndarray for value in arrays.values()):
        raise BadInput(f"holds a {name[:50]!a} with a parameter that is no tensor. {CURE}")
    if not all(type(value) is Module for value in modules.values()):
        raise BadInput(f"holds a {name[:50]!a} with a layer of an unknown kind. {CURE}")
    return Module(name, settings, arrays, modules)


_PARTS = frozenset({"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"})


def _part(state: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    part = state.get(name, {})
    if type(part) is not dict:
        raise TypeError
    yield from part.items()


def _easy_dict(*arguments: Any) -> dict[str, Any]:
    """Stand for a dict with access by attribute, which is filled later as any other."""
    if arguments:
        raise TypeError
    return {}


def _of_tensorflow(*arguments: Any) -> NoReturn:
    raise BadInput(
        "holds networks of the TensorFlow programs of StyleGAN; convert it first with the script for such files "
        "(legacy.py) that comes with StyleGAN2-ADA for PyTorch, and convert what that writes"
    )
