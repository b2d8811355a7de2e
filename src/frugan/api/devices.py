"""Which device to use, and what plan, until the planner chooses it."""

import os
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import nn

from frugan.api.card_support import cpu_build, not_served
from frugan.api.doctor.environment import CARDS, misspelt
from frugan.contract.phase import Phase
from frugan.engine.plan import Plan, check_micro_batch
from frugan.engine.precision import Precision
from frugan.engine.ranks.place import Share, deal
from frugan.engine.working_weights import normalises_groups
from frugan.errors import BadInput
from frugan.recipe import Recipe


def choose_device(asked: str = "auto") -> tuple[torch.device, str]:
    """The device, and why.

    Raises:
        BadInput: no such device here, or this torch has no kernels for it.
    """
    if asked == "auto":
        return _automatic()
    try:
        device = torch.device(asked)
    except RuntimeError as error:
        raise BadInput(f"--device {asked}: expected auto, cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise BadInput(f"--device {asked}: expected auto, cpu, cuda or cuda:N")
    if device.type == "cpu":
        return device, "asked for"
    if reason := cpu_build(wanted=True):
        raise BadInput(f"--device {asked}: {reason}")
    if not (torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()):
        raise BadInput(
            f"--device {asked}: this torch ({torch.__version__}) sees {torch.cuda.device_count()} CUDA cards; "
            "`nvidia-smi` says whether the driver sees more, and which CUDA version it serves"
        )
    index = torch.cuda.current_device() if device.index is None else device.index
    if reason := not_served(index):
        raise BadInput(f"--device {asked}: {reason}; or train on the CPU: --device cpu")
    return torch.device("cuda", index), "asked for"  # with an index: what torch wants where it sets or caps a device


def misspelt_cards() -> str | None:
    """What to say of a variable that is nearly CUDA_VISIBLE_DEVICES, and that nothing reads; None: nothing."""
    near = [name for name, meant in misspelt(os.environ).items() if meant == CARDS]
    return f"{near[0]} is set, and nothing reads it: the variable is {CARDS}" if near else None


def use_device(asked: str = "auto") -> tuple[torch.device, str]:
    """As `choose_device`, and a card becomes torch's current one: some of its kernels and libraries look no further,
    and would take memory on the first card as well.

    Raises:
        BadInput: as `choose_device`.
    """
    device, why = choose_device(asked)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device, why


def _automatic() -> tuple[torch.device, str]:
    """The current card, or the first that this torch has kernels for; the CPU where there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu"), f"{cpu_build(wanted=False) or 'no CUDA card is there'}; override with --device"
    current = torch.cuda.current_device()
    reasons: list[str] = []
    for index in dict.fromkeys((current, *range(torch.cuda.device_count()))):
        if (reason := not_served(index)) is None:
            return torch.device("cuda", index), "; ".join((*reasons, "a CUDA card is there; override with --device"))
        reasons.append(reason)
    return torch.device("cpu"), "; ".join(reasons)


def normalisation_group(recipe: Recipe, networks: Mapping[str, nn.Module], phases: tuple[Phase, ...]) -> int:
    """Samples that must stand together in a forward: the recipe's normalisation batch, or 1 where nothing normalises.

    Raises:
        BadInput: the recipe gives none though its networks normalise, or a phase whose networks do sees no whole
            number of groups.
    """
    if not normalises_groups(networks):
        return 1
    group, batch = recipe.training.normalisation_batch, recipe.training.batch
    if group is None:
        raise BadInput(
            "training.normalisation_batch is missing: these networks normalise over samples, and the groups' size "
            f"changes the result; set it to a divisor of the batch, {batch}"
        )
    for phase in phases:
        looks = normalises_groups({name: networks[name] for name in phase.uses if name in networks})
        if looks and phase.samples(batch) % group:
            raise BadInput(
                f"phase {phase.name} sees {phase.samples(batch)} samples of the batch of {batch}: not whole groups "
                f"of {group}; set training.normalisation_batch to a divisor of {phase.samples(batch)}"
            )
    return group


def choose_plan(
    recipe: Recipe,
    precision: Precision,
    group: int,
    micro_batch: int | None,
    recompute: Mapping[str, tuple[str, ...]],
    *,
    ema_on_host: bool,
    shard_optimizer: bool = False,
    ranks: int = 1,
    share: Share | None = None,
) -> tuple[Plan, str]:
    """A plan, and the line that says it.

    Args:
        shard_optimizer: ranks share out the optimizers' state.
        ranks: that share the batch.
        share: of this one; None: of the first, and all are alike.

    Raises:
        BadInput: the micro-batch would change the result.
    """
    whole = recipe.training.batch
    plan = Plan(whole, precision, recompute, ema_on_host=ema_on_host, shard_optimizer=shard_optimizer and ranks > 1)
    most = whole  # the largest share, which a micro-batch for all ranks may have
    if share is None:
        share = deal(whole, group, ranks)[0]
        most = len(share.samples)
    batch = len(share.samples)
    if share.team is not None:
        if micro_batch is not None:
            refuse_micro_batch(micro_batch, share)
        line = (
            f"micro-batch: {batch} of a normalisation group of {share.group} that {len(share.team)} ranks share, of "
            f"batch {whole} on {ranks}"
        )
        return replace(plan, micro_batch=batch), line
    why = "asked for"
    if micro_batch is None:
        micro_batch = group if group > 1 else batch
        why = f"the {'batch' if ranks == 1 else 'share'}: nothing is normalised over samples"
        why = "one normalisation group" if group > 1 else why
        why += "; override with --micro-batch"
    check_micro_batch(micro_batch, most, group)
    micro_batch = min(micro_batch, batch)
    accumulation = -(-batch // micro_batch)
    of = f"batch {batch}" if ranks == 1 else f"{batch} on a rank, of batch {whole} on {ranks}"
    line = f"micro-batch: {micro_batch} x {accumulation} = {of} ({why})"
    return replace(plan, micro_batch=micro_batch), line


def refuse_micro_batch(micro_batch: int, share: Share) -> None:
    """Refuse a micro-batch where ranks share normalisation groups.

    Raises:
        BadInput: always.
    """
    assert share.team is not None
    raise BadInput(
        f"--micro-batch {micro_batch}: {len(share.team)} ranks share a normalisation group of {share.group}, and each "
        f"takes its part of it in one forward, here {len(share.samples)}; leave out --micro-batch"
    )
