"""The families that ship, one folder each, and those that other packages bring."""

from collections.abc import Mapping
from hashlib import sha256
from importlib import import_module
from pathlib import Path

from frugan import registry
from frugan.contract.family import Family
from frugan.errors import BadInput

DIGEST_DIGITS = 24


def families() -> Mapping[str, Family]:
    """Every family that ships, by name."""
    return {name: family(name) for name in registry.SHIPPED[registry.FAMILIES]}


def family(name: str) -> Family:
    """A family by name, from here or from another package.

    Raises:
        BadInput: no such family, or the package that has it cannot be imported.
    """
    made, entry = registry.create(registry.FAMILIES, name)
    if entry is not None and not isinstance(made, Family):
        raise BadInput(
            f"family {name!r} of another package ({entry.value}) does not derive from frugan.contract.family.Family: "
            "mend it, or ask its author"
        )
    kind: Family = made
    if entry is not None and kind.name != name:
        raise BadInput(
            f"family {name!r} of another package ({entry.value}) calls itself {kind.name!r}: the entry point must have "
            "the family's own name"
        )
    return kind


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
