"""The documents name only what exists."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from frugan.cli.application import application
from frugan.families import families
from frugan.recipe import known_keys
from frugan.recipes import built_in

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)", prose):
        assert "://" not in target, f"{page.name}: name no host"
        assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_recipes_and_keys_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    commands = {command.name or command.callback.__name__ for command in application().registered_commands}  # type: ignore[union-attr]
    blocks = "\n".join(re.findall(r"```[a-z]*\n(.*?)```", text, re.DOTALL))
    for name in re.findall(r"^\s*frugan (\w+)", blocks, re.MULTILINE):
        assert name in commands, f"{page.name}: frugan {name}"
    for name in re.findall(r"`((?:biggan|sagan|sngan|saehd)-[a-z0-9-]+)`", text):
        if name != "biggan-pytorch":
            assert name in built_in(), f"{page.name}: {name}"
    keys = {key for family in families().values() for key in known_keys(family.name, family.optimizers)}
    sections = r"networks|objective|training|data|ema|saving|optimizers\.default"
    for key in re.findall(rf"\b((?:{sections})\.[a-z_]+)(?:=|`)", text):
        assert key in keys or key.endswith(".safetensors"), f"{page.name}: {key}"


def test_options_in_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    runner = CliRunner()
    helps = {c: runner.invoke(application(), [c, "--help"], env={"COLUMNS": "300"}).stdout for c in ("train", "sample")}
    for line in re.findall(r"^frugan (?:train|sample) .*$", text, re.MULTILINE):
        command = line.split()[1]
        for option in re.findall(r"--[a-z-]+", line):
            assert option in helps[command], line
