"""What the commands say and what small trainings compute, recorded as text, so that two trees can be compared.

python tools/recorded_outputs.py record FOLDER [PART...]     # the tree is the `frugan` that this Python imports
python tools/recorded_outputs.py compare FOLDER_A FOLDER_B   # prints every difference; exits 1 if there is any

Parts, each a folder in FOLDER; without any named, all:
    help      `--help` of every command, 120 columns wide.
    names     `frugan.__all__`: signatures, and of classes the public fields and members.
    info      `frugan recipes`, fields of every recipe, and `frugan info` of some.
    plans     `frugan plan RECIPE --memory X --json` of every recipe, for three X.
    options   plans with other options, for people; and what is refused, with exit codes.
    train     20 steps of every family on one process: events, samples, recipe, plan and checkpoint.
    ranks     the same on two processes over gloo.
A part that only one of two folders has is named and not compared. Which commands: recorded_commands.toml.

It calls commands and public names alone, so it runs unchanged on any tree. Not recorded, because they differ from run
to run: in JSON of runs the keys in `VOLATILE`; in text lines that `VOLATILE_LINE` finds, expected times, and paths.
Tensors and pixels are recorded as SHA-256. Numbers depend on the machine's kernels: compare recordings of one machine.
"""

import contextlib
import difflib
import hashlib
import inspect
import io
import json
import os
import re
import runpy
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
from PIL import Image

import frugan

ENVIRONMENT = {"COLUMNS": "120", "NO_COLOR": "1", "OMP_NUM_THREADS": "1", "FRUGAN_BASE": "base"}
"""Threads are given, as else the fastest number is found out by timing."""
TIMES = {"seconds", "took_seconds", "data_seconds", "images_per_second", "eta_seconds"}
VOLATILE = TIMES | {"memory_bytes", "torch", "machine"}
VOLATILE_LINE = re.compile(r"^estimate: |^step [\d,]+ \| |^\[Gloo\]|^\[rank\d+\]:\[|^\[?[WI]\d{4} ")
PACKAGE = Path(str(frugan.__file__)).resolve().parent
OUTSIDE = Path(__file__).resolve().parents[1] / "tests" / "outside"
COMMANDS: Any = tomllib.loads(Path(__file__).with_name("recorded_commands.toml").read_text("utf-8"))


