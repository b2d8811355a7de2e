"""Requests for samples, and the checks that refuse what cannot be drawn or does not go together."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from frugan.contract.family import GridRequest, Noise
from frugan.data.formats.decoding import MOST_PIXELS
from frugan.errors import BadInput, checked
from frugan.metrics.scores import Rounding, Statistics
from frugan.progress import STANDING_BATCHES
from frugan.recipe.recipe import Recipe
from frugan.reporting.grids import TITLE_HEIGHT, that_fit


@checked
@dataclass(frozen=True)
class DrawRequest(GridRequest):
    """A grid with settings that families need not know; or single pictures to draw, each of a random one of `classes`
    (None: of all), without rows and columns."""

    rows_per_sheet: int | None = None  # rows in a file of a grid by classes; None: as many as fit
    statistics: Statistics = "running"  # statistics of batch normalisation
    standing_batches: int = STANDING_BATCHES  # number of batches for standing statistics
    standing_size: int | None = None  # samples in each of these; None: the recipe's normalisation batch
    rounding: Rounding = "nearest"
    # how pictures may be moved: "sefa", "pca", either with " layers=0-3" behind it, or a file that one of them wrote
    directions: str | Path | None = None
    # direction -> standard deviations; two: a row that goes from one to the other. None at all: a row for each of the
    # first `rows` directions, from -3 to 3
    moves: Mapping[str, float | tuple[float, float]] = field(default_factory=dict)
    latents: Sequence[str | Path] = ()  # files of projections, in place of seeds
    # cells of a film, across and down, each a closed loop through its share of seeds and latents; `columns` frames
    loop: tuple[int, int] | None = None
    keyframes: str | Path | None = None  # file of a film's stations, in place of seeds and latents; `columns` frames

    @property
    def loops(self) -> bool:
        """Whether it is for a film that closes."""
        return self.loop is not None or self.keyframes is not None

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Direction -> both ends of its row."""
        return {name: move for name, move in self.moves.items() if isinstance(move, tuple)}

    @property
    def fixed(self) -> dict[str, float]:
        """Direction -> how far everything is moved along it."""
        return {name: move for name, move in self.moves.items() if not isinstance(move, tuple)}

    @property
    def shows_directions(self) -> bool:
        """Whether the grid has a row per direction."""
        return self.directions is not None and bool(self.ranges or not (self.moves or self.interpolate))


MANY = ("--random", "--npz", "--pngs")
"""Options that draw random samples."""
KINDS = (("--style-mixing",), ("--nearest",), ("--project",), MANY)
"""Kinds of output, of which a call has one."""
STANDING = "--statistics standing"
BATCH = "--statistics batch"
KEYFRAMES_SAY = ("--seeds", "--latents", "--classes")
"""Options whose values a file of keyframes has instead."""
TOGETHER = (
    (
        "--animate",
        (),
        (*MANY, "--nearest", "--style-mixing"),
        "one kind at a time; not with --random, --npz, --pngs, --nearest or --style-mixing; run it once for each",
    ),
    ("--interpolate", (), MANY, "not with --random, --npz or --pngs; run it once for each"),
    (
        "--seeds",
        (),
        (*MANY, "--nearest"),
        "goes with sample grids and with --animate; --seed sets what --npz and others draw",
    ),
    (
        "--style-mixing",
        (),
        ("--seeds", "--interpolate"),
        "not with --seeds, --interpolate or --animate; run it once for each",
    ),
    (
        "--directions",
        (),
        (*MANY, "--nearest", "--spherical"),
        "goes with pictures of --seeds, --latents or --style-mixing, and with --animate",
    ),
    ("--morph", (), MANY, "goes with sheets; single faces of --pngs are swapped at 0.75"),
    ("--move", ("--directions",), (), "goes with --directions, which say what can be moved"),
    (
        "--latents",
        (),
        (*MANY, "--nearest", "--style-mixing", "--spherical"),
        "goes with --seeds, --directions, --interpolate latent or both, and --animate",
    ),
    (
        "--project",
        (),
        ("--seeds", "--classes", "--interpolate", "--directions", "--latents", "--spherical", "--psi", "--truncation"),
        "writes the latents of given pictures; a second call moves them, with --latents",
    ),
    *((option, ("--project",), (), "goes with --project") for option in ("--space", "--steps", "--features")),
    (
        STANDING,
        (),
        ("--seeds", "--directions", "--latents", "--project"),
        "not with --seeds, --directions, --latents or --project, whose pictures use the running statistics",
    ),
    (
        "--spherical",
        ("--interpolate", "--animate"),
        ("--seeds",),
        "goes with --interpolate or --animate, not with --seeds, between which walks are straight",
    ),
    (
        "--loop",
        ("--seeds", "--latents"),
        (*MANY, "--nearest", "--interpolate", "--spherical", "--style-mixing", "--project"),
        "goes with --seeds or --latents, for a film of --animate",
    ),
    (
        "--keyframes",
        (),
        (*MANY, *KEYFRAMES_SAY, "--loop", "--interpolate", "--spherical", "--style-mixing", "--nearest", "--project"),
        "its file names seeds, latents and classes of a loop; not with --seeds, --latents, --classes, --loop and such",
    ),
    ("--psi-layers", ("--psi",), (), "says for how many layers --psi holds, which is 1; give --psi too"),
    (
        "--rows-per-sheet",
        ("--classes",),
        (*MANY, "--nearest", "--animate", "--interpolate", "--style-mixing"),
        "goes with a grid that has a row for each of --classes",
    ),
    (
        BATCH,
        (*MANY, "--nearest"),
        (),
        "goes with --random, --npz, --pngs or --nearest; no row of a grid is a batch as in training",
    ),
    ("--standing-batches", (STANDING,), (), f"goes with {STANDING}"),
    ("--standing-size", (STANDING,), (), f"goes with {STANDING}"),
)
"""Options, those of which they need one, those that they do not go with, and what is said then."""


