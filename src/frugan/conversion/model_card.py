"""`card`: a folder with a run's weights and its model card, for other people."""

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from PIL import Image

from frugan.contract.data import RunData
from frugan.contract.formats import RECIPE_FILE
from frugan.conversion.export.about import ABOUT_CARD, WEIGHTS, AboutModel, CardBefore, own_card, text_digest
from frugan.conversion.export.site import PAGE, SITE, export_site
from frugan.conversion.written import write_whole
from frugan.engine.run.checkpoint import EMA_FILE, STATE_FILE, step_in_name
from frugan.engine.run.events import read_events
from frugan.engine.run.run_folder import RunFolder
from frugan.errors import BadInput, checked
from frugan.files import read_json
from frugan.metrics.provenance import Provenance
from frugan.metrics.scores import half_width
from frugan.progress import Say, quiet
from frugan.recipe.loading import dump_recipe
from frugan.recipes import shipped_weights
from frugan.reporting.grids import ROWS_KEYWORD
from frugan.setup.networks import Weights, weights_metadata
from frugan.setup.recipe_setup import parameter_counts
from frugan.wording import SAYS_LITTLE, TOLD_APART, beside_real, by_pictures, family_name, show_size, with_interval


@dataclass(frozen=True)
class Scored:
    """Scores, and what they were measured with."""

    scores: Mapping[str, float]  # name -> value
    provenance: Provenance  # without paths: those are nobody's business


@dataclass(frozen=True)
class Grid:
    """Sample grid of the card."""

    file: Path  # picture
    step: int  # of training
    rows: tuple[str, ...]  # names of its rows, from the top; empty: they have none


@dataclass(frozen=True)
class CardFacts:
    """Facts about a run."""

    about: AboutModel  # its title, and who made it of what
    weights: Weights  # with the recipe that trained them, and their step
    recipe_digest: str
    images: int | None  # that the networks were shown until then; None: not known
    class_names: tuple[str, ...]  # what labels mean; empty: there are no classes, or nobody knows
    parameters: Mapping[str, int]  # network -> number, of those that the weights hold
    scores: tuple[Scored, ...]  # those of the step nearest to that of the weights come last
    plan: Mapping[str, Any]  # as the run folder has it; empty: none
    memory_bytes: int | None  # most that was taken; None: not known
    device: str  # that it was trained on
    versions: str  # of frugan and torch
    data: Mapping[str, str]  # source -> digest of what it was trained on
    grid: Grid | None  # newest sample grid; None: there is none
    began_from: str = ""  # what --init named, or the recipe whose shipped weights were taken; empty: noise


def _logged(run: RunFolder) -> tuple[tuple[Scored, ...], int | None, Mapping[str, Any]]:
    """Return scores measured during training, peak memory and the last start, from a run's events.

    The start has the `init` of the first one, which later ones lack.

    Lines that cannot be read are passed over.
    """
    scores: list[Scored] = []
    memory: int | None = None
    start: Mapping[str, Any] = {}
    for event in read_events(run.events, quiet) if run.events.is_file() else ():
        match event.get("event"):
            case "metrics":
                scores += _scored(event)
            case "start":
                start = {"init": start.get("init", ""), **event}
            case "step" if isinstance(taken := event.get("memory_bytes"), int):
                memory = max(memory or 0, taken)
    return tuple(scores), memory, start


def _taken_later(run: RunFolder) -> tuple[Scored, ...]:
    """Scores that `frugan evaluate` has left in a run."""
    lines = read_events(run.scores, quiet) if run.scores.is_file() else ()
    return tuple(score for values in lines for score in _scored(values))