def call(line: str) -> dict[str, Any]:
    """Run a command in this process, as `frugan LINE`: its words, exit code and what it printed."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    sys.argv = ["frugan", *shlex.split(line)]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_module("frugan", run_name="__main__")
        except SystemExit as end:
            code = int(end.code or 0)
    return {"command": line, "code": code, "out": said(out.getvalue()), "err": said(err.getvalue())}


def said(text: str) -> Any:
    """Printed text without what is volatile: JSON parsed, else its lines."""
    with contextlib.suppress(ValueError):
        return json.loads(text)
    return [stable(line.rstrip()) for line in text.splitlines() if not VOLATILE_LINE.search(line)]


def stable(value: Any) -> Any:
    """A value of a run without what is volatile."""
    if isinstance(value, Mapping):
        return {key: stable(each) for key, each in value.items() if key not in VOLATILE}
    if isinstance(value, list):
        return [stable(each) for each in value]
    if not isinstance(value, str):
        return value
    value = value.replace(str(Path.cwd()), "WORK").replace(str(PACKAGE.parent), "TREE")
    value = re.sub(r"(^estimate:|would fit, for) .*", r"\1 SOME TIME", value)
    return re.sub(r"(-\d+-)[0-9a-f]{12}\b", r"\1KEY", value)  # a prepared set is named after its path


def record_help(_: Path) -> Iterator[tuple[str, Any]]:
    """Help of every command, found in the help of the one above."""
    waiting = [""]
    while waiting:
        words = waiting.pop()
        answer = call(f"{words} --help")
        yield "frugan" + words.replace(" ", "-"), answer
        commands = "\n".join(answer["out"]).partition("─ Commands ─")[2]
        waiting += [f"{words} {name}" for name in re.findall(r"^│ ([a-z][\w-]*)", commands, re.MULTILINE)]


def record_names(_: Path) -> Iterator[tuple[str, Any]]:
    """What the package offers: without the modules that things lie in."""
    for name in sorted(frugan.__all__):
        thing: Any = getattr(frugan, name)
        facts = {"signature": signature(thing), "bases": [base.__name__ for base in getattr(thing, "__bases__", ())]}
        public = (key for key in dir(thing) if not key.startswith("_"))
        yield name, facts | {key: signature(inspect.getattr_static(thing, key)) for key in public}


def signature(thing: Any) -> str:
    """A callable's or property's signature, or what else it is; without modules and addresses."""
    thing = getattr(thing, "fget", getattr(thing, "__func__", thing))
    try:
        text = str(inspect.signature(thing))
    except (TypeError, ValueError):
        text = type(thing).__name__
    return re.sub(r" at 0x[0-9a-f]+|\b(frugan|pathlib|collections)(\.\w+)*\.(?=\w)", "", text)


def record_info(_: Path) -> Iterator[tuple[str, Any]]:
    """Recipes with their fields; of some what their networks cost."""
    listed = call("recipes --json")
    yield "recipes", [call("recipes"), listed]
    for name in [recipe["name"] for recipe in listed["out"]]:
        yield name, [call(f"recipes {name}"), call(f"recipes {name} --json")]
    for name in COMMANDS["info"]:
        yield f"{name}-costs", [call(f"info {name} --no-latency{more}") for more in ("", " --json")]


def record_plans(_: Path) -> Iterator[tuple[str, Any]]:
    """Plans of all recipes."""
    for name in (recipe["name"] for recipe in call("recipes --json")["out"]):
        yield name, [call(f"plan {name} --memory {budget} --json") for budget in COMMANDS["budgets"]]


def record_options(_: Path) -> Iterator[tuple[str, Any]]:
    """Plans otherwise asked for, and what is refused."""
    yield from ((name, call(f"plan {words}")) for name, words in COMMANDS["options"].items())
    yield "refusals", [call(words) for words in COMMANDS["refusals"]]


def record_train(work: Path) -> Iterator[tuple[str, Any]]:
    """Trainings on one process, one of them stopped and resumed; some are drawn from."""
    write_data(work)
    for name in COMMANDS["train"]:
        line = training("train", name)
        stopped = [call(line.replace("20 steps", "7 steps"))] if name == "resumed" else []
        yield f"{name}-words", [*stopped, call(line)]
        yield from files_of(name, work / name)
    for name, more in COMMANDS["sampled"].items():
        yield f"{name}-sampled-words", call(f"sample {name} --out {name}-sampled --device cpu {more}")
        yield from files_of(f"{name}-sampled", work / f"{name}-sampled")


def record_ranks(work: Path) -> Iterator[tuple[str, Any]]:
    """Trainings on two processes, started as torchrun starts them."""
    write_data(work)
    for name in COMMANDS["ranks"]:
        yield f"{name}-words", on_two(training("ranks", name))
        yield from files_of(name, work / name)


def training(part: str, name: str) -> str:
    """The command of a training: 20 steps, unless it has a duration of its own."""
    words = COMMANDS[part][name].format(**COMMANDS["shared"])
    duration = "" if "training.duration" in words else " training.duration='20 steps'"
    return f"train {' '.join(words.split())}{duration} --out {name} --device cpu"


def on_two(line: str) -> list[dict[str, Any]]:
    """Run a command on two ranks; what each printed."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    place["PYTHONPATH"] = os.pathsep.join([str(OUTSIDE), str(PACKAGE.parent)])
    command = [sys.executable, "-m", "frugan", *shlex.split(line)]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    places = [{**os.environ, **place, "RANK": rank, "LOCAL_RANK": rank} for rank in ("0", "1")]
    ranks = [subprocess.Popen(command, env=each, **pipes) for each in places]
    printed = [rank.communicate(timeout=300) for rank in ranks]
    ends = [{"command": line, "code": rank.returncode} for rank in ranks]
    return [{**end, "out": said(out), "err": said(err)} for end, (out, err) in zip(ends, printed, strict=True)]


def write_data(work: Path) -> None:
    """Pictures of noise in three classes, the drawn faces that ship, and the recipe of the family from outside."""
    random = np.random.default_rng(0)
    for number in range(24):
        folder = work / "pictures" / f"class{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (32, 32, 3), np.uint8)).save(folder / f"{number}.png")
    for side, packed in product(("data_src/", "data_dst/"), PACKAGE.rglob("*faces*.zip")):
        with ZipFile(packed) as faces:
            names = sorted(name for name in faces.namelist() if name.startswith(side) and name.endswith(".jpg"))
            faces.extractall(work / "faces", names[:12])
    shutil.copy(OUTSIDE / "minigan.toml", work)
    sys.path[:] = [str(OUTSIDE), *(path for path in sys.path if path != str(OUTSIDE))]


