"""A model card as Markdown, with the front matter that hubs of models read."""

import json
import re
from collections.abc import Iterator, Sequence

from frugan.api.model_card.card_facts import CardFacts, Scored
from frugan.contract.formats import RECIPE_FILE
from frugan.memory.sizes import show_size
from frugan.metrics.provenance import Provenance

WEIGHTS, PICTURE, CARD = "weights.safetensors", "samples.png", "README.md"
"""Files beside the card, and its own."""
IDENTIFIER = re.compile(r"[a-z0-9][a-z0-9.+-]*")
"""A licence as hubs and SPDX write it: "cc-by-4.0"."""
MOST_CLASSES = 30


def card_text(facts: CardFacts, licence: str) -> str:
    """The card.

    Args:
        licence: what others may do with the weights; empty: nobody has said.
    """
    parts = [_front(facts, licence), *_head(facts), *_use(facts), *_training(facts), *_scores(facts.scores)]
    return "\n".join([*parts, *_memory(facts), *_licence(licence)]) + "\n"


def _front(facts: CardFacts, licence: str) -> str:
    identifier = licence if IDENTIFIER.fullmatch(licence) else "other" if licence else "unknown"
    lines = [f"license: {identifier}"]
    if identifier == "other":
        lines.append(f"license_name: {json.dumps(_line(licence), ensure_ascii=False)}")
    tags = ["frugan", "gan", facts.recipe.family]
    lines += ["library_name: frugan", "tags:", *(f"- {json.dumps(tag)}" for tag in tags)]
    return "\n".join(["---", *lines, "---", ""])


def _head(facts: CardFacts) -> Iterator[str]:
    about = facts.recipe.about
    yield f"# {_line(facts.name)}"
    yield ""
    yield _line(about.summary or f"A {facts.recipe.family} model.")
    yield ""
    if facts.grid is not None:
        yield f"![samples at step {facts.grid.step:,}]({PICTURE})"
        yield ""
        if facts.grid.rows:
            yield f"Rows, from the top: {', '.join(map(_line, facts.grid.rows))}."
            yield ""


def _use(facts: CardFacts) -> Iterator[str]:
    networks = ", ".join(f"`{name}` ({count:,} parameters)" for name, count in facts.parameters.items())
    kind = "averaged over training (EMA)" if facts.averaged else "as training left them"
    yield "## Use"
    yield ""
    yield "```python"
    yield "import frugan"
    yield ""
    yield f'networks = frugan.load("{WEIGHTS}")'
    yield "```"
    yield ""
    yield f"`frugan sample {WEIGHTS} --out samples` draws pictures. The file holds {networks}, {kind};"
    yield "nothing in it is run when it is read."
    yield ""
    if facts.class_names:
        shown = ", ".join(map(_line, facts.class_names[:MOST_CLASSES]))
        more = len(facts.class_names) - MOST_CLASSES
        yield f"Classes, from 0 on: {shown}" + (f" and {more:,} more." if more > 0 else ".")
        yield ""


def _training(facts: CardFacts) -> Iterator[str]:
    training, recipe = facts.recipe.training, facts.recipe
    rows = [
        ("family", recipe.family),
        ("settings from", recipe.about.source or "-"),
        ("steps", f"{facts.step:,} of {training.duration}"),
        ("images seen", "-" if facts.images is None else f"{facts.images:,}"),
        ("batch", str(training.batch)),
        ("normalisation batch", str(training.normalisation_batch or "-")),
        ("precision", str(facts.plan.get("precision", training.precision))),
        ("seed", str(training.seed)),
        ("trained on", facts.device),
        ("versions", facts.versions),
        ("recipe", f"[{RECIPE_FILE}]({RECIPE_FILE}), digest `{facts.recipe_digest[:16]}`"),
        *((f"data: {source}", f"digest `{digest[:16]}`") for source, digest in facts.data.items()),
    ]
    yield "## Training"
    yield ""
    yield from _table(("", ""), rows)


def _scores(scored: Sequence[Scored]) -> Iterator[str]:
    yield "## Scores"
    yield ""
    if not scored:
        yield "None were measured."
        yield ""
        return
    rows = [_score_row(each.provenance, name, value) for each in scored for name, value in each.scores.items()]
    titles = ("score", "value", "step", "samples", "compared with", "features", "truncation", "statistics", "weights")
    yield from _table(titles, rows)
    yield "Scores compare only where all of this agrees, and the pictures that they compare with are the same."
    yield ""


def _score_row(of: Provenance, name: str, value: float) -> tuple[str, ...]:
    return (
        name,
        f"{value:.4g}",
        f"{of.step:,}",
        f"{of.samples:,}",
        of.compared_with,
        _features(of.network, of.network_digest),
        f"{of.truncation:g}",
        of.statistics,
        "averaged" if of.ema else "trained",
    )


def _features(network: str, digest: str) -> str:
    return f"{network} `{digest[:8]}`" if digest else network


def _memory(facts: CardFacts) -> Iterator[str]:
    plan = facts.plan
    savers = ", ".join(map(str, plan.get("savers", ()))) or "none recorded"
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
    yield "`frugan sample --nearest` looks."


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(titles)} |"
    yield f"|{'---|' * len(titles)}"
    for row in rows:
        yield f"| {' | '.join(_line(cell).replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


def _line(text: str) -> str:
    """Text from a recipe, a folder or a class on one line, without HTML."""
    return " ".join(text.split()).replace("<", "&lt;")
