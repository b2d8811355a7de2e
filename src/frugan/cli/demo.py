"""The `frugan demo` command."""

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from frugan.cli.output import print_json, program, say
from frugan.errors import BadInput
from frugan.files import RUN_RECIPE, Folders
from frugan.progress import Say

if TYPE_CHECKING:
    from frugan.recipe.recipe import Recipe
    from frugan.training.demo import DemoResult
    from frugan.training.demo_faces import FaceDemoResult


def demo(
    subject: Annotated[
        Literal["digits", "faces", "stylegan2"],
        typer.Argument(
            help="digits: BigGAN; stylegan2: StyleGAN2 on the same digits; faces: SAEHD, 1 to 7 minutes on two cores"
        ),
    ] = "digits",
    out: Annotated[Path | None, typer.Option(help="run folder; default: demo in the folder for runs")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the numbers as JSON")] = False,
) -> None:
    """Try it all on a CPU, in minutes: BigGAN or StyleGAN2 on built-in digits, or SAEHD on two imaginary people.

    Example: frugan demo faces --out runs/faces
    """
    from frugan.reporting.progress_line import LiveLine
    from frugan.training.demo import DIGITS_RECIPE, STYLEGAN2_RECIPE, DemoResult, demo_stylegan2
    from frugan.training.demo import demo as demo_digits
    from frugan.training.demo_faces import FACES_RECIPE, demo_faces
    from frugan.training.run import TrainingResult

    with LiveLine() as line:
        if subject == "faces":
            folder = out or demo_folder("demo-faces", FACES_RECIPE, say)
            result: DemoResult | FaceDemoResult | TrainingResult = demo_faces(folder, say=say, show=line.show)
        elif subject == "stylegan2":
            result = demo_stylegan2(
                out or demo_folder("demo-stylegan2", STYLEGAN2_RECIPE, say), say=say, show=line.show
            )
        else:
            result = demo_digits(out or demo_folder("demo", DIGITS_RECIPE, say), say=say, show=line.show)
    if isinstance(result, TrainingResult):
        _print_stopped(result.run, result.step, as_json)
    elif as_json:
        scores = {name: value for name, value in vars(result).items() if isinstance(value, float)}
        print_json({name: round(value, 1 if name == "seconds" else 4) for name, value in scores.items()})
    elif isinstance(result, DemoResult):
        _print_digits(result)
    else:
        _print_faces(result)


def demo_folder(name: str, recipe_name: str, say: Say) -> Path:
    """Return the run folder `name` if a demo can resume there, else name-2, name-3 ... past other recipes' runs.

    So whoever has run the demo of another version gets today's, and keeps theirs.

    Args:
        recipe_name: of today's demo.
        say: is told of the runs that are left alone.
    """
    from frugan.recipe.loading import load_recipe

    recipe, runs = load_recipe(recipe_name), Folders.from_environment().runs
    for number in count(1):
        folder = runs / (name if number == 1 else f"{name}-{number}")
        if not (folder / RUN_RECIPE).is_file() or _goes_on(folder, recipe):
            break
        say(f"{folder} is a run of another recipe: left as it is")
    return folder


def _goes_on(folder: Path, recipe: "Recipe") -> bool:
    """Return whether the run in a folder can be resumed with a recipe."""
    from frugan.recipe.loading import load_recipe
    from frugan.recipe.overrides import differences

    try:
        before = load_recipe(str(folder))
    except BadInput:  # of a version whose fields are no longer known
        return False
    return before.family == recipe.family and all(field.changeable for field in differences(before, recipe).values())


def _print_stopped(run: Path, step: int, as_json: bool) -> None:
    if as_json:
        print_json({"finished": False, "step": step, "run": str(run)})
        return
    print(f"Stopped after step {step:,} and saved in {run}.")
    print("The same command continues; scores are printed when it has finished.")


def _print_digits(result: "DemoResult") -> None:
    run = result.run
    print(f"Samples, a row for each digit: {result.samples}")
    print(f"Interpolation:                 {result.interpolation}")
    if result.style_mixing is not None:
        print(f"Styles mixed:                  {result.style_mixing}")
    print(
        f"class_accuracy       {result.class_accuracy:.3f}  share of samples that a classifier reads as asked\n"
        f"trained_on_generated {result.trained_on_generated:.3f}"
        "  the same classifier, trained on generated digits only, on unseen real ones\n"
        f"classifier_accuracy  {result.classifier_accuracy:.3f}"
        "  for comparison: trained on real digits, on unseen real ones\n"
        f"seconds              {result.seconds:.0f}"
    )
    typed = quote(str(run))
    if result.style_mixing is not None:
        _print_next(
            {
                "two styles mixed": f"sample {typed} --out samples "
                '--style-mixing "rows=1-4 cols=5-8 layers=3-7" --classes 8',
                "a film": f"sample {typed} --out films --animate walk.gif --seeds 1-10 --classes 0-9",
                "on your own pictures": "train stylegan2-auto networks.resolution=128 --data PICTURES --out runs/mine",
            }
        )
        return
    _print_next(
        {
            "more samples from this run": f"sample {typed} --out samples --interpolate class",
            "this run and your others in a browser, while they train too": f"page {quote(str(run.parent))}",
            "one page with its losses, grids and plan": f"report {typed}",
            "on your own pictures, frugan chooses how": "train --data PICTURES --out runs/mine --for 2h",
            "the same digits with StyleGAN2": "demo stylegan2",
            "the face model, on two imaginary people": "demo faces",
        }
    )


def _print_faces(result: "FaceDemoResult") -> None:
    print(f"Destination, swap, and the truth: {result.comparison}")
    print(f"Preview: {result.preview}")
    print(
        f"swap_error           {result.swap_error:.4f}  mean difference from the perfect swap, 0 to 1\n"
        f"unswapped_error      {result.unswapped_error:.4f}  the same for the destination's face, unswapped\n"
        f"reconstruction_error {result.reconstruction_error:.4f}  mean error on source faces not seen in training\n"
        f"seconds              {result.seconds:.0f}"
    )
    run = quote(str(result.run))
    _print_next(
        {
            "more previews": f"sample {run} --data {quote(str(result.workspace))} --out samples --rows 8",
            "files for DeepFaceLab to go on with": f"convert {run} model --to leras",
            "a model for DeepFaceLive": f"convert {run} faces.dfm --to dfm",
            "on your own DeepFaceLab workspace": "train saehd-df-ud-256 --data WORKSPACE --out runs/swap",
        }
    )


def _print_next(commands: Mapping[str, str]) -> None:
    """Print what to go on with: what a command is for stands above it, so that its line can be copied whole."""
    print("\nNext:")
    for purpose, words in {**commands, "the other recipes": "recipes"}.items():
        print(f"  {purpose}:\n    {program()} {words}")
