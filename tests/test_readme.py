"""The documents name only what exists."""

import json
import re
from pathlib import Path
from statistics import mean, stdev

import pytest
from typer.testing import CliRunner

from frugan.cli.application import application
from frugan.families import families
from frugan.recipe.recipe import known_keys
from frugan.recipe.removed import REMOVED
from frugan.recipes import built_in, shipped_recipes
from frugan.version import __version__
from page_package import families_of_pages

__all__ = ["families_of_pages"]

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
OUTSIDE = ("https://arxiv.org/abs/", "https://github.com/", "https://pytorch.org/get-started/")
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]


def name_of(page: Path) -> str:
    """Its path from the root, as tests are named by it."""
    return page.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    """What links into a page may name: its headings, in lower case, spaces as hyphens, without other signs."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    headings = [heading.replace("`", "") for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", prose):
        if "://" in target:  # papers and programs of others; a host of packages or weights may change
            assert target.startswith(OUTSIDE), f"{page.name}: {target}"
            continue
        place = page.parent / target if target else page
        assert place.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(place), f"{page.name}: {target}#{anchor}"


@pytest.mark.parametrize("page", [page for page in PAGES if DOCS in page.parents], ids=name_of)
def test_pages_of_the_site_link_to_what_is_on_it(page: Path) -> None:
    prose = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    targets = [target for target in re.findall(r"\]\(([^)#\s]+)", prose) if "://" not in target]
    outside = [target for target in targets if DOCS not in (page.parent / target).resolve().parents]
    assert outside == [], "name files of the repository as `path`, without a link"


@pytest.mark.parametrize("page", [ROOT / "README.zh.md", *sorted((DOCS / "zh").glob("*.md"))], ids=name_of)
def test_a_chinese_paragraph_is_a_line(page: Path) -> None:
    """A line break is shown as a space, which Chinese does not have between characters."""
    prose = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    prose = re.sub(r"`[^`\n]*`", "code", prose)
    chinese = "[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]"
    assert re.findall(rf".*{chinese} +{chinese}.*|.*{chinese}\n *(?![-*] |\d+\. ){chinese}.*", prose) == []


def test_every_page_is_in_the_menu_of_the_site() -> None:
    """English pages in the menu; Chinese ones under zh."""
    listed = set(re.findall(r"(\S+\.md)", (ROOT / "mkdocs.yml").read_text("utf-8")))
    assert listed == {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}


def test_what_is_cited_is_this_version() -> None:
    assert f"version: {__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")


def test_the_notebook_is_one() -> None:
    book = json.loads((DOCS / "frugan.ipynb").read_text("utf-8"))
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] for cell in cells)
    text = "".join(line for cell in cells for line in cell["source"])
    commands = {command.name or command.callback.__name__ for command in application().registered_commands}  # type: ignore[union-attr]
    assert set(re.findall(r"!frugan (\w+)", text)) <= commands
    (recipe,) = re.findall(r'RECIPE = "([^"]+)"', text)
    assert recipe in built_in()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_recipes_and_keys_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    commands = {command.name or command.callback.__name__ for command in application().registered_commands}  # type: ignore[union-attr]
    commands |= {
        str(group.typer_instance.info.name) for group in application().registered_groups if group.typer_instance
    }
    blocks = "\n".join(re.findall(r"```[a-z]*\n(.*?)```", text, re.DOTALL))
    for name in re.findall(r"^\s*frugan (\w+)", blocks, re.MULTILINE):
        assert name in commands, f"{page.name}: frugan {name}"
    for name in re.findall(r"`((?:biggan|sagan|sngan|saehd)-[a-z0-9-]+)`", text):
        if name not in {"biggan-pytorch", "biggan-tfhub", "biggan-128", "biggan-256", "biggan-512"}:  # files of others
            assert name in built_in(), f"{page.name}: {name}"
    keys = {key for family in families().values() for key in known_keys(family.name, family.optimizers)}
    sections = r"networks|objective|training|data|ema|saving|optimizers\.default"
    for key in re.findall(rf"\b((?:{sections})\.[a-z_]+)(?:=|`)", text):
        # a page may say why a field is gone, and how one is added
        is_known = key in keys or key in REMOVED or key.partition(".")[2] in re.findall(r"(\w+): \w+ = setting\(", text)
        assert is_known or key.endswith((".safetensors", ".py")), f"{page.name}: {key}"


def test_options_in_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    runner = CliRunner()
    helps = {c: runner.invoke(application(), [c, "--help"], env={"COLUMNS": "300"}).stdout for c in ("train", "sample")}
    for line in re.findall(r"^frugan (?:train|sample) .*$", text, re.MULTILINE):
        command = line.split()[1]
        for option in re.findall(r"--[a-z-]+", line):
            assert option in helps[command], line


def named(cell: str) -> list[str]:
    """Recipes of a table's first cell: `a-256`, `-512` are a-256 and a-512."""
    names: list[str] = []
    for name in re.findall(r"`([^`]+)`", cell):
        names.append(names[0].rpartition("-")[0] + name if name.startswith("-") else name)
    return names


