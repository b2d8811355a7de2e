"""A card's machine without the card: python benchmarks/card_twin.py FOLDER [--torch VERSION ...] [--out RESULT.json]

Builds an environment in FOLDER for each torch (2.11.0, the oldest that frugan takes, and the newest), from the package
index alone, as people with a card have it: torch's build for CUDA, the Triton that it brings, Python 3.12, and frugan
installed as a package. One that is there is used again, with this tree's frugan. Each takes about 6 GB.

Runs in it what needs no card: every module's import, every command, the tests of tests/gpu (collected, and skipped for
want of a card), and frugan's own kernels, compiled for four generations of cards. With --predictions nothing but
`same_predictions.py`, which notes in src/frugan/predictions which of them hold for that torch. Exits with 1 where
anything failed. Needs no package itself.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
NEWEST = "newest"

VERSIONS = """
import importlib.metadata, json, platform, torch
known = {name: importlib.metadata.version(name) for name in ("frugan", "triton", "numpy")}
known |= {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
known |= {"cudnn": torch.backends.cudnn.version(), "made for": torch.cuda.get_arch_list()}
print(json.dumps(known | {"card": torch.cuda.is_available()}))
"""
IMPORTS = """
import importlib, pkgutil, frugan
names = [module.name for module in pkgutil.walk_packages(frugan.__path__, "frugan.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(len(names), "modules")
"""
COMMANDS = """
import typer
from frugan.cli.application import application
print(*typer.main.get_command(application()).commands)
"""
DIGITS = "from pathlib import Path; from start import draw_digits; draw_digits(Path('digits'))"
RUN = "run of two steps"  # a folder with spaces

STARTS = (
    ("doctor",),
    ("recipes",),
    ("info", "biggan-digits-32"),
    ("plan", "biggan-imagenet-128", "--memory", "6GiB"),
    ("plan", "saehd-demo-64", "networks.d_dims=48", "--card", "rtx-2060"),  # nothing that ships answers it
    ("prepare", "digits", "prepared", "--resolution", "32"),
    ("train", "biggan-digits-32", "--data", "prepared", "training.duration=2 steps", "--out", RUN),
    ("sample", RUN, "--out", "samples"),
    ("evaluate", RUN, "--data", "digits", "--network", "digits", "--samples", "64"),
    ("report", RUN),
    ("card", RUN, "--licence", "cc-by-4.0"),
    ("export", RUN, "model.onnx"),
    ("convert", RUN, "theirs", "--to", "biggan-pytorch"),
    ("page", ".", "--no-open", "--work-off"),  # its queue is empty
    ("demo", "--help"),  # takes minutes
    ("fetch", "--help"),  # needs a network beyond the package index
)
"""Every command at its smallest, in an order in which each finds what it needs."""


@dataclass(frozen=True)
class Done:
    """What became of a program."""

    code: int
    seconds: float
    text: str  # all that it printed

    @property
    def last_line(self) -> str:
        """What it said at the end."""
        return next((line.strip() for line in reversed(self.text.splitlines()) if line.strip()), "")

    def as_json(self) -> dict[str, Any]:
        """For the record; all of the last lines where it failed."""
        said = self.last_line if self.code == 0 else self.text[-2000:]
        return {"code": self.code, "seconds": round(self.seconds, 1), "said": said}


@dataclass(frozen=True)
class Twin:
    """An environment as cards have it."""

    folder: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @classmethod
    def build(cls, folder: Path, python: str, torch: str) -> "Twin":
        """Install torch as the index has it, and this tree's frugan with all that its tests need.

        Raises:
            SystemExit: pip failed, or the index gave a build for processors.
        """
        twin = cls(folder)
        if not twin.python.exists():
            subprocess.run([python, "-m", "venv", str(folder)], check=True)
        pip = [str(twin.python), "-m", "pip", "install", "--quiet"]
        exact = ["--upgrade", "torch"] if torch == NEWEST else [f"torch=={torch}"]
        subprocess.run([*pip, *exact, f"{ROOT}[dev]"], check=True)
        subprocess.run([*pip, "--no-deps", "--force-reinstall", str(ROOT)], check=True)  # the version stays, code moves
        if twin.versions()["cuda"] is None:
            raise SystemExit(f"{folder}: the index gave a build of torch for processors; expected one for CUDA")
        return twin

    def versions(self) -> dict[str, Any]:
        """Of what a card would run on."""
        found: dict[str, Any] = json.loads(self.run([str(self.python), "-c", VERSIONS]).last_line)
        return found

    def run(self, words: Sequence[str], cwd: Path = ROOT, **environment: str) -> Done:
        """Run a program of this environment, with no other frugan in sight than the installed one."""
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        began = time.perf_counter()
        done = subprocess.run(
            words,
            cwd=cwd,
            env={**kept, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return Done(done.returncode, time.perf_counter() - began, done.stdout)

    def commands(self) -> dict[str, dict[str, Any]]:
        """Every command of frugan, by its words."""
        frugan = str(self.folder / "bin" / "frugan")
        with TemporaryDirectory() as temporary:
            cwd = Path(temporary)
            self.run([str(self.python), "-c", DIGITS], cwd, PYTHONPATH=str(BENCHMARKS))
            base = str(cwd / "base")
            done = {" ".join(words): self.run([frugan, *words], cwd, FRUGAN_BASE=base) for words in STARTS}
        return {words: each.as_json() | ({} if each.code else {"said": ""}) for words, each in done.items()}

    def not_started(self) -> list[str]:
        """Commands that frugan has and `STARTS` has not."""
        names = self.run([str(self.python), "-c", COMMANDS]).last_line.split()
        return sorted({*names} - {words[0] for words in STARTS})

    def kernels(self) -> dict[str, Any]:
        """What became of frugan's own kernels, by kind of card."""
        with TemporaryDirectory() as temporary:
            out = Path(temporary, "kernels.json")
            done = self.run([str(self.python), str(BENCHMARKS / "own_kernels.py"), "--out", str(out)])
            code = json.loads(out.read_text("utf-8"))["machine_code"] if done.code == 0 else {}
        made = {target: summed_up(found) for target, found in code.items() if target.startswith("sm_")}
        errors = [name for each in made.values() for name in each["errors"]]
        return {**done.as_json(), "said": "" if done.code == 0 else done.text[-2000:], "errors": errors, "made": made}


def summed_up(kernels: dict[str, dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Of all kernels for one kind of card."""
    cases = {f"{name}, {label}": each for name, found in kernels.items() for label, each in found.items()}
    return {
        "kernels": len(cases),
        "most_registers": max(each["registers"] for each in cases.values()),
        "most_shared_bytes": max(each["shared_bytes"] for each in cases.values()),
        "spilt_bytes": {name: each["spilt_bytes"] for name, each in cases.items() if each["spilt_bytes"]},
        "errors": {name: each["error"] for name, each in cases.items() if "error" in each},
    }


def without_a_card(twin: Twin) -> dict[str, Any]:
    """All that needs none."""
    pytest = [str(twin.python), "-m", "pytest", "-p", "no:cacheprovider", "tests/gpu"]
    gpu_tests = {"collected": [*pytest, "--collect-only"], "run": [*pytest, "-p", "no:xdist"]}
    return {
        "versions": twin.versions(),
        "imports": twin.run([str(twin.python), "-c", IMPORTS]).as_json(),
        "commands": twin.commands(),
        "not_started": twin.not_started(),
        "tests_gpu": {name: twin.run(words).as_json() for name, words in gpu_tests.items()},
        "kernels": twin.kernels(),
    }


def same_predictions(twin: Twin) -> dict[str, Any]:
    """Which of those that ship hold there: by the tree's files, which are noted in."""
    words = [str(twin.python), str(BENCHMARKS / "same_predictions.py")]
    done = twin.run(words, PYTHONPATH=str(ROOT / "src"), OMP_NUM_THREADS="1")
    if done.code:
        return done.as_json()
    found = json.loads(done.text[done.text.rindex("\n{\n") :])
    return {**done.as_json(), "said": "", **found}


def failures(found: Any, place: str = "") -> list[str]:
    """Places of a record whose program ended with an error, and what else it holds against frugan."""
    if not isinstance(found, dict):
        return []
    bad = [place] if found.get("code") or found.get("errors") or found.get("not_started") else []
    return bad + [each for name, inner in found.items() for each in failures(inner, f"{place}/{name}")]


def interpreter(asked: str | None) -> str:
    """The Python to build with."""
    for name in (asked, "python3.12"):
        path = shutil.which(name) if name else None
        if path and subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0:
            return path
    if asked:
        raise SystemExit(f"--python {asked}: no such program, or it does not start")
    print(f"no python3.12 here (--python PATH names one): built with {platform.python_version()}", file=sys.stderr)
    return sys.executable


def main() -> None:
    """Build, run, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--torch", nargs="+", default=["2.11.0", NEWEST])
    parser.add_argument("--python", help="to build the environments with; default: python3.12")
    parser.add_argument("--predictions", action="store_true")
    parser.add_argument("--out", type=Path, help="record, to which each torch is added")
    given = parser.parse_args()
    record: dict[str, Any] = json.loads(given.out.read_text("utf-8")) if given.out and given.out.exists() else {}
    bad: list[str] = []
    for torch in given.torch:
        twin = Twin.build(given.folder.absolute() / f"torch-{torch}", interpreter(given.python), torch)
        found = {"same_predictions": same_predictions(twin)} if given.predictions else without_a_card(twin)
        name = re.split(r"\+", twin.versions()["torch"])[0]
        bad += failures(found, f"torch {name}")
        record[name] = record.get(name, {}) | found | {"system": platform.platform()}
        if given.out:
            given.out.write_text(json.dumps(dict(sorted(record.items())), indent=1) + "\n", "utf-8")
    print(json.dumps(record, indent=1))
    if bad:
        raise SystemExit("failed: " + "; ".join(bad))


if __name__ == "__main__":
    main()
