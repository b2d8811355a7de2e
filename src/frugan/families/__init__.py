"""The families that ship, one folder each, and those that other packages bring."""

import sys
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType

from frugan.contract.family import Family
from frugan.errors import BadInput

GROUP = "frugan.families"
"""Entry points of this group in other packages give a class without arguments, under the family's name."""

DIGEST_DIGITS = 24

SHIPPED = MappingProxyType({"biggan": "BigGANFamily", "saehd": "SAEHDFamily", "stylegan2": "StyleGAN2Family"})
"""Name, which is that of the folder, and class in its `family`; imported when one is asked for: a plan of one reads no
other."""


def families() -> Mapping[str, Family]:
    """Every family that ships, by name."""
    return {name: _shipped(name) for name in SHIPPED}


def _shipped(name: str) -> Family:
    shipped: Family = getattr(import_module(f"{__name__}.{name}.family"), SHIPPED[name])()
    return shipped


def family(name: str) -> Family:
    """A family by name, from here or from another package.

    Raises:
        BadInput: no such family, or the package that has it cannot be imported.
    """
    if name in SHIPPED:
        return _shipped(name)
    others = _others(tuple(sys.path))
    if name not in others:
        expected = ", ".join(sorted({*SHIPPED, *others}))
        raise BadInput(
            f"family {name!r} is unknown; expected one of: {expected}. Another package may bring one: is it installed "
            "in this environment?"
        )
    return _loaded(others[name])


@cache
def _others(_path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    """Entry points of other packages, by name; read anew where `sys.path` is another.

    A training asks 60 times, and each time every installed package's file would be read: 10 ms.
    """
    return MappingProxyType({entry.name: entry for entry in entry_points(group=GROUP)})


def _loaded(entry: EntryPoint) -> Family:
    try:
        loaded = entry.load()()
    except (ImportError, AttributeError, TypeError) as error:
        raise BadInput(
            f"family {entry.name!r} of another package ({entry.value}) cannot be loaded: {error}; reinstall it, or "
            "ask its author"
        ) from error
    if not isinstance(loaded, Family):
        raise BadInput(
            f"family {entry.name!r} of another package ({entry.value}) does not derive from "
            "frugan.contract.family.Family: mend it, or ask its author"
        )
    if loaded.name != entry.name:
        raise BadInput(
            f"family {entry.name!r} of another package ({entry.value}) calls itself {loaded.name!r}: the entry point "
            "must have the family's own name"
        )
    return loaded


def family_code(kind: Family) -> str | None:
    """Digest of the source of a family from another package: what was predicted holds while it is the same.

    None: it ships with frugan.
    """
    module = import_module(type(kind).__module__)
    if module.__name__.partition(".")[0] == __name__.partition(".")[0] or module.__file__ is None:
        return None
    top = import_module(module.__name__.partition(".")[0])
    files = [Path(module.__file__)]
    for folder in getattr(top, "__path__", ()):  # a package: any of its files may be part of the step
        files += sorted(Path(folder).rglob("*.py"))
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:DIGEST_DIGITS]
