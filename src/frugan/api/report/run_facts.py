"""Where a run stands, and what it was made with, as words and numbers for its report."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from frugan.memory.sizes import show_size

MOST_LEVELS = 12
"""Of tables within tables; recipes have up to 5."""
NOTABLE_DATA_SHARE = 0.05
"""Of the steps' time that was waiting for data: what is less is not worth a tile."""


def tiles(last: Mapping[str, Mapping[str, Any]], data_share: float) -> dict[str, str]:
    """Where a run stands.

    Args:
        last: newest event of each kind.
        data_share: of the steps' time, waiting for data.
    """
    step, metrics, stop = (last.get(kind, {}) for kind in ("step", "metrics", "stop"))
    found: dict[str, str] = {}
    with suppress(LookupError, TypeError, ValueError, OverflowError):  # an event of another version, or damaged
        found |= _of_step(step, stop, data_share) if step else {}
    scores = metrics.get("scores")
    for name, value in scores.items() if isinstance(scores, Mapping) else ():
        if isinstance(value, int | float):
            found[name] = f"{value:.4g}"
    if stop and stop.get("over"):
        found["state"] = "finished"
    return found


def _of_step(step: Mapping[str, Any], stop: Mapping[str, Any], data_share: float) -> dict[str, str]:
    found = {
        "step": f"{step['step']:,}",
        "images": f"{step['images']:,}",
        "of training": _time(float(step["seconds"])),
        "images per second": f"{step['images'] / max(float(step['seconds']), 1e-9):.1f}",
    }
    if data_share >= NOTABLE_DATA_SHARE:
        found["of the time, waiting for data"] = f"{100 * data_share:.0f} %"
    if step.get("memory_bytes"):
        found["memory at most"] = show_size(int(step["memory_bytes"]))
    if step["eta_seconds"] is not None and (not stop or stop.get("step", 0) < step["step"]):
        found["left"] = _time(float(step["eta_seconds"]))
    return found


def _time(seconds: float) -> str:
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole:02}" if hours else f"{minutes}:{whole:02}"


def facts(
    start: Mapping[str, Any], plan: Mapping[str, Any], recipe: Mapping[str, Any], scored_with: Mapping[str, Any]
) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for title, values in (("What the scores were measured with", scored_with), ("Recipe", recipe)):
        if values:
            found[title] = dict(_flat(values))
    with suppress(LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        found |= {"Plan": _of_plan(plan)} if plan else {}
    if start:
        kept = ("frugan", "torch", "machine", "device", "data")
        found["Machine and versions"] = dict(_flat({name: start[name] for name in kept if name in start}))
    return found


def _of_plan(plan: Mapping[str, Any]) -> dict[str, str]:
    chosen = {name: plan[name] for name in ("micro_batch", "accumulation", "precision", "savers") if name in plan}
    if "peak_bytes" in plan:
        chosen["predicted peak"] = show_size(int(plan["peak_bytes"]))
    categories = {f"at the peak: {k}": show_size(int(v)) for k, v in plan.get("categories", {}).items()}
    return {name: _text(value) for name, value in (chosen | categories).items()}


def _flat(values: Mapping[str, Any], before: str = "", levels: int = MOST_LEVELS) -> Iterable[tuple[str, str]]:
    """Nested values by dotted names."""
    for name, value in values.items():
        if isinstance(value, Mapping) and levels:
            yield from _flat(value, f"{before}{name}.", levels - 1)
        else:
            yield f"{before}{name}", _text(value)


def _text(value: Any) -> str:
    if isinstance(value, list) and not any(isinstance(each, list) for each in value):
        return ", ".join(map(_text, value)) or "none"
    return "-" if value is None else str(value)
