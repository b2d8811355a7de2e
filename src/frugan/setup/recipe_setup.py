"""From a recipe to its networks and its training, and whether this machine has room for them."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from frugan.contract.family import GridRequest, Previews, spread
from frugan.contract.phase import Networks, Phase
from frugan.engine.run.training import Stage, Training, networks_used
from frugan.engine.state.fp32_blocks import keep_in_fp32
from frugan.engine.streams import derive_seed
from frugan.errors import BadInput
from frugan.files import refuse_lack_of_room
from frugan.recipe.recipe import Recipe
from frugan.setup.devices import host_bytes
from frugan.setup.ops import kernel_names, ops_of
from frugan.wording import show_size


def build_networks(recipe: Recipe, device: torch.device | str = "cpu") -> dict[str, nn.Module]:
    """Networks of a recipe with their first weights, for the engine."""
    kind = recipe.kind
    networks = _built(recipe, device)
    if torch.device(device).type != "meta":
        kind.initialise(recipe.networks, networks, lambda name: derive_seed(recipe.training.seed, "weights", name))
    return networks


def _built(recipe: Recipe, device: torch.device | str) -> dict[str, nn.Module]:
    networks = recipe.kind.build(recipe.networks, device)
    keep_in_fp32(networks, recipe.fp32_blocks)
    return networks


def with_pictures(recipe: Recipe, request: GridRequest, previews: Previews | None) -> GridRequest:
    """Add the pictures that a family shows on its grids, if it shows given ones."""
    needs = recipe.sources
    wanted = [name for name, need in needs.items() if need.given]
    if not wanted or previews is None:
        return request
    return replace(request, pictures={name: previews.preview(name, request.rows) for name in wanted})


def training_of(recipe: Recipe) -> Training:
    """What a recipe trains: what is planned, and what is run.

    Raises:
        ValueError: a phase of its family reads a data source that the family does not have, or uses a network that it
            does not build.
    """
    kind, training = recipe.kind, recipe.training

    def build(device: str) -> dict[str, nn.Module]:
        return networks_used(_built(recipe, device), described.phases)

    def make_grids(networks: Networks, micro_batch: int, pictures: Previews) -> None:
        # The first grid only, and of it one forward or two: the others take no more at a time.
        first = next(iter(kind.snapshots(recipe.networks).values()))
        rows = micro_batch // first.columns + 1
        classes = None if first.classes is None else list(spread(first.classes, first.rows))[:rows]
        asked = replace(with_pictures(recipe, first, pictures), micro_batch=micro_batch, classes=classes)
        kind.sample(recipe.networks, networks, asked)

    described = Training(
        family=recipe.family,
        stages=_stages(recipe),
        averaged=kind.averaged(),
        ema=recipe.ema,
        batch=training.batch,
        normalisation_batch=training.normalisation_batch,
        build=build,
        make=lambda: networks_used(build_networks(recipe), described.phases),
        recomputable=kind.recomputable,
        course=training.course,
        make_grids=make_grids,
        # with "auto" a card decides, and a plan holds either way: torch's own operations take no less
        ops=ops_of(kernel_names() if training.kernels == "triton" else ()),
    )
    return described


def parameter_counts(recipe: Recipe, also: Collection[str] = ()) -> dict[str, int]:
    """Parameters of each network that training uses, and of others of the family, counted on networks without data."""
    built = training_of(recipe).build("meta")
    if missing := {*also} - built.keys():
        built |= {name: each for name, each in recipe.kind.build(recipe.networks, "meta").items() if name in missing}
    return {name: sum(p.numel() for p in network.parameters()) for name, network in built.items()}


FP32_BYTES = 4
LEAST_COPIES = 2
"""Of every parameter in a checkpoint: itself, and the one number of the optimizer that keeps least."""
EVENTS_BYTES = 1 << 16
"""Room for what is written before the first checkpoint."""


def refuse_too_large(recipe: Recipe) -> None:
    """Refuse, before anything is read, what could only end in the system killing the process.

    Raises:
        BadInput: the networks as they are built, or the pictures of one batch, take more than a process here may.
    """
    has = host_bytes()
    if has is None:
        return
    samples = [need.sample_bytes for need in recipe.sources.values()]
    batch = recipe.training.batch
    if (pictures := batch * max(samples, default=0)) > has:
        raise BadInput(
            f"training.batch = {batch:,}: the pictures of one batch take {show_size(pictures, 1)}, and there are "
            f"{show_size(has, 1)} of memory here; choose a smaller batch"
        )
    parameters = sum(parameter_counts(recipe).values())
    if parameters * FP32_BYTES > has:
        raise BadInput(
            f"networks of {parameters:,} parameters take {show_size(parameters * FP32_BYTES, 1)} as they are built, "
            f"and there are {show_size(has, 1)} of memory here; choose narrower ones (frugan plan says what fits)"
        )


def refuse_full_disk(recipe: Recipe, run: Path) -> None:
    """Refuse to begin what could not be saved.

    Args:
        run: folder of the run; need not be there.

    Raises:
        BadInput: its disk has no room for one checkpoint.
    """
    needed = sum(parameter_counts(recipe).values()) * FP32_BYTES * LEAST_COPIES + EVENTS_BYTES
    refuse_lack_of_room(run, needed, "its first checkpoint", "choose another --out")


def _stages(recipe: Recipe) -> tuple[Stage, ...]:
    begins = [0, *recipe.stage_steps()]
    length = recipe.training.duration.known_steps(recipe.training.batch)
    # Where nobody knows its end, the last stage counts as much as all before it.
    end = max(1, 2 * begins[-1]) if length is None else length
    stages: list[Stage] = []
    for step, until in zip(begins, [*begins[1:], end], strict=True):
        now = recipe.at_step(step)
        phases = now.kind.phases(now.networks, now.objective)
        _check_sources(now, phases)
        stages.append(
            Stage(
                phases=phases,
                settings=now.optimizer_settings(),
                sources=now.sources,
                name=f"from step {step:,} on" if step else "from the start",
                begins=step,
                share=max(0, min(until, end) - step) / end,
                objective=now.objective.model_dump_json(),
            )
        )
    return tuple(stages)


def _check_sources(recipe: Recipe, phases: Sequence[Phase]) -> None:
    """A family is other people's code: names that do not agree are told before anything runs."""
    sources = recipe.sources
    for phase in phases:
        for name in phase.sources:
            if name not in sources:
                raise ValueError(
                    f"family {recipe.family}: phase {phase.name} reads the source {name!r}; its `sources` names "
                    f"{', '.join(sources) or 'none'}"
                )
