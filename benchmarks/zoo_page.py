"""Writes the table of docs/your-own-loop.md on real architectures: python benchmarks/zoo_page.py

From what `zoo.py` has recorded; a test holds that it is what the record gives.
"""

import re
from collections.abc import Callable
from typing import Any

from frugan.wording import MIB
from page_tables import DOCS, fill, read, table

PAGES = (DOCS / "your-own-loop.md",)
VARIANTS = ("fp32", "bf16", "autocast", "recomputed", "split")
"""Ways to run a step."""
GRADIENTS = ("fp32", "bf16", "autocast", "torch.autocast")
"""Precisions whose gradients are compared with those in float64; the last in a plain step."""
HALF_GRADIENTS = ("bert", "gpt2", "llama", "vit", "convnext_atto", "t5")
"""Models in the short table on half precision and autocast."""
HEAD = (
    *("model", "library", "fp32 peak, MiB", *VARIANTS, "fp32, MemTracker"),
    *("gradients fp32", *GRADIENTS[1:], "five steps", "plan, search: s"),
)


def _models() -> dict[str, Any]:
    return {name: entry for name, entry in read("zoo.json").items() if name != "machine"}


def _zoo() -> str:
    """Return a line for each model that is planned."""
    rows = []
    for name, entry in _models().items():
        if "variants" not in entry:
            continue
        variants, gradients = entry["variants"], entry["gradients"]
        plain = variants["fp32"]
        steps = [value for value in entry["five_steps"].values() if isinstance(value, float)]
        rows.append(
            [
                *(name, entry["library"], f"{plain['predicted_bytes'] / MIB:.0f}"),
                *(_off(variants[variant]) for variant in VARIANTS),
                _share(plain["predicted_bytes"], entry["torch_bytes"]),
                *(_number(gradients[precision]) for precision in GRADIENTS),
                _number(max(steps)) if steps else "no",
                f"{entry['plan_seconds']}, {entry.get('search_seconds', '')}",
            ]
        )
    return table(HEAD, rows)


def _half_gradients() -> str:
    """Return distances of gradients from those in float64 for a few models."""
    gradients = {name: entry["gradients"] for name, entry in _models().items() if name in HALF_GRADIENTS}
    rows = [[name, *(_digits(gradients[name][precision]) for precision in GRADIENTS[1:])] for name in HALF_GRADIENTS]
    return table(("model", *(f"`{precision}`" for precision in GRADIENTS[1:])), rows)


def _refused() -> str:
    """Return a line for each model that is not planned, or not in each way."""
    rows = []
    for name, entry in _models().items():
        variants = {"in any way": entry["plan"]} if "plan" in entry else entry.get("variants", {"in any way": entry})
        variants |= {"by MemTracker": entry["torch_bytes"]} if isinstance(entry.get("torch_bytes"), dict) else {}
        for way, found in variants.items():
            if "error" in found:
                rows.append([name, way, re.sub(r" \(\S+\.py:\d+\)", "", found["error"])])  # without the line
    return table(("model", "not", "why"), rows)


def _off(variant: dict[str, Any]) -> str:
    if "left_out" in variant:
        return "-"
    if "error" in variant:
        return "no"
    return _share(variant["predicted_bytes"], variant["counted_bytes"])


def _share(predicted: int, counted: Any) -> str:
    return "no" if isinstance(counted, dict) else f"{predicted / counted - 1:+.2%}"


def _number(value: Any) -> str:
    return "no" if isinstance(value, dict) else f"{value:.0e}"


def _digits(value: Any) -> str:
    return "no" if isinstance(value, dict) else f"{value:.4f}"


TABLES: dict[str, Callable[[], str]] = {
    "zoo": _zoo,
    "zoo half gradients": _half_gradients,
    "zoo refused": _refused,
}

if __name__ == "__main__":
    fill(PAGES, TABLES)