def given_in(request: GridRequest) -> dict[str, object]:
    """Option -> value of those in `TOGETHER` that a request has; True: no value is named."""
    values: dict[str, object] = {
        "--psi": None if request.psi == 1 else request.psi,
        "--truncation": None if request.truncation == 1 else request.truncation,
        "--psi-layers": request.psi_layers,
        "--style-mixing": True if request.mixing is not None else None,
        "--interpolate": request.interpolate,
        "--seeds": True if request.seeds else None,
        "--spherical": request.spherical or None,
        "--classes": True if request.classes is not None else None,
        "--morph": ",".join(f"{morph:g}" for morph in request.morphs) or None,
    }
    if isinstance(request, DrawRequest):
        values |= {
            "--rows-per-sheet": request.rows_per_sheet,
            **given_statistics(request.statistics),
            "--standing-batches": None if request.standing_batches == STANDING_BATCHES else request.standing_batches,
            "--standing-size": request.standing_size,
            "--directions": None if request.directions is None else str(request.directions),
            "--move": True if request.moves else None,
            "--latents": True if request.latents else None,
            "--loop": None if request.loop is None else "{}x{}".format(*request.loop),
            "--keyframes": None if request.keyframes is None else str(request.keyframes),
        }
    return {option: value for option, value in values.items() if value is not None}


def given_statistics(statistics: Statistics) -> dict[str, object]:
    """Return the option that chooses the statistics of batch normalisation, unless it has its default."""
    return {option: True for option in (STANDING, BATCH) if option.endswith(f" {statistics}")}


def refuse_together(options: Mapping[str, object]) -> None:
    """Refuse options that do not go together.

    Args:
        options: option -> its value, of those that were given; True: no value is named.

    Raises:
        BadInput: there are some.
    """
    kinds = [", ".join(kind) for kind in KINDS if options.keys() & set(kind)]
    if len(kinds) > 1:
        raise BadInput(f"{' and '.join(kinds)}: one kind at a time; run it once for each")
    for option, needs, excludes, why in TOGETHER:
        lonely = bool(needs) and not options.keys() & set(needs)
        if option in options and (lonely or options.keys() & set(excludes)):
            value = options[option]
            raise BadInput(f"{option}: {why}" if value is True else f"{option} {value}: {why}")


