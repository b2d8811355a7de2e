"""A training set-up: all that the first state and the steps are made from."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from frugan.contract.family import BufferRule
from frugan.contract.phase import Phase
from frugan.engine.backward import Backward, forward_and_backward
from frugan.engine.ema import Ema, EmaSettings
from frugan.engine.layout import lay_out_masters
from frugan.engine.normalisation_groups import set_normalisation_batch
from frugan.engine.optimizers import OptimizerSettings, create_optimizer, named_parameters, networks_of
from frugan.engine.plan import Plan
from frugan.engine.precision import LossScale
from frugan.engine.probe import Probe
from frugan.engine.ranks.ranks import OneRank, Ranks
from frugan.engine.state import TrainingState
from frugan.engine.step import Step
from frugan.engine.update import DrawFeed, PictureFeed


@dataclass(frozen=True)
class TrainingSetup:
    """What is trained and how, at one point of training. The trainer runs it, the planner runs it without data.

    Attributes:
        phases: that run at that point, in order.
        settings: optimizer settings by name.
        averaged, ema: what EMA follows, and how.
        batch: samples per update.
        normalisation_batch: samples per group of the layers that normalise over samples; None: they take all.
        length: steps of the whole training; None: unknown.
        later_phases: every phase that training may come to run, these included: the state is made for all of them.
            None: there are no others.
    """

    phases: tuple[Phase, ...]
    settings: Mapping[str, OptimizerSettings]
    averaged: Mapping[str, BufferRule]
    ema: EmaSettings
    batch: int
    normalisation_batch: int | None
    length: int | None = None
    later_phases: tuple[Phase, ...] | None = None

    @property
    def every_phase(self) -> tuple[Phase, ...]:
        """Every phase that training may come to run."""
        return self.phases if self.later_phases is None else self.later_phases

    def used(self, networks: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
        """Of a family's networks those that some phase runs; others are not even made room for.

        Raises:
            ValueError: a phase uses a network that the family has not built.
        """
        names = {name for phase in self.every_phase for name in phase.uses}
        if unknown := names - set(networks):
            raise ValueError(f"phases use {', '.join(sorted(unknown))}; the family builds {', '.join(networks)}")
        return {name: network for name, network in networks.items() if name in names}

    def state(
        self, networks: dict[str, nn.Module], plan: Plan, device: torch.device, ranks: Ranks | None = None
    ) -> TrainingState:
        """The first state of networks that are on the device already.

        Args:
            ranks: that share the optimizers' state, where the plan says so; None: there are none.
        """
        for network in networks.values():
            network.train()
            lay_out_masters(network, plan.layout(device))
            set_normalisation_batch(network, self.normalisation_batch)
        phases = self.every_phase
        moves = {name: networks_of(name, phases) for name in dict.fromkeys(phase.optimizer for phase in phases)}
        optimizers = {
            name: create_optimizer(
                self.settings[name],
                named_parameters(networks, moved),
                on_host=plan.optimizer_on_host,
                shard=ranks.shard() if ranks is not None and plan.shard_optimizer else None,
            )
            for name, moved in moves.items()
        }
        carried = {name: each.initial for phase in phases for name, each in phase.carried.items()}
        return TrainingState(
            networks=networks,
            optimizers=optimizers,
            moves=moves,
            loss_scales={name: LossScale.create(plan.precision, device) for name in moves},
            carried={name: _filled(initial, device) for name, initial in carried.items()},
            ema=Ema(networks, self.averaged, self.ema, on_host=plan.ema_on_host),
            skipped={phase.name: torch.zeros((), dtype=torch.int64, device=device) for phase in phases},
            step=0,
            device=device,
            optimizer_on_host=plan.optimizer_on_host,
        )

    def step(
        self,
        pictures: PictureFeed,
        draws: DrawFeed,
        *,
        originals: bool = False,
        probe: Probe | None = None,
        ranks: Ranks | None = None,
        backward: Backward = forward_and_backward,
    ) -> Step:
        """What runs its steps.

        Args:
            originals: prepare, carry and commit at every micro-batch, as the original programs do.
            ranks: the processes that share each update; None: this one alone.
            backward: forward and backward of one micro-batch: as written, or compiled.
        """
        return Step(
            self.phases,
            self.settings,
            pictures,
            draws,
            self.batch,
            self.length,
            self.normalisation_batch,
            originals,
            probe or Probe(),
            ranks or OneRank(),
            backward,
        )


def _filled(values: float | tuple[float, ...], device: torch.device) -> Tensor:
    """One number, or several [n]; fp32. By `full`: a literal tensor under a fake mode has crashed the interpreter."""
    if isinstance(values, tuple):
        return torch.stack([_filled(value, device) for value in values])
    return torch.full((), float(values), device=device)
