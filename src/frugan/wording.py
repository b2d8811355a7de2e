"""Wording of names, lists, sizes, times and scores in lines for people."""

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from frugan.errors import BadInput


def shown(name: str) -> str:
    """Make a name printable: control characters and undecodable bytes become U+FFFD."""
    return "".join(c if c.isprintable() else "\ufffd" for c in name)


def first_names(names: Sequence[str], most: int = 5) -> str:
    """Join the first `most` names by commas, and say how many more there are."""
    text = ", ".join(shown(name) for name in names[:most])
    return text if len(names) <= most else f"{text} and {len(names) - most:,} more"


def first_lines(lines: Sequence[str], between: str = "\n  ", most: int = 8) -> str:
    """Join the first `most` lines, and say how many more there are; a file may have hundreds of faults."""
    more = [f"and {len(lines) - most} more"] if len(lines) > most else []
    return between.join([*lines[:most], *more])


def first_line(error: BaseException | str) -> str:
    """First line of an error's message, or its type; torch's messages go on with a C++ trace and advice."""
    return (str(error) or type(error).__name__).partition("\n")[0]


def nearest(word: str, known: Sequence[str] | Mapping[str, str]) -> str:
    """Hint at the closest known word, or at what that stands for, to append to a message; empty if none is close."""
    near = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    if not near:
        return ""

    def likeness(name: str) -> tuple[float, int]:
        same = [a == b for a, b in zip(name, word, strict=False)]
        return difflib.SequenceMatcher(None, name, word).ratio(), [*same, False].index(False)

    # of those that are as like it, the one that begins as it does: biggan-128, not biggan-512, for biggan-129
    best = max(near, key=likeness)
    return f" (did you mean {known[best] if isinstance(known, Mapping) else best}?)"


def count(number: int, noun: str) -> str:
    """Number and noun: "1 picture", "2 pictures", "3 classes"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}es" if noun.endswith("s") else f"{number:,} {noun}s"


def storable(name: str) -> str:
    """Make a file name valid UTF-8: bytes that are not text become "?"."""
    return name.encode("utf-8", "replace").decode("utf-8")


KIB, MIB, GIB = 2**10, 2**20, 2**30
_UNITS = {"b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_FORM = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*")


def parse_size(text: str) -> int:
    """Parse "6GiB", "5632 MiB" or "6GB" (which is decimal, 5.59 GiB) to bytes.

    Raises:
        BadInput: it is not a positive number with a unit.
    """
    match = _FORM.fullmatch(text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise BadInput(
            f"{text!r} is not a size: expected a number with a unit, such as 6GiB or 5632MiB (6GB is 5.59GiB)"
        )
    size = int(float(match[1]) * unit)
    if size < 1:
        raise BadInput(f"{text!r} is too small: expected more than 0, such as 6GiB")
    return size


def show_size(size_bytes: float, digits: int | None = None) -> str:
    """Format bytes: "1.50 GiB", "850 MiB", "12 KiB"; with `digits`, GiB or MiB with as many decimals."""
    if abs(size_bytes) >= GIB:
        return f"{size_bytes / GIB:.{2 if digits is None else digits}f} GiB"
    if digits is not None:
        return f"{size_bytes / MIB:.{digits}f} MiB"
    return f"{size_bytes / MIB:.0f} MiB" if abs(size_bytes) >= MIB or size_bytes == 0 else f"{size_bytes / KIB:.0f} KiB"


def typed_size(size_bytes: int) -> str:
    """Format bytes for `parse_size`, rounded up so that the parsed size is enough."""
    return f"{math.ceil(size_bytes / GIB * 100) / 100:.2f}GiB" if size_bytes >= GIB else f"{-(-size_bytes // MIB)}MiB"


def duration(seconds: float) -> str:
    """Format a time: "0.15 s", "41 min", "3.2 days"."""
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.{1 if seconds < 10 * size else 0}f} {unit}"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


def between(least_seconds: float, most_seconds: float) -> str:
    """Format a range of times: "13 to 29 days", "50 min to 2.1 h"."""
    least, most = duration(least_seconds), duration(most_seconds)
    number, unit = least.split()
    return f"{number if most.endswith(f' {unit}') else least} to {most}"


def clock(seconds: float) -> str:
    """Format a running time, in a width that hardly changes: "0:31", "2h 28min", "3d 04h"."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours:02d}h"
    return f"{hours}h {minutes:02d}min" if hours else f"{minutes}:{seconds:02d}"


