"""Runs of these tests draw no grids: they are most of what a tiny training takes."""

from collections.abc import Iterator

import pytest

from frugan.families.biggan.family import BigGANFamily


@pytest.fixture(autouse=True, scope="module")
def _no_grids() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BigGANFamily, "snapshots", lambda family, networks: {})
        yield
