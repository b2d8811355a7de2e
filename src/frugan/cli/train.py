"""The `frugan train` command."""

import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from frugan.cli import REQUEUE
from frugan.cli.options import AsJson, Device, ForTime, Overrides, RecipeOrNone, options, recipe_and_fields
from frugan.cli.output import Bar, named_paths, print_json, say
from frugan.errors import BadInput
from frugan.progress import COMPARED_STEPS

if TYPE_CHECKING:
    from frugan.recipe.recipe import Recipe
    from frugan.training.precision_comparison import PrecisionComparison
    from frugan.training.run import TrainingOptions, TrainingResult


@dataclass(frozen=True)
class TrainOptions:
    """Arguments and options of `frugan train`."""

    recipe: RecipeOrNone = None
    overrides: Overrides = None
    data: Annotated[list[str] | None, typer.Option(help="[NAME=]PATH of pictures or faces; may be repeated")] = None
    subset: Annotated[
        int | None,
        typer.Option(help="train on so many of the pictures, drawn evenly over the classes by the seed", min=1),
    ] = None
    holdout: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE|NUMBER|FOLDER",
            help="test pictures that training never sees and scores are measured against: 0.1, 500, or other pictures",
        ),
    ] = None
    out: Annotated[Path | None, typer.Option(help="run folder; an existing run is resumed")] = None
    for_time: ForTime = None
    memory: Annotated[
        str | None,
        typer.Option(help="how much card memory to use in all, such as 6GiB; default: what is free, less a margin"),
    ] = None
    micro_batch: Annotated[
        int | None, typer.Option(help="samples per forward pass; never changes the result; default: the plan's choice")
    ] = None
    recompute: Annotated[
        bool,
        typer.Option(
            "--recompute",
            help="activation checkpointing: keep fewer activations and compute them again; default: the plan's choice "
            "(never: --avoid recompute)",
            show_default=False,
        ),
    ] = False
    ema_on_host: Annotated[
        bool,
        typer.Option(
            "--ema-on-host",
            help="keep the averaged weights (EMA) in host memory; default: the plan's choice",
            show_default=False,
        ),
    ] = False
    shard_optimizer: Annotated[
        bool,
        typer.Option(
            "--shard-optimizer",
            help="under torchrun: divide the optimizer state between the ranks; default: the plan's choice",
            show_default=False,
        ),
    ] = False
    use: Annotated[list[str] | None, typer.Option(help="use this memory saving (see plan --help); may be repeated")] = (
        None
    )
    avoid: Annotated[list[str] | None, typer.Option(help="never use this memory saving; may be repeated")] = None
    init: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN|FILE|RECIPE|none",
            help="start a new run from the weights of this run or file, or from those that ship with a recipe; none: "
            "from noise, where frugan would choose weights",
        ),
    ] = None
    init_classes: Annotated[
        str | None,
        typer.Option(
            metavar="mean|fresh|copy=FILE",
            help="with --init: what class embeddings start from if the weights have other classes",
        ),
    ] = None
    map_class: Annotated[
        list[str] | None,
        typer.Option(
            help="OLD=NEW: the resumed run's class OLD is called NEW in the pictures now; may be repeated; "
            "by-name: only the order of the classes has changed"
        ),
    ] = None
    device: Device = "auto"
    workers: Annotated[int | None, typer.Option(help="processes that make face samples, for both sides", min=0)] = None
    tensorboard: Annotated[
        bool | None, typer.Option(help="write TensorBoard files into the run; default: if TensorBoard is installed")
    ] = None
    wandb: Annotated[str | None, typer.Option(help="log to this Weights & Biases project")] = None
    stop_after: Annotated[
        str | None, typer.Option(help="save and stop after this time, such as 23h, for jobs that resume one another")
    ] = None
    shares: Annotated[
        str | None,
        typer.Option(
            metavar="equal|N,N,...",
            help="under torchrun: each rank's share of the batch; never changes the result",
        ),
    ] = None
    requeue: Annotated[
        bool,
        typer.Option(
            help="for job schedulers: exit with 75 if stopped before the end; the signal USR1 saves and stops too"
        ),
    ] = False
    compare_precision: Annotated[
        str | None,
        typer.Option(help="also train the first steps in this precision, such as fp32, and compare the two"),
    ] = None
    compare_steps: Annotated[int, typer.Option(help="steps that --compare-precision trains")] = COMPARED_STEPS
    as_json: AsJson = False

    @property
    def recipe_and_overrides(self) -> tuple[str | None, list[str]]:
        """The recipe, if one is named, and the overrides, those by options among them."""
        _refuse_split_path(self.data or [], [*([self.recipe] if self.recipe else []), *(self.overrides or [])])
        recipe, fields = recipe_and_fields(self.recipe, self.overrides)
        subset = [] if self.subset is None else [f"data.subset={self.subset}"]
        holdout = [] if self.holdout is None else [f"data.holdout={_part_or_folder(self.holdout)}"]
        return recipe, [*fields, *subset, *holdout]

    def training(self) -> "TrainingOptions":
        """Return the training options that the command line sets.

        Raises:
            BadInput: a saving, size, time or share is none.
        """
        from frugan.training.observers import has_tensorboard
        from frugan.training.run import TrainingOptions

        return TrainingOptions(
            micro_batch=self.micro_batch,
            recompute=self.recompute,
            ema_on_host=self.ema_on_host,
            shard_optimizer=self.shard_optimizer,
            device=self.device,
            workers=self.workers,
            memory=self.memory,
            use=tuple(self.use or ()),
            avoid=tuple(self.avoid or ()),
            tensorboard=has_tensorboard() if self.tensorboard is None else self.tensorboard,
            wandb_project=self.wandb,
            stop_after=self.stop_after,
            requeue=self.requeue,
            shares=self.shares,
        )


