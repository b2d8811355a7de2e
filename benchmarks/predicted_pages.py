"""Writes the tables of predictions that pages of the documentation quote: python benchmarks/predicted_pages.py [--anew]

From records; with --anew their programs predict first, which takes some minutes: do so when predictions have changed
(what_fits.py, for every recipe on every card, is run by itself). A test holds that the pages say what the records say,
and that two of their rows are of today.
"""

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import published_costs
import what_fits
from frugan.stepmemory.cards import PUBLISHED
from frugan.wording import GIB
from page_tables import DOCS, RESULTS, fill, read, table

WITH_FIGURES = ("memory", "memory-measured", "cluster", "faces", "your-card", "stylegan3", "zh/faces", "zh/your-card")
PAGES = tuple(DOCS / f"{name}.md" for name in WITH_FIGURES)
SAVINGS = {
    "keep-products": "kept products",
    "ema-on-host": "EMA in host memory",
    "optimizer-on-host": "optimizer in host memory",
    "shard-optimizer": "shards",
    "dense-slices": "dense slices",
}
"""In words, where the name is none."""


def published() -> str:
    """What trainings took on real cards, beside what is predicted."""
    found, known = read(published_costs.RECORD.name)["rows"], published_costs.trainings()
    rows = [line for name, training in known.items() for line in published_costs.lines(name, training, found[name])]
    head = ["training", "published GiB", "ours", "off", "card", "published s", "ours", "off"]
    return "\n".join([table(head, []), *rows])


def stylegan3_memory() -> str:
    """What StyleGAN3's authors published beside what is predicted, in GiB."""
    found = read(published_costs.RECORD.name)["rows"]
    rows = {name: row for name, row in published_costs.trainings().items() if name.startswith("stylegan3-")}
    titles = [" ".join(name.split("-")[1:3]).upper() for name in rows]  # "T 256"
    theirs = [f"{row.gib:.1f}" for row in rows.values()]
    ours = [f"{found[name]['allocated_bytes'] / GIB:.2f}" for name in rows]
    return table(["", *titles], [["theirs", *theirs], ["here", *ours]])


def beside_fp32() -> str:
    """What half precision takes beside fp32."""
    found, known = read(published_costs.RECORD.name)["rows"], published_costs.trainings()
    ((name, training),) = ((name, each) for name, each in known.items() if each.beside is not None)
    head = [f"`{name}`", "published", "its program, modelled", "ours"]
    return "\n".join([table(head, []), *published_costs.lines_beside_fp32(training, found[name])])


def two_cards() -> str:
    """A network on each, or half the batch."""
    record = read("two-cards.json")
    ways = ("one card", "a network on each, at best", "half the batch on each")
    rows = [
        [f"`{row['recipe']}`, {row['memory_gib']} GiB", *(_plan(row[way]) for way in ways)] for row in record["rows"]
    ]
    return table(["recipe, memory of a card", ways[0], *(f"two, {way}" for way in ways[1:])], rows)


def _plan(found: Mapping[str, Any]) -> str:
    """Seconds of a step, and savings; or no plan."""
    if not found["fits"]:
        return "no"
    savings = ", ".join(SAVINGS.get(name, name) for name in found["savers"])
    return f"{found['step_seconds']:#.3g}".removesuffix(".") + (f" ({savings})" if savings else "")


def many_cards() -> str:
    """Share of the time in which many of them compute."""
    recipes = read("scaling.json")["predicted"]["recipes"]
    rows = []
    for name, row in recipes.items():
        cells = [
            f"{each['efficiency']:.0%} of {each['step_seconds']:.2f} s (batch {each['batch']:,})"
            for each in row["cards"].values()
        ]
        rows.append([f"`{name}`", f"{row['summed_bytes_per_step'] / 1e9:.2f}", *cells])
    counts = next(iter(recipes.values()))["cards"]
    return table(["recipe", "GB added up per step", *(f"{count} cards" for count in counts)], rows)


def face_memory(halves: str = "fp16 or bf16") -> str:
    """GiB of a step of a face model, whole batch; both half precisions in words."""
    found: dict[tuple[str, bool], dict[str, float]] = {}
    for row in read("saehd-memory-df-ud-512.json")["rows"]:
        precision = "fp32" if row["precision"] == "fp32" else halves
        way = found.setdefault((precision, row["recompute"]), {})
        way[row["optimizer"]] = max(way.get(row["optimizer"], 0.0), row["peak_gib"])
    rows = [
        [precision + (", `--recompute`" if recompute else ""), f"{way['rmsprop']:.2f}", f"{way['adabelief']:.2f}"]
        for (precision, recompute), way in found.items()
    ]
    return table(["GiB", "RMSprop", "AdaBelief"], rows)


def every_recipe() -> str:
    """On every card with half-precision units."""
    return what_fits.table_of(read("what-fits.json")["recipes"])


def every_recipe_in_fp32() -> str:
    """On every card without."""
    return what_fits.table_of(read("what-fits-fp32.json")["recipes"])


def cards(head: Sequence[str] = ("card has", "its driver leaves, in GiB")) -> str:
    """By memory, and what drivers leave of it."""
    rows = []
    for gib in sorted({card.gib for card in PUBLISHED.values()}):
        known = [
            f"`{name}` {card.left_bytes / GIB:.2f}{'' if card.left_mib is not None else '*'}"
            for name, card in PUBLISHED.items()
            if card.gib == gib
        ]
        rows.append([f"{gib} GB", ", ".join(known)])
    return table(head, rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "cards": cards,
    "every recipe": every_recipe,
    "every recipe in fp32": every_recipe_in_fp32,
    "published": published,
    "stylegan3 memory": stylegan3_memory,
    "beside fp32": beside_fp32,
    "two cards": two_cards,
    "many cards": many_cards,
    "face memory": face_memory,
    "cards in chinese": partial(cards, ("显存容量", "可用显存 GiB")),
    "face memory in chinese": partial(face_memory, "fp16 或 bf16"),
}


def predict() -> None:
    """Make the records anew."""
    programs = (
        ("published_costs.py", *published_costs.trainings()),
        ("two_cards.py",),
        ("scaling.py", "--no-measuring"),
        ("saehd_memory.py", str(RESULTS / "saehd-memory-df-ud-512.json")),
        ("savers_left_out.py", str(RESULTS / "savers-left-out.json")),
    )
    for program, *words in programs:
        subprocess.run([sys.executable, Path(__file__).with_name(program), *words], check=True)


def main() -> None:
    """Write the pages."""
    if "--anew" in sys.argv[1:]:
        predict()
    fill(PAGES, TABLES)


if __name__ == "__main__":
    main()
