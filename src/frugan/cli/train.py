"""`frugan train`."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from frugan.api.defaults import COMPARED_STEPS
from frugan.cli.output import REQUEUE, Bar, named_paths, print_json, say
from frugan.errors import BadInput

if TYPE_CHECKING:
    from frugan.api.train.precision_comparison import PrecisionComparison
    from frugan.api.train.run import TrainingResult


def train(
    recipe: Annotated[str, typer.Argument(help="name of a built-in recipe, path of a .toml file, or a run folder")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="recipe fields to override")
    ] = None,
    data: Annotated[list[str] | None, typer.Option(help="[NAME=]PATH of pictures or faces; may be repeated")] = None,
    out: Annotated[Path | None, typer.Option(help="run folder; an existing run is resumed")] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="how much card memory to use in all, such as 6GiB; default: what is free, less a margin"),
    ] = None,
    micro_batch: Annotated[
        int | None, typer.Option(help="samples per forward pass; never changes the result; default: the plan's choice")
    ] = None,
    recompute: Annotated[
        bool,
        typer.Option(
            "--recompute",
            help="activation checkpointing: keep fewer activations and compute them again; default: the plan's choice "
            "(never: --avoid recompute)",
            show_default=False,
        ),
    ] = False,
    ema_on_host: Annotated[
        bool,
        typer.Option(
            "--ema-on-host",
            help="keep the averaged weights (EMA) in host memory; default: the plan's choice",
            show_default=False,
        ),
    ] = False,
    shard_optimizer: Annotated[
        bool,
        typer.Option(
            "--shard-optimizer",
            help="under torchrun: divide the optimizer state between the ranks; default: the plan's choice",
            show_default=False,
        ),
    ] = False,
    use: Annotated[
        list[str] | None, typer.Option(help="use this memory saving (see plan --help); may be repeated")
    ] = None,
    avoid: Annotated[list[str] | None, typer.Option(help="never use this memory saving; may be repeated")] = None,
    compiled: Annotated[
        bool, typer.Option("--compile", help="compile the step with torch.compile, like training.compile=true")
    ] = False,
    init: Annotated[Path | None, typer.Option(help="start a new run from the weights of this run or file")] = None,
    init_classes: Annotated[
        str | None,
        typer.Option(
            metavar="mean|fresh|copy=FILE",
            help="with --init: what class embeddings start from if the weights have other classes",
        ),
    ] = None,
    map_class: Annotated[
        list[str] | None,
        typer.Option(
            help="OLD=NEW: the resumed run's class OLD is called NEW in the pictures now; may be repeated; "
            "by-name: only the order of the classes has changed"
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N")] = "auto",
    workers: Annotated[int | None, typer.Option(help="processes that make face samples, for both sides", min=0)] = None,
    tensorboard: Annotated[
        bool | None, typer.Option(help="write TensorBoard files into the run; default: if TensorBoard is installed")
    ] = None,
    wandb: Annotated[str | None, typer.Option(help="log to this Weights & Biases project")] = None,
    stop_after: Annotated[
        str | None, typer.Option(help="save and stop after this time, such as 23h, for jobs that resume one another")
    ] = None,
    shares: Annotated[
        str | None,
        typer.Option(
            metavar="equal|N,N,...",
            help="under torchrun: each rank's share of the batch; never changes the result",
        ),
    ] = None,
    requeue: Annotated[
        bool,
        typer.Option(
            help="for job schedulers: exit with 75 if stopped before the end; the signal USR1 saves and stops too"
        ),
    ] = False,
    compare_precision: Annotated[
        str | None,
        typer.Option(help="also train the first steps in this precision, such as fp32, and compare the two"),
    ] = None,
    compare_steps: Annotated[int, typer.Option(help="steps that --compare-precision trains")] = COMPARED_STEPS,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON")] = False,
) -> None:
    """Train a recipe on your pictures, or resume the run in --out.

    Ctrl-C once: finish the step, save, exit. The same command resumes. Keys: s saves, p writes a preview, q saves and
    quits. Empty files named save, preview or stop in RUN/requests and the signals USR1 (save) and USR2 (preview) do
    the same.

    Example: frugan train biggan-small-32 networks.classes=3 --data pictures/ --out runs/first

    Faces: frugan train saehd-df-ud-256 --data src=data_src/aligned --data dst=data_dst/aligned --out runs/swap
    """
    from frugan.api.train.observers import has_tensorboard
    from frugan.api.train.run import TrainingOptions
    from frugan.api.train.training import train as train_run
    from frugan.data.run_data import parse_class_map
    from frugan.report.progress_line import LiveLine

    overrides = [*(overrides or []), *(["training.compile=true"] if compiled else [])]
    options = TrainingOptions(
        micro_batch=micro_batch,
        recompute=recompute,
        ema_on_host=ema_on_host,
        shard_optimizer=shard_optimizer,
        device=device,
        workers=workers,
        memory=memory,
        use=tuple(use or ()),
        avoid=tuple(avoid or ()),
        tensorboard=has_tensorboard() if tensorboard is None else tensorboard,
        wandb_project=wandb,
        stop_after=stop_after,
        requeue=requeue,
        shares=shares,
    )
    if compare_precision is not None:
        if out is None:
            raise BadInput("--compare-precision needs --out: a folder for the two runs")
        if init is not None:
            raise BadInput(f"--init {init}: --compare-precision starts from fresh weights; leave out one of the two")
        from frugan.api.train.precision_comparison import compare_precision as compare

        with LiveLine() as line, Bar("preparing") as move:
            comparison = compare(
                recipe,
                named_paths(data or []),
                out,
                compare_precision,
                steps=compare_steps,
                overrides=overrides,
                options=options,
                say=say,
                show=line.show,
                progress=move,
            )
        _print_comparison(comparison, as_json=as_json)
        return
    with LiveLine() as line, Bar("preparing") as move:
        result = train_run(
            recipe,
            named_paths(data or []),
            out,
            overrides=overrides,
            init=init,
            init_classes=init_classes,
            map_classes=parse_class_map(map_class or []),
            options=options,
            say=say,
            show=line.show,
            progress=move,
        )
    if result.rank == 0:
        _print_result(result, data, as_json=as_json)
    if requeue and not result.finished:
        raise typer.Exit(REQUEUE)


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
    given = "".join(f" --data {word}" for word in data or []) if load_recipe(str(result.run)).shows_given else ""
    print(f"Sample grids: {result.run / 'samples'}. Next: frugan sample {result.run}{given} --out samples")


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
    console.print(comparison.advice or f"nothing drifts: {one} trains like {other}", markup=False, soft_wrap=True)
    console.print(f"Next: frugan report {comparison.runs[0]} {comparison.runs[1]}", markup=False, soft_wrap=True)
