"""`frugan demo`."""

from pathlib import Path
from typing import Annotated

import typer

from frugan.api.demo import demo as run_demo
from frugan.cli.output import print_json, say
from frugan.folders import Folders
from frugan.report.progress_line import LiveLine


def demo(
    out: Annotated[Path | None, typer.Option(help="run folder; default: demo in the folder for runs")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the numbers as JSON")] = False,
) -> None:
    """Train a small BigGAN on embedded handwritten digits: the whole job, on a CPU, in minutes.

    Example: frugan demo --out runs/demo
    """
    run = out if out is not None else Folders.from_environment().runs / "demo"
    with LiveLine() as line:
        result = run_demo(run, say=say, show=line.show)
    if as_json:
        print_json(
            {
                "class_accuracy": round(result.class_accuracy, 4),
                "trained_on_generated": round(result.trained_on_generated, 4),
                "classifier_accuracy": round(result.classifier_accuracy, 4),
                "seconds": round(result.seconds, 1),
            }
        )
        return
    if not result.finished:
        print(f"Stopped and saved in {result.run}; the same command goes on.")
    print(f"Samples, a row for each digit: {result.samples}")
    print(f"Interpolation:                 {result.interpolation}")
    print(
        f"class_accuracy       {result.class_accuracy:.3f}  generated digits that a classifier takes for what was asked"
        "\n"
        f"trained_on_generated {result.trained_on_generated:.3f}  the same classifier, fitted on generated digits only,"
        " on unseen real ones\n"
        f"classifier_accuracy  {result.classifier_accuracy:.3f}  the classifier itself, fitted on real digits,"
        " on unseen real ones\n"
        f"seconds              {result.seconds:.0f}"
    )
    print(
        "\nNext:\n"
        f"  frugan sample {result.run} --out sheets --interpolate class   more pictures from this run\n"
        "  frugan train biggan-cifar10-32 networks.classes=2 --data PICTURES --out runs/mine\n"
        "                                     your own: PICTURES holds one folder for each class\n"
        "  frugan recipes                     what else ships"
    )
