"""From a recipe to its training set-up, and to the size of the groups that its networks normalise over."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import nn

from frugan.contract.phase import Phase
from frugan.engine.normalisation_groups import normalises_groups
from frugan.engine.setup import TrainingSetup
from frugan.errors import BadInput
from frugan.recipe.recipe import Recipe


def setup_of(recipe: Recipe, step: int = 0) -> TrainingSetup:
    """What a recipe trains at a step, its stages before and after included.

    Raises:
        ValueError: a phase of its family reads a data source that the family does not have.
    """
    now, training = recipe.at_step(step), recipe.training
    phases = now.kind.phases(now.networks, now.objective)
    _check_sources(now, phases)
    return TrainingSetup(
        phases=phases,
        settings=now.optimizer_settings(),
        averaged=now.kind.averaged(),
        ema=now.ema,
        batch=training.batch,
        normalisation_batch=training.normalisation_batch,
        length=training.duration.known_steps(training.batch),
        later_phases=every_phase(recipe),
    )


def _check_sources(recipe: Recipe, phases: Sequence[Phase]) -> None:
    """A family is other people's code: names that do not agree are told before anything runs."""
    sources = recipe.kind.sources(recipe.networks, recipe.objective)
    for phase in phases:
        for name in phase.sources:
            if name not in sources:
                raise ValueError(
                    f"family {recipe.family}: phase {phase.name} reads the source {name!r}; its `sources` names "
                    f"{', '.join(sources) or 'none'}"
                )


def every_phase(recipe: Recipe) -> tuple[Phase, ...]:
    """Every phase that training may come to run, over all stages; of phases of one name the last."""
    steps = [0, *recipe.stage_steps()]
    stages = [recipe.at_step(step) for step in steps]
    found = {phase.name: phase for now in stages for phase in now.kind.phases(now.networks, now.objective)}
    uses = {
        name: tuple(
            dict.fromkeys(
                network
                for now in stages
                for phase in now.kind.phases(now.networks, now.objective)
                if phase.name == name
                for network in phase.uses
            )
        )
        for name in found
    }
    return tuple(replace(phase, uses=uses[name]) for name, phase in found.items())


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
