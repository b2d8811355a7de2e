"""The smaller commands: `frugan card`, `convert`, `export`, `fetch`, `info`, `recipes`, `report`."""

from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from frugan.cli.options import AsJson, Device, Overrides, WeightsFrom
from frugan.cli.output import Bar, named_paths, print_json, say
from frugan.contract.formats import Conversion
from frugan.errors import BadInput
from frugan.recipes import shipped_recipes, smallest_cards
from frugan.wording import MIB, nearest

if TYPE_CHECKING:
    from frugan.planning.network_costs import NetworkInfo


LICENCES = (
    *("agpl-3.0", "apache-2.0", "bsd-2-clause", "bsd-3-clause", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0"),
    *("cc-by-nd-4.0", "cc-by-nc-sa-4.0", "cc-by-nc-nd-4.0", "creativeml-openrail-m", "gpl-2.0", "gpl-3.0", "lgpl-3.0"),
    *("isc", "mit", "mpl-2.0", "openrail", "openrail++", "other", "unlicense", "wtfpl", "zlib"),
)
"""Licences that people give to weights and pictures, as hubs write them."""


def _tell_of_licence(licence: str) -> None:
    """Say what becomes of a licence that is not among those that people use: of a word, and of a sentence."""
    word = licence.strip().lower()
    if not word or word in LICENCES:
        return
    if len(word.split()) == 1:
        say(
            f"warning: --licence {licence[:80]}: not a licence that frugan knows{nearest(word, LICENCES)}, and the "
            "card says it as it is written; expected one such as cc-by-4.0, other, or a sentence"
        )
    else:
        say(
            "licence: your own words, which the card has as they are and hubs list as other; a known licence goes by "
            f"its name, such as mit{nearest('-'.join(word.split()), LICENCES)}"
        )


def card(
    run: Annotated[Path, typer.Argument(help="run folder, or one of its checkpoints")],
    out: Annotated[Path | None, typer.Option(help="folder to write; default: card in the run folder")] = None,
    licence: Annotated[
        str, typer.Option(help="what others may do with the weights, such as cc-by-4.0, or a sentence")
    ] = "",
    space: Annotated[
        bool, typer.Option("--space", help="also a page that draws in a browser: a folder for a hub's Space")
    ] = False,
    runtime: Annotated[
        Path | None, typer.Option(help="with --space: onnxruntime-web as a folder or .tgz; default: npm gets it")
    ] = None,
    title: Annotated[str, typer.Option(help="of the card and its page; default: the run's name")] = "",
    by: Annotated[str, typer.Option(help="who made it, for the card to say")] = "",
    replace: Annotated[bool, typer.Option("--replace", help="write over a card that was edited")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a folder to share: weights, recipe, samples, and a model card with scores and how they were measured.

    Example: frugan card runs/first --licence cc-by-4.0
    """
    if runtime is not None and not space:
        raise BadInput(f"--runtime {runtime}: goes with --space, which puts it beside a page; leave it out")
    from frugan.conversion.model_card import write_card

    _tell_of_licence(licence)
    folder = write_card(
        run, out, licence=licence, space=space, runtime=runtime, title=title, by=by, replace=replace, say=say
    )
    if as_json:
        print_json({"folder": str(folder)})
        return
    print(f"{folder}: README.md is the card; look through it before you give it away")


def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="the run, weights or model to convert")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="the new folder or file to write")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="recipe fields to override, when a run is made")
    ] = None,
    made_by: Annotated[
        str, typer.Option("--from", metavar="FORMAT", help="format of IN: leras, biggan-pytorch, stylegan-pickle …")
    ] = "frugan",
    to: Annotated[str, typer.Option(metavar="FORMAT", help="format of OUT: leras, dfm, biggan-pytorch …")] = "frugan",
    name: Annotated[str | None, typer.Option(help="which model, if the folder has several: best0, copy1 …")] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="[NAME=]PATH of faces, to check the model's options against")
    ] = None,
    replace: Annotated[
        bool, typer.Option(help="write into an existing OUT; DeepFaceLab's old files are moved to a folder")
    ] = False,
    half: Annotated[bool, typer.Option(help="dfm: convolutions in half precision, for a smaller file")] = False,
    raw: Annotated[bool, typer.Option(help="take the generator as it was trained, not its EMA")] = False,
    verify: Annotated[bool, typer.Option(help="run the converted networks before anything is written")] = False,
    as_json: AsJson = False,
) -> None:
    """Convert a model from or to another program: DeepFaceLab, BigGAN, StyleGAN2 or R3GAN.

    leras is DeepFaceLab's own format: weights, optimizer state, options, iteration and loss history, both ways.

    Example: frugan convert workspace/model runs/swap --from leras

    Back: frugan convert runs/swap workspace/model --to leras --data workspace --replace

    DeepFaceLive: frugan convert runs/swap swap.dfm --to dfm (or workspace/model swap.dfm --from leras --to dfm)

    BigGAN: frugan convert weights/EXPERIMENT runs/mine --from biggan-pytorch (and back with --to)

    BigGAN of TensorFlow Hub: frugan convert biggan-128/ biggan.safetensors --from biggan-tfhub --verify

    StyleGAN2: frugan convert network-snapshot-001000.pkl converted.safetensors --from stylegan-pickle

    R3GAN: frugan convert network-snapshot-001000000.pkl runs/theirs --from r3gan-pickle

    StyleGAN2 back, under the authors' names: frugan convert runs/mine states.safetensors --to stylegan-safetensors
    """
    from frugan.conversion.convert import convert as convert_model

    conversion = Conversion(
        source=source,
        out=out,
        say=say,
        overrides=overrides or (),
        name=name,
        data=named_paths(data) if data else None,
        replace=replace,
        half=half,
        raw=raw,
        verify=verify,
    )
    converted = convert_model(conversion, made_by, to)
    if as_json:
        print_json(dict(converted.facts))
        return
    print("\n".join(converted.lines))


def export(
    source: WeightsFrom,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="the new file to write, model.onnx; a folder with --web")],
    web: Annotated[
        bool, typer.Option("--web", help="write a folder of static files: a page that draws, the model and its runtime")
    ] = False,
    half: Annotated[bool, typer.Option("--fp16", help="weights and computation in fp16, for half the size")] = False,
    runtime: Annotated[
        Path | None,
        typer.Option(help="with --web: onnxruntime-web as a folder or .tgz; default: npm gets it"),
    ] = None,
    title: Annotated[str, typer.Option(help="with --web: of the page; default: its card's, or the run's name")] = "",
    by: Annotated[str, typer.Option(help="with --web: who made it, for the page to say")] = "",
    as_json: AsJson = False,
) -> None:
    """Export the averaged generator for programs without frugan and torch: ONNX, or a page for browsers.

    The model is compared with torch's pictures before it gets its name.

    Example: frugan export runs/first model.onnx

    A page that any web server shows: frugan export runs/first site --web
    """
    if runtime is not None and not web:
        raise BadInput(f"--runtime {runtime}: goes with --web, which puts it beside a page; leave it out")
    for option, words in (("--title", title), ("--by", by)):
        if words and not web:
            raise BadInput(f"{option} {words!r}: goes with --web, whose page says it; leave it out")
    from frugan.conversion.export.onnx import export as export_model
    from frugan.conversion.export.site import export_site

    if web:
        exported = export_site(source, out, half=half, runtime=runtime, title=title, by=by, say=say)
    else:
        exported = export_model(source, out, half=half, say=say)
    if as_json:
        print_json(exported.facts)
        return
    print("\n".join(exported.lines))
    if web:
        served = f"python -m http.server --bind 127.0.0.1 --directory {quote(str(out))}"
        print(f"To look at it: {served}  # and then http://127.0.0.1:8000 in a browser")


def fetch(
    network: Annotated[str, typer.Argument(help="feature network: inception or inception-torchvision")],
) -> None:
    """Get the published weights of a feature network, once: scores need them.

    The file goes where scores look for it. A fetch that was broken off goes on where it stopped; proxies are taken from
    the environment, and FRUGAN_MIRROR may name the address of another folder that holds the file.

    Example: frugan fetch inception
    """
    from frugan.conversion.fetch import fetch as fetch_weights

    with Bar("MiB") as bar:
        print(fetch_weights(network, say=say, progress=bar))


COLUMNS = (
    "per sample",
    "parameters",
    "arithmetic",
    "memory traffic",
    "intensity",
    "bound here by",
    "activations kept",
    "latency",
)


def _rows(network: "NetworkInfo") -> tuple[str, ...]:
    seconds = network.latency_seconds
    return (
        f"{network.parameters:,}",
        f"{network.macs / 1e9:.3f} GMAC",
        f"{network.bytes_moved / 1e6:,.1f} MB",
        f"{network.intensity:.1f} MAC/byte",
        network.bound_by,
        f"{network.saved_activation_bytes / MIB:,.1f} MiB",
        "not measured" if seconds is None else f"{seconds * 1e3:,.1f} ms",
    )


def info(
    source: Annotated[str, typer.Argument(help="recipe, run folder, checkpoint or weights file")],
    overrides: Overrides = None,
    device: Device = "auto",
    latency: Annotated[bool, typer.Option(help="time one sample's forward pass on this machine")] = True,
    as_json: AsJson = False,
) -> None:
    """Say what a recipe's networks cost: parameters, arithmetic, memory traffic, activations, latency.

    Example: frugan info biggan-imagenet-128
    """
    from frugan.planning.network_costs import CAVEAT
    from frugan.planning.network_costs import info as measure

    recipe_info = measure(source, overrides or [], device=device, latency=latency)
    recipe = recipe_info.recipe
    originals = {
        name: recipe_info.networks[name].macs + spared
        for name, spared in recipe.kind.spared_macs(recipe.networks).items()
    }
    if as_json:
        print_json({**recipe_info.as_json(), "original_macs": originals})
        return
    about = recipe.about
    # A row for each network: names are for copying and never cut, however many there are.
    table = Table(*COLUMNS, box=None, pad_edge=False)
    for name, network in recipe_info.networks.items():
        table.add_row(name, *_rows(network))
    console = Console(highlight=False, width=max(Console().width, 140))
    settings = f" Settings: {about.source}." if about.source else ""
    summary = about.summary or f"family {recipe.family}"
    console.print(f"{recipe_info.name}: {summary}.{settings} Trained: {about.trained}.", soft_wrap=True)
    console.print(table)
    if originals:
        counted = " and ".join(f"{macs / 1e9:.2f} GMAC ({name})" for name, macs in originals.items())
        console.print(
            f"Papers count {counted} for a picture: the authors' program computes the same in another order, and "
            "prepares its weights anew.",
            soft_wrap=True,
        )
    peaks = f"{recipe_info.peaks.macs_per_s / 1e9:,.0f} GMAC/s and {recipe_info.peaks.bytes_per_s / 1e9:,.1f} GB/s"
    console.print(
        f"Measured on {recipe_info.device} in {recipe_info.precision}, which reaches {peaks}. {CAVEAT}", soft_wrap=True
    )


def recipes(
    name: Annotated[
        str | None, typer.Argument(help="show the fields of this recipe: a built-in name, TOML file or run")
    ] = None,
    fields: Annotated[bool, typer.Option("--fields", help="show every field of NAME (as NAME alone does)")] = False,
    card: Annotated[
        str | None, typer.Option(help="list those alone that are predicted to fit this card, such as rtx-3060")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the built-in recipes, with the smallest card for each; or all fields of one recipe.

    Example: frugan recipes

    What fits a card: frugan recipes --card rtx-2060

    Fields: frugan recipes biggan-small-32
    """
    if fields and name is None:
        raise BadInput("--fields goes with the name of a recipe, such as frugan recipes biggan-small-32 --fields")
    if name is not None:
        if card is not None:
            raise BadInput(
                f"--card {card}: for the list; frugan plan {name} --card {quote(card)} says whether {name} fits it"
            )
        _show_fields(name, as_json=as_json)
        return
    rows = shipped_recipes()
    every = len(rows)
    how = "--memory 6GiB: how"
    if card is not None:
        from frugan.planning.plan_recipe import fitting

        fits = fitting(card, smallest_cards(), smallest_cards(fp32=True))
        rows = [row for row in rows if row["name"] in fits]
        how = f"--card {quote(card)}: how, and how long training takes ({len(rows)} of {every} recipes are listed)"
    if as_json:
        print_json(rows)
        return
    if not rows:
        print(f"{card} is smaller than the cards in this list, from 4 GiB on: frugan plan NAME {how[: how.index(':')]}")
        return
    longest = max(len(str(row["name"])) for row in rows)
    table = Table(
        Column("recipe", no_wrap=True, min_width=longest),  # names are for copying
        "pixels",
        "parameters",
        "batch",
        "groups",
        "duration",
        "card",
        "fp32 card",
        "trained",
        box=None,
        pad_edge=False,
    )
    for row in rows:
        table.add_row(
            str(row["name"]),
            str(row["resolution"]),
            f"{row['parameters'] / 1e6:.1f}M",
            str(row["batch"]),
            str(row["normalisation_batch"] or "-"),
            str(row["duration"]),
            _gib(row["smallest_card_gib"]),
            _gib(row["smallest_fp32_card_gib"]),
            str(row["trained"]),
        )
    # Names are for copying: never cut them, whatever the width of the terminal.
    console = Console(width=max(Console().width, 106))
    console.print(table)
    console.print(
        "\ntrained: who has trained it to its end: we, its authors (with the original program), or nobody we know of.\n"
        "groups: samples that are normalised together (batch norm, minibatch stddev); no micro-batch is smaller.\n"
        f"card: memory of the smallest common card that it fits (predicted); frugan plan NAME {how}.\n"
        "fp32 card: the same for cards without half-precision units (GTX 10xx, 16xx); -: none, or not predicted.\n"
        "Next: frugan info NAME, or frugan train NAME --data PICTURES --out RUN",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _gib(size: int | None) -> str:
    return f"{size} GiB" if size else "-"


def _show_fields(name: str, *, as_json: bool) -> None:
    from frugan.recipe.loading import load_recipe, recipe_fields

    fields = recipe_fields(load_recipe(name))
    if as_json:
        print_json([asdict(field) for field in fields])
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("field", no_wrap=True)  # names are for copying
    for title in ("", "here", "may be", "what it does"):
        table.add_column(title)
    for field in fields:
        row = (field.key, "" if field.changeable else "*", field.value, field.values, field.description)
        table.add_row(*map(Text, row))
    console = Console(width=max(Console().width, 160), highlight=False)
    console.print(table)
    console.print(
        "\n*: cannot change once a run has begun. Override a field on the command line, such as "
        "training.duration='3000 steps', or in a TOML file of your own.",
        markup=False,
        soft_wrap=True,
    )


def report(
    runs: Annotated[list[Path], typer.Argument(help="run folder; several are compared")],
    out: Annotated[
        Path | None,
        typer.Option(help="file to write; default: in the first run, report.html, or comparison.html of several"),
    ] = None,
    title: Annotated[str, typer.Option(help="of the page; default: the names of the runs")] = "",
    by: Annotated[str, typer.Option(help="who trained the runs, for the page to say")] = "",
    serve: Annotated[
        bool, typer.Option(help="show it on this machine in a browser, updated while training goes on")
    ] = False,
    port: Annotated[int, typer.Option(help="port of --serve; 0: any free one")] = 8765,
) -> None:
    """Write one HTML page about a run: curves, sample grids through time, scores, memory, recipe and plan.

    The page holds everything itself and fetches nothing.

    Example: frugan report runs/first

    Several: frugan report runs/first runs/second --out comparison.html
    """
    from frugan.reporting.report import write_report
    from frugan.reporting.report_server import report_server

    if not serve:
        print(write_report(runs, out, title=title, by=by))
        return
    if out is not None:
        raise BadInput(f"--out {out}: --serve writes no file; leave out one of the two")
    for option, words in (("--title", title), ("--by", by)):
        if words:
            raise BadInput(f"{option} {words!r}: of a page that is written; leave it out, or --serve")
    with report_server(runs, port) as server:
        say(f"http://{server.server_address[0]!s}:{server.server_address[1]} (Ctrl-C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
