"""`frugan evaluate`."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from frugan.api.progress import METRICS, STANDING_BATCHES, USUAL_METRICS, quiet
from frugan.cli.options import (
    AsJson,
    ClassChoice,
    Device,
    MicroBatch,
    Noise,
    Psi,
    PsiLayers,
    Rounding,
    Seed,
    StandingSize,
    Statistics,
    WeightsFrom,
    options,
)
from frugan.cli.output import Bar, print_json, say
from frugan.errors import BadInput

if TYPE_CHECKING:
    from frugan.api.evaluate.scorer import Evaluation, EvaluationOptions
    from frugan.api.networks import Weights


def parse_truncations(text: str) -> tuple[float, ...]:
    """Read "0.1:1.0:0.1" (both ends included) or "0.5,0.7,1".

    Raises:
        BadInput: not numbers, or a step that leads nowhere.
    """
    try:
        if ":" not in text:
            return tuple(float(part) for part in text.split(","))
        first, last, step = (float(part) for part in text.split(":"))
        count = math.floor((last - first) / step + 1e-9) if step > 0 and last >= first else -1
    except (ValueError, OverflowError):
        count = -1
    if count < 0:
        raise BadInput(f"--truncations {text}: expected FROM:TO:STEP, such as 0.1:1.0:0.1, or numbers with commas")
    return tuple(round(first + i * step, 9) for i in range(count + 1))


@dataclass(frozen=True)
class EvaluateOptions:
    """What `frugan evaluate` is asked."""

    source: WeightsFrom
    data: Annotated[str | None, typer.Option(help="real pictures: anything that `train` takes")] = None
    reference: Annotated[
        Path | None,
        typer.Option(help="instead of --data, for FID: an .npz file of mu and sigma, as `prepare --reference` writes"),
    ] = None
    metrics: Annotated[
        str | None,
        typer.Option(
            help=f"any of {','.join(METRICS)}; default: {','.join(USUAL_METRICS)}, without is if the feature "
            "network gives no class probabilities"
        ),
    ] = None
    samples: Annotated[int, typer.Option(help="pictures to generate")] = 50_000
    network: Annotated[
        str, typer.Option(help="feature network: inception, digits, a TorchScript file, or module:callable")
    ] = "inception"
    network_file: Annotated[Path | None, typer.Option(help="weights of the Inception network")] = None
    truncation: Annotated[float, typer.Option(help="standard deviation of the latents")] = 1.0
    psi: Psi = 1.0
    psi_layers: PsiLayers = None
    noise: Noise = "const"
    rounding: Annotated[
        Rounding,
        typer.Option(
            help="how pictures become bytes: nearest, or bf16 as the R3GAN program has it, whose scores contain it"
        ),
    ] = "nearest"
    truncations: Annotated[
        str | None, typer.Option(help="score at several truncations: FROM:TO:STEP or numbers with commas")
    ] = None
    plot: Annotated[Path | None, typer.Option(help="draw the curve of --truncations into this .png")] = None
    statistics: Annotated[Statistics, typer.Option(help="statistics for batch normalisation")] = "running"
    standing_batches: Annotated[int, typer.Option(help="batches to measure standing statistics over")] = (
        STANDING_BATCHES
    )
    standing_size: StandingSize = None
    classes: Annotated[
        str | None, typer.Option(help="generate only these classes, by number or name: 0,3,7-9 or cat,dog")
    ] = None
    ema: Annotated[bool, typer.Option(help="score the averaged (EMA) networks")] = True
    split: Annotated[str, typer.Option(help="name of the real pictures' split, for the record")] = "all"
    seed: Seed = 0
    micro_batch: MicroBatch = None
    device: Device = "auto"
    out: Annotated[Path | None, typer.Option(help="append the results to this file, as lines of JSON")] = None
    as_json: AsJson = False

    def evaluation(self, weights: "Weights", chosen: ClassChoice | None) -> "EvaluationOptions":
        """How to evaluate weights."""
        from frugan.api.evaluate.scorer import EvaluationOptions
        from frugan.api.sample.networks import default_micro_batch
        from frugan.api.sample.requests import DrawRequest

        request = DrawRequest(
            seed=self.seed,
            truncation=self.truncation,
            psi=self.psi,
            psi_layers=self.psi_layers,
            noise=self.noise,
            rounding=self.rounding,
            classes=chosen.among(weights.class_names) if chosen is not None else None,
            statistics=self.statistics,
            standing_batches=self.standing_batches,
            standing_size=self.standing_size,
            micro_batch=self.micro_batch if self.micro_batch is not None else default_micro_batch(weights),
        )
        words = None if self.metrics is None else [word.strip() for word in self.metrics.split(",")]
        return EvaluationOptions(
            metrics=None if words is None else tuple(word for word in words if word),
            samples=self.samples,
            network=self.network,
            network_file=self.network_file,
            draw=request,
            ema=self.ema,
            split=self.split,
            device=self.device,
            reference=self.reference,
        )


@options(EvaluateOptions)
def evaluate(**values: Any) -> None:
    """Score generated pictures against real ones: FID, IS, KID, precision and recall.

    Every score comes with what it was measured by: feature network, counts, seed, truncation, statistics. Moments of
    real pictures are computed once and kept. The scores of a run are kept in its folder, for its report.

    Example: frugan evaluate runs/first --data pictures --samples 10000

    With moments alone: frugan evaluate runs/first --reference moments.npz --metrics fid

    On every card of this machine: torchrun --nproc-per-node=4 -m frugan evaluate runs/first --data pictures

    Offline, on the demo: frugan evaluate runs/demo --data digits --network digits --samples 2000
    """
    asked = EvaluateOptions(**values)
    from frugan.api.evaluate.evaluation import is_first, truncation_curve
    from frugan.api.evaluate.results import keep_in_run, plot_truncation_curve, save_evaluations
    from frugan.api.networks import Weights

    several = parse_truncations(asked.truncations) if asked.truncations is not None else ()
    if asked.plot is not None and len(several) < 2:
        raise BadInput(f"--plot {asked.plot}: draws a curve over --truncations; give at least two of them")
    chosen = ClassChoice.parse(asked.classes) if asked.classes is not None else None
    weights = Weights.open(asked.source, say if is_first() else quiet)
    how = asked.evaluation(weights, chosen)
    with Bar("pictures") as bar:
        evaluations = truncation_curve(weights, asked.data, several, how, say=say, progress=bar)
    if not is_first():
        return
    keep_in_run(evaluations, say)
    if asked.out is not None:
        save_evaluations(evaluations, asked.out)
    if asked.plot is not None:
        plot_truncation_curve(evaluations, asked.plot)
    if asked.as_json:
        print_json([each.as_json() for each in evaluations] if several else evaluations[0].as_json())
        return
    _print(evaluations)
    if asked.plot is not None:
        print(asked.plot)


def _print(evaluations: list["Evaluation"]) -> None:
    console = Console(highlight=False, width=max(Console().width, 110))
    names = list(evaluations[0].scores)
    table = Table("truncation", *names, box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for each in evaluations:
        table.add_row(f"{each.provenance.truncation:g}", *(f"{each.scores[name]:.4g}" for name in names))
    console.print(table)
    if len(evaluations) == 1 and evaluations[0].by_class:
        worst = sorted(evaluations[0].by_class.items(), key=lambda item: -item[1])
        shown = ", ".join(f"{name} {value:.4g}" for name, value in worst[:10])
        console.print(f"classes, worst first: {shown}", markup=False, soft_wrap=True)
    of = evaluations[0].provenance
    console.print(
        f"{of.samples:,} samples of seed {of.seed} by {'averaged' if of.ema else 'trained'} weights at step "
        f"{of.step:,}, classes: {of.classes}, {of.precision}, batch statistics: {of.statistics}"
        f"{_styles(evaluations[0])}; {of.compared_with}; features: {of.network} {of.network_digest[:8]}, "
        f"{of.resizer}",
        markup=False,
        soft_wrap=True,
    )


def _styles(evaluation: "Evaluation") -> str:
    """What was asked of styles and of bytes, where it is not the usual."""
    provenance = evaluation.provenance
    layers = "" if provenance.psi_layers is None else f" in the first {provenance.psi_layers} layers"
    psi = "" if provenance.psi == 1 else f", psi {provenance.psi:g}{layers}"
    noise = "" if provenance.noise == "const" else f", noise: {provenance.noise}"
    return psi + noise + ("" if provenance.rounding == "nearest" else ", bytes by R3GAN's arithmetic in bf16")
