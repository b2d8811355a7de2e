"""Place of this process among those that a launcher has started, and the samples that each place gets."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

from frugan.errors import BadInput


@dataclass(frozen=True)
class Place:
    """Place of this process among those that a launcher has started."""

    rank: int  # among all processes
    size: int  # number of processes
    local_rank: int  # among those on this machine
    local_size: int  # number of those on this machine

    @classmethod
    def here(cls, environment: Mapping[str, str] = os.environ) -> "Place":
        """Read torchrun's variables; without them this process is the only one.

        Raises:
            BadInput: they contradict each other.
        """
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        variables = {name: environment[name] for name in names if environment.get(name)}
        if variables.get("WORLD_SIZE", "1") == "1":
            return cls(0, 1, 0, 1)
        missing = [name for name in (*names, "MASTER_ADDR", "MASTER_PORT") if not environment.get(name)]
        if missing:
            raise BadInput(
                f"{' and '.join(variables)} are set, {', '.join(missing)} not: start the ranks with torchrun"
            )
        rank, size, local_rank, local_size = (int(variables[name]) for name in names)
        return cls(rank, size, local_rank, local_size)

    @property
    def alone(self) -> bool:
        """Return whether this is the only process."""
        return self.size == 1


@dataclass(frozen=True)
class Share:
    """The samples of an update that a rank sees."""

    samples: range  # in a row
    of: int  # the whole update
    # False: there are fewer samples or groups than ranks, and this one works along without any weight, so that it has
    # all that is added up
    counts: bool = True
    # ranks that hold a part each of the one normalisation group that these samples belong to, this one included;
    # None: there are none
    team: range | None = None
    # samples that each of them holds, or the only one that does not count; empty: the groups are whole
    parts: tuple[int, ...] = ()

    @property
    def part(self) -> float:
        """Share of the update's samples that were seen."""
        return len(self.samples) / self.of

    @property
    def group(self) -> int:
        """Samples of the one group that these are a part of."""
        return sum(self.parts)

    @property
    def weight(self) -> float:
        """Share of the update."""
        return self.part if self.counts else 0.0


def deal(samples: int, group: int, ranks: int, proportions: Sequence[float] | None = None) -> tuple[Share, ...]:
    """Deal the samples of an update to ranks: whole groups as long as there are enough, else parts of groups.

    Args:
        samples: of the update.
        group: samples that are normalised or compared together; the last group may be smaller. 1: none are.
        ranks: how many.
        proportions: of each rank, above 0; None: all alike. What does not divide goes to those that it makes least
            unfair to, to the first of them where that is the same: 64 groups and 12 ranks make 6, 6, 6, 6, 5, 5, ...

    Returns:
        Each rank's share. The samples of those that count are all samples, in order, each once.
    """
    wanted = list(proportions) if proportions is not None else [1.0] * ranks
    groups = -(-samples // group)
    if groups >= ranks:
        return _whole_groups(samples, group, whole_parts(groups, wanted))
    dealt: list[Share] = []
    for number, team in enumerate(_teams(groups, wanted)):
        first, last = number * group, min((number + 1) * group, samples)
        busy = team[: last - first]
        parts = whole_parts(last - first, [wanted[rank] for rank in busy])
        bounds = [first, *(first + done for done in accumulate(parts))]
        shared = {"team": busy, "parts": parts} if len(busy) > 1 else {}
        dealt += [Share(range(a, b), samples, **shared) for a, b in pairwise(bounds)]  # type: ignore[arg-type]
        dealt += [Share(range(last - 1, last), samples, counts=False, parts=(1,))] * (len(team) - len(busy))
    return tuple(dealt)


def whole_parts(count: int, proportions: Sequence[float]) -> tuple[int, ...]:
    """Whole numbers in proportions, as near as they come: at least 1 each, and `count` in all.

    Args:
        count: at least as many as there are proportions.
    """
    whole = sum(proportions)
    exact = [count * proportion / whole for proportion in proportions]
    parts = [max(1, int(proportion)) for proportion in exact]
    most_short_of = sorted(range(len(parts)), key=lambda i: parts[i] - exact[i])
    for i in most_short_of[: max(0, count - sum(parts))]:
        parts[i] += 1
    while sum(parts) > count:
        parts[max((i for i, part in enumerate(parts) if part > 1), key=lambda i: parts[i] - exact[i])] -= 1
    return tuple(parts)


def _whole_groups(samples: int, group: int, counts: Sequence[int]) -> tuple[Share, ...]:
    bounds = [0, *(min(done * group, samples) for done in accumulate(counts))]
    return tuple(Share(range(a, b), samples) for a, b in pairwise(bounds))


def _teams(groups: int, proportions: Sequence[float]) -> list[range]:
    """Ranks in a row for each group, so that each group's have about the same of all proportions."""
    done = [0.0, *accumulate(proportions)]
    bounds = [0]
    for number in range(1, groups):
        choices = range(bounds[-1] + 1, len(proportions) - (groups - number) + 1)
        goal = done[-1] * number / groups
        bounds.append(min(reversed(choices), key=lambda b: abs(done[b] - goal)))
    return [range(a, b) for a, b in pairwise([*bounds, len(proportions)])]


AskedShares = Literal["equal"] | tuple[int, ...]
"""All alike, or each rank's proportion."""


def parse_shares(words: str, size: int | None = None) -> AskedShares:
    """Parse the value of `--shares`.

    Args:
        size: ranks; None: not known yet.

    Raises:
        BadInput: neither "equal" nor whole numbers above 0, or not one for each rank.
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
        listed = f"{len(shares)} share{'s' if len(shares) > 1 else ''}"
        raise BadInput(f"--shares {words}: {listed} for {size} rank{'s' if size > 1 else ''}; {cure}")
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
    if all(samples * sum(shares) == share * batch for samples, share in zip(dealt, shares, strict=True)):
        return
    words, near = ",".join(map(str, shares)), ",".join(map(str, dealt))
    if group == 1:
        whole = "whole samples"
    elif batch // group >= len(shares):
        whole = f"multiples of {group}, the normalisation group"
    else:
        whole = f"whole samples of one normalisation group of {group} each"
    raise BadInput(f"--shares {words}: of a batch of {batch} they are not {whole}; the nearest are --shares {near}")
