"""`frugan sample`."""

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from frugan.api.defaults import STANDING_BATCHES
from frugan.cli.class_choice import ClassChoice
from frugan.cli.drawing_options import (
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
)
from frugan.cli.numbers import parse_mixing, parse_numbers
from frugan.cli.output import Bar, named_paths, print_json, say
from frugan.errors import BadInput

if TYPE_CHECKING:
    from frugan.api.sample.generation import DrawRequest
    from frugan.api.weights import Weights


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
    from frugan.api.sample.drawing import animate as make_film
    from frugan.api.sample.drawing import check_film_name
    from frugan.api.sample.drawing import draw as draw_many
    from frugan.api.sample.generation import DrawRequest
    from frugan.api.sample.opened_networks import default_micro_batch
    from frugan.api.sample.sampling import sample as draw
    from frugan.api.weights import Weights
    from frugan.contract.samples import SheetRequest

    many = random or npz is not None or pngs is not None
    kinds = {
        "--style-mixing": style_mixing is not None,
        "--animate": animate is not None,
        "--nearest": nearest is not None,
        "--random, --npz, --pngs": many,
    }
    _refuse_several(kinds)
    if many and interpolate is not None:
        raise BadInput(f"--interpolate {interpolate.value}: not with --random, --npz or --pngs; run it once for each")
    if seeds is not None and (many or nearest is not None):
        raise BadInput(
            f"--seeds {seeds}: goes with sample grids and with --animate; --seed sets what --npz and others draw"
        )
    if spherical and interpolate is None and animate is None:
        raise BadInput("--spherical: goes with --interpolate or --animate")
    if statistics is not StatisticsOf.RUNNING and not many and nearest is None:
        raise BadInput(f"--statistics {statistics.value}: goes with --random, --npz, --pngs or --nearest")
    _refuse_standing(statistics, {"--standing-batches": standing_batches, "--standing-size": standing_size})
    _refuse_film(animate, frames)
    if animate is not None:
        check_film_name(out / animate)
    if nearest is not None and (data is None or len(data) != 1):
        raise BadInput("--nearest: expected the training pictures with --data PATH")
    numbers = parse_numbers(seeds, "--seeds") if seeds is not None else ()
    mixing = parse_mixing(style_mixing) if style_mixing is not None else None
    choice = ClassChoice.parse(classes) if classes is not None else None
    weights = Weights.open(source, say)
    at_once = micro_batch if micro_batch is not None else default_micro_batch(weights)
    chosen = choice.among(weights.class_names) if choice is not None else None
    request = SheetRequest(
        seed=seed,
        classes=chosen,
        columns=columns,
        truncation=truncation,
        psi=psi,
        psi_layers=psi_layers,
        interpolate=interpolate.value if interpolate is not None else None,
        spherical=spherical,
        rows=rows,
        micro_batch=at_once,
        noise=noise.value,
        seeds=numbers,
        mixing=mixing,
    )
    drawn = DrawRequest(
        seed=seed,
        truncation=truncation,
        psi=psi,
        psi_layers=psi_layers,
        noise=noise.value,
        classes=chosen,
        statistics=statistics.value,
        standing_batches=STANDING_BATCHES if standing_batches is None else standing_batches,
        standing_size=standing_size,
        micro_batch=at_once,
    )
    if animate is not None:
        paths = [make_film(weights, out / animate, replace(request, columns=frames), device=device, say=say)]
    elif nearest is not None:
        paths = [_beside_nearest(weights, out, data, drawn, rows, nearest, device)]
    elif many:
        sheet = (rows, columns) if random else None
        paths = draw_many(weights, out, drawn, npz=npz, pngs=pngs, sheet=sheet, device=device, say=say)
    else:
        paths = draw(weights, out, request, data=named_paths(data) if data else None, device=device, say=say)
    if as_json:
        print_json([str(path) for path in paths])
        return
    for path in paths:
        print(path)


def _refuse_several(kinds: dict[str, bool]) -> None:
    if sum(kinds.values()) > 1:
        asked = " and ".join(name for name, given in kinds.items() if given)
        raise BadInput(f"{asked}: one kind at a time; run it once for each")


def _refuse_film(name: str | None, frames: int) -> None:
    if name is None:
        return
    if Path(name).name != name:
        raise BadInput(f"--animate {name}: expected a name without folders, such as walk.gif; it goes into --out")
    if frames < 2:
        raise BadInput(f"--frames {frames}: expected at least 2, the two ends")


def _refuse_standing(statistics: StatisticsOf, given: dict[str, int | None]) -> None:
    for option, value in given.items():
        if value is not None and statistics is not StatisticsOf.STANDING:
            raise BadInput(f"{option} {value}: goes with --statistics standing")


def _beside_nearest(
    weights: "Weights", out: Path, data: list[str] | None, drawn: "DrawRequest", rows: int, nearest: int, device: str
) -> Path:
    from frugan.api.sample.memorisation import check_memorisation

    if data is None or len(data) != 1:
        raise BadInput("--nearest: expected the training pictures with --data PATH")
    with Bar("pictures") as bar:
        found = check_memorisation(
            weights,
            out=out,
            data=data[0],
            request=drawn,
            samples=rows,
            nearest=nearest,
            device=device,
            say=say,
            progress=bar,
        )
    return found.sheet
