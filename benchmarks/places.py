"""Where the bytes and launches of a step are: each operation belongs to the first place here that claims it.

A place claims operations that some of frugan's functions ask for, or some operations whoever asks, or both.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from step_counts import Counts

PRODUCTS = r"convolution|convolution_backward|mm|addmm|bmm|baddbmm|mv|_scaled_dot_product\w*"
ACTIVATIONS = r"relu|threshold_backward|leaky_relu\w*|hardtanh\w*|clamp|cos|sin|frugan\.\w*leaky_relu\w*"
RESIZED = r"frugan\.(pooled|passed)_\w+|avg_pool2d\w*|max_pool2d\w*|upsample_nearest2d\w*|constant_pad_nd"
AS_NOW = (1.0, 1.0)


@dataclass(frozen=True)
class Place:
    """Some of a step's work."""

    functions: str = ".*"  # that ask for it, as "file:function", from the beginning
    operations: str = ".*"
    # operation -> share of its bytes and of its launches that a kernel of ours would leave, passes over maps counted;
    # "*": of the others
    left: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def claims(self, function: str, operation: str) -> bool:
        """Whether an operation belongs here."""
        return bool(re.match(self.functions, function) and re.fullmatch(self.operations, operation))


PLACES: Mapping[str, Place] = MappingProxyType(
    {
        # each is a pass already, from one convolution to the next
        "FIR filters": Place(r"(nn|kernels)/fir\.py|contract/resampling\.py:(filter_map|upfirdn2d|_UpFirDown)"),
        "losses": Place(
            r"objectives\.py|\w+/\w+/phases\.py|data/picture_needs\.py|kernels/ssim\.py|contract/dssim\.py|"
            r"contract/ops\.py:Ops\.(dssim|mean_square|masked_error)"
        ),
        "augmentation": Place(r"augment/"),
        "spectral norm": Place(r"nn/spectral_norm\.py|kernels/scaling\.py|contract/layers\.py:Scaling"),
        # Adam reads four numbers and writes three; the average would be one read and one written more, the scale none.
        # AdaBelief is nine operations, of which a kernel would leave one that reads four and writes three
        "update": Place(
            r"engine/state/(optimizer|ema|gradients)\.py|contract/layers\.py:(copy_where|flat|Observer)",
            r"_f\w+|cat|where|lerp_?|split|mul_?|div|full|stack|add_?|copy_|all|isfinite|\w*norm|reciprocal|sub_|sqrt|"
            r"addcmul_|masked_fill_|bitwise_not",
            {"_foreach_mul_": (0.0, 0.0), "lerp_": (2 / 3, 0.0), "addcmul_": (5 / 6, 1 / 2)}
            | dict.fromkeys(("where", "sub_", "mul_", "sqrt", "add_", "div"), (0.0, 0.0)),
        ),
        "sums of gradients": Place(r"engine/state/gradients\.py"),
        "working weights": Place(
            r"engine/state/working_weights\.py|contract/layers\.py|families/stylegan2/networks\.py:Largest"
        ),
        "products": Place(operations=PRODUCTS),
        "batch norm": Place(operations=r"native_batch_norm|native_batch_norm_backward|frugan\.norm\w*"),
        "its gain and bias": Place(r"contract/elementwise\.py:_Affine"),
        "its ReLU": Place(
            r"families/biggan/networks\.py:(Deep)?Generator|nn/batch_norm\.py|contract/ops\.py:Ops\.batch_norm",
            ACTIVATIONS,
        ),
        "depth to space": Place(r"faces/saehd/networks\.py:(_Spread|depth_to_space)"),  # with its activation: a pass
        "activations": Place(
            r"kernels/(activation|modulation|maps)\.py|contract/ops\.py:Ops\.(add_bias|styled_leaky_relu)"
        ),
        "other activations": Place(operations=ACTIVATIONS),
        "pooling, doubling": Place(operations=RESIZED),
        # what stands beside a product of styles could be done by what reads its result
        "styles": Place(
            r"nn/(modulated|equalised)\.py|kernels/styles\.py|contract/ops\.py:(Ops\.product_gradients|_linear_together)",
            left=dict.fromkeys(("pow", "add_", "rsqrt", "_to_copy", "div", "abs", "amax", "clamp_min"), (0.0, 0.0)),
        ),
        "casts": Place(operations="_to_copy|copy_"),
        "sums of maps": Place(
            r"(families|faces)/\w+/networks\.py|nn/(linear_maps|attention|batch_norm)\.py|contract/ops\.py|"
            r"engine/step/update\.py",
            "add|add_",
        ),
        "others": Place(),
    }
)
LEAST = 0.05
"""Share of a step's bytes or launches from which on a place is worth a kernel."""


def by_place(counts: Mapping[tuple[str, str, str], Counts], every: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """Bytes and launches of an average step, by place, and what a kernel would leave of them.

    Args:
        counts: (phase, function, operation) -> its share of a step in which all phases are due.
        every: phase -> in how many steps it is due once.
    """
    found: dict[str, list[float]] = {}
    for (phase, function, operation), each in counts.items():
        name, place = next((name, place) for name, place in PLACES.items() if place.claims(function, operation))
        of_bytes, of_launches = place.left.get(operation, place.left.get("*", AS_NOW))
        sums = found.setdefault(name, [0.0] * 4)
        moved_bytes, launches = each.bytes_moved / every.get(phase, 1), each.launches / every.get(phase, 1)
        for i, value in enumerate((moved_bytes, launches, moved_bytes * of_bytes, launches * of_launches)):
            sums[i] += value
    words = ("bytes_moved", "launches", "bytes_left", "launches_left")
    return {name: dict(zip(words, map(round, found[name]), strict=True)) for name in PLACES if name in found}
