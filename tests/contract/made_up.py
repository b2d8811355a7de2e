"""A made-up family that uses everything the contract has; it proves the engine, and has no other purpose.

Three phases: "critic" (two parts, two repeats on pictures of its own, an action on the masters), "penalty" (half a
batch, every second step, double backward, carried state, the critic's optimizer) and "maker" (uses the critic without
moving it, batch norm, dropout drawn per image).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from frugan.contract.family import BufferRule, Dimension, Family, GridRequest
from frugan.contract.layers import Stateful
from frugan.contract.phase import Carried, Draw, MicroBatch, Networks, Phase, PhaseState, Terms
from frugan.data.picture_needs import PictureNeeds
from frugan.nn.batch_norm import BatchNorm
from frugan.nn.spectral_norm import SNConv2d, SNLinear

LATENT = 6
SIDE = 8


class MadeUpNetworks(BaseModel):
    """Size of the made-up networks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    width: int = 8
    batch_norm: bool = True


class MadeUpObjective(BaseModel):
    """Strengths of the made-up losses."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    penalty: float = 1.0
    decay: float = 0.01


class InputMean(Stateful):
    """Passes its input on and keeps a running mean and a count of what it saw: buffers that move, one an integer."""

    mean: Tensor
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """[B, ...] -> the same."""
        self.observe("mean", x.float().mean(), len(x))
        self.observe("seen", torch.ones((), device=x.device))
        return x

    def committed(self, buffer: str, observed: Tensor) -> Tensor:
        """The mean moves half-way; the count goes up by one for each phase."""
        return torch.lerp(self.mean, observed, 0.5) if buffer == "mean" else self.seen + 1


class Body(nn.Module):
    """A residual block; with batch norm its result depends on the normalisation group."""

    def __init__(self, width: int, *, batch_norm: bool) -> None:
        super().__init__()
        self.norm = BatchNorm(width) if batch_norm else InputMean()
        self.conv = SNConv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> the same."""
        return torch.add(x, self.conv(F.softplus(self.norm(x))))


class Maker(nn.Module):
    """Latents to pictures [B, 3, 8, 8]."""

    def __init__(self, config: MadeUpNetworks) -> None:
        super().__init__()
        self.width = config.width
        self.linear = SNLinear(LATENT, config.width * SIDE * SIDE)
        self.bodies = nn.ModuleList(Body(config.width, batch_norm=config.batch_norm) for _ in range(2))
        self.out = nn.Conv2d(config.width, 3, 1)

    def forward(self, z: Tensor, keep: Tensor) -> Tensor:
        """z [B, 6], keep [B, C, 1, 1] -> [B, 3, 8, 8]."""
        h = self.linear(z.to(self.linear.weight.dtype)).view(-1, self.width, SIDE, SIDE)
        h = h * keep.to(h.dtype)
        for body in self.bodies:
            h = body(h)
        return torch.tanh(self.out(h).float())


class Critic(nn.Module):
    """Pictures to a number; never normalises over samples."""

    def __init__(self, config: MadeUpNetworks) -> None:
        super().__init__()
        self.stem = SNConv2d(3, config.width, 3, padding=1)
        self.bodies = nn.ModuleList(Body(config.width, batch_norm=False) for _ in range(2))
        self.linear = SNLinear(config.width, 1)

    def forward(self, pictures: Tensor) -> Tensor:
        """[B, 3, 8, 8] -> [B, 1], fp32."""
        h = self.stem(pictures.to(self.stem.weight.dtype))
        for body in self.bodies:
            h = body(h)
        return cast(Tensor, self.linear(h.mean((2, 3)))).float()


def _make(networks: Networks, micro: MicroBatch) -> Tensor:
    keep = (micro.draws["dropout"] < 0.8).float()[..., None, None]  # [B, C, 1, 1]
    return cast(Tensor, networks["maker"](micro.draws["z"], keep))


def _real_pictures(micro: MicroBatch) -> Tensor:
    return micro.pictures["images"]["pictures"].float() / 127.5 - 1


def _real(networks: Networks, micro: MicroBatch, _: PhaseState) -> Terms:
    return {"real": F.softplus(-networks["critic"](_real_pictures(micro))).mean()}


def _fake(networks: Networks, micro: MicroBatch, _: PhaseState) -> Terms:
    with torch.no_grad():
        pictures = _make(networks, micro)
    out = networks["critic"](pictures)
    return {"fake": F.softplus(out).mean(), "drift": 0.001 * out.square().mean()}