@options(TrainOptions)
def train(**values: Any) -> None:
    """Train on your pictures, by a recipe or by what frugan chooses for them, or resume the run in --out.

    Ctrl-C once: finish the step, save, exit. The same command resumes. Keys: s saves, p writes a preview, q saves and
    quits. Empty files named save, preview or stop in RUN/requests and the signals USR1 (save) and USR2 (preview) do
    the same.

    Example: frugan train --data pictures/ --out runs/first --for 2h

    By a recipe: frugan train biggan-small-32 networks.classes=3 --data pictures/ --out runs/first

    Faces: frugan train saehd-df-ud-256 --data src=data_src/aligned --data dst=data_dst/aligned --out runs/swap
    """
    began = time.perf_counter()  # what follows loads torch, which is part of the time that was asked for
    arguments = TrainOptions(**values)
    from frugan.data.run_data import parse_class_map
    from frugan.reporting.progress_line import LiveLine
    from frugan.training.training import train as train_run

    how = arguments.training()
    recipe, fields = arguments.recipe_and_overrides
    if arguments.compare_precision is not None:
        _compare(arguments, arguments.compare_precision, how)
        return
    with LiveLine() as line, Bar("preparing") as move:
        result = train_run(
            recipe,
            named_paths(arguments.data or []),
            arguments.out,
            for_time=arguments.for_time,
            overrides=fields,
            init=arguments.init,
            init_classes=arguments.init_classes,
            map_classes=parse_class_map(arguments.map_class or []),
            options=how,
            say=say,
            show=line.show,
            progress=move,
            began=began,
        )
    if result.rank == 0:
        _print_result(result, arguments.data, as_json=arguments.as_json)
    if arguments.requeue and not result.finished:
        raise typer.Exit(REQUEUE)


def _refuse_split_path(data: Sequence[str], words: Sequence[str]) -> None:
    """Refuse the pieces of a path with spaces that a shell has split: `--data` has the first, words the others."""
    for given in data:
        name, equals, path = given.rpartition("=")
        if Path(given).exists() or Path(path).exists():
            continue
        for first, last in combinations(range(len(words) + 1), 2):
            rest = " ".join(words[first:last])
            if Path(f"{path} {rest}").exists():
                quoted = shlex.quote(f"{name}{equals}{path} {rest}")
                raise BadInput(f"--data {given} {rest}: a path with spaces needs quotation marks: --data {quoted}")


