"""Sheets of a few pictures: those that a run draws by itself are most of what a tiny training takes."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from frugan.contract.samples import SheetRequest
from frugan.families.biggan import BigGANFamily


@pytest.fixture(autouse=True, scope="module")
def small_sheets() -> Iterator[None]:
    """BigGAN's own sheets get two columns and two rows; what is asked for in a test is left as it is."""
    whole = BigGANFamily.snapshots

    def small(family: BigGANFamily, networks: Any) -> Mapping[str, SheetRequest]:
        return {name: replace(each, columns=2, rows=2) for name, each in whole(family, networks).items()}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BigGANFamily, "snapshots", small)
        yield
