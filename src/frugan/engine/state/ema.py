"""Exponential moving average of networks, from which samples are drawn, and its schedules."""

import copy
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor, nn

from frugan.accelerator.base import Event, Stream
from frugan.accelerator.choice import accelerator_of
from frugan.accelerator.host_memory import copy_on_side_stream, host_likes
from frugan.contract.family import BufferRule
from frugan.contract.layers import copy_where, flat
from frugan.contract.settings import ADDED, CHANGEABLE, Settings, setting
from frugan.engine.durations import Duration, Interval

LARGE_ELEMENTS = 1 << 17
"""Tensors of this size or more are averaged one by one; smaller ones together, as one flat copy."""


def ema_lerp(averages: Sequence[Tensor], values: Sequence[Tensor], weight: Tensor) -> None:
    """Move averages towards values: averages += weight * (values - averages), and at weight 1 to exactly the values.

    Args:
        averages, values: floating point; the values must be finite, since they are multiplied even at weight 0.
        weight: scalar beside the averages, from 0 to 1.
    """
    alike: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for average, value in zip(averages, values, strict=True):
        pairs = alike.setdefault(average.dtype, ([], []))
        pairs[0].append(average)
        pairs[1].append(value.to(average.dtype))
    for dtype, (old, new) in alike.items():
        weight_here = weight.to(dtype)
        small = list[tuple[Tensor, Tensor]]()
        for average, value in zip(old, new, strict=True):
            if average.numel() < LARGE_ELEMENTS:
                small.append((average, value))
            else:
                average.lerp_(value, weight_here)
        if small:
            averaged = [average for average, _ in small]
            copy_where(None, averaged, flat(averaged).lerp_(flat([value for _, value in small]), weight_here))


def copy_accepted(targets: Sequence[Tensor], values: Sequence[Tensor], accepted: Tensor) -> None:
    """Copy values of any dtype where accepted."""
    alike: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for target, value in zip(targets, values, strict=True):
        pairs = alike.setdefault(target.dtype, ([], []))
        pairs[0].append(target)
        pairs[1].append(value.to(target.dtype))
    for old, new in alike.values():
        copy_where(accepted, old, flat(new))


RAMP = Duration.parse("2k steps")
SLOW_SHARE = 0.2
"""Share of a run's steps beyond which an average is slow: it ends as a blur of networks long gone."""


