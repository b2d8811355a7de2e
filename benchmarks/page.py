"""What `frugan page` takes, and pictures of it: python benchmarks/page.py RUNS RESULT.json [--pictures FOLDER]

RUNS is a folder of runs. Told are the size of what the extra installs, the seconds until the page answers, its memory
at first and once every run was looked at, what a look at all of them takes (the browser has one every two seconds) and
one at a run, and the share of a core that it all takes while one browser looks at a run. With --pictures, headless
Chromium draws the list, each run named by --show, the first of them with the one named by --beside, and the tab Explore
of that one, as WebP.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distribution, requires
from pathlib import Path
from statistics import median
from urllib.parse import quote
from urllib.request import Request, urlopen

from PIL import Image

from machine import describe_machine

EVERY_SECONDS = 2.0
LOOKS = 15
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--hide-scrollbars", "--virtual-time-budget=5000", "--blink-settings=primaryHoverType=2,availableHoverTypes=2"),
)


def installed_bytes() -> dict[str, int]:
    """Bytes of each package that the extra brings."""
    wanted, sizes = ["starlette", "uvicorn"], dict[str, int]()
    while wanted:
        name = wanted.pop()
        if name in sizes:
            continue
        files = distribution(name).files or []
        sizes[name] = sum(path.stat().st_size for file in files if (path := Path(str(file.locate()))).is_file())
        wanted += [re.split(r"[^\w.-]", needed)[0] for needed in requires(name) or [] if ";" not in needed]
    return sizes


@dataclass(frozen=True)
class Page:
    """A page that is served."""

    address: str
    process: int

    def get(self, path: str, tag: str = "") -> tuple[bytes, float, str]:
        """Content (empty: nothing new), seconds and tag of an answer."""
        base, _, token = self.address.partition("?token=")
        request = Request(f"{base}{path}", headers={"Authorization": f"Bearer {token}", "If-None-Match": tag})
        began = time.perf_counter()
        try:
            with urlopen(request, timeout=60) as answer:
                return answer.read(), time.perf_counter() - began, str(answer.headers.get("ETag", ""))
        except OSError:  # 304
            return b"", time.perf_counter() - began, tag

    def cpu_seconds(self) -> float:
        """That it has taken so far."""
        times = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()[11:13]
        return sum(map(int, times)) / 100

    def memory_mib(self) -> float:
        """That is resident."""
        lines = Path(f"/proc/{self.process}/status").read_text().splitlines()
        (kilobytes,) = [int(line.split()[1]) for line in lines if line.startswith("VmRSS")]
        return round(kilobytes / 1024, 1)


@contextmanager
def served(runs: Path) -> Iterator[tuple[Page, float]]:
    """The page of a folder, and the seconds until it answered."""
    began = time.perf_counter()
    words = [sys.executable, "-m", "frugan", "page", str(runs), "--no-open", "--port", "0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    page = Page(process.stdout.readline().strip(), process.pid)
    page.get("page.js")
    seconds = time.perf_counter() - began
    try:
        yield page, seconds
    finally:
        process.terminate()
        process.wait()


def measured(page: Page, seconds: float) -> dict[str, object]:
    """What the page takes, looked at as a browser does."""
    at_first = page.memory_mib()
    content, first_list, _ = page.get("api/runs")
    names = [about["name"] for about in json.loads(content)["runs"] if "step" in about]
    lists = [page.get("api/runs")[1] for _ in range(LOOKS)]
    firsts = {name: page.get(f"api/runs/{quote(name, safe='')}") for name in names}
    about = json.loads(firsts[names[0]][0])
    watched = f"api/runs/{quote(names[0], safe='')}?after={about['after']}&beginnings={about['beginnings']}"
    looks = [page.get(watched)[1] for _ in range(LOOKS)]
    cpu, began, tag = page.cpu_seconds(), time.perf_counter(), ""
    for _ in range(LOOKS):
        time.sleep(EVERY_SECONDS)
        _, _, tag = page.get(watched, tag)
    share = (page.cpu_seconds() - cpu) / (time.perf_counter() - began)
    return {
        "start_seconds": round(seconds, 2),
        "memory_mib": at_first,
        "memory_mib_after_all_runs": page.memory_mib(),
        "runs": len(names),
        "list_first_ms": round(1000 * first_list, 1),
        "list_ms": round(1000 * median(lists), 1),
        "run_first_ms": {name: round(1000 * first[1], 1) for name, first in firsts.items()},
        "run_first_kb": {name: round(len(first[0]) / 1000, 1) for name, first in firsts.items()},
        "run_ms": round(1000 * median(looks), 1),
        "share_of_a_core": round(share, 4),
    }


def draw(page: Page, folder: Path, shown: Sequence[str], beside: str) -> None:
    """Pictures of the page, as WebP."""
    at = {name: f"run/{quote(name, safe='')}" for name in shown}
    parts = [("page-list", "", 1280, 800)]
    parts += [(f"page-run-{number}", at[name], 1280, 1000) for number, name in enumerate(shown, 1)]
    parts.append(("page-explore", f"explore/{quote(beside, safe='')}", 1280, 1000))
    parts.append(("page-compared", f"{at[shown[0]]}/{quote(beside, safe='')}", 1280, 900))
    for name, fragment, width, height in parts:
        screenshot(f"{page.address}#{fragment}", folder / f"{name}.webp", width, height)


def screenshot(address: str, path: Path, width: int, height: int) -> None:
    """Draw what headless Chromium shows of an address, as PNG or WebP by the name of the file."""
    with tempfile.TemporaryDirectory() as profile:
        picture = Path(profile) / "picture.png"
        words = [str(CHROMIUM), *QUIET, f"--user-data-dir={profile}", f"--window-size={width},{height}"]
        words += [f"--screenshot={picture}", address]
        subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, timeout=120)
        with Image.open(picture) as opened:
            opened.convert("RGB").save(path, quality=72, method=6, optimize=True)


def main() -> None:
    """Measure, draw, and write down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--show", action="append", default=[])
    parser.add_argument("--beside", default="")
    given = parser.parse_args()
    with served(given.runs) as (page, seconds):
        figures = measured(page, seconds)
        if given.pictures is not None:
            draw(page, given.pictures, given.show, given.beside)
    installed = {name: round(size / 1e6, 2) for name, size in installed_bytes().items()}
    told = {"machine": describe_machine(), "installed_mb": installed, **figures}
    given.result.write_text(json.dumps(told, indent=1) + "\n", "utf-8")
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