MOST_TRUNCATION = 10
"""Latents of such a size give noise already; far larger ones are not finite in fp32."""
LONG_TRUNCATION = 1.5
"""Longer latents are hardly ever drawn in training: 16 normal numbers are more than 1.5 times as long as usual in 3 of
1,000 draws, 128 in none."""
MOST_TRANSLATION = 100
"""Picture widths; the first frequencies repeat themselves long before."""
MOST_PSI = 100
"""Styles that far from the mean one give noise already."""
MOST_SEED_NUMBER = 2**32 - 1
"""Largest number that NumPy's generator takes, by which NVlabs' programs count latents."""


def check_psi(psi: float, layers: int | None, noise: Noise, recipe: Recipe) -> None:
    """Refuse a place of styles that is none, and one of networks that have no styles.

    Raises:
        BadInput: not a number, beyond all use, for no layer, or of a family without a mapping network.
    """
    is_given = {"--psi": psi != 1, "--psi-layers": layers is not None, "--noise": noise != "const"}
    if any(is_given.values()) and not recipe.kind.styles(recipe.networks):
        named = ", ".join(name for name, used in is_given.items() if used)
        raise BadInput(
            f"{named}: {recipe.family} has no mapping network, whose styles this would change; leave it out"
            + ("" if recipe.shows_given else " (--truncation makes latents shorter)")
        )
    if not abs(psi) <= MOST_PSI:
        raise BadInput(f"--psi {psi}: expected a number from -{MOST_PSI} to {MOST_PSI}; 1 is as trained, 0 the mean")
    if layers is not None and layers < 1:
        raise BadInput(f"--psi-layers {layers}: expected at least 1")


def check_moved(request: GridRequest, recipe: Recipe) -> None:
    """Refuse to move pictures that cannot be moved, or out of all use.

    Raises:
        BadInput: of a family that cannot, by no number, or by more than 100 pictures.
    """
    given = {"--translate": any(request.translate), "--rotate": bool(request.rotate)}
    if any(given.values()) and not recipe.kind.movable:
        named = ", ".join(name for name, used in given.items() if used)
        raise BadInput(f"{named}: {recipe.family} has no coordinates to move pictures by; that takes StyleGAN3")
    if not all(abs(share) <= MOST_TRANSLATION for share in request.translate):
        x, y = request.translate
        raise BadInput(
            f"--translate {x:g},{y:g}: expected picture widths, from -{MOST_TRANSLATION} to {MOST_TRANSLATION}"
        )
    if not math.isfinite(request.rotate):
        raise BadInput(f"--rotate {request.rotate}: expected degrees")


def check_numbered(request: GridRequest, recipe: Recipe) -> None:
    """Refuse seeds and mixtures that cannot be drawn.

    Raises:
        BadInput: of a family without styles; numbers out of range, or none; layers that there are not.
    """
    mixing = request.mixing
    if mixing is not None and not recipe.kind.styles(recipe.networks):
        raise BadInput(f"--style-mixing: {recipe.family} has no mapping network and no styles; leave it out")
    numbers = {"--seeds": request.seeds}
    if mixing is not None:
        numbers = {"--style-mixing rows": mixing.rows, "--style-mixing cols": mixing.columns}
        if not (mixing.rows and mixing.columns and mixing.layers):
            raise BadInput("--style-mixing: expected a row, a column and a layer at least")
    for option, values in numbers.items():
        for seed in values:
            if not 0 <= seed <= MOST_SEED_NUMBER:
                raise BadInput(f"{option} {seed}: expected a whole number from 0 to {MOST_SEED_NUMBER}")


def extent(request: GridRequest) -> tuple[int, int]:
    """Rows and columns of the grid that a request gives, as far as it says so; see `by_classes`."""
    if request.mixing is not None:
        return len(request.mixing.rows) + 1, len(request.mixing.columns) + 1
    if isinstance(request, DrawRequest) and request.loops:
        return (request.loop or (1, 1))[::-1]
    if request.seeds and request.interpolate == "both":
        return 1, request.columns
    rows = len(request.classes) if request.classes is not None else 1 if request.seeds else request.rows
    return rows, len(request.seeds) if request.seeds and request.interpolate is None else request.columns


def by_classes(request: GridRequest) -> bool:
    """Return whether each row is a class independent of the others, so that the grid may be drawn a sheet at a time."""
    looping = isinstance(request, DrawRequest) and request.loops
    return request.classes is not None and request.interpolate is None and request.mixing is None and not looping


