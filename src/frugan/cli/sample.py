"""The `frugan sample` command."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from frugan.cli.options import (
    ClassChoice,
    Device,
    MicroBatch,
    Noise,
    Psi,
    PsiLayers,
    Seed,
    StandingSize,
    Statistics,
    WeightsFrom,
    options,
    parse_cells,
    parse_mixing,
    parse_morphs,
    parse_moves,
    parse_numbers,
    parse_translation,
)
from frugan.cli.output import Bar, named_paths, print_json, say
from frugan.errors import BadInput
from frugan.progress import PROJECTION_STEPS, STANDING_BATCHES

if TYPE_CHECKING:
    from frugan.sampling.requests import DrawRequest
    from frugan.setup.networks import Weights


@dataclass(frozen=True)
class SampleOptions:
    """Arguments and options of `frugan sample`."""

    source: WeightsFrom
    out: Annotated[Path, typer.Option(help="folder for the pictures")]
    classes: Annotated[
        str | None,
        typer.Option(help="draw these classes, a row for each: 0,3,7-9, or names such as cat,dog, or all"),
    ] = None
    rows_per_sheet: Annotated[
        int | None, typer.Option(help="rows of --classes in each file; default: as many as fit into 16,384 pixels")
    ] = None
    columns: Annotated[int, typer.Option(help="pictures in a row")] = 10
    rows: Annotated[int, typer.Option(help="rows of an interpolation, and of the grid without --classes")] = 10
    truncation: Annotated[
        float, typer.Option(help="standard deviation of the latents; below 1: cleaner, but less variety")
    ] = 1.0
    psi: Psi = 1.0
    psi_layers: PsiLayers = None
    noise: Noise = "const"
    seeds: Annotated[
        str | None,
        typer.Option(help="a picture for each seed, as the authors of StyleGAN2 count them: 42,600-605"),
    ] = None
    style_mixing: Annotated[
        str | None,
        typer.Option(
            help="StyleGAN2: a grid of the rows' seeds with the columns' styles in some layers: "
            "'rows=85,100 cols=55,821 layers=0-6', by --seeds"
        ),
    ] = None
    translate: Annotated[
        str | None,
        typer.Option(help="StyleGAN3: move every picture by shares of it to the right and down: 0.3,-0.1"),
    ] = None
    rotate: Annotated[float, typer.Option(help="StyleGAN3: turn every picture by degrees, to the left")] = 0.0
    morph: Annotated[
        str | None,
        typer.Option(help="AMP: swaps with these shares of the source's face, a column for each: 0,0.25,0.5,0.75,1"),
    ] = None
    directions: Annotated[
        str | None,
        typer.Option(
            help="ways to change pictures: sefa finds them in the weights, pca among samples (for some layers: "
            "'sefa layers=0-3'); or a file that was kept"
        ),
    ] = None
    move: Annotated[
        list[str] | None,
        typer.Option(
            help="with --directions: NAME=2 moves every picture so many standard deviations, NAME=-3..3 makes a row; "
            "default: rows of the first directions"
        ),
    ] = None
    latents: Annotated[
        list[Path] | None, typer.Option(help="start from pictures that were projected: their .safetensors files")
    ] = None
    project: Annotated[
        list[Path] | None,
        typer.Option(help="find the picture of the generator that is nearest to this one; its latents go into --out"),
    ] = None
    space: Annotated[
        str | None, typer.Option(help="where --project looks: w, or w+ with a style for each layer (nearer); z")
    ] = None
    steps: Annotated[int, typer.Option(help="of --project, for each picture")] = PROJECTION_STEPS
    features: Annotated[
        str,
        typer.Option(help="what --project compares pictures by: small, inception, or a TorchScript file such as LPIPS"),
    ] = "small"
    interpolate: Annotated[
        Literal["class", "latent", "both"] | None,
        typer.Option(help="interpolate along each row: class, latent or both"),
    ] = None
    spherical: Annotated[bool, typer.Option(help="interpolate latents along a great circle, not a straight line")] = (
        False
    )
    random: Annotated[bool, typer.Option("--random", help="a grid of random classes, --rows by --columns")] = False
    npz: Annotated[int | None, typer.Option(help="write this many random samples to samples.npz (x uint8, y)")] = None
    pngs: Annotated[
        int | None,
        typer.Option(
            help="write this many random samples as PNGs, a folder for each class; swapped faces, from --data"
        ),
    ] = None
    animate: Annotated[
        str | None,
        typer.Option(
            help="write an interpolation, or what --project does, as a film of this name in --out: .gif, .webp, .mp4; "
            "with --seeds 3,7 --classes cat,dog from seed 3 of one class to seed 7 of the other"
        ),
    ] = None
    frames: Annotated[
        int,
        typer.Option(
            help="frames of --animate: from one end to the other, and backwards from there; or of a whole loop"
        ),
    ] = 48
    loop: Annotated[
        str | None,
        typer.Option(
            help="with --animate: a smooth closed loop through --seeds and --latents; 1x1 or a grid such as 3x2, "
            "whose cells share them; with --directions: a cell for each direction of each picture"
        ),
    ] = None
    keyframes: Annotated[
        Path | None,
        typer.Option(
            help="with --animate: a smooth closed loop through the seeds and latents of this JSON file: "
            '{"keyframes": [{"seed": 3, "class": "cat"}, {"latents": "me.safetensors", "time": 2}]}'
        ),
    ] = None
    nearest: Annotated[
        int | None, typer.Option(help="show this many nearest training pictures, from --data, beside each sample")
    ] = None
    statistics: Annotated[
        Statistics,
        typer.Option(help="statistics for batch normalisation; batch: with --random, --npz, --pngs and --nearest"),
    ] = "running"
    standing_batches: Annotated[
        int | None, typer.Option(help=f"batches to measure standing statistics over; default: {STANDING_BATCHES}")
    ] = None
    standing_size: StandingSize = None
    data: Annotated[
        list[str] | None, typer.Option(help="[NAME=]PATH of faces, for a face model, or of pictures, for --nearest")
    ] = None
    replace: Annotated[bool, typer.Option("--replace", help="write over files of these names in --out")] = False
    seed: Seed = 0
    micro_batch: MicroBatch = None
    device: Device = "auto"
    as_json: Annotated[bool, typer.Option("--json", help="print the paths as JSON")] = False

    def given(self) -> dict[str, object]:
        """Return the mutually exclusive options that are set, by name, with their values as typed."""
        from frugan.sampling.requests import given_statistics

        values = {
            "--style-mixing": True if self.style_mixing is not None else None,
            "--animate": self.animate,
            "--nearest": self.nearest,
            "--random": self.random or None,
            "--npz": self.npz,
            "--pngs": self.pngs,
            "--interpolate": self.interpolate,
            "--seeds": self.seeds,
            "--directions": self.directions,
            "--move": True if self.move else None,
            "--morph": self.morph,
            "--latents": True if self.latents else None,
            "--loop": self.loop,
            "--keyframes": str(self.keyframes) if self.keyframes is not None else None,
            "--project": True if self.project else None,
            "--space": self.space,
            "--steps": self.steps if self.steps != PROJECTION_STEPS else None,
            "--features": self.features if self.features != "small" else None,
            "--spherical": self.spherical or None,
            "--classes": self.classes,
            "--psi": None if self.psi == 1 else self.psi,
            "--truncation": None if self.truncation == 1 else self.truncation,
            "--rows-per-sheet": self.rows_per_sheet,
            **given_statistics(self.statistics),
            "--standing-batches": self.standing_batches,
            "--standing-size": self.standing_size,
        }
        return {option: value for option, value in values.items() if value is not None}

    def request(self) -> "DrawRequest":
        """Return the draw request, without classes and micro-batch, which depend on the weights."""
        from frugan.sampling.requests import DrawRequest

        return DrawRequest(
            seed=self.seed,
            columns=self.columns if self.animate is None else self.frames,
            rows=self.rows,
            rows_per_sheet=self.rows_per_sheet,
            truncation=self.truncation,
            psi=self.psi,
            psi_layers=self.psi_layers,
            noise=self.noise,
            interpolate=self.interpolate,
            spherical=self.spherical,
            seeds=parse_numbers(self.seeds, "--seeds") if self.seeds is not None else (),
            mixing=parse_mixing(self.style_mixing) if self.style_mixing is not None else None,
            translate=parse_translation(self.translate) if self.translate is not None else (0.0, 0.0),
            rotate=self.rotate,
            morphs=parse_morphs(self.morph) if self.morph is not None else (),
            directions=self.directions,
            moves=parse_moves(self.move or ()),
            latents=tuple(self.latents or ()),
            loop=parse_cells(self.loop) if self.loop is not None else None,
            keyframes=self.keyframes,
            statistics=self.statistics,
            standing_batches=STANDING_BATCHES if self.standing_batches is None else self.standing_batches,
            standing_size=self.standing_size,
        )


@options(SampleOptions)
def sample(**values: Any) -> None:
    """Draw samples: grids by class, interpolations, many single pictures, animations, or previews of faces.

    Example: frugan sample runs/first --out samples --classes 0-4 --truncation 0.7

    Every class: frugan sample runs/first --out all --classes all --rows-per-sheet 40

    For other programs: frugan sample runs/first --out many --npz 50000

    An animation: frugan sample runs/first --out films --animate walk.gif --seeds 3,7 --classes cat,dog

    StyleGAN2: frugan sample runs/style --out samples --style-mixing "rows=85,100 cols=55,821 layers=0-3" --psi 0.7

    Directions: frugan sample runs/style --out samples --directions sefa --seeds 42 --psi 0.7

    Your own picture: frugan sample runs/style --out samples --project me.jpg --space w+

    Faces: frugan sample runs/swap --data workspace --out samples --rows 8 (swapped ones as single files: --pngs 100)

    AMP: frugan sample runs/amp --data workspace --out samples --morph 0,0.25,0.5,0.75,1
    """
    arguments = SampleOptions(**values)
    from frugan.sampling.films import check_film
    from frugan.sampling.generators import default_micro_batch
    from frugan.sampling.requests import long_latents, refuse_together
    from frugan.setup.networks import Weights

    refuse_together(arguments.given())
    if arguments.animate is not None:
        _refuse_folders(arguments.animate)
        check_film(arguments.out / arguments.animate, arguments.frames)
    elif option := next((name for name in ("--loop", "--keyframes") if name in arguments.given()), None):
        raise BadInput(f"{option} {arguments.given()[option]}: a film has a name; add --animate loop.webp")
    if arguments.nearest is not None and len(arguments.data or ()) != 1:
        raise BadInput("--nearest: expected the training pictures with --data PATH")
    request = arguments.request()
    chosen = ClassChoice.parse(arguments.classes) if arguments.classes is not None else None

    weights = Weights.open(arguments.source, say)
    if (line := long_latents(arguments.truncation, weights.recipe)) is not None:
        say(line)
    classes = chosen.among(weights.class_names, weights.recipe.classes) if chosen is not None else None
    micro_batch = arguments.micro_batch if arguments.micro_batch is not None else default_micro_batch(weights)
    paths = _draw(arguments, weights, replace(request, classes=classes, micro_batch=micro_batch))
    if arguments.as_json:
        print_json([str(path) for path in paths])
        return
    for path in paths:
        print(path)


def _draw(arguments: SampleOptions, weights: "Weights", request: "DrawRequest") -> list[Path]:
    """Draw the requested kind of files."""
    from frugan.sampling.projection import project
    from frugan.sampling.requests import MANY
    from frugan.sampling.sampling import animate, check_memorisation, draw, transform
    from frugan.sampling.sampling import sample as draw_grids

    out, device, data = arguments.out, arguments.device, arguments.data or []
    how: dict[str, Any] = {"replace_files": arguments.replace, "device": device, "say": say}
    if arguments.project:
        with Bar("steps") as bar:
            return project(
                weights,
                arguments.project,
                out,
                space=arguments.space,
                steps=arguments.steps,
                features=arguments.features,
                animate=arguments.animate,
                frames=arguments.frames,
                **how,
                progress=bar,
            )
    if arguments.animate is not None:
        return [animate(weights, out / arguments.animate, request, **how)]
    if arguments.nearest is not None:
        with Bar("pictures") as bar:
            how |= {"samples": arguments.rows, "nearest": arguments.nearest}
            check = check_memorisation(weights, data[0], out, request, **how, progress=bar)
        return list(check.sheets)
    if arguments.pngs is not None and weights.recipe.shows_given:
        named_data = named_paths(data) if data else None
        micro_batch = request.micro_batch
        return transform(weights, out, arguments.pngs, data=named_data, micro_batch=micro_batch, device=device, say=say)
    if arguments.given().keys() & set(MANY):
        grid = (arguments.rows, arguments.columns) if arguments.random else None
        return draw(weights, out, request, npz=arguments.npz, pngs=arguments.pngs, sheet=grid, **how)
    named_data = named_paths(data) if data else None
    with Bar("sheets") as bar:
        return draw_grids(weights, out, request, data=named_data, **how, progress=bar)


def _refuse_folders(name: str) -> None:
    if Path(name).name != name:
        raise BadInput(f"--animate {name}: expected a name without folders, such as walk.gif; it goes into --out")
