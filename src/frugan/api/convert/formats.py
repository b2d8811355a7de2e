"""The formats that `convert` knows: those that ship, and those of other packages."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from types import MappingProxyType

from frugan.contract.formats import Conversion, Converted, FileFormat
from frugan.errors import BadInput

GROUP = "frugan.formats"
"""Entry points of this group in other packages give a class without arguments, under the format's name."""

OWN = "frugan"
"""Our own runs and weights: the other side of every conversion."""

SHIPPED = MappingProxyType(
    {
        "leras": "frugan.api.convert.deepfacelab.formats:Leras",
        "dfm": "frugan.api.convert.deepfacelab.formats:Dfm",
        "biggan-pytorch": "frugan.api.convert.biggan.formats:BigGANPyTorch",
        "biggan-tfhub": "frugan.api.convert.biggan.formats:BigGANHub",
        "stylegan-pickle": "frugan.api.convert.stylegan.formats:StyleGANPickle",
        "stylegan-safetensors": "frugan.api.convert.stylegan.formats:StyleGANSafetensors",
    }
)
"""Name -> module and class; imported when one is asked for."""

OPTIONS = MappingProxyType(
    {
        "overrides": "KEY=VALUE",
        "name": "--name",
        "data": "--data",
        "replace": "--replace",
        "half": "--half",
        "raw": "--raw",
        "verify": "--verify",
    }
)
"""Fields of a conversion that only some formats take, as they are typed."""


def format_names() -> list[str]:
    """Names of all formats but our own."""
    return sorted({*SHIPPED, *(entry.name for entry in entry_points(group=GROUP))})


def file_format(name: str) -> FileFormat:
    """A format by name.

    Raises:
        BadInput: no such format, or the package that has it cannot be imported.
    """
    if name in SHIPPED:
        module, _, kind = SHIPPED[name].partition(":")
        shipped: FileFormat = getattr(import_module(module), kind)()
        return shipped
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            try:
                found: FileFormat = entry.load()()
            except (ImportError, AttributeError, TypeError) as error:
                raise BadInput(
                    f"format {name!r} of another package ({entry.value}) cannot be loaded: {error}"
                ) from error
            return found
    raise BadInput(f"format {name!r} is unknown; expected one of: {', '.join([OWN, *format_names()])}")


def convert(asked: Conversion, made_by: str = OWN, to: str = OWN) -> Converted:
    """Convert a model from one of these formats to our own, or the other way round.

    Args:
        asked: what, and how.
        made_by: format of what is read.
        to: format of what is written.

    Raises:
        BadInput: neither or both are formats of others, one cannot be read or written, or an option is not for it.
    """
    if (made_by == OWN) == (to == OWN):
        given = f"--from {made_by} --to {to}" if made_by != OWN else "neither --from nor --to"
        known = {name: file_format(name) for name in format_names()}
        ways = [f"--from {name} ({each.program})" for name, each in known.items() if each.reads is not None]
        ways += [f"--to {name} ({each.program})" for name, each in known.items() if each.writes is not None]
        raise BadInput(f"{given}: expected one of " + ", ".join(ways))
    direction, name = ("from", made_by) if to == OWN else ("to", to)
    found = file_format(name)
    taken = found.reads if direction == "from" else found.writes
    if taken is None:
        can = "written (--to)" if direction == "from" else "read (--from)"
        raise BadInput(f"--{direction} {name}: {found.program} can only be {can}")
    for field in _given(asked):
        if field not in taken:
            others = _takers(field)
            where = f"is for {' and '.join(others)}" if others else f"is not for --{direction} {name}"
            word = asked.overrides[0] if field == "overrides" else OPTIONS[field]
            raise BadInput(f"{word} {where}; leave it out")
    return found.read(asked) if direction == "from" else found.write(asked)


def _given(asked: Conversion) -> Iterator[str]:
    return (field for field in OPTIONS if getattr(asked, field))


def _takers(field: str) -> list[str]:
    """Formats that take a field, in the words of the command line."""
    known: Mapping[str, FileFormat] = {name: file_format(name) for name in format_names()}
    taking = [f"--from {name}" for name, each in known.items() if field in (each.reads or ())]
    return taking + [f"--to {name}" for name, each in known.items() if field in (each.writes or ())]
