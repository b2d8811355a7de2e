"""The tab "explore": plain values in, plain values and pictures as data addresses out."""

import base64
import io
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from types import MappingProxyType
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from frugan.contract.family import Noise, StyleMixing
from frugan.data.formats.decoding import read_size
from frugan.data.formats.source import Unreadable
from frugan.engine.run.checkpoint import list_checkpoints
from frugan.engine.run.run_folder import RunFolder
from frugan.errors import BadInput, OtherWeights
from frugan.page.runs import NoRun, Runs
from frugan.progress import quiet
from frugan.reporting.sample_files import png_of, write_animation
from frugan.sampling.directions import METHODS
from frugan.sampling.explorer import Explorer, explore
from frugan.sampling.generation import pixels
from frugan.sampling.projection import SAFE_FEATURES, Projection, read_fitted, search, spaces
from frugan.sampling.provenance import named, retold, retold_film, retold_projection
from frugan.sampling.requests import DrawRequest, check_request
from frugan.sampling.sheets import KEPT_AS, Sheet, drawn, sheets
from frugan.setup.networks import Weights
from frugan.wording import family_name

MOST_OPEN = 2
"""Generators that are kept in memory."""
MOST_CELLS = 200
"""Pictures in one answer."""
MOST_PIXELS = 50_000_000
"""Largest uploaded picture: more than any camera makes; a decompression bomb claims more in its header."""
MOST_SEARCH = 5000
"""Largest number of steps of a projection."""
OUT = "samples"
"""The folder that commands are told with."""
KEPT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,59}")
SAFETENSORS = ".safetensors"
FILMS: Mapping[str, str] = MappingProxyType({".gif": "image/gif", ".webp": "image/webp", ".mp4": "video/mp4"})
"""Ending of an animation -> its media type."""


class Stopped(Exception):
    """Somebody asked the search to end."""


@dataclass
class ProjectionJob:
    """A projection that goes on, or is over."""

    source: str
    name: str  # name under which its latents are kept
    steps: int
    space: str  # "": the first that the generator has
    features: str
    done: int = 0
    picture: str = ""  # the nearest one so far
    result: dict[str, Any] | None = None  # when it has ended well
    error: str = ""  # when it has not
    stop: Event = field(default_factory=Event)

    def told(self) -> dict[str, Any]:
        """Return the state that the page shows."""
        ended = bool(self.error) or self.result is not None
        about = {"source": self.source, "name": self.name, "done": self.done, "steps": self.steps, "ended": ended}
        return {**about, "picture": self.picture, "result": self.result, "error": self.error}


