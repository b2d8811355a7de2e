"""The `frugan doctor` command."""

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from frugan.cli import FAILED
from frugan.cli.options import AsJson
from frugan.cli.output import print_json, say
from frugan.errors import BadInput
from frugan.files import atomic_file
from frugan.wording import count

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from frugan.doctor.finding import Finding

MARKS = {
    "fine": ("ok", "green"),
    "limited": ("!", "yellow"),
    "impossible": ("X", "bold red"),
    "passed": ("ok", "green"),
    "failed": ("X", "bold red"),
}


def doctor(
    device: Annotated[str, typer.Option(help="what training should run on: auto, cpu, cuda or cuda:N")] = "auto",
    out: Annotated[Path | None, typer.Option(help="folder for runs; default: the usual one")] = None,
    selftest: Annotated[
        bool, typer.Option("--selftest", help="test on this device what frugan promises, in about two minutes")
    ] = False,
    full: Annotated[
        bool,
        typer.Option("--full", help="with --selftest: all that a card can show; again with the same record goes on"),
    ] = False,
    minutes: Annotated[float | None, typer.Option(help="with --full: that it may take; default: 8")] = None,
    record: Annotated[
        Path | None,
        typer.Option(help="file for the self-test's record, to attach to an issue; default: named after the device"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine: card, torch, memory, disk, limits, extras; says how to fix what is wrong.

    Exits with 0 if training is possible (with --selftest: and every check passed), otherwise with 1.

    Example: frugan doctor

    On a card that frugan has not seen: frugan doctor --selftest

    On one that is lent to you for an hour: frugan doctor --selftest --full
    """
    from frugan.doctor.finding import Finding, training_is_possible

    if record is not None and not selftest:
        raise BadInput(f"--record {record}: only goes with --selftest")
    if full and not selftest:
        raise BadInput("--full: only goes with --selftest")
    if minutes is not None and not full:
        raise BadInput(f"--minutes {minutes:g}: only goes with --full")
    try:
        import torch  # noqa: F401
    except (ImportError, OSError) as error:
        cure = "reinstall torch, with the command from PyTorch's own install selector (Get started)"
        findings = [Finding("versions", "impossible", f"torch cannot be loaded: {error}", cure)]
    else:
        if selftest:
            _selftest(device, out, record, minutes, full=full, as_json=as_json)
            return
        from frugan.doctor.machine import examine

        findings = examine(device, out, say=say)
    possible = training_is_possible(findings)
    if as_json:
        print_json({"training_is_possible": possible, "findings": [finding.as_json() for finding in findings]})
    else:
        _print(findings, possible=possible)
    if not possible:
        raise typer.Exit(FAILED)


def _selftest(
    device: str, out: Path | None, record: Path | None, minutes: float | None, *, full: bool, as_json: bool
) -> None:
    from frugan.doctor.finding import training_is_possible
    from frugan.doctor.full import MINUTES, run_full_self_test
    from frugan.doctor.selftest import run_self_test

    err = Console(stderr=True, highlight=False)

    def tell(outcome: "Finding") -> None:
        text = f"{outcome.state}: {outcome.name} ({outcome.subject})"
        err.print(text, markup=False, soft_wrap=True, style="bold red" if outcome.state == "failed" else "dim")

    def file_of(name: str) -> Path:
        return record or Path(f"selftest-{'full-' if full else ''}{re.sub('[^a-z0-9]+', '-', name.lower())}.json")

    if full:
        result = run_full_self_test(device, out, file_of, MINUTES if minutes is None else minutes, say=say, tell=tell)
    else:
        result = run_self_test(device, out, say=say, tell=tell)
    file = file_of(result.device)
    possible = training_is_possible(result.findings)
    if as_json:
        print_json(result.record)
    else:
        _print(result.findings, possible=possible)
        _print_outcomes(result.outcomes)
        said = "everything that was checked is as it should be" if result.passed else "see what failed above"
        print(f"\nSelf-test on {result.device}, {result.record['seconds']:.0f} s: {said}.")
    if not full:  # that one is written as things are found
        _write(result.record, file)
    say(f"{file} has all of it; please attach it when you report something")
    if not (result.passed and possible):
        raise typer.Exit(FAILED)


def _write(record: "Mapping[str, Any]", file: Path) -> None:
    with nullcontext(file) if file.exists() and not file.is_file() else atomic_file(file) as place:  # a pipe stays one
        place.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")


def _print_outcomes(outcomes: "list[Finding]") -> None:
    table = Table("", "check", "on", "found", box=None, pad_edge=False)
    for outcome in outcomes:
        if outcome.state != "not checked":
            mark, style = MARKS[outcome.state]
            table.add_row(Text(mark, style=style), outcome.name, outcome.subject, Text(outcome.line))
    console = Console(width=max(Console().width, 120), highlight=False)
    console.print()
    console.print(table)
    console.print()
    reasons: dict[tuple[str, str], list[str]] = {}
    for outcome in outcomes:
        if outcome.state == "not checked":
            reasons.setdefault((outcome.name, outcome.line), []).append(str(outcome.subject))
    for (check, why), subjects in reasons.items():
        console.print(f"not checked here: {check} ({', '.join(subjects)}): {why}", markup=False, soft_wrap=True)


def _print(findings: "list[Finding]", *, possible: bool) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        mark, style = MARKS[finding.state]
        line = Text(finding.line)
        if finding.cure is not None:
            line.append(f" -> {finding.cure}", style="bold")
        table.add_row(Text(mark, style=style), finding.name, line)
    console = Console(width=max(Console().width, 100), highlight=False)
    console.print(table)
    limited = count(sum(finding.state == "limited" for finding in findings), "thing")
    if not possible:
        console.print("\nTraining is not possible here: see the lines marked X.")
    elif any(finding.state == "limited" for finding in findings):
        console.print(f"\nTraining is possible here; {limited} could be better, marked !.")
    else:
        console.print("\nTraining is possible here.")
