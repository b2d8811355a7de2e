"""Error of each block's output in half precision against fp32, for the same weights and inputs."""

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from frugan.accelerator.precision import DTYPES, Precision
from frugan.engine.plan import Plan
from frugan.engine.run.checkpoint import newest_whole, restore
from frugan.engine.run.run_folder import RunFolder
from frugan.engine.state.fp32_blocks import marked
from frugan.engine.streams import Streams
from frugan.recipe.recipe import Recipe
from frugan.setup.recipe_setup import training_of
from frugan.setup.run_data_sources import feeding


@dataclass(frozen=True)
class BlockError:
    """Relative error of one block's output in half precision."""

    block: str  # as `training.fp32_blocks` names it
    relative: float  # size of the difference beside fp32's output; infinite where half precision gives inf or NaN


def block_errors(
    recipe: Recipe, sources: Mapping[str, Any], run: RunFolder, half: str, device: torch.device
) -> list[BlockError]:
    """Compare every block that could be kept in fp32 and is not, the largest error first.

    Two steps go on from the run's newest checkpoint, in fp32 and in half precision. In the second each block is given
    what it was given in the first, so that it adds nothing but its own error. Its first call in the step counts, for
    the most part before any weight has moved.

    Args:
        sources: opened data by source name.
        run: that was trained; its plan is used.
        half: "fp16" or "bf16".
    """
    newest = newest_whole(run.checkpoints)
    training = training_of(recipe)
    if newest is None:
        return []
    calls = _Calls()
    for name in ("fp32", half):
        precision = Precision(name, DTYPES[name], "compared")  # type: ignore[arg-type]
        plan = replace(Plan.from_json(newest[1]["plan"], precision), shard_optimizer=False)
        state = training.state(plan, device)
        restore(newest[0], newest[1], state)
        stage = training.stage_at(state.step)
        with feeding(sources, recipe, device, workers=0) as feed, ExitStack() as hooks:
            for network, blocks in training.recomputable(state.networks).items():
                fp32_modules = set(marked(state.networks[network]))
                for block in blocks:
                    module = state.networks[network].get_submodule(block)
                    if module not in fp32_modules:
                        calls.follow(hooks, f"{network}.{block}", module, first=name == "fp32")
            training.step(feed, Streams(recipe.training.seed), stage=stage).run(state, plan)
    errors = [BlockError(block, error) for block, error in calls.errors.items()]
    return sorted(errors, key=lambda error: -error.relative)


@dataclass
class _Calls:
    """Inputs and outputs of blocks in fp32, kept on the host, and the errors of half precision against them."""

    inputs: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)

    def follow(self, hooks: ExitStack, name: str, block: nn.Module, *, first: bool) -> None:
        """Register hooks on a block's first call.

        Args:
            hooks: removes them on exit.
            first: this is the step in fp32.
        """

        def record_input(_: nn.Module, args: tuple[Any, ...]) -> None:
            if name not in self.inputs:
                self.inputs[name] = tuple(a.detach().cpu() if isinstance(a, Tensor) else a for a in args)

        def record_output(_: nn.Module, __: object, output: Any) -> None:
            if name not in self.outputs:
                self.outputs[name] = _first(output)

        def give(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
            if name in self.errors or name not in self.inputs:
                return None
            return tuple(_as(a, kept) for a, kept in zip(args, self.inputs[name], strict=True))

        def compare(_: nn.Module, __: object, output: Any) -> None:
            if name not in self.errors and name in self.outputs:
                self.errors[name] = relative_error(_first(output), self.outputs.pop(name))

        before, after = (record_input, record_output) if first else (give, compare)
        hooks.callback(block.register_forward_pre_hook(before).remove)
        hooks.callback(block.register_forward_hook(after).remove)


def _first(outputs: Any) -> Tensor:
    """Return a block's output, or the first of several, on the host."""
    output = outputs[0] if isinstance(outputs, tuple) else outputs
    return torch.as_tensor(output).detach().cpu()


def _as(value: Any, kept: Any) -> Any:
    """Return a recorded fp32 input with the dtype and device of the present one."""
    if not isinstance(value, Tensor) or not isinstance(kept, Tensor) or not value.is_floating_point():
        return value
    there = kept.to(value.device, value.dtype)
    return there.requires_grad_() if value.requires_grad else there


def relative_error(value: Tensor, right: Tensor) -> float:
    """|value - right| / |right|, both as vectors; infinite where a value is not finite.

    Args:
        value, right: of one shape, any floating dtype.
    """
    apart, size = (float(torch.linalg.vector_norm(v)) for v in (value.double() - right.double(), right.double()))
    if apart == 0:
        return 0.0
    return apart / size if math.isfinite(apart) and size > 0 else math.inf
