"""Trainings of the made-up family that several files of tests compare with."""

from functools import cache

from torch import Tensor

from contract.made_up import MadeUpFamily
from contract.rig import Rig

FAMILY = MadeUpFamily()
ROUNDING = 1e-5  # 3e-6 was seen after three steps at learning rate 1e-2; the smallest fault tried makes 1e-2


def trained(steps: int = 3, **settings: object) -> Rig:
    rig = Rig.create(FAMILY, **settings)  # type: ignore[arg-type]
    rig.run(steps)
    return rig


@cache
def plain() -> dict[str, Tensor]:
    """What three plain steps end with; nobody may change it."""
    return trained().tensors()
