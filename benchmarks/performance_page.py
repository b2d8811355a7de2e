"""Writes the tables of docs/performance.md and kernels.md from recorded results: python benchmarks/performance_page.py

A test holds that they are what the records give.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from page_tables import DOCS, RESULTS, fill, read, table

GIB = 1 << 30
PAGES = (DOCS / "performance.md", DOCS / "kernels.md")

LINES = {"seconds": "s", "predicted_peak_mib": "MiB at the peak", "gmacs": "billion products", "moved_mib": "MiB moved"}


def counts() -> str:
    """Launches, bytes and FLOPs of every case, beside those before they were brought down."""
    before = read("counts-before.json")["cases"]
    rows = []
    for name, steps in read("counts.json")["cases"].items():
        for step, now in steps.items():
            then = before.get(name, {}).get(step, now)
            rows.append(
                [
                    f"`{name}`" + ("" if step == "from the start" else f", {step.removeprefix('from the start, ')}"),
                    f"{now['launches']:,}{_change(now['launches'], then['launches'])}",
                    f"{now['bytes_moved'] / 1e9:.2f}{_change(now['bytes_moved'], then['bytes_moved'])}",
                    f"{now['flops'] / 1e9:,.0f}",
                    str(now["syncs"]),
                ]
            )
    return table(["step", "launches", "GB moved", "GFLOP", "host syncs"], rows)


def _change(now: float, before: float) -> str:
    share = round(100 * (now / before - 1))
    return f" ({share:+d} %)" if share else ""


def against_plain(*, half: bool) -> str:
    """How many times as fast as the plain way, by recipe: on a CPU with units for half precision, or without."""
    rows = []
    for path in sorted(RESULTS.glob("against-plain-*.json")):
        record = json.loads(path.read_text("utf-8"))
        if record["machine"]["bf16_units"] != half:
            continue
        ratios = record["ratios_of_neighbours"]
        rows.append(
            [
                f"`{' '.join(record['recipe'])}`",
                record["precision"],
                f"**{record['times_as_fast']:.2f}** ({ratios['least']:.2f} to {ratios['largest']:.2f})",
                f"{record['images_per_second']['frugan']:.1f}",
                f"{record['gflop_per_second']:.0f}",
                f"{100 * record['share_of_matrix_peak']:.0f} %",
                f"{100 * record['products_in_a_row_share_of_step']:.0f} %",
            ]
        )
    head = ["recipe", "precision", "times as fast", "images/s", "GFLOP/s", "of the matrix peak", "products alone"]
    return table(head, rows)


LIMIT_COLUMNS = {
    "convolutions": ("convolution",),
    "1x1": ("pointwise",),
    "grouped, depthwise": ("grouped", "depthwise"),
    "attention": ("attention",),
    "moving numbers": ("moves numbers", "product", "optimizer"),
}
"""Kinds of work by column; products and optimizers take too little for one of their own."""


def limit() -> str:
    """How near steps come to what a machine reaches, by kind of work."""
    rows = []
    for path in sorted(RESULTS.glob("limit-*.json")):
        record = json.loads(path.read_text("utf-8"))
        whole = sum(row["seconds"] for row in record["rows"]) + record["seconds_between_operations"]
        floor = sum(row["floor_seconds"] for row in record["rows"])
        between = record["seconds_between_operations"] / whole
        rows.append(
            [
                f"`{' '.join(record['recipe'])}`",
                f"{record['seconds']:.2f}",
                f"**{100 * floor / record['seconds']:.0f} %**",
                *_by_kind(record["rows"], whole),
                f"{100 * between:.0f} %",
            ]
        )
    return table(["step", "s", "of the limit", *LIMIT_COLUMNS, "between operations"], rows)


def _by_kind(rows: Sequence[Mapping[str, Any]], whole: float) -> list[str]:
    """Share of a step's seconds by column, and how near each kind of work comes to its rate."""
    cells = []
    for kinds in LIMIT_COLUMNS.values():
        found = [row for row in rows if row["kind"] in kinds]
        taken, least = (sum(row[key] for row in found) for key in ("seconds", "floor_seconds"))
        share = taken / whole
        cells.append(f"{100 * share:.0f} %, at {100 * least / taken:.0f} %" if share >= SHOWN_OF_STEP else "")
    return cells


