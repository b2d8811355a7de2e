"""From a recipe to its training set-up."""

from dataclasses import replace

from frugan.contract.phase import Phase
from frugan.engine.setup import TrainingSetup
from frugan.recipe import Recipe


def setup_of(recipe: Recipe, step: int = 0) -> TrainingSetup:
    """What a recipe trains at a step, its stages before and after included."""
    now, training = recipe.at_step(step), recipe.training
    return TrainingSetup(
        phases=now.kind.phases(now.networks, now.objective),
        settings=now.optimizer_settings(),
        averaged=now.kind.averaged(),
        ema=now.ema,
        batch=training.batch,
        normalisation_batch=training.normalisation_batch,
        length=training.duration.known_steps(training.batch),
        later_phases=every_phase(recipe),
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
