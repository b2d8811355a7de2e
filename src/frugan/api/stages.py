"""Training over all its stages."""

from dataclasses import replace

from frugan.phase import Phase
from frugan.recipe import Recipe


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
