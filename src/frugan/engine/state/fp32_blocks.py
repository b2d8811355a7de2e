"""Named blocks that compute in fp32 while the networks around them run in half precision.

They are marked once, when networks are built: their working weights then stay fp32 wherever they are made. While a
network runs on working weights in half precision, what such a block is given is cast to fp32, and what it gives is cast
back. That is inside of recompute, which so keeps a block's inputs as they come, in half precision.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from frugan.contract.layers import keeps_fp32
from frugan.wording import nearest

HALF = (torch.float16, torch.bfloat16)
_MARK = "computes_in_fp32"


def named_blocks(names: Iterable[str], blocks: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Network -> those of its blocks that are named.

    Args:
        names: "G.blocks.3.0", or "G.blocks.3" for all blocks below it.
        blocks: network -> its blocks, as a family's `recomputable` gives them.

    Raises:
        ValueError: no block has one of the names.
    """
    known = {f"{network}.{block}": (network, block) for network in blocks for block in blocks[network]}
    wanted: set[str] = set()
    for name in names:
        found = {block for block in known if block == name or block.startswith(f"{name}.")}
        if not found:
            listed = f"; the blocks are {', '.join(known)}" if known else "; these networks have no blocks"
            # The beginnings of names come first: of two that are as near, the shorter one is what was meant.
            parts = [block.split(".") for block in known]
            valid = sorted({".".join(words[:n]) for words in parts for n in range(1, len(words) + 1)}, key=len)
            raise ValueError(f"training.fp32_blocks: {name}: no such block{nearest(name, valid)}{listed}")
        wanted |= found
    chosen: dict[str, tuple[str, ...]] = {}
    for full, (network, block) in known.items():
        if full in wanted:
            chosen[network] = (*chosen.get(network, ()), block)
    return chosen


def keep_in_fp32(networks: Mapping[str, nn.Module], blocks: Mapping[str, Sequence[str]]) -> None:
    """Mark blocks (network -> names), of the networks that are present.

    Those that compute in fp32 by themselves stay as they are.
    """
    for network in blocks.keys() & networks.keys():
        for name in blocks[network]:
            block = networks[network].get_submodule(name)
            layers = {module: [key for key, _ in module.named_parameters(recurse=False)] for module in block.modules()}
            # Copies and saved files have no need of it: a plain attribute, no buffer.
            if any(set(keys) - keeps_fp32(module) for module, keys in layers.items()):
                block.__dict__[_MARK] = True
            for module, keys in layers.items():
                if keys:
                    module.__dict__["fp32_parameters"] = tuple(keys)


def marked(network: nn.Module) -> list[nn.Module]:
    """Blocks of a network that are kept in fp32 by the recipe."""
    return [module for module in network.modules() if _MARK in module.__dict__]


@dataclass(frozen=True)
class _InFp32:
    """The forward of a block that computes in fp32 within a network in half precision."""

    forward: Callable[..., Any]  # the block's original forward
    dtype: torch.dtype  # data type of the layers around it

    def __call__(self, *args: Any) -> Any:
        result = self.forward(*map(_wide, args))
        # Of several results only the first goes on to layers in half precision: others (StyleGAN2's picture, summed up
        # over all resolutions) are fp32 in every precision.
        if isinstance(result, tuple):
            return (self._narrow(result[0]), *result[1:])
        return self._narrow(result)

    def _narrow(self, value: Any) -> Any:
        return value.to(self.dtype) if isinstance(value, Tensor) and value.dtype == torch.float32 else value


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in HALF else value


def enter_fp32(network: nn.Module, dtype: torch.dtype) -> list[Callable[[], None]]:
    """Let marked blocks cast what they are given and what they give, where working weights are half.

    Args:
        dtype: of the working weights of all other layers.

    Returns:
        What undoes it, to be called in this order.
    """
    if dtype not in HALF:
        return []
    undo: list[Callable[[], None]] = []
    for block in marked(network):
        previous = block.__dict__.get("forward")
        block.__dict__["forward"] = _InFp32(previous or partial(type(block).forward, block), dtype)
        undo.append(partial(_put_back, block, previous))
    return undo


def _put_back(block: nn.Module, forward: Callable[..., Any] | None) -> None:
    if forward is None:
        del block.__dict__["forward"]
    else:
        block.__dict__["forward"] = forward