class EmaSettings(Settings):
    """How the average follows the networks, once per step.

    Sources of the three schedules: constant, BigGAN's release; ramp, decay·(1-exp(-n/2000)) as ultralytics/yolov3 made
    it known; half-life in images, Karras et al. 2018 (arXiv 1710.10196).
    """

    schedule: Literal["constant", "ramp", "half-life"] = setting(
        "constant", "how the decay of the averaged weights changes during training"
    )
    decay: float = setting(
        0.9999, "constant and ramp: the decay; averages over about 1 / (1 - decay) steps", CHANGEABLE, ge=0, lt=1
    )
    half_life_images: float | None = setting(
        None, "half-life: images after which a weight counts half; 0: the average is a copy", CHANGEABLE, ge=0
    )
    final_half_life_images: float | None = setting(
        None,
        "half-life: the same at the end of training.burn_in; none: it stays the same. R3GAN goes from 0 to 500000",
        CHANGEABLE | ADDED,
        gt=0,
    )
    ramp: Interval = setting(RAMP, "ramp: time until the decay has reached 63% of its value", CHANGEABLE | ADDED)
    half_life_share: float | None = setting(
        None,
        "half-life: at most this share of the images seen so far; none: no such limit. StyleGAN2: 0.05",
        CHANGEABLE | ADDED,
        gt=0,
    )
    run_share: float | None = setting(
        None,
        "the average reaches back over at most this share of the training's steps, however fast or slow the rest says; "
        "none: no such limit",
        CHANGEABLE | ADDED,
        gt=0,
        le=1,
    )
    start: Duration = setting(
        Duration.parse("0 steps"), "averaging begins after this time; until then the average is a copy of the weights"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.schedule == "half-life") != (self.half_life_images is not None):
            raise ValueError("half_life_images goes with schedule = 'half-life', and only with it")
        if self.final_half_life_images is not None and self.schedule != "half-life":
            raise ValueError("final_half_life_images goes with schedule = 'half-life', and only with it")
        if self.half_life_images == 0 and self.final_half_life_images is None:
            raise ValueError("half_life_images 0: averages nothing; expected more, or final_half_life_images as well")
        if self.half_life_share is not None and self.schedule != "half-life":
            raise ValueError("half_life_share goes with schedule = 'half-life', and only with it")
        if self.schedule != "ramp" and self.ramp != RAMP:
            raise ValueError("ramp goes with schedule = 'ramp', and only with it")
        for name, duration in {"start": self.start, "ramp": self.ramp}.items():
            if duration.unit == "seconds":
                raise ValueError(f"{name} = {duration}: expected steps or images")
        return self

    def decay_at(self, step: int, batch: int, course: float = 0.0, steps: int | None = None) -> float:
        """Decay of the update that ends step number `step`, counted from 1 there as the originals do.

        Args:
            course: how far the half-life is on its way to the final one, from 0 to 1.
            steps: of the whole training; None: unknown, and `run_share` limits nothing.
        """
        if step < self.start.steps(batch):
            return 0.0
        longest = 1.0 if self.run_share is None or steps is None else max(0.0, 1 - 1 / (self.run_share * steps))
        return min(longest, self._decay_at(step, batch, course))

    def _decay_at(self, step: int, batch: int, course: float) -> float:
        """Return the decay by the schedule alone."""
        if self.schedule == "ramp":
            return self.decay * (1 - math.exp(-step / self.ramp.steps(batch)))
        if self.half_life_images is not None:
            images = self.half_life_images
            if self.final_half_life_images is not None:
                images += (self.final_half_life_images - images) * min(1.0, course)
            if self.half_life_share is not None:
                images = min(images, self.half_life_share * (step - 1) * batch)
            return float(0.5 ** (batch / images)) if images else 0.0
        return self.decay

    def slow_over(self, steps: int, batch: int, course: float) -> float | None:
        """Return over how many steps the average reaches back at the end of a run, if too many; None: it is fine.

        Args:
            course: as for `decay_at`.
        """
        forgotten = max(1 - self.decay_at(steps, batch, course, steps), sys.float_info.epsilon)  # so long that none is
        over = round(1 / forgotten, 3)
        return over if over > SLOW_SHARE * steps else None


@dataclass(frozen=True)
class _Coming:
    """Weights being copied to the host, to be averaged there."""

    names: tuple[str, ...]  # names of the networks
    decay: float
    arrived: Event


