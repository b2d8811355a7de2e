"""Description of a training: the trainer runs it, and the planner runs it on tensors without data."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor, nn

from frugan.contract.data import SourceSpec
from frugan.contract.family import BufferRule, Family, Previews
from frugan.contract.layers import use_ops
from frugan.contract.ops import PLAIN, Ops
from frugan.contract.phase import Networks, Phase
from frugan.engine.durations import Course
from frugan.engine.plan import Plan
from frugan.engine.ranks.ranks import OneRank, Ranks
from frugan.engine.state.ema import Ema, EmaSettings
from frugan.engine.state.loss_scale import LossScale
from frugan.engine.state.optimizer_settings import OptimizerSettings, create_optimizer, named_parameters, networks_of
from frugan.engine.state.state import TrainingState
from frugan.engine.state.working_weights import lay_out_masters, normalises_groups, set_normalisation_batch
from frugan.engine.step.step import Step
from frugan.engine.step.update import DrawFeed, PictureFeed, Probe
from frugan.engine.streams import derive_seed
from frugan.errors import BadInput

SMALL_BATCH = 8
"""Samples per update of a training without a recipe."""
SMALL_GIVEN_BATCH = 2
"""Samples per update where such a training makes samples from given pictures, which have far more pixels."""

MakeGrids = Callable[[Networks, int, Previews], object]
"""(prepared networks, micro-batch, where given pictures come from) -> grids of samples."""


@dataclass(frozen=True)
class Stage:
    """A part of a training during which phases and settings do not change."""

    phases: tuple[Phase, ...]  # in the order in which they run
    settings: Mapping[str, OptimizerSettings]  # optimizer settings by name
    sources: Mapping[str, SourceSpec] = field(default_factory=dict)  # requirements on each source
    name: str = "from the start"  # for people: "from step 700,000 on"
    begins: int = 0  # first step
    share: float = 1.0  # share of all steps of the training; 0: it would begin after the end
    # objective of the phases, as JSON; stages with equal objectives differ in settings alone, and take equal memory
    objective: str = ""


@dataclass(frozen=True)
class Training:
    """A training of networks: stages, batch, averages, and how networks are built."""

    family: str  # the family's name
    stages: tuple[Stage, ...]  # at least one, in order
    averaged: Mapping[str, BufferRule]  # network that EMA follows -> rule for its buffers
    ema: EmaSettings  # how EMA follows them
    batch: int  # samples per update
    normalisation_batch: int | None  # samples per group of the layers that normalise over samples; None: they take all
    # every network that some phase runs, uninitialised on a device, or without data ("meta")
    build: Callable[[str], dict[str, nn.Module]]
    make: Callable[[], dict[str, nn.Module]]  # those networks with initial weights, in fp32 on the host
    recomputable: Callable[[Networks], dict[str, tuple[str, ...]]]  # networks -> blocks that may be recomputed
    course: Course = field(default_factory=Course)  # schedule of everything that changes during training
    make_grids: MakeGrids | None = None  # makes the grids of a snapshot; None: there are none
    ops: Ops = PLAIN  # operations that layers compute by
    ranks: int = 1  # number of ranks that train together, each with a batch of this size
    in_parts: bool = False  # its groups of samples are parts of groups that ranks share
    name: str = ""  # name of the recipe, for people
    # training that this is a rank's share of, or a copy with another batch; None: neither
    whole: "Training | None" = None

    @classmethod
    def of_family(
        cls,
        family: Family,
        networks: Any = None,
        objective: Any = None,
        *,
        settings: OptimizerSettings,
        ema: EmaSettings,
        batch: int | None = None,
        normalisation_batch: int | None = None,
        weights_seed: int = 0,
    ) -> Self:
        """A small training of a family without a recipe.

        Args:
            networks, objective: None: as the family's contract tests have them.
            settings: of every optimizer.
            batch: None: a few samples.
            normalisation_batch: None: half the batch.
            weights_seed: of the first weights.
        """
        tiny, every_term = family.tiny()
        networks, objective = networks or tiny, objective or every_term
        phases, sources = family.phases(networks, objective), family.sources(networks, objective)
        batch = batch or (SMALL_GIVEN_BATCH if any(need.given for need in sources.values()) else SMALL_BATCH)

        def make() -> dict[str, nn.Module]:
            built = family.build(networks)
            family.initialise(networks, built, lambda name: derive_seed(weights_seed, "weights", name))
            return built

        return cls(
            family=family.name,
            stages=(Stage(phases, {phase.optimizer: settings for phase in phases}, sources),),
            averaged=family.averaged(),
            ema=ema,
            batch=batch,
            normalisation_batch=normalisation_batch or batch // 2,
            build=lambda device: family.build(networks, device),
            make=make,
            recomputable=family.recomputable,
            name="tiny",
        )

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """Every phase that training may come to run, over all stages; of phases of one name the last."""
        phases = {phase.name: phase for stage in self.stages for phase in stage.phases}
        uses: dict[str, dict[str, None]] = {name: {} for name in phases}
        for stage in self.stages:
            for phase in stage.phases:
                uses[phase.name] |= dict.fromkeys(phase.uses)
        return tuple(replace(phase, uses=tuple(uses[name])) for name, phase in phases.items())

    @cached_property
    def group(self) -> int:
        """Samples that must stand together in a forward: the normalisation batch, or 1 where nothing normalises.

        Raises:
            BadInput: no normalisation batch is given though networks normalise, or a phase whose networks do sees no
                whole number of groups.
        """
        if self.whole is not None:
            return self.whole.group
        return normalisation_group(self.build("meta"), self.phases, self.batch, self.normalisation_batch)

    @property
    def micro_batch(self) -> int:
        """A part of a batch: a group, or half of it where samples do not stand together."""
        return self.group if self.group > 1 else max(1, self.batch // 2)

    @cached_property
    def distinct_stages(self) -> tuple[Stage, ...]:
        """The stages that training comes to, but for those that differ in optimizer settings alone.

        These take the same memory.
        """
        distinct: dict[str, Stage] = {}
        for stage in self.stages:
            if stage.share <= 0:  # it would begin after the end
                continue
            before = distinct.get(stage.objective)
            distinct[stage.objective] = stage if before is None else replace(before, share=before.share + stage.share)
        return tuple(distinct.values())

    def stage_at(self, step: int) -> Stage:
        """The stage that a step belongs to."""
        return [stage for stage in self.stages if stage.begins <= step][-1]

    def shared_by(self, ranks: int, samples: int) -> "Training":
        """Return the training of one of `ranks` ranks that sees `samples` samples of a batch.

        It runs its part of each phase in whole groups. A phase with few samples may have fewer groups than there are
        ranks; each then runs one.
        """
        if ranks == 1:
            return self

        def shared(phase: Phase) -> Phase:
            seen, group = phase.samples(self.batch), phase.group(self.group)
            groups = math.ceil(math.ceil(seen / group) * samples / self.batch)  # of this phase, for this rank
            share = min(groups * group, samples, seen)
            return phase if share == phase.samples(samples) else replace(phase, fraction=share / samples)

        stages = tuple(replace(stage, phases=tuple(map(shared, stage.phases))) for stage in self.stages)
        return replace(self, stages=stages, batch=samples, ranks=ranks, whole=self)

    def with_batch(self, batch: int) -> "Training":
        """Return this training with another batch size."""
        return replace(self, batch=batch, whole=self)

    def state(
        self,
        plan: Plan,
        device: torch.device,
        ranks: Ranks | None = None,
        *,
        networks: dict[str, nn.Module] | None = None,
        stage: Stage | None = None,
    ) -> TrainingState:
        """Create the initial state.

        Args:
            ranks: share the optimizers' state, where the plan says so; None: no others.
            networks: already on the device; None: built with initial weights.
            stage: gives the optimizers' initial settings; None: the first.
        """
        if networks is None:
            networks = {name: network.to(device) for name, network in self.make().items()}
        for network in networks.values():
            network.train()
            use_ops(network, self.ops)
            lay_out_masters(network, plan.layout(device))
            set_normalisation_batch(network, self.normalisation_batch)
        phases, settings = self.phases, (stage or self.stages[0]).settings
        moves = {phase.optimizer: networks_of(phase.optimizer, phases) for phase in phases}
        optimizers = {
            name: create_optimizer(
                settings[name],
                named_parameters(networks, moved),
                on_host=plan.optimizer_on_host,
                shard=ranks.shard() if ranks is not None and plan.shard_optimizer else None,
            )
            for name, moved in moves.items()
        }
        return TrainingState(
            networks=networks,
            optimizers=optimizers,
            moves=moves,
            loss_scales={name: LossScale.create(plan.precision, device) for name in moves},
            carried=self._initial_carried(device),
            ema=Ema(networks, self.averaged, self.ema, on_host=plan.ema_on_host),
            skipped={phase.name: torch.zeros((), dtype=torch.int64, device=device) for phase in phases},
            step=0,
            device=device,
            optimizer_on_host=plan.optimizer_on_host,
        )

    def _initial_carried(self, device: torch.device) -> dict[str, torch.Tensor]:
        """Return the initial values of the carried state of all stages; the first stage that has one sets its value."""
        phases = [phase for stage in self.stages for phase in stage.phases]
        values = {name: carried.initial for phase in reversed(phases) for name, carried in phase.carried.items()}
        return {name: _filled(initial, device) for name, initial in values.items()}

    def step(
        self,
        pictures: PictureFeed,
        draws: DrawFeed,
        *,
        stage: Stage | None = None,
        originals: bool = False,
        probe: Probe | None = None,
        ranks: Ranks | None = None,
    ) -> Step:
        """Create the step of a stage.

        Args:
            stage: None: the first.
            originals: prepare, carry and commit at every micro-batch, as the original programs do.
            ranks: the processes that share each update; None: this one alone.
        """
        stage = stage or self.stages[0]
        return Step(
            phases=stage.phases,
            settings=stage.settings,
            pictures=pictures,
            draws=draws,
            batch=self.batch,
            course=self.course,
            normalisation_batch=self.normalisation_batch,
            originals=originals,
            probe=probe or Probe(),
            ranks=ranks or OneRank(),
        )


def networks_used(built: Mapping[str, nn.Module], phases: tuple[Phase, ...]) -> dict[str, nn.Module]:
    """Return the networks that some phase runs; memory is taken for no others.

    Raises:
        ValueError: a phase uses a network that the family has not built.
    """
    names = {name for phase in phases for name in phase.uses}
    if unknown := names - set(built):
        raise ValueError(f"phases use {', '.join(sorted(unknown))}; the family builds {', '.join(built)}")
    return {name: network for name, network in built.items() if name in names}


def normalisation_group(networks: Networks, phases: tuple[Phase, ...], batch: int, group: int | None) -> int:
    """Samples that must stand together in a forward: the normalisation batch, or 1 where nothing normalises.

    Args:
        batch: samples per update.
        group: the normalisation batch; None: none is given.

    Raises:
        BadInput: none is given though networks normalise, or a phase whose networks do sees no whole number of groups.
    """
    if not normalises_groups(networks):
        return 1
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


def _filled(values: float | tuple[float, ...], device: torch.device) -> Tensor:
    """One number, or several [n]; fp32. By `full`: a literal tensor under a fake mode has crashed the interpreter."""
    if isinstance(values, tuple):
        return torch.stack([_filled(value, device) for value in values])
    return torch.full((), float(values), device=device)