@dataclass
class Latents:
    """Generators of a folder of runs; all but `sources` is for one thread."""

    runs: Runs
    _open: OrderedDict[str, tuple[ExitStack, Explorer]] = field(default_factory=OrderedDict)
    _searched: str | None = None  # source in which a projection goes on

    def sources(self) -> list[str]:
        """Runs that have a checkpoint and draw by themselves, and weights files that lie among them."""
        with_weights = [name for name in self.runs.names() if self.runs.explorable(name)]
        files = sorted(path.name for path in self.runs.path.glob(f"*{SAFETENSORS}") if _own_file(path))
        return [*with_weights, *files]

    def show_given(self) -> bool:
        """Whether there are runs with a checkpoint that make pictures of given ones: those have no seeds."""
        return any(self.runs.shows_given(name) for name in self.runs.names())

    def path(self, source: str) -> Path:
        """Return the folder of a run, or the path of a weights file.

        Raises:
            NoRun: it is none of this folder's.
        """
        file = self.runs.path / source
        if source.endswith(SAFETENSORS) and Path(source).name == source and _own_file(file):
            return file
        return self.runs.folder(source).path

    def kept(self, source: str) -> Path:
        """Where directions and latents of a source are kept.

        Raises:
            NoRun: it is none of this folder's, or a link stands there, which may lead anywhere.
        """
        path = self.path(source)
        folder = path / "explore" if path.is_dir() else path.with_name(f"{path.stem}-explore")
        if folder.is_symlink():
            raise NoRun(source)
        return folder

    def explorer(self, source: str, *, newest: bool = False) -> Explorer:
        """The generator of a source, opened if it is not; that of a projection stays as it is until that has ended.

        Args:
            newest: look whether there is a newer checkpoint by now.

        Raises:
            NoRun: it is none of this folder's.
            BadInput: no weights, or none of a family with a latent space.
        """
        path = self.path(source)
        if source in self._open and (not newest or source == self._searched):
            self._open.move_to_end(source)
            return self._open[source][1]
        weights = Weights.open(path, quiet)
        if source in self._open and self._open[source][1].opened.weights.path != weights.path:
            self._open.pop(source)[0].close()
        if source not in self._open:
            while len(self._open) >= MOST_OPEN:
                self._open.pop(next(name for name in self._open if name != self._searched))[0].close()
            # beside a training that was planned for the whole card, there is no room on it
            training = any(self.runs.glance(name)["state"] == "running" for name in self.runs.names())
            stack = ExitStack()
            opened = stack.enter_context(explore(weights, device="cpu" if training else "auto"))
            self._open[source] = stack, opened
        self._open.move_to_end(source)
        return self._open[source][1]

    def about(self, source: str, *, newest: bool) -> dict[str, Any]:
        """Return the layers, classes and directions that the page offers to change.

        Args:
            newest: of the newest weights; else of those that are open, in which something has just been found.
        """
        explorer, kept = self.explorer(source, newest=newest), self.kept(source)
        recipe, space, names = explorer.recipe, explorer.space, explorer.opened.weights.class_names
        points = sorted(path.stem for path in kept.glob(f"*{SAFETENSORS}")) if kept.is_dir() else []
        return {
            "source": source,
            "family": family_name(recipe.family),
            "step": explorer.opened.weights.step,
            "side": recipe.resolution,
            "classes": [names[n] if n < len(names) else f"class {n}" for n in range(space.classes)],
            "styled": space.mean is not None,
            "layers": space.layers,
            "spaces": spaces(space),
            "films": films(),
            "kept": points,
            "directions": self.names(source),
        }

    def names(self, source: str) -> list[str]:
        """Return names of the directions that are kept; none where they belong to other weights."""
        file = self.kept(source) / KEPT_AS
        try:
            return [direction.name for direction in self.explorer(source).directions(file).entries]
        except BadInput:
            return []

    def draw(self, source: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Rows of pictures, and the command and the Python lines that make them again.

        Raises:
            NoRun, BadInput: see `explorer` and `request`.
        """
        request = self.request(source, values)
        explorer, sheet, grid = self._drawn(source, request)
        told = self._retold(explorer, request)
        one = grid.shape[:2] == (1, 1)
        about = {**explorer.opened.provenance, **told}
        rows = [[address(cell, about if one else None) for cell in row] for row in grid]
        return {"rows": rows, "titles": sheet.titles, "labels": sheet.labels, **_drawn_by(explorer), **_lower(told)}

    def _drawn(self, source: str, request: DrawRequest) -> tuple[Explorer, Sheet, NDArray[np.uint8]]:
        """A source's generator, the sheet that a request gives, and its pictures [rows, columns, C, R, R]."""
        explorer = self.explorer(source)
        check_request(request, explorer.recipe)
        names = explorer.opened.weights.class_names
        with _of_these_weights(explorer):
            sheet = next(iter(sheets(explorer, request, names, self.kept(source), quiet).values()))
        if len(sheet.points) > MOST_CELLS:
            raise BadInput(f"{len(sheet.points)} pictures: expected at most {MOST_CELLS} at once")
        return explorer, sheet, pixels(drawn(explorer, sheet, request)).numpy()

    def film(self, source: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """A walk as an animation that a browser can save, and the command and the Python lines that make it again.

        Raises:
            NoRun, BadInput: see `explorer` and `request`; or an ending of no kind of animation that can be written.
        """
        ending = _one_of("ending", _Values(values).text("ending"), films())
        request = self.request(source, {**values, "walk": True})
        explorer, _, (row,) = self._drawn(source, request)
        weights = explorer.opened.weights
        with TemporaryDirectory() as folder:
            told = retold_film(_source(explorer), Path(OUT) / f"walk{ending}", request, weights.step)
            path = Path(folder) / f"walk{ending}"
            frames = [frame.transpose(1, 2, 0) for frame in (*row, *row[-2:0:-1])]  # there and back again
            write_animation(frames, path, explorer.opened.provenance | told)
            content = base64.b64encode(path.read_bytes()).decode()
        return {"film": f"data:{FILMS[ending]};base64,{content}", **_drawn_by(explorer), **_lower(told)}

    def _retold(self, explorer: Explorer, request: DrawRequest) -> dict[str, str]:
        return retold(_source(explorer), OUT, request, explorer.opened.weights.step)

    def request(self, source: str, values: Mapping[str, Any]) -> DrawRequest:
        """Return the request that a page's values describe.

        Raises:
            BadInput: a value of another kind.
        """
        kept, known, usual = self.kept(source), _Values(values), DrawRequest()
        latents = tuple(kept / f"{_kept_name(name)}{SAFETENSORS}" for name in known.texts("kept"))
        moves = {name: _move(name, value) for name, value in known.table("moves").items()}
        method = known.text("method")
        classes = tuple(known.numbers("classes"))
        walk: Literal["both", "latent"] = "both" if len(classes) > 1 else "latent"
        request = DrawRequest(
            seed=known.number("noise_seed") or 0,
            seeds=tuple(known.numbers("seeds")),
            classes=classes or None,
            truncation=known.real("truncation", 1.0),
            psi=known.real("psi", 1.0),
            noise=cast(Noise, _one_of("noise", known.text("noise") or "const", get_args(Noise))),
            latents=latents,
            columns=known.number("columns") or usual.columns,
            rows=known.number("rows") or usual.rows,
            interpolate=walk if values.get("walk") is True else None,
        )
        layers = tuple(known.numbers("layers"))
        if (other := known.number("mix")) is not None:
            request = replace(request, seeds=(), mixing=StyleMixing(request.seeds, (other,), layers))
        if method:
            words = f" layers={','.join(map(str, known.numbers('of')))}" if known.numbers("of") else ""
            return replace(request, directions=f"{_one_of('method', method, METHODS)}{words}")
        if moves or values.get("directions") is True:
            return replace(request, directions=kept / KEPT_AS, moves=moves)
        return request

    def rename(self, source: str, names: Mapping[str, Any]) -> list[str]:
        """Give directions other names, and keep them.

        Raises:
            BadInput: none are kept, none of a name, or a name that is none or is taken.
        """
        explorer, file = self.explorer(source), self.kept(source) / KEPT_AS
        with _of_these_weights(explorer):
            directions = explorer.directions(file)
        directions.renamed({str(old): str(new).strip() for old, new in names.items()}).write(file)
        return self.names(source)

    def search(self, going: ProjectionJob, picture: bytes, between: Callable[[], None]) -> None:
        """Carry out a projection, and keep what it finds.

        Args:
            going: is told of it.
            picture: the file.
            between: is called after each step.

        Raises:
            NoRun, BadInput: no such source, picture, space or features.
            Stopped: it was asked to end.
        """
        try:
            width, height = read_size(io.BytesIO(picture))
        except Unreadable as error:
            raise BadInput(f"this file cannot be read as a picture: {error}") from error
        if width * height > MOST_PIXELS:
            raise BadInput(f"{width} x {height} pixels: expected at most {MOST_PIXELS:,}; reduce the picture first")
        explorer = self.explorer(going.source)
        target = read_fitted(io.BytesIO(picture), explorer.recipe)

        def stepped(done: int, _: int) -> None:
            going.done = done
            between()
            if going.stop.is_set():
                raise Stopped

        def shown(nearest: Tensor) -> None:
            going.picture = address(pixels(nearest).numpy())

        space, features = going.space or None, going.features
        self._searched = going.source
        try:
            found = search(
                explorer, target, steps=going.steps, space=space, features=features, progress=stepped, shown=shown
            )
        finally:
            self._searched = None
        explorer.write(found.points, self.kept(going.source) / f"{going.name}{SAFETENSORS}", found.told)
        going.result = self._found(explorer, going, found)

    def _found(self, explorer: Explorer, going: ProjectionJob, found: Projection) -> dict[str, Any]:
        choice = {"space": going.space or None, "steps": going.steps, "features": found.features}
        step = explorer.opened.weights.step
        told = retold_projection(_source(explorer), [Path(f"{going.name}.png")], OUT, step, choice)
        pictures = [address(pixels(picture).numpy()) for picture in (found.target, found.start, found.picture)]
        return {"pictures": pictures, "nearness": found.nearness, **_lower(told)}

    def begun(self, source: str, name: str, steps: int, space: str, features: str) -> ProjectionJob:
        """A projection to be carried out; of a name that no other has.

        Raises:
            NoRun, BadInput: no such source, too many steps, or features of a file: TorchScript is code, and a page
                may not have it run.
        """
        _one_of("features", features, SAFE_FEATURES)
        if not 1 <= steps <= MOST_SEARCH:
            raise BadInput(f"{steps} steps: expected 1 to {MOST_SEARCH:,}")
        kept, stem = self.kept(source), re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(name).stem).strip(".-")[:50] or "picture"
        taken = (f"{stem}-{number}" for number in range(2, 10_000))
        free = next(candidate for candidate in (stem, *taken) if not (kept / f"{candidate}{SAFETENSORS}").exists())
        return ProjectionJob(source, free, steps, space, features)


def _newest_step(explorer: Explorer) -> int:
    """Step of the newest checkpoint of a generator's run; of a single file its own."""
    weights = explorer.opened.weights
    run = RunFolder.holding(weights.path) if weights.checkpoint is not None else None
    found = list_checkpoints(run.checkpoints) if run is not None else []
    return max([weights.step, *(checkpoint.step for checkpoint in found)])


def _drawn_by(explorer: Explorer) -> dict[str, int]:
    """Step of the weights that drew, and of the newest ones, which are no others unless a training goes on."""
    return {"step": explorer.opened.weights.step, "newest": _newest_step(explorer)}


def _source(explorer: Explorer) -> Path:
    """What a command has to name to draw with the same weights: the run, or where it has newer ones, the checkpoint."""
    weights = explorer.opened.weights
    newer = weights.checkpoint is not None and _newest_step(explorer) > weights.step
    return weights.checkpoint if newer and weights.checkpoint is not None else named(weights)


@contextmanager
def _of_these_weights(explorer: Explorer) -> Iterator[None]:
    """Say of a file of other weights what can be done about it in a browser.

    Raises:
        BadInput: a file inside belongs to others.
    """
    try:
        yield
    except OtherWeights as error:
        raise BadInput(
            f"This was found in other weights than those of step {explorer.opened.weights.step:,}, with which the tab "
            "draws now: there it would mean something else. Find the directions, or your picture, once more"
        ) from error


def films() -> list[str]:
    """Endings of the animations that can be written here: MP4 needs OpenCV."""
    return [ending for ending in FILMS if ending != ".mp4" or find_spec("cv2") is not None]


def _own_file(path: Path) -> bool:
    """A file of this folder, and no way out of it."""
    return path.is_file() and not path.is_symlink()


def address(picture: NDArray[np.uint8], about: Mapping[str, str] | None = None) -> str:
    """A picture [C, R, R] as a data: address; as PNG with texts where there are any, else as small as it looks."""
    if about is not None:
        return f"data:image/png;base64,{base64.b64encode(png_of(picture, about)).decode()}"
    levels = picture.transpose(1, 2, 0)
    file = io.BytesIO()
    small = levels.shape[0] <= 64
    Image.fromarray(levels[:, :, 0] if levels.shape[2] == 1 else levels).save(
        file, "WEBP", quality=90, lossless=small, method=0
    )
    return f"data:image/webp;base64,{base64.b64encode(file.getvalue()).decode()}"


def _lower(told: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): text for name, text in told.items()}


