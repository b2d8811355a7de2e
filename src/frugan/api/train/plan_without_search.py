"""The plan of a training that nothing has to be searched for: on a CPU, without a budget and without savings."""

from collections.abc import Mapping
from dataclasses import replace

from frugan.engine.plan import Plan, check_micro_batch
from frugan.engine.precision import Precision
from frugan.engine.ranks.place import Share, deal
from frugan.errors import BadInput
from frugan.recipe.recipe import Recipe


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
