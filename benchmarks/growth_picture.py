"""Draws how steps and sets grow, from records: python benchmarks/growth_picture.py [OUT.png]

Of `growth.py --counts` what a step takes against side, channels, samples and cards; of `large.py` what a set takes
against its pictures. Everything is a multiple of its first point, on two logarithmic axes, where a power is a straight
line; its exponent stands beside it.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FormatStrFormatter, NullFormatter, NullLocator

from growth import exponents
from page_tables import DOCS, read

STEP = {
    "gflop": ("FLOPs", "#20355c"),
    "gbyte": ("bytes moved", "#5b83b8"),
    "launches": ("launches", "#e0a030"),
    "peak_gib": ("memory at the peak", "#c2513d"),
    "sent_gbyte": ("bytes sent to others", "#7a7a7a"),
    "predicted_seconds": ("seconds, predicted", "#000000"),
}
"""Quantity of a step -> its name and colour."""
SET = {
    "prepared: open_seconds": ("seconds to prepare", "#20355c"),
    "again: open_seconds": ("seconds to open", "#5b83b8"),
    "again: most_mib": ("memory", "#c2513d"),
}
"""Quantity of a set."""
TITLES = {
    "side": "side of pictures",
    "channels": "channels",
    "samples": "samples in one forward",
    "cards": "cards that share a batch, each",
}


def draw(
    axis: Axes, title: str, rows: Sequence[Mapping[str, float]], quantities: Mapping[str, tuple[str, str]]
) -> None:
    """One axis of growth."""
    x = [row["x"] for row in rows]
    powers = exponents(rows)
    for name, (words, colour) in quantities.items():
        values = [row[name] for row in rows if row[name]]
        if len(values) < 2:  # nothing is sent by one card
            continue
        exponent = f", {powers[name]:.2f}" if name in powers else ""
        is_time = "seconds" in words
        axis.plot(
            x[-len(values) :],
            [value / values[0] for value in values],
            marker="o",
            markersize=3,
            color=colour,
            linestyle="--" if is_time else "-",
            label=words + exponent,
        )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.xaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_xticks(x, [f"{value:,.0f}" for value in x], fontsize=8)
    axis.tick_params(axis="y", labelsize=8)
    axis.set_title(title, fontsize=10)
    axis.legend(fontsize=7, frameon=False)
    axis.grid(alpha=0.3)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def main() -> None:
    """Draw and write."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS / "pictures" / "growth.png"
    figure, axes = plt.subplots(2, 3, figsize=(12, 7))
    panels: list[Axes] = list(axes.flat)
    counted: Mapping[str, Any] = read("growth-counts.json")["axes"]
    for panel, (name, axis) in zip(panels, counted.items(), strict=False):
        draw(panel, f"{TITLES[name]}: {axis['recipe']}", axis["points"], STEP)
    sets = [{"x": float(pictures), **figures} for pictures, figures in read("large.json")["pictures of a set"].items()]
    draw(panels[4], "pictures in a set, measured", sets, SET)
    panels[5].set_visible(False)
    figure.supylabel("times the first point", fontsize=10)
    figure.tight_layout()
    figure.savefig(out, dpi=100)


if __name__ == "__main__":
    main()
