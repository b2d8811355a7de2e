"""`frugan convert` of BigGAN's files, as functions."""

from collections.abc import Callable, Sequence
from pathlib import Path

from frugan.contract.formats import Conversion, Converted
from frugan.conversion.convert import convert

Say = Callable[[str], None]


def from_biggan_pytorch(
    source: Path,
    out: Path,
    *,
    name: str | None = None,
    overrides: Sequence[str] = (),
    raw: bool = False,
    verified: bool = False,
    say: Say = print,
) -> Converted:
    asked = Conversion(source, out, say, name=name, overrides=overrides, raw=raw, verify=verified)
    return convert(asked, made_by="biggan-pytorch")


def to_biggan_pytorch(source: Path, folder: Path, *, replace: bool = False, say: Say = print) -> Converted:
    return convert(Conversion(source, folder, say, replace=replace), to="biggan-pytorch")


def from_biggan_tfhub(
    source: Path, out: Path, *, raw: bool = False, verified: bool = False, say: Say = print
) -> Converted:
    return convert(Conversion(source, out, say, raw=raw, verify=verified), made_by="biggan-tfhub")