FAMILY_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "amp": "AMP",
        "biggan": "BigGAN",
        "quick96": "Quick96",
        "r3gan": "R3GAN",
        "saehd": "SAEHD",
        "stylegan2": "StyleGAN2",
        "stylegan3": "StyleGAN3",
        "xseg": "XSeg",
    }
)
"""Family -> its name as its authors write it."""


def family_name(family: str) -> str:
    """Name of a family as people write it; of another package's family the name that it is registered by."""
    return FAMILY_NAMES.get(family, family)


def made_by(who: str) -> str:
    """Beginning of a sentence about a generator: "Made by Ada with frugan"; without a name "Made with frugan"."""
    name = " ".join(who.split())
    return f"Made by {name} with frugan" if name else "Made with frugan"


PUBLISHED_NETWORK = "inception-2015-12-05"
"""Feature network of published scores; only with it are scores called FID and the like without its name."""


def by_pictures(name: str) -> bool:
    """Whether a score is computed without a feature network."""
    return name.startswith(("two_sample", "two-sample", "ppl", "eq"))


def score_name(name: str, network: object) -> str:
    """Label of a score, with the name of the feature network unless it is the published one.

    Args:
        name: name of the score.
        network: name of the feature network; None: an older version did not keep it.
    """
    plain = network in (PUBLISHED_NETWORK, None) or by_pictures(name)
    return name if plain else f"{name} ({network})"


BY_NEIGHBOURS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"pr": ("precision", "recall"), "dc": ("density", "coverage")}
)
"""Metric by nearest neighbours -> its scores."""


def neighbours_in_words(metrics: Sequence[str]) -> str:
    """Scores of some of these metrics: "precision and recall, density and coverage"."""
    return ", ".join(" and ".join(scores) for metric, scores in BY_NEIGHBOURS.items() if metric in metrics)


def neighbour_counts(measured: Mapping[str, Any]) -> str:
    """Counts of scores by neighbours that have a control: "161 generated beside 161 real"; empty: they have none.

    Args:
        measured: provenance of the scores, as JSON.
    """
    count = measured.get("neighbours")
    return f"{count:,} generated beside {count:,} real" if isinstance(count, int) and count else ""


TOLD_APART = 0.8
"""Accuracy of the two-sample test from which pictures are not called good, whatever their precision. Few of them
resemble each other more than real ones do, and early in a training all are smears."""
LEFT_OUT = "left out"
"""Words of every warning about a score that was not shown as it could see nothing: no fault of the run."""
SHARES = frozenset({"precision", "recall", "coverage", "two_sample"})
"""Scores that lie between 0 and 1, which an estimator's error does not know."""


def with_interval(score: str, value: float, half_width: float | None, form: str = ".4g", whole: float = 1) -> str:
    """Format a score with half of its interval, "0.910 ± 0.059"; with both ends, "0.87 to 1", where one is cut off.

    Args:
        score: its name.
        half_width: of the interval; None: it is not known.
        form: of numbers; of those with so many significant digits, the score has as many decimals as its interval.
        whole: what 1 is shown as, such as 100.
    """
    if half_width is None:
        return f"{value * whole:{form}}"
    known = half_width * whole
    decimals = max(0, 1 - math.floor(math.log10(known))) if known > 0 and math.isfinite(known) else 0
    if form.endswith("g") and known > 0:
        form = f".{decimals}f"
    if score in SHARES and not half_width <= value <= 1 - half_width:
        ends = max(0.0, value - half_width), min(1.0, value + half_width)
        return " to ".join(f"{float(f'{end * whole:{form}}'):g}" for end in ends)
    return f"{value * whole:{form}} ± {known:{form}}"


