"""`frugan sample`."""

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from frugan.api.defaults import STANDING_BATCHES
from frugan.cli.options import (
    ClassChoice,
    Device,
    MicroBatch,
    Noise,
    NoiseOf,
    Psi,
    PsiLayers,
    Seed,
    StandingSize,
    StatisticsOf,
    WeightsFrom,
    parse_mixing,
    parse_numbers,
)
from frugan.cli.output import Bar, named_paths, print_json, say
from frugan.errors import BadInput

MANY = ("--random", "--npz", "--pngs")
"""Options that draw random samples."""
KINDS = (("--style-mixing",), ("--animate",), ("--nearest",), MANY)
"""Of what is drawn, of which a call has one."""
STANDING = "--statistics standing"
TOGETHER = (
    ("--interpolate", (), MANY, "not with --random, --npz or --pngs; run it once for each"),
    (
        "--seeds",
        (),
        (*MANY, "--nearest"),
        "goes with sample grids and with --animate; --seed sets what --npz and others draw",
    ),
    ("--spherical", ("--interpolate", "--animate"), (), "goes with --interpolate or --animate"),
    ("--statistics", (*MANY, "--nearest"), (), "goes with --random, --npz, --pngs or --nearest"),
    ("--standing-batches", (STANDING,), (), f"goes with {STANDING}"),
    ("--standing-size", (STANDING,), (), f"goes with {STANDING}"),
)
"""Options, those of which they need one, those that they do not go with, and what is said then."""


class Interpolation(StrEnum):
    """What moves along a row of an interpolation sheet."""

    CLASS = "class"
    LATENT = "latent"
    BOTH = "both"


