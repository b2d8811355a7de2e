"""Networks and training of a recipe, and checks that this machine has room for them."""

from collections.abc import Collection, Mapping, Sequence
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
    """Build the networks of a recipe with their initial weights, for the engine."""
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
    """Add the pictures that a grid starts from, if the family changes given pictures."""
    needs = recipe.sources
    wanted = [name for name, need in needs.items() if need.given]
    if not wanted or previews is None:
        return request
    return replace(request, pictures={name: previews.preview(name, request.rows) for name in wanted})


def training_of(recipe: Recipe) -> Training:
    """Make the training of a recipe, for planning and for running.

    Raises:
        ValueError: a phase reads a data source that its family does not have, or uses a network that it does not
            build.
    """
    kind, training = recipe.kind, recipe.training

    def build(device: str) -> dict[str, nn.Module]:
        return networks_used(_built(recipe, device), described.phases)

    def make_grids(networks: Networks, micro_batch: int, pictures: Previews) -> None:
        # The first grid alone, and one or two forwards of it: the other grids take no more memory at a time.
        first = next(iter(kind.snapshots(recipe.networks).values()))
        rows = micro_batch // first.columns + 1
        classes = None if first.classes is None else list(spread(first.classes, first.rows))[:rows]
        request = replace(with_pictures(recipe, first, pictures), micro_batch=micro_batch, classes=classes)
        kind.sample(recipe.networks, networks, request)

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
        # with "auto" the card decides; a plan holds either way, as torch's own operations take no less
        ops=ops_of(kernel_names() if training.kernels == "triton" else ()),
    )
    return described


def parameter_counts(recipe: Recipe, also: Collection[str] = ()) -> dict[str, int]:
    """Number of parameters of each network that training uses, and of other networks of the family.

    Args:
        also: names of the other networks.
    """
    built = training_of(recipe).build("meta")
    if missing := {*also} - built.keys():
        others = recipe.kind.build(recipe.networks, "meta")
        built |= {name: network for name, network in others.items() if name in missing}
    return {name: sum(p.numel() for p in network.parameters()) for name, network in built.items()}


def frozen_layers(recipe: Recipe) -> list[str]:
    """Return "network.parameter" of what training leaves alone, so that it must come from other weights."""
    return frozen_parameters(training_of(recipe).build("meta"))


def frozen_parameters(networks: Mapping[str, nn.Module]) -> list[str]:
    """Return "network.parameter" of what needs no gradient."""
    return [
        f"{name}.{key}"
        for name, network in networks.items()
        for key, parameter in network.named_parameters()
        if not parameter.requires_grad
    ]


FP32_BYTES = 4
LEAST_COPIES = 2
"""Numbers in a checkpoint for each parameter, at least: itself, and one statistic of the thriftiest optimizer."""
EVENTS_BYTES = 1 << 16
"""Room for all that is written before the first checkpoint."""


def refuse_too_large(recipe: Recipe) -> None:
    """Refuse, before anything is read, a recipe that would make the system kill the process.

    Raises:
        BadInput: the networks, or the pictures of one batch, take more memory than a process here may.
    """
    available = host_bytes()
    if available is None:
        return
    samples = [need.sample_bytes for need in recipe.sources.values()]
    batch = recipe.training.batch
    if (pictures := batch * max(samples, default=0)) > available:
        raise BadInput(
            f"training.batch = {batch:,}: the pictures of one batch take {show_size(pictures, 1)}, and there are "
            f"{show_size(available, 1)} of memory here; choose a smaller batch"
        )
    parameters = sum(parameter_counts(recipe).values())
    if parameters * FP32_BYTES > available:
        raise BadInput(
            f"networks of {parameters:,} parameters take {show_size(parameters * FP32_BYTES, 1)} as they are built, "
            f"and there are {show_size(available, 1)} of memory here; choose narrower ones (frugan plan says what fits)"
        )


def refuse_full_disk(recipe: Recipe, run: Path) -> None:
    """Refuse to begin a run whose disk has no room for one checkpoint.

    Args:
        recipe: recipe of the run.
        run: folder of the run, which need not exist.

    Raises:
        BadInput: it has not.
    """
    needed = sum(parameter_counts(recipe).values()) * FP32_BYTES * LEAST_COPIES + EVENTS_BYTES
    refuse_lack_of_room(run, needed, "its first checkpoint", "choose another --out")


def _stages(recipe: Recipe) -> tuple[Stage, ...]:
    begins = [0, *recipe.stage_steps()]
    length = recipe.training.duration.known_steps(recipe.training.batch)
    # Where the end is unknown, the last stage counts as much as all before it.
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
    """Refuse phases that read an unknown source: a family may be other people's code."""
    sources = recipe.sources
    for phase in phases:
        for name in phase.sources:
            if name not in sources:
                raise ValueError(
                    f"family {recipe.family}: phase {phase.name} reads the source {name!r}; its `sources` names "
                    f"{', '.join(sources) or 'none'}"
                )