def _scored(values: Mapping[str, Any]) -> Iterator[Scored]:
    """Scores with their provenance; none where one of the two is missing or of another version."""
    try:
        of = Provenance.from_json(values["provenance"] | {"weights": ""})
        scores = {str(name): float(value) for name, value in values["scores"].items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        return
    named = {"data": Path(of.data).name or of.data, "reference": Path(of.reference).name or of.reference}
    yield Scored(scores, Provenance.from_json(of.as_json() | named))


def _newest_grid(run: RunFolder) -> Grid | None:
    """The newest sample grid of a run: plain samples, or what there is."""
    grids = sorted((kind == "samples", step, path) for step, kind, path in run.grids())
    for _, step, file in reversed(grids):
        try:
            with Image.open(file) as picture:
                text = str(picture.info.get(ROWS_KEYWORD, ""))
        except (OSError, SyntaxError):  # damaged: the one before is shown
            continue
        return Grid(file, step, tuple(text.split("\n")) if text else ())
    return None


PICTURE, CARD = "samples.png", "README.md"
"""Files beside the card, and its own."""
IDENTIFIER = re.compile(r"[a-z0-9][a-z0-9.+-]*")
"""A licence as hubs and SPDX write it: "cc-by-4.0"."""
MOST_CLASSES = 30


def card_text(facts: CardFacts, licence: str, *, space: bool = False) -> str:
    """The card.

    Args:
        licence: what others may do with the weights; empty: nobody has said.
        space: a page lies beside it, which a hub shows first.
    """
    parts = [_front(facts, licence, space), *_head(facts), *_use(facts), *_training(facts), *_scores(facts.scores)]
    return "\n".join([*parts, *_memory(facts), *_licence(licence)]) + "\n"


def _front(facts: CardFacts, licence: str, space: bool) -> str:
    identifier = licence if IDENTIFIER.fullmatch(licence) else "other" if licence else "unknown"
    lines = [f"license: {identifier}"]
    if identifier == "other":
        lines.append(f"license_name: {json.dumps(_line(licence), ensure_ascii=False)}")
    tags = ["frugan", "gan", facts.weights.recipe.family]
    lines += ["library_name: frugan", "tags:", *(f"- {json.dumps(tag)}" for tag in tags)]
    if space:  # the fields by which the Hugging Face hub finds what to show
        lines += [
            f"title: {json.dumps(_line(facts.about.title), ensure_ascii=False)}",
            "sdk: static",
            f"app_file: {PAGE}",
        ]
    return "\n".join(["---", *lines, "---", ""])


def _head(facts: CardFacts) -> Iterator[str]:
    yield f"# {_line(facts.about.title)}"
    yield ""
    yield _line(facts.about.origin)
    yield ""
    if facts.grid is not None:
        yield f"![samples at step {facts.grid.step:,}]({PICTURE})"
        yield ""
        if facts.grid.rows:
            yield f"Rows, from the top: {', '.join(map(_line, facts.grid.rows))}."
            yield ""


def _use(facts: CardFacts) -> Iterator[str]:
    networks = ", ".join(f"`{name}` ({count:,} parameters)" for name, count in facts.parameters.items())
    kind = "averaged over training (EMA)" if facts.weights.path.name == EMA_FILE else "as training left them"
    yield "## Use"
    yield ""
    yield "With frugan, a Python program that trains big image generators on the GPU you have (Apache-2.0):"
    yield ""
    yield "```"
    yield f"frugan sample {WEIGHTS} --out samples"
    yield "```"
    yield ""
    yield "In Python:"
    yield ""
    yield "```python"
    yield from _python(facts)
    yield "```"
    yield ""
    yield f"The file holds {networks}, {kind}:"
    yield "numbers alone, so that opening it runs no code."
    yield ""
    if facts.class_names:
        shown = ", ".join(map(_line, facts.class_names[:MOST_CLASSES]))
        more = len(facts.class_names) - MOST_CLASSES
        yield f"Classes, from 0 on: {shown}" + (f" and {more:,} more." if more > 0 else ".")
        yield ""


def _python(facts: CardFacts) -> Iterator[str]:
    """Lines that draw pictures, or give the networks where these draw none from latents."""
    recipe = facts.weights.recipe
    drawing = recipe.kind.drawing(recipe.networks, recipe.kind.build(recipe.networks, "meta"))
    if drawing is None:
        yield "import frugan"
        yield ""
        yield f'networks = frugan.load("{WEIGHTS}")'
        return
    yield "import torch"
    yield ""
    yield "import frugan"
    yield ""
    yield f'generator = frugan.load_generator("{WEIGHTS}")'
    yield "z = torch.randn(4, generator.latent_size)"
    chosen = ", torch.arange(4) % generator.classes" if drawing.classes else ""
    yield f"pictures = generator(z{chosen})  # [4, C, {recipe.resolution}, {recipe.resolution}] in [-1, 1]"


def _training(facts: CardFacts) -> Iterator[str]:
    training, recipe = facts.weights.recipe.training, facts.weights.recipe
    rows = [
        ("family", family_name(recipe.family)),
        ("settings", recipe.about.source or "-"),
        ("steps", f"{facts.weights.step:,} of {training.duration}"),
        ("images seen", "-" if facts.images is None else f"{facts.images:,}"),
        ("batch", str(training.batch)),
        *((("samples normalised together", str(group)),) if (group := training.normalisation_batch) else ()),
        ("precision", str(facts.plan.get("precision", training.precision))),
        ("seed", str(training.seed)),
        *((("started from", _line(_origin(facts.began_from))),) if facts.began_from else ()),
        ("trained on", facts.device),
        ("versions", facts.versions),
        ("recipe", f"[{RECIPE_FILE}]({RECIPE_FILE}), digest `{facts.recipe_digest[:16]}`"),
        *((f"data: {source}", f"digest `{digest[:16]}`") for source, digest in facts.data.items()),
    ]
    yield "## Training"
    yield ""
    yield from _table(("", ""), rows)


def _origin(began_from: str) -> str:
    """Say whose weights a training started from; of a path its last part alone."""
    if shipped_weights(began_from) is not None:
        return f"weights of {began_from} that ship with frugan, trained on pictures that programs drew (Apache-2.0)"
    return f"other weights: {Path(began_from).name}"


def _scores(scored: Sequence[Scored]) -> Iterator[str]:
    yield "## Scores"
    yield ""
    if not scored:
        yield "None were measured."
        yield ""
        return
    newest: dict[tuple[object, ...], tuple[str, ...]] = {}
    for evaluation in scored:
        of = evaluation.provenance
        for name in evaluation.scores:
            if name in TITLES or not name.endswith(BESIDE_OTHERS):
                network = None if by_pictures(name) else of.network
                kind = (name, network, of.scored, of.truncation, of.psi)
                newest.pop(kind, None)
                newest[kind] = _score_row(evaluation, name)
    titles = (
        "score",
        "value",
        "step",
        "samples",
        "compared with",
        "judged by",
        "truncation",
        "batch statistics",
        "weights",
    )
    yield from _table(titles, list(newest.values()))
    yield "Of each kind the score of the step nearest to that of these weights; behind ± half of a 95 % interval, where"
    yield "one is known. Scores compare only where all of this agrees, and what they compare with is the same."
    if any(SAYS_LITTLE in value for _, value, *_ in newest.values()):
        yield f"Where a judge tells more than {100 * TOLD_APART:.0f} in 100 pictures from real ones, precision and"
        yield "recall of pixels say little yet: smears of about the right colours have high ones."
    yield ""


TITLES: Mapping[str, str] = MappingProxyType(
    {
        "fid": "FID (0 at best)",
        "intra_fid": "FID within classes (0 at best)",
        "is_mean": "inception score (higher is better)",
        "kid_mean": "KID (0 at best)",
        "cmmd": "CMMD (0 at best)",
        "precision": "precision (1 at best)",
        "recall": "recall (1 at best)",
        "density": "density (1 as real ones)",
        "coverage": "coverage (1 at best)",
        "ppl": "perceptual path length (lower is smoother)",
        "eqt": "EQ-T in decibels (higher is better)",
        "eqt_frac": "EQ-T by parts of pixels, in decibels (higher is better)",
        "eqr": "EQ-R in decibels (higher is better)",
        "two_sample": "two-sample (0.5 at best)",
    }
)
"""Score -> title of its row."""
BESIDE_OTHERS = ("_std", "_half_width", "_real", "f_score")
"""Ends of the names of what belongs to other scores."""


def _score_row(scored: Scored, name: str) -> tuple[str, ...]:
    of, scores = scored.provenance, scored.scores
    about = f"{of.truncation:g}", of.statistics, "averaged" if of.ema else "trained"
    width = half_width(name, scores, of.as_json())
    measured = of.measured(name)
    return (
        TITLES.get(name, name),
        with_interval(name, scores[name], width) + beside_real(name, scores, of.as_json()),
        "-" if of.is_of_real else f"{of.step:,}",
        measured.samples,
        measured.compared_with,
        "; ".join(filter(None, (measured.judged_by, of.control_of(name)))),
        *(("-", "-", "none: real pictures") if of.is_of_real else about),
    )


def _memory(facts: CardFacts) -> Iterator[str]:
    plan = facts.plan
    savers = ", ".join(map(str, plan.get("savers", ()))) or "none"
    rows = [("micro-batch", str(plan.get("micro_batch", "-"))), ("memory savings", savers)]
    if isinstance(plan.get("peak_bytes"), int):
        rows.append(("predicted peak", show_size(plan["peak_bytes"])))
    if facts.memory_bytes is not None:
        rows.append((f"most taken on {facts.device}", show_size(facts.memory_bytes)))
    yield "## Memory of training"
    yield ""
    yield from _table(("", ""), rows)


def _licence(licence: str) -> Iterator[str]:
    yield "## Licence"
    yield ""
    if licence:
        yield f"Of the weights: {_line(licence)}."
    else:
        yield "Nobody has said what others may do with these weights: ask whoever trained them."
    yield "The program that trained them, frugan, is Apache-2.0, which says nothing about weights; the pictures that"
    yield "they were trained on have licences of their own. Generated pictures can resemble training pictures:"
    yield "`frugan sample --nearest` shows the training pictures that are nearest to samples."


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(titles)} |"
    yield f"|{'---|' * len(titles)}"
    for row in rows:
        yield f"| {' | '.join(_line(cell).replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


