"""The families that ship, one folder each, and those that other packages bring."""

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points

from frugan.errors import BadInput
from frugan.families.biggan import BigGANFamily
from frugan.families.saehd import SAEHDFamily
from frugan.families.stylegan2 import StyleGAN2Family
from frugan.phase import Family

GROUP = "frugan.families"
"""Entry points of this group in other packages give a class without arguments, under the family's name."""


def families() -> Mapping[str, Family]:
    """Every family that ships, by name."""
    every: tuple[Family, ...] = (BigGANFamily(), SAEHDFamily(), StyleGAN2Family())
    return {family.name: family for family in every}


def family(name: str) -> Family:
    """A family by name, from here or from another package.

    Raises:
        BadInput: no such family, or the package that has it cannot be imported.
    """
    known = families()
    if name in known:
        return known[name]
    others = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in others:
        expected = ", ".join(sorted({*known, *others}))
        raise BadInput(
            f"family {name!r} is unknown; expected one of: {expected}. Another package may bring one: is it installed "
            "in this environment?"
        )
    return _loaded(others[name])


def _loaded(entry: EntryPoint) -> Family:
    try:
        found: Family = entry.load()()
    except (ImportError, AttributeError, TypeError) as error:
        raise BadInput(
            f"family {entry.name!r} of another package ({entry.value}) cannot be loaded: {error}; install it anew, or "
            "ask its author"
        ) from error
    if found.name != entry.name:
        raise BadInput(
            f"family {entry.name!r} of another package ({entry.value}) calls itself {found.name!r}: the entry point "
            "must have the family's own name"
        )
    return found
