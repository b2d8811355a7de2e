"""`export --web`: a folder of static files that any web server shows: a page, the model, and what runs it."""

import json
import re
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from jinja2 import Environment, StrictUndefined

from frugan.conversion.export.about import AboutModel
from frugan.conversion.export.onnx import Exported, Generator, write_model
from frugan.errors import BadInput, checked
from frugan.files import atomic_folder, read_untrusted, refuse_full
from frugan.progress import Say
from frugan.setup.networks import Weights
from frugan.wording import MIB, show_size

PACKAGE, VERSION = "onnxruntime-web", "1.30.0"
MODULE = "ort.wasm.bundle.min.mjs"
"""The package's runtime for processors, without what only graphics cards need."""
WASM = "ort-wasm-simd-threaded.wasm"
"""WebAssembly that `MODULE` loads."""
MOST_BYTES = 64 * MIB
"""Largest size of either file; they have 0.1 and 14 MB."""
MODEL, PAGE = "model.onnx", "index.html"
SITE = (PAGE, MODEL, MODULE, WASM)
"""All that is written."""
SECONDS = 600
"""For npm, which gets 33 MB."""
PICTURES: Mapping[int, int] = MappingProxyType({64: 16, 128: 9, 256: 4})
"""Side up to which so many pictures are shown at first; of larger ones, one."""


@checked
def export_site(
    source: str | Path | Weights,
    folder: str | Path,
    *,
    half: bool = False,
    runtime: str | Path | None = None,
    title: str = "",
    by: str = "",
    say: Say = print,
) -> Exported:
    """Write a folder of static files that draws from a run's averaged generator in a browser.

    Args:
        source: run, checkpoint or weights file, or what `Weights.open` made of one.
        folder: a new or empty one.
        half: the model in fp16.
        runtime: npm's package onnxruntime-web, as a folder or as the .tgz that `npm pack` writes; None: npm gets it.
        title: of the page; empty: the name of the run or file.
        by: who made it, for the page to say; empty: nobody is named.
        say: is given a line for what was done.

    Raises:
        BadInput: as `export`; `folder` is not empty, or the runtime is not there. Nothing is left then.
        OSError: the disk is full or the folder cannot be written.
    """
    folder = Path(folder)
    refuse_full(folder, "a page")
    generator = Generator.open(source, say)
    with TemporaryDirectory() as room:
        contents = runtime_files(Path(runtime) if runtime is not None else from_npm(Path(room), say))
    with atomic_folder(folder) as target:
        written = write_model(generator, target / MODEL, half=half, say=say)
        for name, content in contents.items():
            (target / name).write_bytes(content)
        (target / PAGE).write_text(
            page_of(generator, written.bytes, AboutModel.of(generator.weights, title=title, by=by)), "utf-8"
        )
        size = sum(file.stat().st_size for file in target.iterdir())
    return Exported(folder, size, written.inputs, written.difference, written.mean_difference, written.pictures)


def page_of(generator: Generator, model_bytes: int, about: AboutModel) -> str:
    """The page, which finds the other files beside it."""
    weights, recipe, drawing = generator.weights, generator.recipe, generator.drawing
    names = weights.class_names
    model = {
        "name": re.sub(r"[^a-z0-9]+", "-", about.title.lower()).strip("-")[:40] or "frugan",
        "latentSize": drawing.latent_size,
        "classes": [names[i] if i < len(names) else f"class {i}" for i in range(drawing.classes)],
        "psi": drawing.psi,
        "side": recipe.resolution,
        "bytes": model_bytes,
        "pictures": next((count for side, count in PICTURES.items() if recipe.resolution <= side), 1),
    }
    licence = f" Licence of the weights: {weights.licence}." if weights.licence else ""
    environment = Environment(undefined=StrictUndefined, autoescape=True)
    return environment.from_string(files("frugan.conversion.export").joinpath("page.html").read_text("utf-8")).render(
        title=about.title,
        made=f"{about.origin}{licence}",
        module=MODULE,
        wasm=WASM,
        file=MODEL,
        # "</script" or "<!--" would end the script element, or begin another, also inside a string
        model=json.dumps(model, ensure_ascii=False).replace("<", "\\u003c"),
    )


def runtime_files(package: Path) -> dict[str, bytes]:
    """Name -> content of what a page needs of onnxruntime-web.

    Args:
        package: a folder that has the files, or has them in `dist` as the package does; or the package as a .tgz.

    Raises:
        BadInput: they are not there.
    """
    if package.is_dir():
        places = (package, package / "dist", package / "package" / "dist")
        for place in places:
            if all((place / name).is_file() for name in (MODULE, WASM)):
                return {name: read_untrusted(place / name, MOST_BYTES) for name in (MODULE, WASM)}
        raise BadInput(f"--runtime {package}: expected {MODULE} and {WASM} in it or in its dist; {_advice()}")
    if not package.is_file():
        raise BadInput(f"--runtime {package}: not there; {_advice()}")
    try:
        with tarfile.open(package) as archive:
            return {name: _member(archive, f"package/dist/{name}") for name in (MODULE, WASM)}
    except (tarfile.TarError, OSError, EOFError, KeyError) as error:
        raise BadInput(f"--runtime {package}: expected npm's package {PACKAGE}: {error}; {_advice()}") from error


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    member = archive.getmember(name)
    if not member.isfile() or member.size > MOST_BYTES:
        raise KeyError(f"{name} is no file of at most {show_size(MOST_BYTES)}")
    file = archive.extractfile(member)
    assert file is not None
    return file.read(MOST_BYTES)


def _advice() -> str:
    return f"`npm pack {PACKAGE}@{VERSION}` writes a .tgz that --runtime takes"


def from_npm(room: Path, say: Say) -> Path:
    """Let npm get the package.

    Raises:
        BadInput: npm is not here, or does not get it.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise BadInput(f"--web: npm is not here to get {PACKAGE}; elsewhere {_advice()}")
    say(f"{PACKAGE} {VERSION}: npm gets it (33 MB); --runtime takes a copy of your own")
    words: list[str] = [npm, "pack", f"{PACKAGE}@{VERSION}", "--silent", "--prefer-offline", "--ignore-scripts"]
    try:
        done: Any = subprocess.run(words, cwd=room, capture_output=True, text=True, timeout=SECONDS, check=False)
        said = (done.stderr or done.stdout).strip().splitlines()[-1:]
    except subprocess.TimeoutExpired:
        said = [f"no answer in {SECONDS} s"]
    found = next(room.glob("*.tgz"), None)
    if found is None:
        raise BadInput(
            f"--web: npm did not get {PACKAGE} {VERSION}: {' '.join(said) or 'it says nothing'}; {_advice()}"
        )
    return found