def _line(text: str) -> str:
    """Text from a recipe, a folder or a class on one line, without HTML."""
    return " ".join(text.split()).replace("<", "&lt;")


FILES = (CARD, WEIGHTS, RECIPE_FILE, PICTURE)
"""All that is written without a page."""


@checked
def write_card(
    run: str | Path,
    out: str | Path | None = None,
    *,
    licence: str = "",
    space: bool = False,
    runtime: str | Path | None = None,
    title: str = "",
    by: str = "",
    replace: bool = False,
    say: Say = quiet,
) -> Path:
    """Write a folder that can be given away: model card, weights, recipe, sample grid.

    A folder that has a card is written again. Where no licence, title or author is given, they are those of this card,
    or in a folder without one those of the card in the run.

    Args:
        run: a run folder, or one of its checkpoints.
        out: folder; None: `card` in the run.
        licence: what others may do with the weights, such as "cc-by-4.0"; empty: nobody has said.
        space: also a page that draws in a browser, as `export_site` writes it: the folder is a static Space of the
            Hugging Face hub.
        runtime: as for `export_site`.
        title: as for `export_site`.
        by: as for `export_site`.
        replace: write over a card that was edited, or that nobody knows to be frugan's.
        say: is told of damaged checkpoints that were passed over, of what is taken from the card before, and of a
            licence that is missing.

    Returns:
        The folder.

    Raises:
        BadInput: no run, without a checkpoint, or the folder holds other files or an edited card; or of the page as
            `export_site`. Nothing was written then.
    """
    weights = Weights.open(run, say)
    folder = RunFolder(Path(run)) if RunFolder(Path(run)).exists else RunFolder.holding(weights.path)
    if folder is None:
        raise BadInput(f"{run}: belongs to no run folder, which a card is made from")
    own = own_card(folder)
    target = Path(out) if out is not None else own
    there = {entry.name for entry in target.iterdir()} if target.is_dir() else set()
    if others := sorted(there - {*FILES, *(SITE if space else ())}):
        raise BadInput(f"{target}: holds other files ({', '.join(others[:3])}); choose another --out")
    before = CardBefore.of(target)
    if not replace:
        before.refuse_edited(target / CARD)
    where = "before"
    if not before.digest:
        before, where = CardBefore.of(own), f"in {own}"
    given = {"title": title.strip(), "by": by.strip(), "licence": licence.strip()}
    title, by, licence = before.completed(given, where, say).values()
    licence = licence or weights.licence
    if not licence:
        say(
            "licence: none was given, so the card says that others must ask; expected with --licence what they may do "
            "with the weights: a name such as cc-by-4.0, or a sentence"
        )
    facts = _facts(folder, weights, AboutModel.of(weights, title=title, by=by))
    if space:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".page-", dir=target.parent) as beside:
            site = export_site(weights, Path(beside) / "site", runtime=runtime, title=title, by=by, say=say).path
            target.mkdir(exist_ok=True)
            for file in site.iterdir():
                file.replace(target / file.name)
    target.mkdir(parents=True, exist_ok=True)
    text = card_text(facts, licence, space=space).encode()
    about = {ABOUT_CARD: json.dumps({"digest": text_digest(text), "title": title, "by": by}, ensure_ascii=False)}
    metadata = weights_metadata(weights.recipe, weights.class_names, step=facts.weights.step, licence=licence)
    write_whole(target / WEIGHTS, weights.read(), metadata | about)
    (target / RECIPE_FILE).write_text(dump_recipe(weights.recipe), "utf-8")
    if facts.grid is not None:
        shutil.copyfile(facts.grid.file, target / PICTURE)
    else:
        (target / PICTURE).unlink(missing_ok=True)
    (target / CARD).write_bytes(text)
    return target


