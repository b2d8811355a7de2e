"""A critic with a gradient penalty, trained by torch's own wrapper for several processes."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from frugan.engine.ranks.group import RankGroup


def by_ddp(ranks: RankGroup) -> dict[str, dict[str, Tensor]]:
    """A penalty as a phase of its own, and with `static_graph`, by torch's wrapper: does every rank get the same?"""
    return {
        "penalty only": _wrapped(ranks, losses=("penalty",)),
        "with the main loss": _wrapped(ranks, losses=("main", "penalty")),
        "static graph": _wrapped(ranks, losses=("main", "penalty"), static_graph=True),
    }


def critic() -> nn.Module:
    """A small one whose last bias no gradient penalty depends on."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 1)).double()


def critic_losses(network: nn.Module, pictures: Tensor) -> Mapping[str, Tensor]:
    """The main loss and R1, each a mean over the pictures [B, 4]."""
    seen = pictures.clone().requires_grad_()
    out = network(seen)
    (slope,) = torch.autograd.grad(out.sum(), seen, create_graph=True)
    return {"main": nn.functional.softplus(-out).mean(), "penalty": slope.square().sum(1).mean()}


def critic_pictures() -> Tensor:
    """[4, 4], of all ranks."""
    return torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def _wrapped(ranks: RankGroup, losses: tuple[str, ...], *, static_graph: bool = False) -> dict[str, Tensor]:
    network = critic()
    wrapped = DistributedDataParallel(network, static_graph=static_graph)
    terms = critic_losses(wrapped, critic_pictures().chunk(ranks.size)[ranks.rank])
    torch.stack([terms[name] for name in losses]).sum().backward()
    return {n: p.grad.clone() for n, p in network.named_parameters() if p.grad is not None}
