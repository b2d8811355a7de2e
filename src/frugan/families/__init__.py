"""Families that ship, in a folder each, and those that other packages bring."""

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
    """Create a family by name, of this package or of another.

    Raises:
        BadInput: there is no such family, or the package that has it cannot be imported.
    """
    created, entry = registry.create(registry.FAMILIES, name)
    if entry is not None and not isinstance(created, Family):
        raise BadInput(
            f"family {name!r} of another package ({entry.value}) does not derive from frugan.contract.family.Family: "
            "mend it, or ask its author"
        )
    kind: Family = created
    if entry is not None and kind.name != name:
        raise BadInput(
            f"family {name!r} of another package ({entry.value}) calls itself {kind.name!r}: the entry point must have "
            "the family's own name"
        )
    return kind


def family_code(kind: Family) -> str | None:
    """Digest of the source of a family of another package, with which its predictions expire; None: it ships here."""
    module = import_module(type(kind).__module__)
    if module.__name__.partition(".")[0] == __name__.partition(".")[0] or module.__file__ is None:
        return None
    top = import_module(module.__name__.partition(".")[0])
    files = [Path(module.__file__)]
    for folder in getattr(top, "__path__", ()):  # a package: any of its files may be part of the step
        files += sorted(Path(folder).rglob("*.py"))
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:DIGEST_DIGITS]