def _facts(run: RunFolder, weights: Weights, about: AboutModel) -> CardFacts:
    scores, memory_bytes, start = _logged(run)
    file = weights.path
    # those too that training does not use at present: a checkpoint keeps them
    counts = parameter_counts(weights.recipe, also=weights.networks)
    saved = read_json(file.parent / STATE_FILE) if step_in_name(file.parent) is not None else {}
    return CardFacts(
        about=about,
        weights=weights,
        recipe_digest=weights_metadata(weights.recipe)["recipe_digest"],
        images=saved["images"] if isinstance(saved.get("images"), int) else None,
        class_names=weights.class_names,
        parameters={name: counts[name] for name in weights.networks},
        # `frugan evaluate` may have scored an earlier step than training did
        scores=tuple(
            sorted((*scores, *_taken_later(run)), key=lambda scored: -abs(scored.provenance.step - weights.step))
        ),
        plan=read_json(run.plan),
        memory_bytes=memory_bytes,
        device=_device(saved, start),
        versions=f"frugan {start.get('frugan', '-')}, torch {start.get('torch', '-')}",
        data=_data(saved),
        grid=_newest_grid(run),
        began_from=str(start.get("init", "")),
    )


def _device(saved: Mapping[str, Any], start: Mapping[str, Any]) -> str:
    """A card by its name, or "cpu"."""
    card = saved.get("card")
    return str(card["name"] if isinstance(card, Mapping) and "name" in card else start.get("device", "-"))


def _data(saved: Mapping[str, Any]) -> dict[str, str]:
    """Source -> digest of what was trained on; empty where the checkpoint does not say."""
    sources = saved.get("data", {})
    try:
        return {str(source): RunData.read(entry).digest for source, entry in sources.items()}
    except (KeyError, TypeError, AttributeError):
        return {}
