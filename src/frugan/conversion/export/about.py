"""Title and origin of a generator that is given away: for its page, and for its model card."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from frugan.engine.run.events import read_events
from frugan.engine.run.run_folder import RunFolder
from frugan.engine.run.tensor_files import read_metadata
from frugan.errors import BadInput
from frugan.progress import Say, quiet
from frugan.setup.networks import Weights
from frugan.wording import count, family_name, made_by

WEIGHTS = "weights.safetensors"
"""Name of the weights beside a card."""
ABOUT_CARD = "card"
"""Metadata of the weights beside a card, as JSON: the digest of its text, and the title and author that were given."""


@dataclass(frozen=True)
class CardBefore:
    """The card that a folder has already, by the weights beside it."""

    digest: str = ""  # SHA-256 of the card as it was written; empty: nobody knows
    title: str = ""  # as was given, like the two below; empty: none was
    by: str = ""
    licence: str = ""

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Read what a folder's weights say of its card."""
        if not (folder / WEIGHTS).is_file():
            return cls()
        try:
            metadata = read_metadata(folder / WEIGHTS)
            about = json.loads(metadata[ABOUT_CARD])
            given = {name: str(about[name]) for name in ("digest", "title", "by")}
        except (BadInput, KeyError, ValueError, TypeError):  # damaged, or of no card: one there may be somebody's own
            return cls()
        return cls(**given, licence=metadata.get("licence", ""))

    def completed(self, given: Mapping[str, str], where: str, say: Say) -> Mapping[str, str]:
        """Return what was given, and for what is empty the words of this card, which `say` is told of."""
        kept = {name: words for name in given if not given[name] and (words := getattr(self, name))}
        if kept:
            words = ", ".join(f"--{name} {json.dumps(words, ensure_ascii=False)}" for name, words in kept.items())
            say(f"as on the card {where}: {words}; give another to change it")
        return {**given, **kept}

    def refuse_edited(self, card: Path) -> None:
        """Refuse to write over a card that may be another than was written.

        Raises:
            BadInput: it is there, and is not known to be as it was written.
        """
        if not card.exists() or (self.digest and text_digest(card.read_bytes()) == self.digest):
            return
        edited = "was edited since frugan wrote it" if self.digest else "is there, and may be somebody's own"
        raise BadInput(
            f"{card}: {edited}; choose another --out, or add --replace (replace=True in Python) to write over it"
        )


def own_card(run: RunFolder) -> Path:
    """Return the folder of the card in a run."""
    return run.path / "card"


def text_digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


@dataclass(frozen=True)
class AboutModel:
    """Words about a generator, for people who never saw its recipe."""

    title: str
    origin: str  # a sentence: who made it, of what

    @classmethod
    def of(cls, weights: Weights, *, title: str = "", by: str = "", say: Say = quiet) -> Self:
        """Say what weights are. A title or author that is empty is that of the card in the run, if it has one.

        Args:
            weights: of a run, or of a single file.
            title: empty, and on no card: the name of the run or of the file.
            by: who trained them; empty, and on no card: nobody is named.
            say: is told of what is taken from the card.
        """
        run = RunFolder.holding(weights.path)
        if run is not None:
            card, given = own_card(run), {"title": title.strip(), "by": by.strip()}
            title, by = CardBefore.of(card).completed(given, f"in {card}", say).values()
        name = weights.path.stem if run is None else run.path.resolve().name
        what = f"{family_name(weights.recipe.family)} generator at {weights.recipe.resolution} pixels"
        trained = f", trained for {count(weights.step, 'step')}" if weights.step else ""
        pictures = _pictures(run) if run is not None else 0
        of = f" on {count(pictures, 'picture')}" if trained and pictures else ""
        return cls(" ".join(title.split()) or name, f"{made_by(by)}: {what}{trained}{of}.")


def _pictures(run: RunFolder) -> int:
    """Number of pictures that a run was last trained on; 0: its events do not say."""
    start: Mapping[str, Any] = {}
    for event in read_events(run.events, quiet) if run.events.is_file() else ():
        start = event if event.get("event") == "start" else start
    sources = start.get("data")
    numbers = [
        source.get("pictures") if isinstance(source, Mapping) else None
        for source in (sources.values() if isinstance(sources, Mapping) else ())
    ]
    return sum(number for number in numbers if isinstance(number, int))
