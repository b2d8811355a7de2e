"""Weights with their card to and from a hub of models, by the package `huggingface_hub`."""

from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from frugan.api.model_card.card_folder import FILES
from frugan.api.model_card.card_text import CARD, WEIGHTS
from frugan.api.weights import Weights
from frugan.errors import BadInput

LIBRARY = "huggingface_hub"
MISSING = f"{LIBRARY} is not installed: pip install 'frugan[hub]'"


class HubFailed(OSError):
    """A hub could not be reached, or refused; commands print it and exit 1."""


class Hub(Protocol):
    """Where models are kept for everybody."""

    def publish(self, name: str, folder: Path, *, private: bool) -> str:
        """Put the files of a card's folder under a name; gives where they are then.

        Raises:
            HubFailed: it cannot be reached, or refuses.
        """

    def fetch(self, name: str, into: Path) -> None:
        """Bring the files of a card's folder.

        Raises:
            HubFailed: it cannot be reached, or has no such name.
        """


class LibraryHub:
    """The hub that `huggingface_hub` speaks to, with the login that it has (`hf auth login`, or HF_TOKEN).

    Raises:
        BadInput: the package is not installed.
    """

    def __init__(self) -> None:
        try:
            self._library: Any = import_module(LIBRARY)
        except ImportError as error:
            raise BadInput(MISSING) from error

    def publish(self, name: str, folder: Path, *, private: bool) -> str:
        """See `Hub`."""
        try:
            interface = self._library.HfApi()
            interface.create_repo(name, exist_ok=True, private=private)
            done = interface.upload_folder(
                repo_id=name, folder_path=str(folder), allow_patterns=list(FILES), commit_message="Weights and card"
            )
        except Exception as error:  # what its HTTP library raises derives from nothing else
            raise HubFailed(_words(f"{name} cannot be published", error)) from error
        return str(done)

    def fetch(self, name: str, into: Path) -> None:
        """See `Hub`."""
        try:
            self._library.snapshot_download(name, local_dir=str(into), allow_patterns=list(FILES))
        except Exception as error:
            raise HubFailed(_words(f"{name} cannot be fetched", error)) from error


def push(folder: str | Path, name: str, *, private: bool = False, hub: Hub | None = None) -> str:
    """Publish a folder that `write_card` has made.

    Args:
        name: OWNER/NAME on the hub.
        private: nobody but the owner sees it.
        hub: None: the one of `huggingface_hub`.

    Returns:
        Where it is.

    Raises:
        BadInput: no such folder, weights without a licence, a name that is none, or the package is missing.
        HubFailed: the hub cannot be reached, or refuses.
    """
    _check_name(name)
    missing = [file for file in (CARD, WEIGHTS) if not (Path(folder) / file).is_file()]
    if missing:
        raise BadInput(f"{folder}: has no {' and no '.join(missing)}; expected what `frugan card RUN` writes")
    if not Weights.open(Path(folder) / WEIGHTS).licence:
        raise BadInput(
            f"{folder}: says nothing about what others may do with the weights: frugan card RUN --licence cc-by-4.0 "
            "(or another one)"
        )
    return (hub or LibraryHub()).publish(name, Path(folder), private=private)


def pull(name: str, into: str | Path, *, hub: Hub | None = None) -> Path:
    """Fetch weights with their card.

    Args:
        name: OWNER/NAME on the hub.
        into: folder; must be empty, or not there.
        hub: None: the one of `huggingface_hub`.

    Returns:
        The weights file, read once: it is whole, and nothing in it was run.

    Raises:
        BadInput: the folder holds something, what came is not frugan's, or the package is missing.
        HubFailed: the hub cannot be reached, or has no such name.
    """
    _check_name(name)
    folder = Path(into)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder}: is there already; choose another folder")
    (hub or LibraryHub()).fetch(name, folder)
    file = folder / WEIGHTS
    if not file.is_file():
        raise BadInput(f"{name}: has no {WEIGHTS}: it is no model that frugan has published")
    _ = Weights.open(file).recipe  # refuses what is none
    return file


def _check_name(name: str) -> None:
    owner, slash, own = name.partition("/")
    if not (slash and owner and own) or "/" in own or any(c.isspace() for c in name):
        raise BadInput(f"{name!r}: expected OWNER/NAME, as the hub has it")


def _words(what: str, error: Exception) -> str:
    """One sentence of a library that writes paragraphs."""
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    return f"{what}: {reason} ({type(error).__name__}); look at the connection, the name, and the login: hf auth login"