def values(cell: str, count: int) -> list[str]:
    """What a cell says of each recipe of its row: one value for all, or one each."""
    said = re.findall(r"\d[\d.]*M?", cell)
    return said * count if len(said) == 1 else said


def test_the_table_of_recipes_says_what_they_are() -> None:
    shipped = {str(row["name"]): row for row in shipped_recipes()}
    text = (DOCS / "recipes.md").read_text("utf-8")
    rows = re.findall(r"^\| (`[a-z].*?) \| (\d.*?) \| ([\d.M, ]+) \| (.*?) \| (.*?) \|$", text, re.MULTILINE)
    seen = []
    for cell, *columns in rows:
        names = named(cell)
        pixels, parameters, batches = (values(column, len(names)) for column in columns[:3])
        for name, side, size, batch in zip(names, pixels, parameters, batches, strict=True):
            facts = shipped[name]
            assert side == str(facts["resolution"]), name
            assert size == f"{facts['parameters'] / 1e6:.1f}M", name
            assert batch == str(facts["batch"]), name
            assert columns[3].startswith(str(facts["trained"])), name
            seen.append(name)
    assert sorted(seen) == sorted(shipped)


@pytest.mark.parametrize("page", ["faces.md", "zh/faces.md"])
def test_the_table_of_face_recipes_says_what_they_are(page: str) -> None:
    shipped = {str(row["name"]): row for row in shipped_recipes() if row["family"] == "saehd"}
    rows = re.findall(r"^\| `(saehd-\S+)` \| (\d+) \| ([\d.]+) M \|", (DOCS / page).read_text("utf-8"), re.MULTILINE)
    facts = {name: (str(row["resolution"]), f"{row['parameters'] / 1e6:.1f}") for name, row in shipped.items()}
    assert {name: (side, size) for name, side, size in rows} == facts


def test_figures_of_the_demo_are_those_of_its_records() -> None:
    results = ROOT / "benchmarks" / "results"
    every = json.loads((results / "quality.json").read_text())
    runs = [run for run in every if run["name"] == "biggan-digits-32"]
    text = (DOCS / "small-recipes.md").read_text("utf-8")

    def over_seeds(field: str) -> tuple[float, float]:
        figures = [run[field] for run in runs]
        return mean(figures), stdev(figures)

    for field, words in {
        "class_accuracy": "`class_accuracy`, mean of five seeds | {:.3f} ± {:.3f} |",
        "trained_on_generated": "`trained_on_generated` | {:.3f} ± {:.3f} |",
        "diversity": "over that of real digits) | {:.3f} ± {:.3f} |",
    }.items():
        assert words.format(*over_seeds(field)) in text, field
    styled = [run for run in every if run["name"] == "stylegan2-digits-32"]
    shown = [[run[name] for run in styled] for name in ("class_accuracy", "trained_on_generated", "diversity")]
    assert f"diversity | {', '.join(f'{mean(values):.3f} ± {stdev(values):.3f}' for values in shown)} |" in text
    assert f"precision, recall | {over_seeds('precision')[0]:.2f}, {over_seeds('recall')[0]:.2f} |" in text
    demo = json.loads((results / "demo-amd-epyc-2-cores.json").read_text())["numbers"]
    assert f"| {demo['seconds']:.0f}; {over_seeds('cpu_seconds')[0]:.0f} |" in text
    faces = json.loads((results / "demo-faces-amd-epyc-2-cores.json").read_text())["numbers"]
    assert f"`unswapped_error` | {faces['swap_error']:.3f}, {faces['unswapped_error']:.3f} |" in text
