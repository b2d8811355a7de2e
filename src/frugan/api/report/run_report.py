"""`report`: a run, or several, as one HTML page."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from frugan.api.report.run_reader import PICTURE_BYTES, RunReader
from frugan.engine.run_folder import RunFolder
from frugan.errors import BadInput
from frugan.metrics.provenance import NONE, SAME
from frugan.report.page import render
from frugan.report.run_view import RunView
from frugan.whole_files import whole_file


def write_report(runs: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write one self-contained HTML page about a run, or several to compare.

    Args:
        runs: their folders.
        out: the page; None: report.html in the first run.

    Returns:
        The page's path.

    Raises:
        BadInput: a folder that is no run.
    """
    page = page_of(runs)
    path = Path(out) if out is not None else Path(runs[0]) / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as beside:
        beside.write_text(page, "utf-8")
    return path


def page_of(runs: Sequence[str | Path]) -> str:
    """The page as text.

    Raises:
        BadInput: a folder that is no run, or none at all.
    """
    return page(readers_of(runs))


def readers_of(runs: Sequence[str | Path]) -> list[RunReader]:
    """What reads these runs; nothing is read yet.

    Raises:
        BadInput: a folder that is no run, or none at all.
    """
    if not runs:
        raise BadInput("a report of no runs: name one or several run folders")
    folders = [RunFolder(Path(run)) for run in runs]
    for folder in folders:
        if not folder.events.is_file():
            raise BadInput(
                f"{folder.path}: not a run folder (it has no events.jsonl); expected one that `frugan train` made"
            )
    return [RunReader(*each) for each in zip(folders, _names([folder.path for folder in folders]), strict=True)]


def page(readers: Sequence[RunReader], *, live: bool = False) -> str:
    """The page of what these have read, and of what was added since.

    Args:
        live: the runs go on: a last line that is being written is left for the next time.
    """
    views = []
    for reader in readers:
        reader.read(to_the_end=not live)
        views.append(reader.view(PICTURE_BYTES // len(readers)))
    text = render([_with_doubt(each, views[0]) for each in views], live=live)
    return text.encode("utf-8", "replace").decode()  # JSON may spell half a character, which no file can hold


def _with_doubt(run: RunView, first: RunView) -> RunView:
    """Warn where the scores of a run cannot be compared with those of the first one."""
    title = "What the scores were measured with"
    one, other = dict(first.facts.get(title, {})), dict(run.facts.get(title, {}))
    older = {"reference_digest": NONE}  # since older versions
    pairs = [(name, (older | one).get(name, "?"), (older | other).get(name, "?")) for name in SAME]
    apart = [f"{name} {mine} and {theirs}" for name, mine, theirs in pairs if mine != theirs]
    if not one or not other or not apart:
        return run
    line = f"scores of {first.name} and {run.name} do not compare: {', '.join(apart)}"
    return replace(run, notes=(*run.notes, ("warning", line)))


def view(folder: RunFolder, name: str, picture_bytes: int = PICTURE_BYTES) -> RunView:
    """What is shown of a run."""
    reader = RunReader(folder, name)
    reader.read(to_the_end=True)
    return reader.view(picture_bytes)


def _names(paths: Sequence[Path]) -> list[str]:
    """Names of run folders, with as much of their paths as tells them apart."""
    parts = [path.resolve().parts for path in paths]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-count:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{'/'.join(each[-1:])} ({number})" for number, each in enumerate(parts, 1)]