def files_of(name: str, folder: Path) -> Iterator[tuple[str, Any]]:
    """What a command left: JSON as it is, tensors and pixels by digest, of others the names."""
    tensors, pixels, others = {}, {}, []
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        place = file.relative_to(folder).as_posix()
        if file.suffix == ".safetensors":
            tensors[place] = digests(file)
        elif file.suffix == ".png":
            with Image.open(file) as opened:
                pixels[place] = f"{opened.size} {opened.mode} {hashlib.sha256(opened.tobytes()).hexdigest()}"
        elif file.name == "events.jsonl":
            yield f"{name}-events", [stable(json.loads(line)) for line in file.read_text("utf-8").splitlines()]
        elif file.suffix == ".json" and file.name != "MANIFEST.json":  # it has digests of files with times in them
            yield f"{name}-{file.stem}", stable(json.loads(file.read_text("utf-8")))
        elif "tfevents" not in file.name:
            others.append(place)
    yield f"{name}-files", {"tensors": tensors, "pixels": pixels, "others": others}


def digests(file: Path) -> dict[str, str]:
    """Shape, type and digest of every tensor in a safetensors file: length of the header, header, tensors."""
    data = file.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    facts = json.loads(data[8:begin])
    whole = {}
    for key in sorted(facts.keys() - {"__metadata__"}):
        first, last = (begin + offset for offset in facts[key]["data_offsets"])
        whole[key] = f"{facts[key]['shape']} {facts[key]['dtype']} {hashlib.sha256(data[first:last]).hexdigest()}"
    return whole


RECORDERS = (record_help, record_names, record_info, record_plans, record_options, record_train, record_ranks)
PARTS = {each.__name__.removeprefix("record_"): each for each in RECORDERS}


def record(folder: Path, parts: list[str]) -> None:
    """Write the parts anew, each in an empty working folder of its own; say what each took."""
    for name in [name for name in os.environ if name.startswith("FRUGAN_") or name == "FORCE_COLOR"]:
        del os.environ[name]
    os.environ.update(ENVIRONMENT)
    for part in parts:
        shutil.rmtree(folder / part, ignore_errors=True)
        (folder / part).mkdir(parents=True)
        before = sum(os.times()[:4])
        with tempfile.TemporaryDirectory() as temporary, contextlib.chdir(temporary):
            os.mkdir("work")  # a name that is always the same: it is part of others
            os.chdir("work")
            for name, value in PARTS[part](Path.cwd()):
                (folder / part / f"{name}.json").write_text(json.dumps(value, indent=1, ensure_ascii=False), "utf-8")
        print(f"{part}: {sum(os.times()[:4]) - before:.0f} s of processor time", flush=True)


def compare(one: Path, other: Path) -> int:
    """Print every difference by file and place; how many there are."""
    count = 0
    for part in PARTS:
        if not ((one / part).is_dir() and (other / part).is_dir()):
            print(f"{part}: not recorded in both, not compared")
            continue
        for name in sorted({path.name for folder in (one, other) for path in (folder / part).iterdir()}):
            files = [folder / part / name for folder in (one, other)]
            a, b = (json.loads(file.read_text("utf-8")) if file.is_file() else "no such file" for file in files)
            lines = [f"{part}/{name}: {line}\n" for line in differences(a, b, "")]
            print("".join(lines), end="")
            count += len(lines)
    print(f"{count} differences")
    return count


def differences(a: Any, b: Any, place: str) -> Iterator[str]:
    """Every place in which two JSON values differ, lists of lines as a diff."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *(key for key in b if key not in a)]:
            yield from differences(a.get(key, "no such key"), b.get(key, "no such key"), f"{place}.{key}")
        if a.keys() == b.keys() and [*a] != [*b]:
            yield f"{place}: the same keys in another order"
    elif isinstance(a, list) and isinstance(b, list):
        if all(isinstance(each, str) for each in a + b):
            yield from (f"{place}: {line}" for line in list(difflib.unified_diff(a, b, n=0, lineterm=""))[2:])
            return
        for i, (x, y) in enumerate(zip(a, b, strict=False)):
            yield from differences(x, y, f"{place}[{i}]")
        if len(a) != len(b):
            yield f"{place}: {len(a)} -> {len(b)} entries"
    elif a != b or type(a) is not type(b):
        yield f"{place}: {str(json.dumps(a))[:300]} -> {str(json.dumps(b))[:300]}"


def main(words: list[str]) -> int:
    """Record or compare; the exit code."""
    if words[:1] == ["compare"] and len(words) == 3:
        return int(compare(Path(words[1]), Path(words[2])) > 0)
    if words[:1] != ["record"] or len(words) == 1 or set(words[2:]) - set(PARTS):
        print(__doc__)
        return 2
    record(Path(words[1]).resolve(), words[2:] or [*PARTS])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
