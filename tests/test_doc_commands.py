"""Every `frugan …` in the documents and the notebook is one that the program takes: command, options, fields."""

import ast
import json
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer

from frugan.cli.application import application
from frugan.errors import BadInput
from frugan.recipe.loading import load_recipe
from frugan.recipes import built_in
from page_package import families_of_pages

__all__ = ["families_of_pages"]

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "docs" / "frugan.ipynb"
PAGES = [*sorted(ROOT.glob("README*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LEFT_OUT = {"…", "..."}
"""What a page writes where it leaves words out."""


@pytest.fixture(scope="module")
def program() -> Any:
    return typer.main.get_command(application())


def commands_in(text: str) -> Iterator[tuple[str, bool]]:
    """Commands, without `frugan`, each with whether it is whole: in blocks they are, a sentence may name a part."""
    fence = re.compile(r"```[a-z]*\n(.*?)```", re.DOTALL)
    before = r"(?:[A-Z_]+=\S+ |.*torchrun .*-m )?"
    for block in fence.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            if begun := re.match(rf"\s*{before}frugan ([a-z].*)", line):
                yield begun[1], True
    for span in re.findall(r"`([^`]+)`", fence.sub("", text)):
        if begun := re.fullmatch(rf"{before}frugan ([a-z].*)", " ".join(span.split())):
            yield begun[1], False


def check(program: Any, line: str, whole: bool = True) -> None:
    """Parse a command line as the program does, up to what it would open.

    Raises:
        AssertionError: the program would refuse it.
        BadInput: a field or value that the recipe has not.
    """
    name, *words = [word for word in shlex.split(line, comments=True) if word not in {"&", "--help"}]
    assert name in program.commands, line
    command = program.commands[name]
    if hasattr(command, "commands"):  # a group of them, which a sentence may name alone
        if words or whole:
            check(command, shlex.join(words), whole)
        return
    known = {option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]}
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known, line
    values = {word for before, word in pairwise(words) if before.startswith("--")}  # `--data ...` has a value
    if LEFT_OUT & set(words) - values:
        return
    try:
        context = command.make_context(name, list(words))
    except Exception as error:  # typer keeps the classes of its parser to itself
        if not whole and type(error).__name__ == "MissingParameter":
            return
        raise AssertionError(f"frugan {line}: {error!r}") from error
    recipe = context.params.get("recipe")
    if recipe in built_in():
        load_recipe(recipe, context.params.get("overrides") or [])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_program_takes_the_commands_of_a_page(page: Path, program: Any) -> None:
    for line, whole in commands_in(page.read_text("utf-8")):
        check(program, line, whole)


def test_commands_are_found() -> None:
    commands = [line for line, _ in commands_in((ROOT / "README.md").read_text("utf-8"))]
    assert "info NAME" in commands
    assert any(line.startswith("train --data pictures") for line in commands)
    assert len(commands) > 15


@pytest.mark.parametrize(
    "line",
    [
        "trian biggan-small-32 --data pictures",
        "train biggan-small-32 --date pictures",
        "train biggan-small-32 networks.klasses=2 --data pictures",
        "train biggan-small-32 training.batch=many --data pictures",
        "plan … --memori 6GiB",
        "convert a b --from",
        "sample runs/first --out samples --noise loud",
    ],
)
def test_what_the_program_would_refuse_is_noticed(line: str, program: Any) -> None:
    with pytest.raises((AssertionError, BadInput)):
        check(program, line)


def test_the_cells_of_the_notebook_are_python_and_commands(program: Any) -> None:
    book = json.loads(NOTEBOOK.read_text("utf-8"))
    recipe = ""
    for cell in book["cells"]:
        if cell["cell_type"] != "code":
            continue
        lines = "".join(cell["source"]).splitlines()
        # shell commands and magics give way to a statement at their place, so that what is around them must parse
        ast.parse("\n".join(re.sub(r"^(\s*)[!%].*", r"\1pass", line) for line in lines))
        recipe = next((match[1] for line in lines if (match := re.match(r'RECIPE = "(.*)"', line))), recipe)
        for line in lines:
            begun = re.match(r"\s*!frugan (.*)", line)
            if begun:
                check(program, begun[1].replace("{RECIPE}", recipe))