def _part_or_folder(text: str) -> str:
    """Return the value of `data.holdout`: a number, or a folder as the run finds it from wherever it is resumed."""
    try:
        float(text)
    except ValueError:
        return json.dumps(str(Path(text).absolute()) if Path(text).exists() else text)
    return text


def _compare(arguments: TrainOptions, precision: str, how: "TrainingOptions") -> None:
    """Train the first steps in two precisions, and print how they differ.

    Raises:
        BadInput: there is no folder for the runs, or they would not start from fresh weights.
    """
    from frugan.reporting.progress_line import LiveLine
    from frugan.training.precision_comparison import compare_precision

    if arguments.out is None:
        raise BadInput("--compare-precision needs --out: a folder for the two runs")
    if arguments.init is not None:
        raise BadInput(
            f"--init {arguments.init}: --compare-precision starts from fresh weights; leave out one of the two"
        )
    recipe, fields = arguments.recipe_and_overrides
    if recipe is None:
        raise BadInput("--compare-precision needs a recipe: `frugan recipes`")
    with LiveLine() as line, Bar("preparing") as move:
        comparison = compare_precision(
            recipe,
            named_paths(arguments.data or []),
            arguments.out,
            precision,
            steps=arguments.compare_steps,
            overrides=fields,
            options=how,
            say=say,
            show=line.show,
            progress=move,
        )
    _print_comparison(comparison, as_json=arguments.as_json)


def _print_result(result: "TrainingResult", data: list[str] | None, *, as_json: bool) -> None:
    from frugan.recipe.loading import load_recipe

    if as_json:
        print_json(
            {
                "run": str(result.run),
                "step": result.step,
                "finished": result.finished,
                "seconds": round(result.seconds, 1),
            }
        )
        return
    if result.step == 0 and not result.finished:
        print(f"{result.run}: stopped before the first step; nothing to save. The same command begins again")
        return
    ended = "finished" if result.finished else "stopped and saved; the same command goes on"
    print(f"{result.run}: step {result.step:,}, {ended}")
    grids = f"Sample grids: {result.run / 'samples'}. " if (result.run / "samples").is_dir() else ""
    commands = _next_commands(result.run, load_recipe(str(result.run)), data or [])
    print(f"{grids}Next: " + "\n  ".join(commands))


def _next_commands(run: Path, recipe: "Recipe", data: list[str]) -> tuple[str, ...]:
    """Return what to type to see what was trained."""
    if data and recipe.preliminary is None:
        named = named_paths(data)
        first = named if isinstance(named, str) else next(iter(named.values()))
        if commands := recipe.kind.commands_after(run, Path(first)):
            return commands
    data_words = "".join(f" --data {shlex.quote(word)}" for word in data) if recipe.shows_given else ""
    return (f"frugan sample {shlex.quote(str(run))}{data_words} --out samples",)


def _print_comparison(comparison: "PrecisionComparison", *, as_json: bool) -> None:
    if as_json:
        print_json({**asdict(comparison), "runs": [str(run) for run in comparison.runs]})
        return
    one, other = comparison.precisions
    table = Table("phase", "curve", "first tenth", "last tenth", "apart from step", box=None, pad_edge=False)
    for drift in comparison.drifts:
        since = "-" if drift.notable_from is None else f"{drift.notable_from:,}"
        table.add_row(drift.phase, drift.what, f"{drift.first:.1%}", f"{drift.last:.1%}", since)
    console = Console(highlight=False, width=max(Console().width, 90))
    console.print(f"[bold]{one} beside {other}[/]: differences of means over tenths of the steps")
    console.print(table)
    console.print(f"skipped updates: {comparison.skipped[0]} in {one}, {comparison.skipped[1]} in {other}")
    if comparison.block is not None:
        half = one if one != "fp32" else other
        console.print(
            f"{half} changes {comparison.block.block} most: its output differs by {comparison.block.relative:.2%} from "
            f"fp32's, on the same inputs and weights. To keep a block in fp32, try this one first: "
            f"'{comparison.try_first}'",
            markup=False,
            soft_wrap=True,
        )
    console.print(comparison.advice or f"nothing drifts: {one} trains like {other}", markup=False, soft_wrap=True)
    console.print(f"Next: frugan report {shlex.join(map(str, comparison.runs))}", markup=False, soft_wrap=True)