def rows_that_fit(request: GridRequest, recipe: Recipe) -> int:
    """Return how many rows of a grid by classes fit on one sheet: at most those requested, and what file and memory
    hold."""
    rows, columns = extent(request)
    rows_per_sheet = request.rows_per_sheet if isinstance(request, DrawRequest) else None
    side = max(need.resolution for need in recipe.sources.values())
    titles = TITLE_HEIGHT if request.seeds else 0
    held = _most_on_a_grid(recipe) // max(1, columns)
    return max(1, min(rows_per_sheet or rows, that_fit(side, titles), held))


OF_RANDOM_INPUTS = (
    *("seeds", "directions", "latents", "loop", "keyframes"),
    *("classes", "interpolate", "truncation", "psi", "psi_layers", "spherical", "columns", "seed"),
    *("statistics", "rows_per_sheet", "translate", "rotate"),
)
"""Fields that concern random inputs, which a family that is shown faces does not have."""
MOST_SEED = 2**63 - 1
MOST_MORPHS = 32
MOST_ON_A_GRID = 10_000
"""Pictures: 100 rows of 100, which take minutes to draw on a processor."""


def check_request(request: GridRequest, recipe: Recipe) -> None:
    """Refuse grids that cannot be drawn.

    Raises:
        BadInput: a class out of range, no columns or too many pictures, a truncation or a seed that is none, or what
            does not go together.
    """
    if recipe.shows_given:
        _refuse_random_inputs(request, recipe.family)
    _check_classes(request, recipe.classes)
    if request.columns < 1 or request.rows < 1 or request.micro_batch < 1:
        raise BadInput("columns, rows and micro-batch: expected at least 1")
    check_truncation(request.truncation)
    check_psi(request.psi, request.psi_layers, request.noise, recipe)
    check_numbered(request, recipe)
    check_moved(request, recipe)
    _check_morphs(request, recipe)
    if not 0 <= request.seed <= MOST_SEED:
        raise BadInput(f"--seed {request.seed}: expected a whole number from 0 to {MOST_SEED}")
    if isinstance(request, DrawRequest):
        check_statistics(request, recipe)
        _check_points(request)
        if request.loop is not None and min(request.loop) < 1:
            raise BadInput(f"--loop {request.loop[0]}x{request.loop[1]}: expected at least 1x1")
        if request.rows_per_sheet is not None and request.rows_per_sheet < 1:
            raise BadInput(f"--rows-per-sheet {request.rows_per_sheet}: expected at least 1")
    rows, columns = extent(request)
    check_grid(rows_that_fit(request, recipe) if by_classes(request) else rows, columns, recipe)
    if request.interpolate is not None and request.columns < 2:
        raise BadInput(f"--columns {request.columns}: an interpolation has at least its 2 ends")
    refuse_together(given_in(request))


def _check_morphs(request: GridRequest, recipe: Recipe) -> None:
    """Refuse shares of a face that are none, and families that mix no faces.

    Raises:
        BadInput: there are some.
    """
    if not request.morphs:
        return
    told = f"--morph {','.join(f'{morph:g}' for morph in request.morphs)}"
    if not any(grid.morphs for grid in recipe.kind.snapshots(recipe.networks).values()):
        raise BadInput(f"{told}: {recipe.family} mixes no two faces; that takes AMP")
    if not all(0 <= morph <= 1 for morph in request.morphs) or len(request.morphs) > MOST_MORPHS:
        raise BadInput(
            f"{told}: expected at most {MOST_MORPHS} shares of the source's face, from 0 (the destination's code) to 1"
        )


def _refuse_random_inputs(request: GridRequest, family: str) -> None:
    usual = DrawRequest()
    ignored = [n for n in OF_RANDOM_INPUTS if getattr(request, n, getattr(usual, n)) != getattr(usual, n)]
    if ignored:
        options = " and ".join(f"--{name.replace('_', '-')}" for name in ignored)
        raise BadInput(
            f"{options}: for families that draw from random inputs; {family} shows what it makes of given "
            "pictures, which these leave as they are; leave them out (--rows says how many pictures)"
        )


