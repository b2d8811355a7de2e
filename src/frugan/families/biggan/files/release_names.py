"""Names of tensors in BigGAN-PyTorch's checkpoints: ours but for its own batch norm, and the order of its parameters.

Adam's state there is a list in the order of `parameters()`, which is that of the state dict without its buffers.
"""

import re
from collections.abc import Iterable, Mapping

from torch import Tensor

from frugan.contract.name_table import NameTable, Row

_BUFFERS = re.compile(
    r"(?:.*\.)?(?:u\d+|sv\d+|stored_mean|stored_var|running_mean|running_var|accumulation_counter|num_batches_tracked)"
)
COUNTER = "accumulation_counter"


def release_table(*, own_batch_norm: bool) -> NameTable:
    """Names within a network.

    Args:
        own_batch_norm: the checkpoint is of option `mybn`, whose statistics lie one level deeper.
    """
    deeper = [
        Row("{path}.bn.stored_mean", "{path}.stored_mean"),
        Row("{path}.bn.stored_var", "{path}.stored_var"),
        Row("{path}.bn." + COUNTER, None),
    ]
    return NameTable([*(deeper if own_batch_norm else []), Row("{path}", "{path}")], {"path": ".+"})


def is_parameter(name: str) -> bool:
    """Whether a tensor of a state dict is a parameter, and no buffer."""
    return _BUFFERS.fullmatch(name) is None


def parameter_order(names: Iterable[str]) -> list[str]:
    """Parameters of a state dict, in order."""
    return [name for name in names if is_parameter(name)]


def averaged_statistics(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """State dict whose accumulated statistics are means: sums are divided by their counter where it is above zero."""
    counters = {name.removesuffix(COUNTER): value for name, value in tensors.items() if name.endswith(f".{COUNTER}")}
    found = dict(tensors)
    for path, counter in counters.items():
        count = float(counter)
        for statistic in ("stored_mean", "stored_var"):
            if count > 0 and (name := f"{path}{statistic}") in found:
                found[name] = found[name] / count
    return found
