"""frugan's running average of weights in a training loop of one's own: a hook of torch's optimizers."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from frugan.contract.family import BufferRule
from frugan.engine.state.ema import Ema, EmaSettings
from frugan.errors import BadInput, checked

ONLY = "network"
"""Name of a network that was given without one."""


class EmaHook:
    """Averages networks: each `optimizer.step()` is followed by an update of the averages, wherever it is called.

    An update that a gradient scaler skips moves nothing, also where the optimizer skips it by itself (fused ones), and
    nothing waits for the device. Gradient accumulation needs no care: there is one step, so there is one update.

    Args:
        optimizer: that moves the networks; its steps are counted from 1 on, skipped ones included.
        networks: what is averaged: one, or several by name. Wrappers for several processes and for compilation are
            looked through.
        settings: how; None: a decay of 0.9999.
        batch: images per step over all processes; needed where the settings count images.
        buffers: floating-point buffers (running statistics) are copied, or averaged as well.
        on_host: keep the averages in host memory: nothing on the card, and a copy to the host in each step.
        attributes: names of plain attributes that are carried along in each step, such as "alpha" or "blocks.0.alpha";
            a network that has not one of them goes without.

    Attributes:
        networks: the averages, by name; copies of the networks in eval mode, to draw samples with and to save.
        steps: of the optimizer so far.

    Raises:
        BadInput: the optimizer moves no parameter of a network, parameters are not fp32 or float64, or the settings
            count images and no batch is given.

    Example:
        >>> hook = frugan.EmaHook(optimizer, {"G": generator}, frugan.EmaSettings(decay=0.999))
        >>> ...  # train as ever
        >>> pictures = hook.networks["G"](latents)
    """

    @checked
    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        networks: nn.Module | Mapping[str, nn.Module],
        settings: EmaSettings | None = None,
        *,
        batch: int | None = None,
        buffers: BufferRule = "copy",
        on_host: bool = False,
        attributes: Sequence[str] = (),
    ) -> None:
        named = {ONLY: networks} if isinstance(networks, nn.Module) else dict(networks)
        sources = {name: _inner(network) for name, network in named.items()}
        settings = settings or EmaSettings()
        _check(optimizer, sources)
        if settings.final_half_life_images is not None:
            raise BadInput(
                f"EmaHook: final_half_life_images {settings.final_half_life_images:g}: is reached at the end of a "
                "recipe's burn-in, of which a hook knows nothing; expected none (half_life_share lets one grow too)"
            )
        if batch is None and _counts_images(settings):
            raise BadInput(
                "EmaHook: these settings count images: give batch, the images of one step over all processes"
            )
        if batch is not None and batch < 1:
            raise BadInput(f"EmaHook: batch {batch}: expected at least 1")
        self._attributes = [
            (name, *place.rpartition(".")[::2]) for place in attributes for name in _networks_with(place, sources)
        ]
        self.steps = 0
        self._sources = sources
        self._batch = batch or 1
        self._ema = Ema(sources, dict.fromkeys(sources, buffers), settings, on_host=on_host)
        self._averages = self._ema.networks  # to set attributes of, whatever is on its way to their weights
        for average in self._averages.values():
            average.eval()  # normalises by running statistics, and does not move them
        self._accepted = {name: _accepted_flag(network) for name, network in sources.items()}
        self._handle = optimizer.register_step_post_hook(self._after_step)

    @property
    def on_host(self) -> bool:
        """Whether the averages are kept in host memory."""
        return self._ema.on_host

    @property
    def networks(self) -> dict[str, nn.Module]:
        """The averages, by name."""
        return self._ema.networks

    def remove(self) -> None:
        """Let the optimizer go on without; the averages stay as they are."""
        self._handle.remove()

    def state_dict(self) -> dict[str, Any]:
        """Return the step count and the averages, for a checkpoint."""
        return {
            "steps": self.steps,
            "networks": {name: average.state_dict() for name, average in self.networks.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint.

        Raises:
            BadInput: it is of other networks.
        """
        if state.get("networks", {}).keys() != self.networks.keys():
            names = ", ".join(state.get("networks", {})) or "none"
            raise BadInput(f"EmaHook: the state has averages of {names}; expected {', '.join(self.networks)}")
        for name, network in self.networks.items():
            try:
                network.load_state_dict(state["networks"][name])
            except RuntimeError as error:
                raise BadInput(f"EmaHook: the state of {name} is of another network: {error}") from error
        self.steps = int(state["steps"])

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self.steps += 1
        # A gradient scaler gives fused optimizers its verdict, and calls others only where it is good.
        found_inf: Tensor | None = getattr(optimizer, "found_inf", None)
        moved = self._accepted
        if found_inf is not None:
            moved = {name: (found_inf == 0).to(yes.device, non_blocking=True) for name, yes in moved.items()}
        self._ema.update(self.steps, self._batch, moved)
        self._ema.let_weights_move()  # the next forward moves running statistics already
        for name, owner, attribute in self._attributes:
            value = getattr(self._sources[name].get_submodule(owner), attribute)
            setattr(self._averages[name].get_submodule(owner), attribute, _copy_value(value))


def _check(optimizer: torch.optim.Optimizer, networks: Mapping[str, nn.Module]) -> None:
    if not networks:
        raise BadInput("EmaHook: no network was given; expected one, or several by name")
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for name, network in networks.items():
        parameters = list(network.parameters())
        if not any(id(parameter) in held for parameter in parameters):
            raise BadInput(f"EmaHook: the optimizer moves no parameter of {name}; give the optimizer that does")
        for parameter in parameters:
            if parameter.dtype not in (torch.float32, torch.float64):
                raise BadInput(
                    f"EmaHook: {name} has parameters in {parameter.dtype}, in which an average stands still: its steps "
                    "are too small for so few digits. Keep the parameters in fp32 (autocast casts them where they are "
                    "used)"
                )


def _networks_with(place: str, networks: Mapping[str, nn.Module]) -> list[str]:
    """Names of the networks that have an attribute.

    Raises:
        BadInput: none has, or it is a parameter, buffer or module, which the average has of its own.
    """
    owner, _, attribute = place.rpartition(".")
    modules = {name: dict(network.named_modules()).get(owner) for name, network in networks.items()}
    found = [name for name, module in modules.items() if module is not None and attribute in vars(module)]
    if not found:
        raise BadInput(
            f"EmaHook: attribute {place!r}: {', '.join(networks)} has no plain attribute of this name; parameters and "
            "buffers are averaged or copied by themselves"
        )
    return found


def _copy_value(value: Any) -> Any:
    """Copy an attribute's value, so that later changes in the network do not reach it."""
    return value.detach().clone() if isinstance(value, Tensor) else copy.copy(value)


def _inner(network: nn.Module) -> nn.Module:
    """Unwrap a network from DistributedDataParallel and torch.compile."""
    if isinstance(network, DistributedDataParallel):
        return _inner(network.module)
    compiled = getattr(network, "_orig_mod", None)
    return _inner(compiled) if isinstance(compiled, nn.Module) else network


def _counts_images(settings: EmaSettings) -> bool:
    durations = [settings.start, *([settings.ramp] if settings.schedule == "ramp" else [])]
    return settings.half_life_images is not None or any(duration.unit == "images" for duration in durations)


def _accepted_flag(network: nn.Module) -> Tensor:
    """Return a scalar True on the device of the network's parameters: the update is accepted."""
    return torch.ones((), dtype=torch.bool, device=next(network.parameters()).device)