def _penalty(strength: float, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
    pictures = _real_pictures(micro).requires_grad_()
    (slope,) = torch.autograd.grad(networks["critic"](pictures).sum(), pictures, create_graph=True)
    length = slope.square().sum((1, 2, 3)).add(1e-8).sqrt()  # [B]
    state.observe("length", length.mean(), micro.size)
    return {"penalty": strength * (length - state.read("length")).square().mean()}


def _maker(networks: Networks, micro: MicroBatch, _: PhaseState) -> Terms:
    return {"maker": F.softplus(-networks["critic"](_make(networks, micro))).mean()}


def _decay(strength: float, networks: Networks) -> None:
    for parameter in networks["critic"].parameters():
        if parameter.grad is not None:
            parameter.grad.add_(parameter.detach(), alpha=strength)


class MadeUpFamily(Family):
    """The contract, made up."""

    name = "made-up"
    networks_type = MadeUpNetworks
    objective_type = MadeUpObjective
    optimizers = ("critic", "maker")

    def build(self, networks: MadeUpNetworks, device: torch.device | str = "cpu") -> dict[str, nn.Module]:
        with torch.device(device):
            return {"maker": Maker(networks), "critic": Critic(networks)}

    def initialise(self, networks: MadeUpNetworks, built: Networks, seed: Callable[[str], int]) -> None:
        for name, network in built.items():
            random = torch.Generator().manual_seed(seed(name))
            for key, value in network.state_dict().items():
                if value.is_floating_point() and not key.endswith(("mean", "var", "gain", "sv0")):
                    value.normal_(0, 0.2, generator=random)

    def phases(self, networks: MadeUpNetworks, objective: MadeUpObjective) -> tuple[Phase, ...]:
        draws = {"z": Draw("normal", (LATENT,)), "dropout": Draw("uniform", (networks.width,), per_image=True)}
        critic = Phase(
            name="critic",
            updates=("critic",),
            uses=("critic", "maker"),
            optimizer="critic",
            parts=(_real, _fake),
            draws=draws,
            sources=("images",),
            repeats=2,
            shared_data=False,
            grad_hook=lambda built: _decay(objective.decay, built),
        )
        penalty = Phase(
            name="penalty",
            updates=("critic",),
            uses=("critic",),
            optimizer="critic",
            parts=(lambda *args: _penalty(objective.penalty, *args),),
            sources=("images",),
            every=2,
            fraction=0.5,
            gain=2.0,
            penalises_gradients=True,
            carried={"length": Carried(1.0, lambda old, seen, _: torch.lerp(old, seen, 0.25), shown="path length")},
        )
        maker = Phase(
            name="maker", updates=("maker",), uses=("maker", "critic"), optimizer="maker", parts=(_maker,), draws=draws
        )
        return critic, penalty, maker

    def sources(self, networks: MadeUpNetworks, objective: MadeUpObjective) -> Mapping[str, PictureNeeds]:
        return {"images": PictureNeeds(SIDE, None)}

    def recomputable(self, built: Networks) -> dict[str, tuple[str, ...]]:
        return dict.fromkeys(built, ("bodies.0", "bodies.1"))

    def averaged(self) -> Mapping[str, BufferRule]:
        return {"maker": "copy"}

    def sample(self, networks: MadeUpNetworks, built: Networks, request: GridRequest) -> Tensor:
        count = request.rows * request.columns
        z = torch.randn(count, LATENT, generator=torch.Generator().manual_seed(request.seed))
        with torch.no_grad():
            pictures = cast(Tensor, built["maker"](z, torch.ones(count, networks.width, 1, 1)))
        return pictures.view(request.rows, request.columns, 3, SIDE, SIDE)

    def snapshots(self, networks: MadeUpNetworks) -> Mapping[str, GridRequest]:
        return {"samples": GridRequest()}

    def variants(self, networks: MadeUpNetworks) -> Mapping[Dimension, tuple[Mapping[str, object], ...]]:
        return {"width": tuple({"width": width} for width in (2, 4, 8, 16, 32))}

    def tiny(self) -> tuple[MadeUpNetworks, MadeUpObjective]:
        return MadeUpNetworks(), MadeUpObjective()


class Looking(MadeUpFamily):
    """Looks at a loss's value, for which the host must wait."""

    def phases(self, networks: MadeUpNetworks, objective: MadeUpObjective) -> tuple[Phase, ...]:
        first, *others = super().phases(networks, objective)

        def part(networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
            terms = first.parts[0](networks, micro, state)
            return {name: value * (1 if float(value.detach()) > 0 else 2) for name, value in terms.items()}

        return replace(first, parts=(part, *first.parts[1:])), *others
