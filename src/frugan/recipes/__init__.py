"""Published configurations, one TOML file each."""

from importlib import resources


def built_in() -> tuple[str, ...]:
    """Names of the recipes that ship, sorted."""
    folder = resources.files("frugan.recipes")
    return tuple(sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml")))


def toml_of(name: str) -> str:
    """The text of a recipe that ships."""
    return (resources.files("frugan.recipes") / f"{name}.toml").read_text("utf-8")