NETWORKS_IN_WORDS: Mapping[str, str] = MappingProxyType(
    {
        PUBLISHED_NETWORK: "Inception of 2015, by which scores are published",
        "inception-torchvision": "torchvision's Inception",
        "dinov2": "DINOv2 ViT-L/14",
        "clip": "CLIP ViT-L/14",
        "digits": "the demo's classifier of digits",
        "pixels": "grey copies of 16 by 16 pixels",
        "none": "the pictures themselves",
    }
)
"""Feature network -> what scores compare."""


def network_in_words(network: object) -> str:
    """Inputs of a feature network, in words; for another person's network its name."""
    return NETWORKS_IN_WORDS.get(str(network), str(network))


def beside_real(name: str, scores: Mapping[str, Any], measured: Mapping[str, Any]) -> str:
    """Value that real pictures have of a score from each other, and whether it says little yet, in brackets.

    Args:
        measured: provenance of the scores, as JSON.

    Returns:
        Empty: there is nothing to say.
    """
    real = scores.get(f"{name}_real")
    told = [f"real pictures {real:.3g}"] if isinstance(real, float) else []
    told += [SAYS_LITTLE] if says_little(name, scores, measured) else []
    return f" ({'; '.join(told)})" if told else ""


SAYS_LITTLE = "says little yet"
"""Words behind a score that flatters pictures of a generator that has just begun."""


def says_little(name: str, scores: Mapping[str, Any], measured: Mapping[str, Any]) -> bool:
    """Whether a score compares neighbours in pixels while a judge tells most pictures from real ones.

    Precision and recall of pixels do not see a blur, and are high then for smears of about the right colours.

    Args:
        measured: provenance of the scores, as JSON.
    """
    by_neighbours = name == "f_score" or any(name in names for names in BY_NEIGHBOURS.values())
    told_apart = scores.get("two_sample")
    is_young = isinstance(told_apart, float) and told_apart > TOLD_APART
    return is_young and by_neighbours and measured.get("network") == "pixels"


def by_fixed_features(judge: object) -> bool:
    """Whether the judge of a two-sample score, as its provenance names it, has fixed features, as for few pictures."""
    return "fixed features" in str(judge)


def judge_in_words(judge: object) -> str:
    """Who told pictures apart, by the judge that the provenance of a two-sample score names."""
    return "a simple judge for few pictures" if by_fixed_features(judge) else "a small network"


def controls_in(control: object) -> dict[str, str]:
    """Controls that a provenance names: metrics, with commas -> damages that these see."""
    parts = re.split(r"(?:^|; )(two-sample|pr,dc|pr|dc) (?=sees|does not)", str(control))
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def two_sample_in_words(scores: Mapping[str, Any], measured: Mapping[str, Any]) -> str | None:
    """Two-sample score in words; None: it was not measured.

    Args:
        measured: provenance of the scores, as JSON: says who judged, and how small a damage that judge sees.
    """
    share, half_width, real = (scores.get(name) for name in ("two_sample", "two_sample_half_width", "two_sample_real"))
    if not isinstance(share, float):
        return None
    width = half_width if isinstance(half_width, float) else None
    beside, what = ("", "two halves of the real pictures apart")
    if isinstance(real, float):
        beside, what = f" (real against real {real:.2f})", "generated from real"
    count, _, by = str(measured.get("judge", "")).partition("; ")
    networks = by.partition(",")[0]
    who = judge_in_words(by) + (f" ({count}{f', {networks}' if 'network' in networks else ''})" if by else "")
    sees = controls_in(measured.get("control")).get("two-sample", "")
    score = with_interval("two_sample", share, width, ".2f")
    shown_damaged = ". Shown real pictures that were damaged a little, it "
    return (
        f"two-sample {score}{beside}: {who} tells {what} {100 * round(share, 2):.0f} times in "
        f"100; 50 is guessing" + (f"{shown_damaged}{sees}" if sees else "")
    )


def shown_value(value: Any) -> str:
    """Format a value for a message; of containers, whose text could be endless, only the type is given."""
    return repr(value)[:60] if type(value) in (int, float, bool, str, type(None)) else f"a {type(value).__name__}"
