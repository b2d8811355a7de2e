"""What the contract tests train with: any family, tiny, on pictures made from their position."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from frugan.accelerator.precision import Precision
from frugan.contract.family import Family
from frugan.contract.phase import Phase
from frugan.doctor.trial import MadePictures
from frugan.engine.durations import Duration
from frugan.engine.plan import Plan
from frugan.engine.ranks.ranks import Ranks
from frugan.engine.run.training import Training
from frugan.engine.state.ema import EmaSettings
from frugan.engine.state.fp32_blocks import keep_in_fp32
from frugan.engine.state.optimizer_settings import (
    AdaBeliefSettings,
    AdamSettings,
    OptimizerSettings,
    RMSpropSettings,
    SGDSettings,
)
from frugan.engine.state.state import TrainingState
from frugan.engine.step.step import Step
from frugan.engine.step.update import PhaseResult
from frugan.engine.streams import Streams

FP32 = Precision("fp32", torch.float32, "test")
BF16 = Precision("bf16", torch.bfloat16, "test")
FP16 = Precision("fp16", torch.float16, "test")
CPU = torch.device("cpu")


def adam(rate: float) -> OptimizerSettings:
    """A large eps keeps Adam from turning rounding noise in gradients that are truly zero into whole steps."""
    return AdamSettings(learning_rate=rate, eps=1e-2)


def rmsprop(rate: float) -> OptimizerSettings:
    """With learning-rate dropout and cosine."""
    return RMSpropSettings(learning_rate=rate, eps=1e-2, dropout=0.5, period=7)


def adabelief(rate: float) -> OptimizerSettings:
    """With learning-rate dropout."""
    return AdaBeliefSettings(learning_rate=rate, eps=1e-2, dropout=0.5)


def sgd(rate: float) -> OptimizerSettings:
    """With all that it has."""
    return SGDSettings(learning_rate=rate, weight_decay=1e-2, nesterov=True)


OPTIMIZERS = (adam, rmsprop, adabelief, sgd)


@dataclass
class Rig:
    """A family's training, ready to step."""

    state: TrainingState
    step: Step
    plan: Plan
    phases: tuple[Phase, ...]

    @classmethod
    def create(
        cls,
        family: Family,
        *,
        networks: Any = None,
        objective: Any = None,
        batch: int | None = None,
        micro_batch: int | None = None,
        group: int | None = 4,
        precision: Precision = FP32,
        dtype: torch.dtype = torch.float32,
        fp32_blocks: Mapping[str, Sequence[str]] = MappingProxyType({}),
        recompute: bool = False,
        keep_products: bool = False,
        offload: bool = False,
        bring_ahead: bool = False,
        in_slices: bool = False,
        parts_in_sequence: bool = True,
        ema_on_host: bool = False,
        optimizer_on_host: bool = False,
        shard_optimizer: bool = False,
        ranks: Ranks | None = None,
        ema: EmaSettings | None = None,
        device: torch.device = CPU,
        learning_rate: float = 1e-2,
        optimizers: Callable[[float], OptimizerSettings] = adam,
    ) -> "Rig":
        training = Training.of_family(
            family,
            networks,
            objective,
            settings=optimizers(learning_rate),
            ema=ema or EmaSettings(decay=0.9, start=Duration.parse("0 steps")),
            batch=batch,
            weights_seed=3,
        )
        training = replace(training, normalisation_batch=group)
        built = training.make()
        keep_in_fp32(built, fp32_blocks)
        for network in built.values():
            if (device, dtype) != (CPU, torch.float32):  # under fake tensors `to` raises even if nothing changes
                network.to(device, dtype)
        blocks = family.recomputable(built) if recompute else {}
        plan = Plan(
            micro_batch or training.batch,
            precision,
            blocks,
            keep_products=keep_products,
            offload=offload,
            bring_ahead=bring_ahead,
            in_slices=plain_dense(built) if in_slices else {},
            parts_in_sequence=parts_in_sequence,
            ema_on_host=ema_on_host,
            optimizer_on_host=optimizer_on_host,
            shard_optimizer=shard_optimizer,
        )
        step = training.step(MadePictures(training.stages[0].sources), Streams(7), ranks=ranks)
        return cls(training.state(plan, device, ranks, networks=built), step, plan, training.phases)

    def run(self, steps: int) -> list[list[PhaseResult]]:
        return [self.step.run(self.state, self.plan) for _ in range(steps)]

    def tensors(self) -> dict[str, Tensor]:
        """Everything that training moves."""
        state = self.state
        tensors = {f"{n}.{k}": v for n, m in state.networks.items() for k, v in m.state_dict().items()}
        tensors |= {f"ema.{n}.{k}": v for n, m in state.ema.networks.items() for k, v in m.state_dict().items()}
        tensors |= {f"carried.{name}": value for name, value in state.carried.items()}
        for name, optimizer in state.optimizers.items():
            tensors |= {f"optimizer.{name}.{count}": value for count, value in optimizer.counts.items()}
            for i, parameter in enumerate(optimizer.parameters()):
                slots = optimizer.whole_state(parameter)
                tensors |= {f"optimizer.{name}.{i}.{slot}": v for slot, v in slots.items()}
        return {k: v.clone() for k, v in tensors.items()}


def shows_given(family: Family) -> bool:
    """Whether a family shows what it makes of given samples."""
    return any(need.given for need in family.sources(*family.tiny()).values())


def plain_dense(networks: Mapping[str, nn.Module]) -> dict[str, tuple[str, ...]]:
    """Every plain dense layer, however small."""
    return {
        name: tuple(key for key, module in network.named_modules() if type(module) is nn.Linear)
        for name, network in networks.items()
    }


def largest_difference(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> tuple[float, str]:
    """Largest absolute difference between two sets of tensors of the same names, and where it is."""
    assert a.keys() == b.keys()
    return max((float((a[k].double() - b[k].double()).abs().max()), k) for k in a)


def assert_same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> None:
    """Bit for bit."""
    assert a.keys() == b.keys()
    assert [k for k in a if not torch.equal(a[k], b[k])] == []
