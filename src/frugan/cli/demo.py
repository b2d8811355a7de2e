"""`frugan demo`."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from frugan.cli.output import print_json, say

if TYPE_CHECKING:
    from frugan.api.demo import DemoResult
    from frugan.api.train.run import TrainingResult


class DemoOf(StrEnum):
    """What the demo is of."""

    DIGITS = "digits"
    FACES = "faces"
    STYLEGAN2 = "stylegan2"


def demo(
    subject: Annotated[
        DemoOf, typer.Argument(help="digits: BigGAN; stylegan2: StyleGAN2 on the same digits; faces: SAEHD")
    ] = DemoOf.DIGITS,
    out: Annotated[Path | None, typer.Option(help="run folder; default: demo in the folder for runs")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the numbers as JSON")] = False,
) -> None:
    """Try it all on a CPU, in minutes: BigGAN or StyleGAN2 on built-in digits, or SAEHD on two imaginary people.

    Example: frugan demo faces --out runs/faces
    """
    if subject == DemoOf.FACES:
        _faces(out, as_json)
    elif subject == DemoOf.STYLEGAN2:
        _stylegan2(out, as_json)
    else:
        _digits(out, as_json)


def _digits(out: Path | None, as_json: bool) -> None:
    from frugan.api.demo import DIGITS_RECIPE, demo_folder
    from frugan.api.demo import demo as demo_digits
    from frugan.api.train.run import TrainingResult
    from frugan.report.progress_line import LiveLine

    with LiveLine() as line:
        result = demo_digits(out or demo_folder("demo", DIGITS_RECIPE, say), say=say, show=line.show)
    if isinstance(result, TrainingResult):
        _print_stopped(result, as_json)
        return
    if as_json:
        print_json(_digit_scores(result))
        return
    _print_digits(result)
    _print_digit_scores(result)
    print(
        "\nNext:\n"
        f"  frugan sample {result.run} --out samples --interpolate class   more samples from this run\n"
        "  frugan train biggan-small-32 networks.classes=2 --data PICTURES --out runs/mine\n"
        "                                     on your own pictures: PICTURES has a folder for each class\n"
        "  frugan demo stylegan2              the same digits with StyleGAN2\n"
        "  frugan demo faces                  the face model, on two imaginary people\n"
        "  frugan recipes                     the other recipes"
    )


def _stylegan2(out: Path | None, as_json: bool) -> None:
    from frugan.api.demo import STYLEGAN2_RECIPE, demo_folder, demo_stylegan2
    from frugan.api.train.run import TrainingResult
    from frugan.report.progress_line import LiveLine

    with LiveLine() as line:
        run = out or demo_folder("demo-stylegan2", STYLEGAN2_RECIPE, say)
        result = demo_stylegan2(run, say=say, show=line.show)
    if isinstance(result, TrainingResult):
        _print_stopped(result, as_json)
        return
    if as_json:
        print_json(_digit_scores(result))
        return
    _print_digits(result)
    print(f"Styles mixed:                  {result.style_mixing}")
    _print_digit_scores(result)
    print(
        "\nNext:\n"
        f'  frugan sample {run} --out samples --style-mixing "rows=1-4 cols=5-8 layers=3-7" --classes 8\n'
        f"  frugan sample {run} --out films --animate walk.gif --seeds 1,2,3 --classes 0-9\n"
        "  frugan train stylegan2-auto networks.resolution=128 --data PICTURES --out runs/mine   on your own\n"
        "  frugan recipes                     the other recipes"
    )


def _print_stopped(stopped: "TrainingResult", as_json: bool) -> None:
    if as_json:
        print_json({"finished": False, "step": stopped.step, "run": str(stopped.run)})
        return
    print(f"Stopped after step {stopped.step:,} and saved in {stopped.run}.")
    print("The same command continues; scores are printed when it has finished.")


def _digit_scores(result: "DemoResult") -> dict[str, float]:
    return {
        "class_accuracy": round(result.class_accuracy, 4),
        "trained_on_generated": round(result.trained_on_generated, 4),
        "classifier_accuracy": round(result.classifier_accuracy, 4),
        "seconds": round(result.seconds, 1),
    }


def _print_digits(result: "DemoResult") -> None:
    print(f"Samples, a row for each digit: {result.samples}")
    print(f"Interpolation:                 {result.interpolation}")


def _print_digit_scores(result: "DemoResult") -> None:
    print(
        f"class_accuracy       {result.class_accuracy:.3f}  share of samples that a classifier reads as asked\n"
        f"trained_on_generated {result.trained_on_generated:.3f}"
        "  the same classifier, trained on generated digits only, on unseen real ones\n"
        f"classifier_accuracy  {result.classifier_accuracy:.3f}"
        "  for comparison: trained on real digits, on unseen real ones\n"
        f"seconds              {result.seconds:.0f}"
    )


def _faces(out: Path | None, as_json: bool) -> None:
    from frugan.api.demo import FACES_RECIPE, demo_faces, demo_folder
    from frugan.api.train.run import TrainingResult
    from frugan.report.progress_line import LiveLine

    with LiveLine() as line:
        result = demo_faces(out or demo_folder("demo-faces", FACES_RECIPE, say), say=say, show=line.show)
    if isinstance(result, TrainingResult):
        _print_stopped(result, as_json)
        return
    if as_json:
        print_json(
            {
                "swap_error": round(result.swap_error, 4),
                "unswapped_error": round(result.unswapped_error, 4),
                "reconstruction_error": round(result.reconstruction_error, 4),
                "seconds": round(result.seconds, 1),
            }
        )
        return
    print(f"Destination, swap, and the truth: {result.comparison}")
    print(f"Preview: {result.preview}")
    print(
        f"swap_error           {result.swap_error:.4f}  mean difference from the perfect swap, 0 to 1\n"
        f"unswapped_error      {result.unswapped_error:.4f}  the same for the destination's face, unswapped\n"
        f"reconstruction_error {result.reconstruction_error:.4f}  mean error on source faces not seen in training\n"
        f"seconds              {result.seconds:.0f}"
    )
    print(
        "\nNext:\n"
        f"  frugan sample {result.run} --data {result.workspace} --out samples --rows 8   more previews\n"
        f"  frugan convert {result.run} model --to leras     files for DeepFaceLab to go on with\n"
        f"  frugan convert {result.run} faces.dfm --to dfm   a model for DeepFaceLive\n"
        "  frugan train saehd-df-ud-256 --data WORKSPACE --out runs/swap   on your own DeepFaceLab workspace"
    )
