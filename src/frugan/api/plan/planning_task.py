"""From a recipe to what the planner needs to know of it."""

from dataclasses import replace

from torch import nn

from frugan.api.sample.given_pictures import with_pictures
from frugan.api.setup import normalisation_group, setup_of
from frugan.contract.phase import Networks
from frugan.memory.blank_pictures import BlankPictures
from frugan.memory.task import Stage, Task
from frugan.recipe.recipe import Recipe


def task_of(recipe: Recipe) -> Task:
    """What a recipe trains.

    Raises:
        BadInput: the recipe gives no normalisation batch though its networks normalise over samples.
    """
    kind, setup = recipe.kind, setup_of(recipe)

    def build(device: str) -> dict[str, nn.Module]:
        return setup.used(kind.build(recipe.networks, device))

    def make_sheets(networks: Networks, micro_batch: int, pictures: BlankPictures) -> None:
        # One sheet, and of it what takes a forward or two: the rest takes as many pictures at a time.
        first = next(iter(kind.snapshots(recipe.networks).values()))
        rows = micro_batch // first.columns + 1
        classes = None if first.classes is None else list(first.classes)[:rows]
        asked = replace(with_pictures(recipe, first, pictures), micro_batch=micro_batch, classes=classes)
        kind.sample(recipe.networks, networks, asked)

    return Task(
        build=build,
        stages=_stages(recipe),
        group=normalisation_group(recipe, build("meta"), setup.every_phase),
        recomputable=kind.recomputable,
        make_sheets=make_sheets,
        compiled=recipe.training.compile,
    )


def _stages(recipe: Recipe) -> tuple[Stage, ...]:
    """The recipe's stages, but for those that differ in optimizer settings alone: they take the same memory."""
    begins = [0, *recipe.stage_steps()]
    length = recipe.training.duration.known_steps(recipe.training.batch)
    # Where nobody knows its end, the last stage counts as much as all before it.
    end = max(begins[-1] + 1, 2 * begins[-1] if length is None else length)
    found: dict[str, Stage] = {}
    for step, until in zip(begins, [*begins[1:], end], strict=True):
        now = recipe.at_step(step)
        key, share = now.objective.model_dump_json(), (until - step) / end
        if key in found:
            found[key] = replace(found[key], share=found[key].share + share)
            continue
        found[key] = Stage(
            name=f"from step {step:,} on" if step else "from the start",
            setup=setup_of(recipe, step),
            needs=now.kind.sources(now.networks, now.objective),
            share=share,
        )
    return tuple(found.values())
