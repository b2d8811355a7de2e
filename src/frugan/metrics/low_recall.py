"""Says in words what a recall far below precision means: good pictures, and few kinds of them."""

from collections.abc import Mapping

from frugan.metrics.provenance import Provenance

FAR_BELOW = 0.5
"""Recall below this share of precision. Two random parts of a set of real pictures have about equal ones, whatever
their sizes: the share was at least 0.75 in 300 draws of 100 to 900 pictures, of digits and icons."""
LEAST_GAP = 0.2
"""And by at least so much, or both are too small to say anything but that the pictures are poor."""
LEAST_PICTURES = 100
"""On both sides; with fewer, either may be off by a tenth by chance."""


def low_recall(scores: Mapping[str, float], provenance: Provenance) -> str | None:
    """What to tell a person of precision and recall; None: nothing, or they were not measured.

    Args:
        scores: by name; read are "precision" and "recall".
        provenance: what they were measured with. Scores of some classes alone say nothing: the others are not to be
            reached.
    """
    precision, recall = scores.get("precision"), scores.get("recall")
    if not isinstance(precision, float) or not isinstance(recall, float):
        return None  # not measured, or not finite
    if min(provenance.samples, provenance.rows) < LEAST_PICTURES or provenance.classes != "all":
        return None
    if recall >= FAR_BELOW * precision or precision - recall < LEAST_GAP:
        return None
    line = (
        f"recall {recall:.2f} is far below precision {precision:.2f}: the pictures are good but show little of the "
        "variety of the real ones. Look at many samples of one class; docs/training-well.md says what helps"
    )
    if provenance.truncation < 1:
        line += f". Truncation {provenance.truncation:g} narrows variety by itself: score truncation 1 as well"
    return line