def _check_points(request: DrawRequest) -> None:
    """Refuse options that move points of seeds where there are only those of latents."""
    moving = {"--psi": request.psi != 1, "--truncation": request.truncation != 1}
    if request.latents and not request.seeds and any(moving.values()):
        options = " and ".join(option for option, is_set in moving.items() if is_set)
        raise BadInput(f"{options}: says where pictures of --seeds lie; those of --latents lie where they are")


def check_grid(rows: int, columns: int, recipe: Recipe) -> None:
    """Refuse a grid or a film that is too large to be drawn in memory, or looked at.

    Raises:
        BadInput: too many pictures or pixels.
    """
    side = max(need.resolution for need in recipe.sources.values())
    most = _most_on_a_grid(recipe)
    if rows * columns > most:
        raise BadInput(
            f"{rows:,} x {columns:,} pictures (--rows, --columns or --frames): expected at most {most:,} together at "
            f"{side} pixels; --npz N and --pngs N write any number"
        )


def _most_on_a_grid(recipe: Recipe) -> int:
    """Pictures that are held in memory together."""
    side = max(need.resolution for need in recipe.sources.values())
    return min(MOST_ON_A_GRID, MOST_PIXELS // side**2)


def known_classes(recipe: Recipe) -> int:
    """Classes that a recipe's generator knows; 1: none.

    Raises:
        BadInput: the family makes pictures of given ones, and draws none by itself.
    """
    if recipe.shows_given:
        raise BadInput(
            f"{recipe.family} makes pictures of given ones and draws none by itself: there is nothing to draw or to "
            "score so; `frugan sample RUN --data PATH` shows what it makes of given ones"
        )
    return recipe.classes


def check_truncation(truncation: float) -> None:
    """Refuse a standard deviation of latents that is none.

    Raises:
        BadInput: not above 0, not a number, or beyond all use.
    """
    if not 0 < truncation <= MOST_TRUNCATION:
        raise BadInput(
            f"--truncation {truncation}: expected a number above 0 and at most {MOST_TRUNCATION}; 1 is as trained"
        )


def long_latents(truncation: float, recipe: Recipe) -> str | None:
    """Return a line for latents that are longer than a generator knows from its training; None: they are not."""
    takes_notice = not recipe.shows_given and not recipe.kind.styles(recipe.networks)
    if not takes_notice or not LONG_TRUNCATION < truncation <= MOST_TRUNCATION:
        return None
    return (
        f"--truncation {truncation:g}: latents {truncation:g} times as long as in training, which the generator has "
        "never met: expect noise. 1 is as trained; below 1 pictures are cleaner, with less variety"
    )


def _check_classes(request: GridRequest, known: int) -> None:
    for chosen in request.classes or ():
        if not 0 <= chosen < known:
            if known == 1:
                raise BadInput(f"--classes {chosen}: this network was trained without classes; leave --classes out")
            raise BadInput(f"--classes {chosen}: expected 0 to {known - 1}; this network has {known} classes")


def check_draw(request: DrawRequest, recipe: Recipe) -> None:
    """Refuse single pictures that cannot be drawn.

    Raises:
        BadInput: classes out of range, a truncation or psi that is none, sizes that are no whole groups, or what does
            not go together.
    """
    _check_classes(request, known_classes(recipe))
    check_truncation(request.truncation)
    check_psi(request.psi, request.psi_layers, request.noise, recipe)
    check_statistics(request, recipe)
    check_moved(request, recipe)
    refuse_together(given_in(request) | dict.fromkeys(MANY, True))


def check_statistics(request: DrawRequest, recipe: Recipe) -> None:
    """Refuse batches that no statistics can be measured over.

    Raises:
        BadInput: none, or of a size that is no whole group.
    """
    group = recipe.training.normalisation_batch or 1
    counts = {"--micro-batch": request.micro_batch, "--standing-batches": request.standing_batches}
    for option, value in counts.items():
        if value < 1:
            raise BadInput(f"{option} {value}: expected at least 1")
    if request.standing_size is not None and (request.standing_size < 2 or request.standing_size % group):
        raise BadInput(
            f"--standing-size {request.standing_size}: expected a multiple of the normalisation batch, {group}, and at "
            "least 2"
        )