def card_limit() -> str:
    """How near steps are predicted to come to what data sheets of cards say, by kind of work."""
    rows = []
    for step in read("card-limit.json")["steps"]:
        floor = sum(row["floor_seconds"] for row in step["rows"])
        waiting = step["seconds_waiting"] / step["seconds"]
        rows.append(
            [
                f"`{step['recipe']}`",
                step["card"],
                f"{step['seconds']:.3g}",
                f"**{100 * floor / step['seconds']:.0f} %**",
                *(f"{sum(row[key] for row in step['rows']):,.{digits}f}" for key, digits in AMOUNTS.items()),
                *_by_kind(step["rows"], step["seconds"]),
                f"{100 * waiting:.0f} %" if waiting >= SHOWN_OF_STEP else "",
            ]
        )
    head = ["step", "card", "s, predicted", "of the peak", "GFLOP", "GB", *LIMIT_COLUMNS, "waiting for the host"]
    return table(head, rows)


AMOUNTS = {"gflop": 0, "gbyte": 1}
"""Of a step, with the digits that are shown."""


SHOWN_OF_STEP = 0.02
"""Share of a step from which on a kind of work is shown."""


def growth() -> str:
    """How far points lie from the line through an axis."""
    axes = {**read("growth.json")["axes"]}
    axes["recompute, `biggan-imagenet-128` of 16 channels"] = read("growth-biggan-128.json")["axes"]["recompute"]
    rows = []
    for axis, along in axes.items():
        points = along["points"]
        cells = []
        for name in LINES:
            values = ", ".join(f"{point[name]:g}" for point in points)
            off = f" (off the line by {100 * along['lines'][name]['furthest']:.0f} %)" if name in along["lines"] else ""
            cells.append(values + ("" if axis in ("pixels", "micro-batch") else off))
        rows.append([f"{axis}: " + ", ".join(f"{point['x']:g}" for point in points), *cells])
    return table(["along", *LINES.values()], rows)


AXES = {
    "side": "side of pictures, {ends}",
    "channels": "channels, {ends}",
    "samples": "samples in one forward, {ends}",
    "cards": "cards that share a batch, {ends}, each",
}
"""Axis of counted growth -> its words."""
POWERS = {
    "gflop": "FLOPs",
    "gbyte": "bytes moved",
    "launches": "launches",
    "peak_gib": "memory at the peak",
    "predicted_seconds": "seconds on an RTX 3060, predicted",
}
"""Quantity whose growth is counted -> its words."""


def powers() -> str:
    """Powers with which a step grows along each axis."""
    rows = []
    for axis, along in read("growth-counts.json")["axes"].items():
        first, last = along["points"][0]["x"], along["points"][-1]["x"]
        words = AXES[axis].format(ends=f"{first:g} to {last:g}")
        rows.append([f"{words} (`{along['recipe']}`)", *(f"{along['exponents'][name]:.2f}" for name in POWERS)])
    return table(["along", *POWERS.values()], rows)


def start() -> str:
    """What one waits for."""
    least = read("start.json")["least"]
    return table(
        ["command", "s", "s of the processor"],
        [[name, f"{each['seconds']:.1f}", f"{each['cpu_seconds']:.1f}"] for name, each in least.items()],
    )


def large() -> str:
    """What many pictures and long runs cost."""
    record = read("large.json")
    sets, runs = record["pictures of a set"], record["steps of a run"]
    names = {
        "prepared: open_seconds": "prepared from a zip, s",
        "again: open_seconds": "opened again, s",
        "again: first_batch_ms": "first batch, ms",
        "again: batch_ms": "a batch of 64 of the first hundred, ms",
        "again: most_mib": "memory of the process, MiB",
    }
    pictures = table(
        ["pictures in 3,000 classes", *(f"{int(count):,}" for count in sets)],
        [[words, *(f"{sets[count][name]:,}" for count in sets)] for name, words in names.items()],
    )
    steps = table(
        ["steps of a run", *(f"{int(count):,}" for count in runs)],
        [
            ["report, s", *(f"{runs[count]['report_seconds']:.1f}" for count in runs)],
            ["its page, MB", *(f"{runs[count]['report_mb']:.2f}" for count in runs)],
        ],
    )
    return f"{pictures}\n\n{steps}"


def loader() -> str:
    """Pictures per second."""
    record = read("loader-amd-epyc-2-cores.json")
    names = {"pixels": "prepared pixels, 128 px", "encoded": "JPEG of 256 px, decoded as it is read"}
    return table(
        ["set", "images/s", "images per second of the processor"],
        [
            [names[name], f"{record[name]['images_per_second']:,.0f}", f"{record[name]['images_per_cpu_second']:,.0f}"]
            for name in names
        ],
    )