def _kept_name(name: str) -> str:
    if not KEPT_NAME.fullmatch(name):
        raise BadInput(f"{name[:60]!r}: no name of a kept picture")
    return name


def _move(name: str, value: object) -> float | tuple[float, float]:
    if isinstance(value, list) and len(value) == 2 and all(_real(end) for end in value):
        return float(value[0]), float(value[1])
    if _real(value):
        return float(value)  # type: ignore[arg-type]
    raise BadInput(f"{name[:60]}: expected a number, or two")


def _real(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _one_of(name: str, value: str, known: Sequence[str]) -> str:
    if value in known:
        return value
    raise BadInput(f"{name} {value[:40]!r}: expected {' or '.join(known)}")


@dataclass(frozen=True)
class _Values:
    """Values that came as JSON, each of the kind that is wanted.

    Raises:
        BadInput: it is of another.
    """

    values: Mapping[str, Any]

    def _of(self, name: str, kind: type | tuple[type, ...], words: str) -> Any:
        value = self.values.get(name)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise BadInput(f"{name}: expected {words}")
        return value

    def number(self, name: str) -> int | None:
        value: int | None = self._of(name, int, "a whole number")
        return value

    def real(self, name: str, usual: float) -> float:
        value = self._of(name, (int, float), "a number")
        return usual if value is None else float(value)

    def text(self, name: str) -> str:
        return str(self._of(name, str, "a text") or "")

    def table(self, name: str) -> dict[str, Any]:
        return dict(self._of(name, dict, "values by name") or {})

    def numbers(self, name: str) -> list[int]:
        values = self._of(name, list, "whole numbers") or []
        if not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
            raise BadInput(f"{name}: expected whole numbers")
        return values[:1000]

    def texts(self, name: str) -> list[str]:
        values = self._of(name, list, "texts") or []
        if not all(isinstance(value, str) for value in values):
            raise BadInput(f"{name}: expected texts")
        return values[:100]
