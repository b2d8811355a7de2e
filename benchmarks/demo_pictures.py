"""Draws the pictures of demos that docs show: python benchmarks/demo_pictures.py DIGITS [STYLES]

DIGITS is a run of `frugan demo`, STYLES one of `frugan demo stylegan2`. From the first come digits-samples.png,
digits-nearest.png and export-page.png (by headless Chromium, of what `frugan export --web` writes); from the second
digits-directions.webp, digits-projections.webp and digits-morph.webp. They go to docs/pictures.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import copyfile
from threading import Thread

import numpy as np
from PIL import Image

import frugan
from frugan.conversion.export.site import export_site
from frugan.data.digits import SPLIT_SEED, digits_set, split_digits
from frugan.engine.run.run_folder import RunFolder
from frugan.progress import quiet
from frugan.sampling.sampling import check_memorisation
from page import screenshot

SIDE = 32
UNSEEN = {"two": 2, "four": 4, "five": 5, "eight": 8}
"""Name of a projected picture -> its digit."""


class Silent(SimpleHTTPRequestHandler):
    """Serves a folder without a word."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Address of a folder on this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=folder)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def write_digits(folder: Path, indices: np.ndarray) -> Path:
    """Write digits as PNG files, in a folder for each class."""
    pictures = digits_set(SIDE, indices)
    for number, (picture, label) in enumerate(zip(pictures.pictures, pictures.labels, strict=True)):
        path = folder / str(label) / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture.transpose(1, 2, 0)).save(path)
    return folder


def of_digits(run: Path, scratch: Path, out: Path) -> None:
    """Write the pictures of the run by BigGAN."""
    copyfile(RunFolder(run).newest_grid("samples"), out / "digits-samples.png")
    seen = write_digits(scratch / "seen", split_digits(SPLIT_SEED)[0])
    check_memorisation(run, seen, scratch, samples=6, nearest=5, device="cpu", say=quiet)
    copyfile(scratch / "nearest.png", out / "digits-nearest.png")
    export_site(run, scratch / "site", title="Handwritten digits", say=quiet)
    with served(scratch / "site") as address:
        screenshot(address, out / "export-page.png", 800, 1040)


def of_styles(run: Path, scratch: Path, out: Path) -> None:
    """Write the pictures of the run by StyleGAN2: directions of a seven, and digits that it never saw."""
    rows = frugan.DrawRequest(seeds=(3,), classes=(7,), directions="pca", rows=5, columns=9)
    frugan.sample(run, scratch / "looks", rows, device="cpu", say=quiet)
    as_webp(scratch / "looks" / "directions.png", out / "digits-directions.webp")
    unseen = digits_set(SIDE, split_digits(SPLIT_SEED)[1])
    given = []
    for name, digit in UNSEEN.items():
        first = unseen.pictures[np.flatnonzero(unseen.labels == digit)[0]]
        given.append(scratch / f"{name}.png")
        Image.fromarray(first.transpose(1, 2, 0)).save(given[-1])
    frugan.project(run, given, scratch / "mine", space="w+", device="cpu", say=quiet)
    as_webp(scratch / "mine" / "projections.png", out / "digits-projections.webp")
    ends = tuple(scratch / "mine" / f"{name}.safetensors" for name in ("two", "eight"))
    way = frugan.DrawRequest(latents=ends, interpolate="latent", columns=11)
    frugan.sample(run, scratch / "morph", way, device="cpu", say=quiet)
    as_webp(scratch / "morph" / "interpolation-latent.png", out / "digits-morph.webp")


def as_webp(picture: Path, out: Path) -> None:
    """Write a sheet as WebP."""
    with Image.open(picture) as opened:
        opened.convert("RGB").save(out, quality=80, method=6)


def main() -> None:
    """Draw those of the runs that are named."""
    digits, *styles = map(Path, sys.argv[1:])
    out = Path(__file__).parents[1] / "docs" / "pictures"
    with tempfile.TemporaryDirectory() as folder:
        of_digits(digits, Path(folder), out)
        for run in styles:
            of_styles(run, Path(folder), out)


if __name__ == "__main__":
    main()
