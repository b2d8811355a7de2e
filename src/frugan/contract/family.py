"""What a family is to commands, planner and engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor, nn

from frugan.contract.phase import Networks, Phase
from frugan.contract.samples import SheetRequest

if TYPE_CHECKING:
    from pydantic import BaseModel

    from frugan.contract.data import Needs

BufferRule = Literal["average", "copy"]
"""What EMA does with a network's floating-point buffers; integer buffers are always copied."""


Dimension = Literal["resolution", "width"]
"""Ways in which a family's networks may be made smaller or larger."""


class Family(Protocol):
    """A kind of model with its training objective."""

    @property
    def name(self) -> str:
        """As recipes give it."""

    @property
    def networks_type(self) -> type[BaseModel]:
        """Type of a recipe's `networks` section."""

    @property
    def objective_type(self) -> type[BaseModel]:
        """Type of a recipe's `objective` section."""

    def build(self, networks: Any, device: torch.device | str = "cpu") -> dict[str, nn.Module]:
        """Every network that any phase may use, by name, fp32, uninitialised beyond torch's defaults; `device` may be
        "meta"."""

    def initialise(self, networks: Any, built: Networks, seed: Callable[[str], int]) -> None:
        """Give the networks their first weights; `seed(name)` is the seed of a named random stream."""

    def phases(self, networks: Any, objective: Any) -> tuple[Phase, ...]:
        """Phases in the order in which a step runs them."""

    @property
    def optimizers(self) -> tuple[str, ...]:
        """Names of the optimizers that its phases may use."""

    @property
    def optimizer_types(self) -> Mapping[str, type[BaseModel]]:
        """Settings types of optimizers of its own, by the word that recipes have for them; few families have any."""

    def sources(self, networks: Any, objective: Any) -> Mapping[str, Needs]:
        """Data sources by name."""

    def recomputable(self, built: Networks) -> dict[str, tuple[str, ...]]:
        """Network -> names of the blocks that may be recomputed, in the order in which they run."""

    def forwards(self, networks: Any) -> Mapping[str, Callable[[nn.Module, int], object]]:
        """Network -> (network, samples) -> one forward on inputs that it makes itself, for counting and timing."""

    def averaged(self) -> Mapping[str, BufferRule]:
        """Networks that EMA follows, with its rule for their floating-point buffers. None: training averages nothing,
        and sheets show the networks themselves."""

    def sample(self, networks: Any, built: Networks, request: SheetRequest) -> Tensor:
        """A sheet as a tensor [rows, columns, C, H, W] in [-1, 1], fp32, from prepared networks."""

    def snapshots(self, networks: Any) -> Mapping[str, SheetRequest]:
        """The sheets written at every snapshot, by name."""

    def fresh_after(self, before: Any, now: Any) -> tuple[str, ...]:
        """Networks that start anew when training goes on with objective `now` from weights of objective `before`
        (a bottleneck after pretraining). If there are any, the optimizer state of the others is taken over too."""

    def variants(self, networks: Any) -> Mapping[Dimension, Sequence[Mapping[str, Any]]]:
        """Relatives of these networks for a planner: fields to set instead, smallest first; these are among them."""

    def tiny(self) -> tuple[Any, Any]:
        """(networks, objective) small enough for the contract tests."""