class Ema:
    """Averages of networks.

    Averages in host memory follow a card's networks one step behind: the weights of one step are averaged at the end of
    the next one, which the card computes meanwhile. `networks` finishes the pending average first.

    Args:
        networks: sources; the average starts as a copy.
        rules: network -> what to do with its floating-point buffers. Networks not named are not averaged.
        settings: schedule.
        on_host: keep the average in host memory (a copy to the host each step, nothing on the device).
    """

    def __init__(
        self,
        networks: Mapping[str, nn.Module],
        rules: Mapping[str, BufferRule],
        settings: EmaSettings,
        *,
        on_host: bool,
    ) -> None:
        self.settings = settings
        self.rules = dict(rules)
        self.on_host = on_host
        self._sources = {name: networks[name] for name in rules}
        self._averages = {name: _copied(network) for name, network in self._sources.items()}
        self._coming: _Coming | None = None
        self._side: Stream | None = None  # copies weights to the host
        self.landings: dict[str, dict[str, Tensor]] = {}
        """Network -> host memory that receives a card's weights; "" receives the verdict."""
        self._copied = {name: _copied_buffers(network, rules[name]) for name, network in self._sources.items()}
        if on_host:
            self.move(on_host=True)

    @property
    def networks(self) -> dict[str, nn.Module]:
        """The averages; waits for pending weights first."""
        self._finish()
        return self._averages

    def move(self, *, on_host: bool) -> None:
        """Take the averages to host memory, or back beside their networks."""
        self.on_host = on_host
        averages = self.networks
        self.landings.clear()
        for name, network in averages.items():
            source = self._sources[name]
            device = next(source.parameters()).device
            _to(network, torch.device("cpu") if on_host else device)
            if on_host and device.type != "cpu":
                values = {"": torch.empty((), dtype=torch.bool, device=device), **_distinct(source)}
                buffers = host_likes(list(values.values()), "what the average takes over")
                self.landings[name] = dict(zip(values, buffers, strict=True))

    @torch.no_grad()
    def update(
        self, step: int, batch: int, moved: Mapping[str, Tensor], course: float = 0.0, steps: int | None = None
    ) -> None:
        """Follow the networks at the end of a step.

        Args:
            step: steps done, this one included.
            batch: images per step.
            moved: network -> whether any of its updates was accepted (bool scalar); where not, the average stays too.
            course, steps: see `EmaSettings.decay_at`.
        """
        self._finish()
        decay = self.settings.decay_at(step, batch, course, steps)
        names = tuple(name for name in self._sources if name in moved)
        if self.landings and names:
            self._coming = _Coming(names, decay, self._sent(names, moved))
            return
        for name in names:
            self._follow(name, decay, moved[name], _distinct(self._sources[name]))

    def let_weights_move(self) -> None:
        """Make work queued from now on wait until pending weights have left for the host."""
        if self._coming is not None:
            device = next(self._sources[self._coming.names[0]].parameters()).device
            accelerator_of(device).current_stream.wait_event(self._coming.arrived)

    def _sent(self, names: Sequence[str], moved: Mapping[str, Tensor]) -> Event:
        """Start copying weights to the host, beside later work of the card; return an event after the copy."""
        into, values = list[Tensor](), list[Tensor]()
        for name in names:
            landing, source = self.landings[name], _distinct(self._sources[name])
            landing[""].copy_(moved[name], non_blocking=True)  # at once: nobody keeps it
            into += [landing[key] for key in source]
            values += source.values()
        device = values[0].device
        self._side = self._side or accelerator_of(device).side_stream()
        return copy_on_side_stream(self._side, device, into, values)

    @torch.no_grad()
    def _finish(self) -> None:
        """Average pending weights; the host waits for their copy, which a step later is usually done."""
        coming, self._coming = self._coming, None
        if coming is None:
            return
        coming.arrived.synchronize()
        for name in coming.names:
            landing = self.landings[name]
            self._follow(name, coming.decay, landing[""], {key: landing[key] for key in landing if key})

    def _follow(self, name: str, decay: float, accepted: Tensor, values: Mapping[str, Tensor]) -> None:
        """Move one network's average towards values, if they were accepted."""
        averages = _distinct(self._averages[name])
        copied = [key for key in values if key in self._copied[name]]
        followed = [key for key in values if key not in self._copied[name]]
        copy_accepted([averages[key] for key in copied], [values[key] for key in copied], accepted)
        weight = torch.where(accepted, torch.full((), 1 - decay, dtype=torch.float64, device=accepted.device), 0.0)
        ema_lerp([averages[key] for key in followed], [values[key] for key in followed], weight)


def _copied(network: nn.Module) -> nn.Module:
    """Copy a network, to follow it; torch's own copy asks for addresses, which tensors without data have not."""
    copies: dict[int, object] = {id(buffer): buffer.clone() for buffer in network.buffers()}
    copies |= {id(p): nn.Parameter(p.detach().clone(), requires_grad=False) for p in network.parameters()}
    return copy.deepcopy(network, copies)


def _distinct(network: nn.Module) -> dict[str, Tensor]:
    """Return a network's state by name, each tensor once: a tied weight has several names and is averaged by one."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in network.state_dict(keep_vars=True).items():
        found.setdefault(id(tensor), (name, tensor.detach()))
    return dict(found.values())


def _to(network: nn.Module, device: torch.device) -> None:
    """Move a network, if it is not there already: torch refuses to on tensors without data, even then."""
    if any(tensor.device != device for tensor in (*network.parameters(), *network.buffers())):
        network.to(device)


def _copied_buffers(network: nn.Module, rule: BufferRule) -> set[str]:
    return {key for key, b in network.named_buffers() if rule == "copy" or not b.is_floating_point()}
