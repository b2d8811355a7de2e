"""Grids of a few pictures: those that a run draws by itself are most of what a tiny training takes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from PIL import Image

from frugan.contract.family import GridRequest
from frugan.families.biggan.family import BigGANFamily
from frugan.families.stylegan2.family import StyleGAN2Family


@pytest.fixture(autouse=True, scope="module")
def small_grids() -> Iterator[None]:
    """A family's own grids get two columns and two rows; what is asked for in a test is left as it is.

    Files of noise are not worth packing well, either.
    """
    save = Image.Image.save

    def quickly(picture: Image.Image, *args: Any, **more: Any) -> None:
        save(picture, *args, **{"compress_level": 1, **more})

    def small(whole: Callable[[Any, Any], Mapping[str, GridRequest]]) -> Callable[[Any, Any], dict[str, GridRequest]]:
        return lambda family, networks: {
            name: replace(each, columns=2, rows=2) for name, each in whole(family, networks).items()
        }

    with pytest.MonkeyPatch.context() as patch:
        for kind in (BigGANFamily, StyleGAN2Family):
            patch.setattr(kind, "snapshots", small(kind.snapshots))
        patch.setattr(Image.Image, "save", quickly)
        yield
