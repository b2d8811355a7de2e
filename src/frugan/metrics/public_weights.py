"""Files of weights that feature networks are published with: where they lie, where they come from, how they are told.

Their names carry the first digits of their SHA-256, as files of `torch.hub` do: that is what is checked.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from frugan.errors import BadInput

MIRROR_SETTING = "FRUGAN_MIRROR"
"""Address of a folder that holds the same files."""


class MissingWeights(BadInput):
    """The weights of a feature network are not on this machine; nothing else is wrong."""


@dataclass(frozen=True)
class PublicWeights:
    """A published file of weights."""

    network: str  # feature network, as --network names it
    file: str  # name of the file
    address: str  # address where it is published
    digest: str  # beginning of its SHA-256
    setting: str  # environment variable that may name the file

    def place(self, named: Path | None, cache: Path) -> Path:
        """Path of the file: the named one, that of the environment variable, or one in the cache."""
        setting = os.environ.get(self.setting)
        return named or (Path(setting) if setting else cache / self.file)

    def found(self, named: Path | None, cache: Path) -> Path:
        """Find the file on this machine.

        Raises:
            MissingWeights: it does not exist.
        """
        file = self.place(named, cache)
        if not file.is_file():
            raise MissingWeights(
                f"{file}: the weights of the feature network {self.network} are not there; `frugan fetch "
                f"{self.network}` gets them, or name a copy of {self.file} with --network-file or {self.setting}"
            )
        return file

    def checked(self, file: Path) -> str:
        """The SHA-256 of a file that is this one.

        Raises:
            BadInput: it is another, or cut short.
        """
        actual = sha256_of(file)
        if not actual.startswith(self.digest):
            raise BadInput(
                f"{file}: its SHA-256 begins with {actual[:8]}, expected {self.digest}: another file, or cut short. "
                f"Scores by other weights compare with nobody's; `frugan fetch {self.network}` gets the right ones"
            )
        return actual


def sha256_of(file: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


PUBLIC: Mapping[str, PublicWeights] = MappingProxyType(
    {
        weights.network: weights
        for weights in (
            PublicWeights(
                "inception",
                "weights-inception-2015-12-05-6726825d.pth",
                "https://github.com/toshas/torch-fidelity/releases/download/v0.2.0/"
                "weights-inception-2015-12-05-6726825d.pth",
                "6726825d",
                "FRUGAN_INCEPTION",
            ),
            PublicWeights(
                "inception-torchvision",
                "inception_v3_google-0cc3c7bd.pth",
                "https://download.pytorch.org/models/inception_v3_google-0cc3c7bd.pth",
                "0cc3c7bd",
                "FRUGAN_INCEPTION_TORCHVISION",
            ),
        )
    }
)
"""Feature network -> its file."""
