"""`convert`: from the formats of other programs to runs and weights of frugan's own, and back."""

from collections.abc import Collection
from types import MappingProxyType

from frugan import registry
from frugan.api.convert.written import Ours, check_target, write_imported
from frugan.contract.formats import Conversion, Converted, FileFormat
from frugan.errors import BadInput

OWN = "frugan"
"""Our own runs and weights: the other side of every conversion."""

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
        known = _formats()
        ways = [f"--from {name} ({each.program})" for name, each in known.items() if each.reads is not None]
        ways += [f"--to {name} ({each.program})" for name, each in known.items() if each.writes is not None]
        raise BadInput(f"{given}: expected one of " + ", ".join(ways))
    direction, name = ("from", made_by) if to == OWN else ("to", to)
    chosen = _format(name)
    taken = chosen.reads if direction == "from" else chosen.writes
    if taken is None:
        can = "written (--to)" if direction == "from" else "read (--from)"
        raise BadInput(f"--{direction} {name}: {chosen.program} can only be {can}")
    _check_options(asked, taken, f"--{direction} {name}")
    if direction == "to":
        return chosen.write(asked, Ours(asked))
    check_target(asked, chosen.makes)
    return write_imported(asked, chosen.read(asked, Ours(asked)), chosen.makes)


def _format(name: str) -> FileFormat:
    made: FileFormat = registry.made(registry.FORMATS, name, also=[OWN])[0]
    return made


def _formats() -> dict[str, FileFormat]:
    return {name: _format(name) for name in registry.names(registry.FORMATS)}


def _check_options(asked: Conversion, taken: Collection[str], way: str) -> None:
    """Refuse an option that this way of converting, such as `--from leras`, does not take.

    Raises:
        BadInput: as `convert`.
    """
    for field in OPTIONS:
        if getattr(asked, field) and field not in taken:
            others = _takers(field)
            where = f"is for {' and '.join(others)}" if others else f"is not for {way}"
            word = asked.overrides[0] if field == "overrides" else OPTIONS[field]
            raise BadInput(f"{word} {where}; leave it out")


def _takers(field: str) -> list[str]:
    """Formats that take a field, in the words of the command line."""
    known = _formats()
    taking = [f"--from {name}" for name, each in known.items() if field in (each.reads or ())]
    return taking + [f"--to {name}" for name, each in known.items() if field in (each.writes or ())]
