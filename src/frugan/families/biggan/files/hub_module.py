"""A module of TensorFlow Hub: its variables, as trained and averaged."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from frugan.bundles.bundle import Bundle, read_bundle
from frugan.errors import BadInput
from frugan.families.biggan.files.hub_names import AVERAGED, prefix_of, without_prefix

Kind = Literal["trained", "averaged"]


@dataclass(frozen=True)
class HubModule:
    """An opened module.

    Attributes:
        bundle: the checkpoint in it.
        names: variable, without prefix and mark of an average -> kind -> name in the file.
    """

    bundle: Bundle
    names: Mapping[str, Mapping[Kind, str]]

    @property
    def index(self) -> Path:
        """The file that lists its variables."""
        return self.bundle.index

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of all variables; of the two kinds of each, that of the first."""
        return {name: self.bundle.entries[next(iter(kinds.values()))].shape for name, kinds in self.names.items()}

    @property
    def has_average(self) -> bool:
        """Whether any variable is averaged."""
        return any("averaged" in kinds for kinds in self.names.values())

    def read(self, *, averaged: bool) -> dict[str, Tensor]:
        """All variables of one kind, and those of which there is but one.

        Raises:
            BadInput: the data file is cut off or damaged.
        """
        first: Kind = "averaged" if averaged else "trained"
        second: Kind = "trained" if averaged else "averaged"
        return {
            name: torch.from_numpy(self.bundle.tensor(kinds.get(first) or kinds[second]))
            for name, kinds in self.names.items()
        }


def read_module(path: Path) -> HubModule:
    """Open a module; its numbers are read when they are asked for.

    Args:
        path: the module's folder, its folder `variables`, or the .index file there.

    Raises:
        BadInput: there is none, it is damaged, or of another model.
    """
    bundle = read_bundle(path)
    prefix = prefix_of(bundle.entries)
    if prefix is None:
        raise BadInput(f"{bundle.index}: no generator of BigGAN's; expected the module biggan-128, -256 or -512")
    found: dict[str, dict[Kind, str]] = {}
    for name in bundle.entries:
        plain = without_prefix(name, prefix)
        if plain is None:
            continue
        average = AVERAGED.fullmatch(plain)
        key = plain if average is None else average[1]
        kind: Kind = "trained" if average is None else "averaged"
        if kind in found.setdefault(key, {}):
            raise BadInput(f"{bundle.index}: has {key} twice, as {found[key][kind]} and as {name}")
        found[key][kind] = name
    return HubModule(bundle, found)
