"""How large the house is: lines, files, what a command loads, frames, imports, long functions, cold starts.

python benchmarks/house.py [ROOT]      # of this tree, or of another

Code lines are lines without docstrings (and other strings that stand alone), comments and blanks. A function is long
if it has more than 60 code lines, and branched if its cyclomatic complexity is above 15: 1 and one more for each `if`,
loop, `except`, `case`, comprehension, condition in one, `assert`, and each further operand of `and` and `or`; what is
defined inside it counts as well. Frames are the tree's own functions on the stack when an optimizer first changes a
weight. What is loaded is counted at the end of a command: modules of the tree that have a file.
"""

import ast
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tokenize
from collections.abc import Iterator
from pathlib import Path
from statistics import median

PACKAGE = "frugan"
MOST_LINES, MOST_COMPLEXITY, MOST_FILE_LINES = 60, 15, 600
COLD_STARTS = 5
LARGEST_ROOMS = 4
BRANCHES = (
    *(ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case, ast.Assert),
    *(ast.comprehension,),
)
PLAN = ("plan", "saehd-df-ud-512", "--memory", "6GiB")
TRAIN = (
    *("train", "biggan-small-32", "--data", "pictures", "--out", "run", "--device", "cpu"),
    *("networks.classes=1", "networks.generator_channels=2", "networks.discriminator_channels=2"),
    *("training.batch=4", "training.normalisation_batch=4", "training.duration=2 steps"),
)
EMPTY_BEGINNINGS = ("What", "Of", "The same", "As", "That", "Those", "It")
"""Words that begin docstrings which only go on from the name."""
VAGUE_NAMES = frozenset({"each", "made", "asked", "given", "own"})
"""Identifiers that say nothing of what they hold."""
UPDATES = ("addcdiv", "addcdiv_", "_foreach_addcdiv_", "_foreach_addcdiv", "_fused_adam_", "_fused_adamw_")
"""Functions of torch by which Adam changes weights."""
WATCHED = """
import json, runpy, sys
from pathlib import Path
tree, updates, out, command = sys.argv[1], sys.argv[2].split(), sys.argv[3], sys.argv[4:]
frames = []
def watch(frame, event, arg):
    if event == "c_call" and getattr(arg, "__name__", "") in updates or (
        command[0] == "plan" and event == "call" and frame.f_code.co_qualname == "Step.run"
    ):
        sys.setprofile(None)
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(tree) and not code.co_name.startswith("<"):
                frames.append(f"{Path(code.co_filename).relative_to(tree)}:{frame.f_lineno} {code.co_qualname}")
            frame = frame.f_back
sys.argv = ["frugan", *command]
sys.setprofile(watch)
try:
    runpy.run_module("frugan", run_name="__main__")
except SystemExit as end:
    assert not end.code, end.code
finally:
    sys.setprofile(None)
files = [getattr(each, "__file__", None) for name, each in sys.modules.items() if name.split(".")[0] == "frugan"]
loaded = sorted({file for file in files if file})
Path(out).write_text(json.dumps({"loaded": loaded, "frames": frames[::-1]}))
"""


class Source:
    """A file of the tree, read and parsed.

    Attributes:
        code: numbers of its code lines.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text("utf-8")
        self.tree = ast.parse(self.text)
        self.code = self._code()

    def _code(self) -> set[int]:
        skipped = (
            tokenize.COMMENT,
            tokenize.NL,
            tokenize.NEWLINE,
            tokenize.INDENT,
            tokenize.DEDENT,
            tokenize.ENDMARKER,
        )
        lines: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in skipped:
                lines |= set(range(token.start[0], token.end[0] + 1))
        for node in ast.walk(self.tree):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        return lines

    def imports(self) -> set[str]:
        """Modules of the package that are imported anywhere in the file."""
        modules: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.add(node.module)
            elif isinstance(node, ast.Import):
                modules |= {name.name for name in node.names}
        return {module for module in modules if module.split(".")[0] == PACKAGE}

    def functions(self) -> Iterator[tuple[str, int, int]]:
        """Place of every function, its code lines and its complexity."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = self.code & set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
                yield f"{self.path}:{node.lineno} {node.name}", len(lines), complexity(node)


def complexity(function: ast.AST) -> int:
    """Cyclomatic complexity."""
    total = 1
    for node in ast.walk(function):
        total += isinstance(node, BRANCHES)
        total += len(node.values) - 1 if isinstance(node, ast.BoolOp) else 0
        total += len(node.ifs) if isinstance(node, ast.comprehension) else 0
    return total


def environment(root: Path, folder: Path) -> dict[str, str]:
    """Of a command of the tree: nothing of an earlier one, and a fixed number of threads."""
    more = {"PYTHONPATH": str(root / "src"), "FRUGAN_BASE": str(folder / "base"), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **more}


