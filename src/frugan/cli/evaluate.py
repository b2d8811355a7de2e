"""The `frugan evaluate` command."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

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
    options,
)
from frugan.cli.output import Bar, print_json, say
from frugan.errors import BadInput
from frugan.progress import METRICS, STANDING_BATCHES, USUAL_METRICS, quiet
from frugan.wording import (
    BY_NEIGHBOURS,
    SAYS_LITTLE,
    neighbour_counts,
    says_little,
    score_name,
    two_sample_in_words,
    with_interval,
)

if TYPE_CHECKING:
    from frugan.evaluation.scorer import Evaluation, EvaluationOptions
    from frugan.setup.networks import Weights


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


SAMPLES = 50_000
"""Generated pictures of published scores."""


@dataclass(frozen=True)
class EvaluateOptions:
    """Arguments and options of `frugan evaluate`."""

    source: Annotated[
        Path | None, typer.Argument(help="run folder, checkpoint or weights file; with --real it may be left out")
    ] = None
    real: Annotated[
        str | None,
        typer.Option(help="score these real pictures instead, a part against others: the floor of scores"),
    ] = None
    resolution: Annotated[
        int | None, typer.Option(help="with --real and without a run: side in pixels to which they are brought")
    ] = None
    fit: Annotated[
        Literal["crop", "pad"],
        typer.Option(help="with --real and without a run: crop pictures that are not square, or pad them"),
    ] = "crop"
    data: Annotated[
        str | None,
        typer.Option(
            help="real pictures: anything that `train` takes; default: the run's folder of test pictures, if it has one"
        ),
    ] = None
    reference: Annotated[
        Path | None,
        typer.Option(help="for FID, with or without --data: an .npz of mu and sigma, as `prepare --reference` writes"),
    ] = None
    metrics: Annotated[
        str | None,
        typer.Option(
            help=f"any of {','.join(METRICS)}; default: {','.join(USUAL_METRICS)}, without is if the feature "
            "network gives no class probabilities"
        ),
    ] = None
    samples: Annotated[int, typer.Option(help="pictures to generate")] = SAMPLES
    network: Annotated[
        str,
        typer.Option(
            help="feature network: inception, inception-torchvision, dinov2, clip, digits, pixels, a TorchScript file, "
            "or module:callable"
        ),
    ] = "inception"
    network_file: Annotated[
        Path | None, typer.Option(help="weights of the network, where they are not where `frugan fetch` puts them")
    ] = None
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
        str | None,
        typer.Option(
            help="generate only these classes, all alike, by number or name: 0,3,7-9 or cat,dog; all: every class; "
            "default: every class, as often as the real pictures have it"
        ),
    ] = None
    ema: Annotated[bool, typer.Option(help="score the averaged (EMA) networks")] = True
    split: Annotated[str, typer.Option(help="name of the real pictures' split, for the record")] = "all"
    seed: Seed = 0
    micro_batch: MicroBatch = None
    device: Device = "auto"
    out: Annotated[Path | None, typer.Option(help="append the results to this file, as lines of JSON")] = None
    as_json: AsJson = False

    def check(self) -> Path | None:
        """Refuse what does not go together.

        Returns:
            Whose pictures are scored; None: real ones alone are.

        Raises:
            BadInput: no weights and no --real, or an option that does not go with --real, or only with it.
        """
        if self.real is None:
            if self.source is None:
                raise BadInput("a run, checkpoint or weights file is missing; or score real pictures alone with --real")
            if self.resolution is not None:
                raise BadInput(f"--resolution {self.resolution}: goes with --real alone; generated pictures have one")
            if self.fit != "crop":
                raise BadInput(f"--fit {self.fit}: goes with --real alone; real pictures are fitted as in training")
            return self.source
        for option_field in fields(self):
            if option_field.name not in WITH_REAL and getattr(self, option_field.name) != option_field.default:
                option = option_field.name.replace("_", "-")
                raise BadInput(f"--{option}: is about generated pictures, and --real scores real ones; leave one out")
        return None

    def check_outputs(self, truncations: Sequence[float]) -> None:
        """Refuse a plot or a file that could not be written.

        Raises:
            BadInput: it could not, or a curve would have fewer than two truncations.
        """
        from frugan.evaluation.results import refuse_plot

        if self.plot is not None:
            if len(truncations) < 2:
                raise BadInput(f"--plot {self.plot}: draws a curve over --truncations; give at least two of them")
            refuse_plot(self.plot, USUAL_METRICS if self.metric_names is None else self.metric_names)
        if self.out is not None and self.out.is_dir():
            raise BadInput(f"--out {self.out}: is a folder; expected a file, to which lines of JSON are added")

    def evaluation(self, weights: "Weights", chosen: ClassChoice | None) -> "EvaluationOptions":
        """Return the evaluation options for some weights and, unless None, some of their classes."""
        from frugan.evaluation.scorer import EvaluationOptions
        from frugan.sampling.generators import default_micro_batch
        from frugan.sampling.requests import DrawRequest

        known = weights.recipe.classes
        classes = chosen.among(weights.class_names, known) if chosen is not None else None
        request = DrawRequest(
            seed=self.seed,
            truncation=self.truncation,
            psi=self.psi,
            psi_layers=self.psi_layers,
            noise=self.noise,
            rounding=self.rounding,
            classes=classes,
            statistics=self.statistics,
            standing_batches=self.standing_batches,
            standing_size=self.standing_size,
            micro_batch=self.micro_batch if self.micro_batch is not None else default_micro_batch(weights),
        )
        return EvaluationOptions(
            metrics=self.metric_names,
            samples=self.samples,
            network=self.network,
            network_file=self.network_file,
            draw=request,
            ema=self.ema,
            split=self.split,
            device=self.device,
            reference=self.reference,
        )

    @property
    def metric_names(self) -> tuple[str, ...] | None:
        """Requested metrics in small letters: with commas or spaces between, or in brackets; None: the default ones."""
        if self.metrics is None:
            return None
        return tuple(re.findall(r"[^\s,()\[\]\"']+", self.metrics.lower()))

    def real_scores(self, bar: Bar) -> "Evaluation":
        """Score a part of the real pictures against others."""
        from frugan.evaluation.real_scores import evaluate_real
        from frugan.evaluation.scorer import EvaluationOptions

        assert self.real is not None
        how = EvaluationOptions(
            metrics=self.metric_names,
            samples=self.samples,
            network=self.network,
            network_file=self.network_file,
            split=self.split,
            device=self.device,
        )
        return evaluate_real(
            self.real,
            how,
            of=self.source,
            resolution=self.resolution,
            fit=self.fit,
            say=say,
            progress=bar,
            stage=bar.begin,
        )


WITH_REAL = frozenset(
    {
        *("source", "real", "resolution", "fit", "metrics", "samples", "network", "network_file"),
        *("split", "device", "out", "as_json"),
    }
)
"""Options that go with --real."""


@options(EvaluateOptions)
def evaluate(**values: Any) -> None:
    """Score generated pictures against real ones: FID, IS, KID, precision and recall, density and coverage, two-sample.

    Every score comes with what it was measured by: feature network, counts, seed, truncation, statistics. Moments of
    real pictures are computed once and kept. The scores of a run are kept in its folder, for its report.

    Example: frugan evaluate runs/first --data pictures --samples 10000

    What real pictures have: frugan evaluate runs/first --real pictures

    With moments alone: frugan evaluate runs/first --reference moments.npz --metrics fid

    On every card of this machine: torchrun --nproc-per-node=4 -m frugan evaluate runs/first --data pictures

    Without weights and labels: frugan evaluate runs/first --data pictures --metrics pr,dc,two-sample --network pixels
    --samples 2000

    Offline, on the demo: frugan evaluate runs/demo --data digits --network digits --samples 2000
    """
    arguments = EvaluateOptions(**values)
    source = arguments.check()
    from frugan.evaluation.evaluation import is_first, truncation_curve
    from frugan.evaluation.results import keep_in_run, plot_truncation_curve, save_evaluations
    from frugan.setup.networks import Weights

    several = parse_truncations(arguments.truncations) if arguments.truncations is not None else ()
    arguments.check_outputs(several)
    chosen = ClassChoice.parse(arguments.classes) if arguments.classes is not None else None
    with Bar("pictures") as bar:
        if source is None:
            evaluations = [arguments.real_scores(bar)]
        else:
            weights = Weights.open(source, say if is_first() else quiet)
            if is_first():
                _tell_of_request(arguments, weights, max((arguments.truncation, *several)))
            how = arguments.evaluation(weights, chosen)
            evaluations = truncation_curve(
                weights, arguments.data, several, how, say=say, progress=bar, stage=bar.begin
            )
    if not is_first():
        return
    # shown before anything is written, which may fail
    if arguments.as_json:
        print_json([evaluation.as_json() for evaluation in evaluations] if several else evaluations[0].as_json())
    else:
        _print(evaluations)
    keep_in_run(evaluations, say)
    if arguments.out is not None:
        save_evaluations(evaluations, arguments.out)
    if arguments.plot is not None:
        plot_truncation_curve(evaluations, arguments.plot)
        if not arguments.as_json:
            print(arguments.plot)


def _tell_of_request(arguments: EvaluateOptions, weights: "Weights", truncation: float) -> None:
    """Say how many pictures are drawn where nobody has said it, and that latents are longer than trained on."""
    from frugan.evaluation.reference import WITHOUT_FEATURES
    from frugan.sampling.requests import long_latents

    if (line := long_latents(truncation, weights.recipe)) is not None:
        say(line)
    metrics = arguments.metric_names
    if arguments.data is None and arguments.reference is None and not isinstance(weights.recipe.data.holdout, str):
        return  # refused, or by pictures' movement alone
    if arguments.samples == SAMPLES and (metrics is None or {*metrics} - WITHOUT_FEATURES):
        say(f"samples: {SAMPLES:,}, as published scores have; fewer take less time: --samples 2000")


def _print(evaluations: list["Evaluation"]) -> None:
    console = _print_table(evaluations)
    if len(evaluations) == 1 and evaluations[0].by_class:
        worst = sorted(evaluations[0].by_class.items(), key=lambda item: -item[1])
        ten = ", ".join(f"{name} {value:.4g}" for name, value in worst[:10])
        console.print(f"classes, worst first: {ten}", markup=False, soft_wrap=True)
    for evaluation in evaluations:
        if (words := two_sample_in_words(evaluation.scores, evaluation.provenance.as_json())) is not None:
            at = f"truncation {evaluation.provenance.truncation:g}: " if len(evaluations) > 1 else ""
            console.print(at + words, markup=False, soft_wrap=True)
    scores, compared = evaluations[0].scores, evaluations[0].provenance.as_json()
    beside = [names for names in BY_NEIGHBOURS.values() if f"{names[0]}_real" in scores]
    if beside and not evaluations[0].provenance.is_of_real:
        real = ", ".join(" and ".join(f"{name} {scores[f'{name}_real']:.3g}" for name in names) for names in beside)
        of = f"{neighbour_counts(compared)}; as many others of the real ones have {real}"
        little = f" ({SAYS_LITTLE})" if says_little(beside[0][0], scores, compared) else ""
        console.print(f"by pixels{little}: {of}", markup=False, soft_wrap=True)
    console.print(_provenance_line(evaluations[0]), markup=False, soft_wrap=True)


def _print_table(evaluations: list["Evaluation"]) -> Console:
    """Print the scores as a table, and return the console, which is wide enough for it."""
    names = [  # those of two-sample are told in words
        name
        for name in evaluations[0].scores
        if not name.startswith("two_sample") and not name.endswith(("_half_width", "_real"))
    ]
    of = evaluations[0].provenance
    real = of.is_of_real
    table = Table("pictures" if real else "truncation", box=None, pad_edge=False)
    for name in names:
        heading = Text(score_name(name, of.network).replace(" (", "\n("))  # a line more, not columns too wide
        table.add_column(heading, justify="right", min_width=max(map(len, heading.plain.split("\n"))))
    # names are never cut, whatever the width of the terminal
    widest = sum((column.min_width or 0) + 2 for column in table.columns) + len("truncation")
    console = Console(highlight=False, width=max(Console().width, 110, widest))
    for evaluation in evaluations:
        kind = "real" if real else f"{evaluation.provenance.truncation:g}"
        table.add_row(kind, *(_shown(evaluation, name) for name in names))
    if names:
        console.print(table)
    return console


def _shown(evaluation: "Evaluation", name: str) -> str:
    """Format a score with half of its 95 % interval, where one is known."""
    width = evaluation.half_width(name)
    return with_interval(name, evaluation.scores[name], width)


def _provenance_line(evaluation: "Evaluation") -> str:
    """Describe what was scored, with what, and against what."""
    from frugan.evaluation.compared import HELD_OUT

    of = evaluation.provenance
    if of.is_of_real:
        compared = (
            f"{of.samples:,} pictures of the training against {of.real:,} that it held out, of {of.data}"
            if of.split == HELD_OUT
            else f"{of.samples:,} real pictures against {of.real:,} others, of {of.data} ({of.split})"
        )
        return (
            f"{compared}; {of.measured_by}. "
            "Pictures as good and as varied as the real ones would have about these scores, at these counts"
        )
    return (
        f"{of.samples:,} samples of seed {of.seed} by {'averaged' if of.ema else 'trained'} weights at step "
        f"{of.step:,}, classes: {of.classes}, {of.precision}, batch statistics: {of.statistics}"
        f"{_styles(evaluation)}; {of.compared_with}{f'; {of.measured_by}' if of.measured_by else ''}"
    )


def _styles(evaluation: "Evaluation") -> str:
    """Describe psi, noise and rounding where they differ from their defaults."""
    provenance = evaluation.provenance
    layers = "" if provenance.psi_layers is None else f" in the first {provenance.psi_layers} layers"
    psi = "" if provenance.psi == 1 else f", psi {provenance.psi:g}{layers}"
    noise = "" if provenance.noise == "const" else f", noise: {provenance.noise}"
    return psi + noise + ("" if provenance.rounding == "nearest" else ", bytes by R3GAN's arithmetic in bf16")
