"""Which proportions of a batch were asked for, for each rank, and whether they come out in whole groups."""

from collections.abc import Sequence
from typing import Literal

from frugan.engine.ranks.place import deal
from frugan.errors import BadInput

AskedShares = Literal["equal"] | tuple[int, ...]
"""All alike, or each rank's proportion."""


def parse_shares(words: str, size: int | None = None) -> AskedShares:
    """What `--shares` says.

    Args:
        size: ranks; None: not known yet.

    Raises:
        BadInput: it is neither the word that is known nor whole numbers above 0, or not one for each rank.
    """
    if words == "equal":
        return "equal"
    if words == "auto":
        raise BadInput(
            "--shares auto: ranks are not timed any more; give a whole number for each rank, in proportion to its "
            "speed, such as 6,5, or equal"
        )
    try:
        shares = tuple(int(word) for word in words.split(","))
    except ValueError as error:
        raise BadInput(f"--shares {words}: expected equal, or a whole number for each rank such as 6,5") from error
    if wrong := [share for share in shares if share < 1]:
        raise BadInput(f"--shares {words}: {wrong[0]} is no share; each rank takes at least 1, or do not start it")
    if size is not None and len(shares) != size:
        cure = "give one for each rank" if size > 1 else f"start them with torchrun --nproc-per-node={len(shares)}"
        given = f"{len(shares)} share{'s' if len(shares) > 1 else ''}"
        raise BadInput(f"--shares {words}: {given} for {size} rank{'s' if size > 1 else ''}; {cure}")
    return shares


def check_shares(shares: Sequence[int], batch: int, group: int) -> None:
    """Refuse proportions that do not come out.

    Args:
        shares: of each rank.
        batch: samples per update.
        group: samples that are normalised or compared together.

    Raises:
        BadInput: some rank would not have whole groups; or, with fewer groups than ranks, whole samples of one group.
    """
    if batch < len(shares):  # too many ranks, whatever the shares
        return
    dealt = [len(share.samples) for share in deal(batch, group, len(shares), shares)]
    if all(found * sum(shares) == share * batch for found, share in zip(dealt, shares, strict=True)):
        return
    words, near = ",".join(map(str, shares)), ",".join(map(str, dealt))
    if group == 1:
        whole = "whole samples"
    elif batch // group >= len(shares):
        whole = f"multiples of {group}, the normalisation group"
    else:
        whole = f"whole samples of one normalisation group of {group} each"
    raise BadInput(f"--shares {words}: of a batch of {batch} they are not {whole}; the nearest are --shares {near}")
