"""A plan: how a recipe is run on one device. It changes cost, never the result beyond rounding."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from frugan.accelerator.choice import accelerator_of
from frugan.accelerator.precision import Precision
from frugan.errors import BadInput


@dataclass(frozen=True)
class Layout:
    """Data type and memory format of working weights."""

    dtype: torch.dtype = torch.float32  # compute dtype of everything but the parameters that a layer keeps in fp32
    channels_last: bool = False  # 4-dimensional weights in channels-last order; activations follow them

    def place(self, weight: Tensor, *, fp32: bool) -> Tensor:
        """Cast and lay out one weight; the same tensor if nothing changes."""
        room = self.room(weight, fp32=fp32)
        return weight if room is None else room.copy_(weight)

    def dtype_of(self, weight: Tensor, *, fp32: bool) -> torch.dtype:
        """Return the dtype of a working weight."""
        # A float64 network (made by tests to measure rounding) stays float64.
        if weight.dtype == torch.float64:
            return weight.dtype
        return torch.float32 if fp32 else self.dtype

    def of_matrix(self, matrix: Tensor, weight: Tensor) -> Tensor:
        """A view of [O, I] that stands for a weight [O, I] or [O, I, 1, 1]; of a whole weight, all of it."""
        if matrix.shape == weight.shape:
            return matrix.detach()
        if weight.ndim == 4 and self.channels_last:
            return matrix.detach()[:, None, None].permute(0, 3, 1, 2)
        return matrix.detach().view(weight.shape)

    def room(self, weight: Tensor, *, fp32: bool) -> Tensor | None:
        """Memory for a working weight, not filled; None if it has the weight's own dtype and layout.

        Args:
            fp32: it stays so in every precision.
        """
        dtype = self.dtype_of(weight, fp32=fp32)
        last = self.channels_last and weight.ndim == 4
        order = torch.channels_last if last else torch.preserve_format
        if weight.dtype == dtype and (not last or weight.is_contiguous(memory_format=order)):
            return None
        return torch.empty_like(weight, dtype=dtype, memory_format=order)


@dataclass(frozen=True)
class Plan:
    """Fit of a training to a device: micro-batch, precision and memory savings."""

    micro_batch: int  # samples in one forward; a multiple of the recipe's normalisation batch, at most the batch
    precision: Precision  # precision of the working weights
    recompute: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # network -> blocks that are recomputed
    # what recomputed blocks keep: the results of convolutions and matrix products, so that only the cheap rest is made
    # again (False: nothing but what they are given)
    keep_products: bool = False
    offload: bool = False  # inputs of recomputed blocks are kept in host memory until they are needed again
    bring_ahead: bool = False  # and comes back while backward is at the block after it: faster, one block's inputs more
    # network -> dense layers whose weights are cast slice by slice when they are used
    in_slices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    parts_in_sequence: bool = True  # backward after each part of a phase (less memory) rather than after all
    ema_on_host: bool = False  # the average lives in host memory
    # so does the optimizers' state, and comes over for each update parameter by parameter
    optimizer_on_host: bool = False
    shard_optimizer: bool = False  # each rank has the optimizers' state of its slices of the parameters alone

    def layout(self, device: torch.device) -> Layout:
        """Layout of working weights: channels-last but for fp32 on CUDA, where NCHW is the faster one."""
        dtype = self.precision.dtype
        return Layout(dtype, dtype != torch.float32 or accelerator_of(device).fp32_channels_last)

    def as_json(self) -> dict[str, Any]:
        """Return the plan as JSON values, for checkpoints and programs."""
        return {
            "micro_batch": self.micro_batch,
            "precision": self.precision.name,
            "recompute": {network: list(blocks) for network, blocks in self.recompute.items()},
            "keep_products": self.keep_products,
            "offload": self.offload,
            "bring_ahead": self.bring_ahead,
            "in_slices": {network: list(layers) for network, layers in self.in_slices.items()},
            "parts_in_sequence": self.parts_in_sequence,
            "ema_on_host": self.ema_on_host,
            "optimizer_on_host": self.optimizer_on_host,
            "shard_optimizer": self.shard_optimizer,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any], precision: Precision) -> "Plan":
        """Read the output of `as_json`, also of an older frugan, with a precision resolved for this device."""
        return cls(
            micro_batch=int(values["micro_batch"]),
            precision=precision,
            recompute={network: tuple(blocks) for network, blocks in values.get("recompute", {}).items()},
            keep_products=bool(values.get("keep_products", False)),
            offload=bool(values.get("offload", False)),
            bring_ahead=bool(values.get("bring_ahead", False)),
            in_slices={network: tuple(layers) for network, layers in values.get("in_slices", {}).items()},
            parts_in_sequence=bool(values.get("parts_in_sequence", True)),
            ema_on_host=bool(values.get("ema_on_host", False)),
            optimizer_on_host=bool(values.get("optimizer_on_host", False)),
            shard_optimizer=bool(values.get("shard_optimizer", False)),
        )


def check_micro_batch(micro_batch: int, batch: int, group: int) -> None:
    """Refuse a micro-batch that would change the result.

    Args:
        group: samples per normalisation group; 1 where nothing is normalised over samples.

    Raises:
        BadInput: it is not a whole number of groups between one group and the batch.
    """
    if micro_batch < 1 or micro_batch > batch or micro_batch % group:
        choices = f"a multiple of {group} from {group} to {batch}" if group > 1 else f"1 to {batch}"
        choices = choices if batch > group else f"{batch}, the whole batch"
        why = f" (batch {batch}, normalised or compared in groups of {group})" if group > 1 else ""
        smaller = "; a smaller group is a change of the recipe: training.normalisation_batch"
        raise BadInput(
            f"micro-batch {micro_batch}: expected {choices}{why}{smaller if 0 < micro_batch < batch else ''}"
        )


def micro_batch_sizes(samples: int, micro_batch: int) -> list[int]:
    """Sizes of the micro-batches of one update; the last may be smaller."""
    whole, rest = divmod(samples, micro_batch)
    return [micro_batch] * whole + ([rest] if rest else [])
