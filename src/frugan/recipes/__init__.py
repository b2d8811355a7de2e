"""Published configurations, one TOML file each, and what lists of them say: read without torch, in no time."""

import json
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

SMALLEST_CARDS = "smallest_cards.json"
SMALLEST_FP32_CARDS = "smallest_fp32_cards.json"
PARAMETERS = "parameters.json"
CHOICE = "choice.toml"
"""File of the candidates and thresholds for choosing a recipe where nobody names one."""


def built_in() -> tuple[str, ...]:
    """Names of the recipes that ship, sorted."""
    folder = resources.files("frugan.recipes")
    files = (file.name for file in folder.iterdir() if file.name.endswith(".toml") and file.name != CHOICE)
    return tuple(sorted(name.removesuffix(".toml") for name in files))


def toml_of(name: str) -> str:
    """The text of a recipe that ships."""
    return (resources.files("frugan.recipes") / f"{name}.toml").read_text("utf-8")


def shipped_weights(name: str) -> Path | None:
    """File with weights to start from that ship with a recipe; None: there are none."""
    if name not in built_in():
        return None
    file = Path(str(resources.files("frugan.recipes") / f"{name}.safetensors"))
    return file if file.is_file() else None


def choice_toml() -> str:
    """The text of what frugan chooses among, and by which numbers."""
    return (resources.files("frugan.recipes") / CHOICE).read_text("utf-8")


def smallest_cards(*, fp32: bool = False) -> dict[str, int | None]:
    """Built-in recipe -> GiB of the smallest common card that it is predicted to fit; None: none of them.

    Args:
        fp32: cards without half-precision units (GTX 10xx and 16xx); not every recipe has been predicted for them.
    """
    gib_of = _figures(SMALLEST_FP32_CARDS if fp32 else SMALLEST_CARDS)
    return {name: gib if gib is None else int(gib) for name, gib in gib_of.items()}


def shipped_recipes() -> list[dict[str, Any]]:
    """A row for each built-in recipe, by name.

    Parameters are those of every network that training uses, counted when the recipe was added.
    """
    smallest, in_fp32, parameters = smallest_cards(), smallest_cards(fp32=True), _figures(PARAMETERS)
    rows: list[dict[str, Any]] = []
    for name in built_in():
        values = tomllib.loads(toml_of(name))
        about, training = values["about"], values["training"]
        rows.append(
            {
                "name": name,
                "family": values["family"],
                "resolution": values["networks"]["resolution"],
                "parameters": parameters[name],
                "batch": training["batch"],
                "normalisation_batch": training.get("normalisation_batch"),
                "duration": training["duration"],
                "smallest_card_gib": smallest.get(name),
                "smallest_fp32_card_gib": in_fp32.get(name),
                "trained": about.get("trained", "never"),
                "summary": about["summary"],
                "source": about["source"],
            }
        )
    return rows


def _figures(file: str) -> dict[str, Any]:
    text = (resources.files("frugan") / "predictions" / file).read_text("utf-8")
    return {str(name): value for name, value in json.loads(text).items()}
