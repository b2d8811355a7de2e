"""Families and formats by name."""

import pytest

from frugan import registry
from frugan.contract.formats import FileFormat
from frugan.errors import BadInput
from frugan.families import families


def test_families_go_by_their_own_names() -> None:
    assert {name: kind.name for name, kind in families().items()} == {name: name for name in families()}


@pytest.mark.parametrize("name", registry.SHIPPED[registry.FORMATS])
def test_formats_say_what_they_can_do(name: str) -> None:
    made, entry = registry.create(registry.FORMATS, name)
    assert entry is None
    assert isinstance(made, FileFormat)
    assert made.program
    assert (made.reads is None) == (type(made).read is FileFormat.read) == (not made.makes)
    assert (made.writes is None) == (type(made).write is FileFormat.write)


def test_what_is_unknown_names_what_there_is() -> None:
    for group, word in registry.WORDS.items():
        with pytest.raises(
            BadInput, match=f"{word} 'keras' is unknown; expected one of: ours, {registry.names(group)[0]}"
        ):
            registry.create(group, "keras", also=["ours"])