def watched(root: Path, folder: Path, command: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Files of the package that a command loads, and its frames at the first update."""
    out = folder / "watched.json"
    words = [str(root / "src"), " ".join(UPDATES), str(out), *command]
    subprocess.run(
        [sys.executable, "-c", WATCHED, *words],
        cwd=folder,
        env=environment(root, folder),
        check=True,
        capture_output=True,
    )
    result = json.loads(out.read_text("utf-8"))
    return result["loaded"], result["frames"]


def cold_seconds(root: Path, folder: Path, *command: str) -> float:
    """The shortest of some starts of a command, after one that is not counted."""
    seconds = []
    for _ in range(COLD_STARTS + 1):
        began = time.perf_counter()
        words = [sys.executable, "-m", PACKAGE, *command]
        subprocess.run(words, cwd=folder, env=environment(root, folder), check=True, capture_output=True)
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])


def write_pictures(folder: Path) -> None:
    """Eight pictures of noise."""
    import numpy as np  # noqa: PLC0415  (the rest needs the standard library alone)
    from PIL import Image  # noqa: PLC0415

    random = np.random.default_rng(0)
    folder.mkdir()
    for number in range(8):
        Image.fromarray(random.integers(0, 256, (32, 32, 3), np.uint8)).save(folder / f"{number}.png")


def patching(root: Path) -> tuple[list[Path], list[Path]]:
    """Files of tests that put something else in a place of the package: named by a string; named by its module."""
    by_string, by_module = [], []
    for path in sorted((root / "tests").rglob("*.py")):
        text = path.read_text("utf-8")
        modules = {
            alias.asname or alias.name
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE
            for alias in node.names
            if (root / "src" / (node.module or "").replace(".", "/") / f"{alias.name}.py").is_file()
            or (root / "src" / (node.module or "").replace(".", "/") / alias.name / "__init__.py").is_file()
        }
        if re.search(rf"(setattr|patch)\(\s*f?[\"']{PACKAGE}\.", text):
            by_string.append(path)
        if any(each in modules for each in re.findall(r"setattr\(\s*(\w+),\s*[\"']", text)):
            by_module.append(path)
    return by_string, by_module


def static_rows(root: Path, sources: list[Source]) -> Iterator[tuple[str, object]]:
    """What can be counted by reading."""
    lengths = [len(source.text.splitlines()) for source in sources]
    yield "code lines in src", sum(len(source.code) for source in sources)
    yield "all lines in src", sum(lengths)
    yield "files in src", len(sources)
    yield f"files above {MOST_FILE_LINES} lines", sum(length > MOST_FILE_LINES for length in lengths)
    yield "median lines of a file", median(lengths)
    most = max(sources, key=lambda source: len(source.imports()))
    yield "most imports of the package in one file", f"{len(most.imports())} ({most.path.relative_to(root)})"
    long = [each for source in sources for each in source.functions()]
    yield f"functions above {MOST_LINES} code lines", sum(lines > MOST_LINES for _, lines, _ in long)
    yield f"functions above complexity {MOST_COMPLEXITY}", sum(branches > MOST_COMPLEXITY for _, _, branches in long)
    either = [each for each in long if each[1] > MOST_LINES or each[2] > MOST_COMPLEXITY]
    yield "functions above one of both", len(either)
    for place, lines, branches in sorted(either, key=lambda each: (-each[2], -each[1])):
        yield f"  {place.removeprefix(f'{root}/')}", f"{lines} lines, {branches}"
    rooms: dict[str, list[int]] = {}
    for source, length in zip(sources, lengths, strict=True):
        rooms.setdefault(source.path.relative_to(root / "src" / PACKAGE).parts[0], []).append(length)
    for room, of_files in sorted(rooms.items(), key=lambda item: -sum(item[1]))[:LARGEST_ROOMS]:
        yield f"lines of {room}", f"{sum(of_files)}, {len(of_files)} files"
    begin_empty, identifiers = 0, 0
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                begin_empty += bool(re.match(rf"(?:{'|'.join(EMPTY_BEGINNINGS)})\b", ast.get_docstring(node) or ""))
            identifiers += isinstance(node, ast.Name) and node.id in VAGUE_NAMES
            identifiers += isinstance(node, ast.arg) and node.arg in VAGUE_NAMES
    yield f"docstrings that begin with {', '.join(EMPTY_BEGINNINGS)}", begin_empty
    yield f"identifiers {', '.join(sorted(VAGUE_NAMES))}", identifiers
    by_string, by_module = patching(root)
    yield "files of tests that patch by a dotted name in a string", len(by_string)
    yield "files of tests that patch a name of a module", len(by_module)
    yield "files of tests that do one of both", len({*by_string, *by_module})


def measured_rows(root: Path) -> Iterator[tuple[str, object]]:
    """What shows when commands run."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_pictures(folder / "pictures")
        loaded, frames = watched(root, folder, TRAIN)
        planned, plan_frames = watched(root, folder, PLAN)
        for what, files in (("train biggan-small-32", loaded), ("plan saehd-df-ud-512", planned)):
            yield f"own modules loaded to {what}", len(files)
            yield "  without __init__.py", sum(Path(file).name != "__init__.py" for file in files)
            yield "  their lines", sum(len(Path(file).read_text("utf-8").splitlines()) for file in files)
        yield "own frames from command to the optimizer's update", len(frames)
        yield from (("  " + frame, "") for frame in frames)
        yield "own frames from command to `Step.run` of a plan", len(plan_frames) - 1
        yield from (("  " + frame, "") for frame in plan_frames)
        yield "seconds of `frugan --help`, cold", round(cold_seconds(root, folder, "--help"), 3)
        plan = cold_seconds(root, folder, "plan", "biggan-imagenet-128", "--memory", "6GiB")
        yield "seconds of `frugan plan biggan-imagenet-128 --memory 6GiB`, cold", round(plan, 3)
        listed = cold_seconds(root, folder, "plan", "biggan-imagenet-128")
        yield "seconds of `frugan plan biggan-imagenet-128`, cold", round(listed, 3)


def main() -> None:
    """Print the table."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve()
    sources = [Source(path) for path in sorted((root / "src").rglob("*.py"))]
    for rows in (static_rows(root, sources), measured_rows(root)):
        for name, value in rows:
            print(f"{name:<72} {value}".rstrip(), flush=True)


if __name__ == "__main__":
    main()
