"""What a training's first reports of gradients show to be wrong: parameters that get none, and fp16 that loses them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

MOSTLY = 0.5
"""Share of a network's gradients, by numbers, that are exact zeros: from here on it is warned of. In fp32 there
are some per cent: rows of a table of classes that were not in the batch, an attention that begins at zero."""
MOST_NAMED = 3


@dataclass
class GradientSigns:
    """Watches the events of one training; what it tells, it tells once.

    Attributes:
        sizes: parameter -> its numbers, from the event of the start.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    _told: set[tuple[str, str]] = field(default_factory=set)

    def look(self, event: Mapping[str, Any]) -> Iterator[str]:
        """Lines to warn with at an event."""
        if event.get("event") == "start":
            self.sizes = event.get("parameters", {})
        if event.get("event") != "step":
            return
        reported = {name: found for name, found in event["phases"].items() if "gradients" in found}
        if event["step"] == 1:  # later ones may leave out a phase that is due now and then
            yield from _without(reported)
        for phase, found in reported.items():
            if found["loss_scale"] != 1:  # nothing is scaled in other precisions
                yield from self._lost(phase, found)

    def _lost(self, phase: str, found: Mapping[str, Any]) -> Iterator[str]:
        networks = dict.fromkeys(name.partition(".")[0] for name in found["gradients"])
        for network in networks:
            shares = {n: float(s) for n, s in found["zero_share"].items() if n.partition(".")[0] == network}
            sizes = {name: self.sizes.get(name, 1) for name in shares}
            share = sum(shares[name] * sizes[name] for name in shares) / sum(sizes.values())
            if share < MOSTLY or (network, phase) in self._told:
                continue
            self._told.add((network, phase))
            most = sorted(shares, key=lambda name: -shares[name] * sizes[name])
            yield (
                f"{100 * share:.0f} % of {network}'s gradients in phase {phase} are exact zeros, most of them in "
                f"{_named(most)}: values too small for fp16 become nothing, and weights that get nothing do not learn. "
                "Look at the heat map of exact zeros in `frugan report`; if it stays so, train with "
                "training.precision=fp32, or bf16 on a card that has it"
            )


def _without(reported: Mapping[str, Any]) -> Iterator[str]:
    """Tell of parameters to which no phase gave a gradient, in one line for each network."""
    reached = {name for found in reported.values() for name in found["gradients"]}
    missing = dict.fromkeys(name for found in reported.values() for name in found.get("without_gradient", ()))
    by_network: dict[str, list[str]] = {}
    for name in missing:
        if name not in reached:
            by_network.setdefault(name.partition(".")[0], []).append(name)
    for network, names in by_network.items():
        count = "1 parameter" if len(names) == 1 else f"{len(names)} parameters"
        yield (
            f"{count} of {network} got no gradient in any phase: {_named(names)}. No loss depends on what stands "
            f"there, so training leaves it as it is. If that is not meant, look whether {network}'s forward uses it, "
            "and whether something on the way to the losses detaches it"
        )


def _named(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