def own_kernels() -> str:
    """What a step moves with kernels of our own and without."""
    rows = []
    for recipe, step in read("own-kernels.json")["steps"].items():
        torchs, own = step["torch"], step["own"]
        cells = [
            f"{torchs[name] / unit:,.{digits}f} → {own[name] / unit:,.{digits}f}{_change(own[name], torchs[name])}"
            for name, unit, digits in (("bytes_moved", 1e9, 1), ("launches", 1, 0), ("peak_bytes", GIB, 2))
        ]
        rows.append([f"`{recipe}`", f"2 of {step['micro_batch']}", *cells])
    return table(["step, fp16", "micro-batches", "GB moved", "launches", "predicted peak, GiB"], rows)


def places() -> str:
    """Shares of a step's bytes and launches, by place, with kernels of our own."""
    recipes = read("own-kernels.json")["places"]
    names = list(dict.fromkeys(place for step in recipes.values() for place in step["own"]))
    rows = []
    for name in names:
        cells = [_shares(step["own"], name) for step in recipes.values()]
        if any(cells):
            rows.append([name, *cells])
    return table(["% of bytes, launches", *(f"`{recipe}`" for recipe in recipes)], rows)


def _shares(step: Mapping[str, Mapping[str, int]], name: str) -> str:
    """Of one place; none where both are small."""
    if name not in step:
        return ""
    shares = [step[name][word] / sum(each[word] for each in step.values()) for word in ("bytes_moved", "launches")]
    return ", ".join(f"{100 * share:.0f}" for share in shares) if max(shares) >= SHOWN else ""


SHOWN = 0.015
"""Share from which on a place is shown."""
WORTH_A_KERNEL = 0.05


def left() -> str:
    """What further kernels would leave of the places that hold more than a twentieth of the bytes or launches."""
    rows = []
    for recipe, step in read("own-kernels.json")["places"].items():
        whole = {word: sum(each[word] for each in step["own"].values()) for word in ("bytes_moved", "launches")}
        for name, each in step["own"].items():
            if each["bytes_left"] == each["bytes_moved"]:
                continue
            if max(each[word] / whole[word] for word in whole) <= WORTH_A_KERNEL:
                continue
            cells = []
            for now, then, unit, digits in (("bytes_moved", "bytes_left", 1e9, 1), ("launches", "launches_left", 1, 0)):
                cells.append(f"{each[now] / unit:,.{digits}f} → {each[then] / unit:,.{digits}f}")
                cells.append(f"{100 * (each[then] - each[now]) / whole[now]:+.1f} %")
            rows.append([f"`{recipe}`", name, *cells])
    return table(["step", "place", "GB moved", "of the step", "launches", "of the step"], rows)


MOST = ("registers", "shared_bytes", "spilt_bytes")
LEAST = ("widest_load_bytes", "widest_store_bytes")


def machine_code() -> str:
    """What became of these kernels."""
    record = read("own-kernels.json")["machine_code"]
    rows = []
    for card, kernels in record.items():
        if not card.startswith("sm_"):
            continue
        all_of_them = [each for kernel in kernels.values() for each in kernel.values()]
        most = {name: max(each[name] for each in all_of_them) for name in MOST}
        least = {name: min(each[name] for each in all_of_them) for name in LEAST}
        rows.append([card, *map(str, (len(all_of_them), *most.values(), *least.values()))])
    head = ["card", "compiled", "most registers", "most shared bytes", "spilt bytes", "bytes a load", "bytes a store"]
    return table(head, rows)


def passes() -> str:
    """Over a map, by the release's operations and by ours."""
    rows = []
    for name, each in read("own-kernels.json")["passes"].items():
        rows.append(
            [name, *(f"{theirs} → {ours:.1f}" for theirs, ours in zip(each["theirs"], each["ours"], strict=True))]
        )
    return table(["operation", "forward", "gradient", "gradient of a penalty on it"], rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "counts": counts,
    "against plain in half precision": partial(against_plain, half=True),
    "against plain": partial(against_plain, half=False),
    "limit": limit,
    "limit of cards": card_limit,
    "growth": growth,
    "powers": powers,
    "start": start,
    "large": large,
    "loader": loader,
    "own kernels": own_kernels,
    "machine code": machine_code,
    "places": places,
    "left": left,
    "passes": passes,
}


def main() -> None:
    """Write the page."""
    fill(PAGES, TABLES)


if __name__ == "__main__":
    main()
