"""The families that ship: one folder each, registered here by name."""

from collections.abc import Mapping

from frugan.errors import BadInput
from frugan.families.biggan import BigGANFamily
from frugan.families.saehd import SAEHDFamily
from frugan.families.stylegan2 import StyleGAN2Family
from frugan.phase import Family


def families() -> Mapping[str, Family]:
    """Every family by name."""
    every: tuple[Family, ...] = (BigGANFamily(), SAEHDFamily(), StyleGAN2Family())
    return {family.name: family for family in every}


def family(name: str) -> Family:
    """A family by name.

    Raises:
        BadInput: no such family.
    """
    known = families()
    if name not in known:
        raise BadInput(f"family {name!r} is unknown; expected one of: {', '.join(sorted(known))}")
    return known[name]