def sample(
    source: WeightsFrom,
    out: Annotated[Path, typer.Option(help="folder for the pictures")],
    classes: Annotated[
        str | None, typer.Option(help="draw these classes, a row for each, by number or name: 0,3,7-9 or cat,dog")
    ] = None,
    columns: Annotated[int, typer.Option(help="pictures in a row")] = 10,
    rows: Annotated[int, typer.Option(help="rows of an interpolation")] = 10,
    truncation: Annotated[
        float, typer.Option(help="standard deviation of the latents; below 1: cleaner, but less variety")
    ] = 1.0,
    psi: Psi = 1.0,
    psi_layers: PsiLayers = None,
    noise: Noise = NoiseOf.CONST,
    seeds: Annotated[
        str | None,
        typer.Option(help="StyleGAN2: seeds as in its authors' programs, such as 42,600-605"),
    ] = None,
    style_mixing: Annotated[
        str | None,
        typer.Option(
            help="StyleGAN2: a grid of the rows' seeds with the columns' styles in some layers: "
            "'rows=85,100 cols=55,821 layers=0-6', by --seeds"
        ),
    ] = None,
    interpolate: Annotated[
        Interpolation | None, typer.Option(help="interpolate along each row: class, latent or both")
    ] = None,
    spherical: Annotated[
        bool, typer.Option(help="interpolate latents along a great circle, not a straight line")
    ] = False,
    random: Annotated[bool, typer.Option("--random", help="a grid of random classes, --rows by --columns")] = False,
    npz: Annotated[int | None, typer.Option(help="write this many random samples to samples.npz (x uint8, y)")] = None,
    pngs: Annotated[
        int | None, typer.Option(help="write this many random samples as PNGs, a folder for each class")
    ] = None,
    animate: Annotated[
        str | None, typer.Option(help="write an interpolation as an animation of this name in --out: .gif or .mp4")
    ] = None,
    frames: Annotated[
        int, typer.Option(help="frames of --animate, from one end to the other; then it plays backwards")
    ] = 48,
    nearest: Annotated[
        int | None, typer.Option(help="show this many nearest training pictures, from --data, beside each sample")
    ] = None,
    statistics: Annotated[
        StatisticsOf, typer.Option(help="statistics for batch normalisation, with --random, --npz and --pngs")
    ] = StatisticsOf.RUNNING,
    standing_batches: Annotated[
        int | None, typer.Option(help=f"batches to measure standing statistics over; default: {STANDING_BATCHES}")
    ] = None,
    standing_size: StandingSize = None,
    data: Annotated[
        list[str] | None, typer.Option(help="[NAME=]PATH of faces, for a face model, or of pictures, for --nearest")
    ] = None,
    seed: Seed = 0,
    micro_batch: MicroBatch = None,
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="print the paths as JSON")] = False,
) -> None:
    """Draw samples: grids by class, interpolations, many single pictures, animations, or previews of faces.

    Example: frugan sample runs/first --out samples --classes 0-4 --truncation 0.7

    For other programs: frugan sample runs/first --out many --npz 50000

    An animation: frugan sample runs/first --out films --animate walk.gif --interpolate latent --rows 4

    StyleGAN2: frugan sample runs/style --out samples --style-mixing "rows=85,100 cols=55,821 layers=0-3" --psi 0.7

    Faces: frugan sample runs/swap --data workspace --out samples --rows 8
    """
    from frugan.api.networks import Weights
    from frugan.api.sample.drawing import animate as make_film
    from frugan.api.sample.drawing import check_film_name, check_memorisation
    from frugan.api.sample.drawing import draw as draw_many
    from frugan.api.sample.generation import DrawRequest
    from frugan.api.sample.networks import default_micro_batch
    from frugan.api.sample.sampling import sample as draw

    # What is refused before anything is opened.
    asked = {
        "--style-mixing": style_mixing,
        "--animate": animate,
        "--nearest": nearest,
        "--random": random or None,
        "--npz": npz,
        "--pngs": pngs,
        "--interpolate": interpolate,
        "--seeds": seeds,
        "--spherical": spherical or None,
        "--statistics": None if statistics is StatisticsOf.RUNNING else statistics,
        STANDING: True if statistics is StatisticsOf.STANDING else None,
        "--standing-batches": standing_batches,
        "--standing-size": standing_size,
    }
    given = {option: value for option, value in asked.items() if value is not None}
    _refuse_together(given)
    if animate is not None:
        _refuse_film(animate, frames)
        check_film_name(out / animate)
    pictures = data or []
    if nearest is not None and len(pictures) != 1:
        raise BadInput("--nearest: expected the training pictures with --data PATH")
    numbers = parse_numbers(seeds, "--seeds") if seeds is not None else ()
    mixing = parse_mixing(style_mixing) if style_mixing is not None else None
    chosen = ClassChoice.parse(classes) if classes is not None else None

    # What is drawn.
    weights = Weights.open(source, say)
    drawn = DrawRequest(
        seed=seed,
        truncation=truncation,
        psi=psi,
        psi_layers=psi_layers,
        noise=noise.value,
        classes=chosen.among(weights.class_names) if chosen is not None else None,
        statistics=statistics.value,
        standing_batches=STANDING_BATCHES if standing_batches is None else standing_batches,
        standing_size=standing_size,
        micro_batch=micro_batch if micro_batch is not None else default_micro_batch(weights),
    )
    sheet = replace(
        drawn.sheet(),
        columns=columns if animate is None else frames,
        rows=rows,
        interpolate=interpolate.value if interpolate is not None else None,
        spherical=spherical,
        seeds=numbers,
        mixing=mixing,
    )
    if animate is not None:
        paths = [make_film(weights, out / animate, sheet, device=device, say=say)]
    elif nearest is not None:
        with Bar("pictures") as bar:
            found = check_memorisation(
                weights, pictures[0], out, drawn, samples=rows, nearest=nearest, device=device, say=say, progress=bar
            )
        paths = [found.sheet]
    elif given.keys() & set(MANY):
        grid = (rows, columns) if random else None
        paths = draw_many(weights, out, drawn, npz=npz, pngs=pngs, sheet=grid, device=device, say=say)
    else:
        paths = draw(weights, out, sheet, data=named_paths(pictures) if pictures else None, device=device, say=say)
    if as_json:
        print_json([str(path) for path in paths])
        return
    for path in paths:
        print(path)


def _refuse_together(given: Mapping[str, object]) -> None:
    """Refuse options that do not go together.

    Raises:
        BadInput: there are some.
    """
    kinds = [", ".join(options) for options in KINDS if given.keys() & set(options)]
    if len(kinds) > 1:
        raise BadInput(f"{' and '.join(kinds)}: one kind at a time; run it once for each")
    for option, needs, excludes, why in TOGETHER:
        lonely = bool(needs) and not given.keys() & set(needs)
        if option in given and (lonely or given.keys() & set(excludes)):
            value = given[option]
            raise BadInput(f"{option}: {why}" if value is True else f"{option} {value}: {why}")


def _refuse_film(name: str, frames: int) -> None:
    if Path(name).name != name:
        raise BadInput(f"--animate {name}: expected a name without folders, such as walk.gif; it goes into --out")
    if frames < 2:
        raise BadInput(f"--frames {frames}: expected at least 2, the two ends")
