"""Files of the StyleGAN3 program: snapshots of its three configurations are read, state dicts are written.

What a generator is follows from the names and shapes of its layers; numbers that its classes have besides must be the
published ones.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from frugan.errors import BadInput
from frugan.families.stylegan2.family import RULE
from frugan.families.stylegan2.snapshot import (
    GROUP,
    RESUMED_AUGMENTATION,
    RESUMED_SAVING,
    STYLEGAN2,
    Generation,
    StyleGANPickle,
    StyleGANSafetensors,
    channel_limits,
    constructor_arguments,
    discriminator_arguments,
    discriminator_widths,
    mapping_arguments,
    shared_settings,
)
from frugan.families.stylegan2.snapshot_modules import Module, clamp_of, part_of
from frugan.families.stylegan3.config import (
    CRITICAL_LAYERS,
    MARGIN,
    StyleGAN3Networks,
)
from frugan.families.stylegan3.family import BATCH, StyleGAN3Family
from frugan.families.stylegan3.networks import OUTPUT_SCALE
from frugan.wording import shown_value

FIXED = MappingProxyType({"num_critical": CRITICAL_LAYERS, "margin_size": MARGIN, "output_scale": OUTPUT_SCALE})
"""Attributes of the synthesis network that are not built with other values here."""
_LAYER = re.compile(r"L(\d{1,2})_(\d{1,5})_(\d{1,5})")


def network_settings(generator: Module, discriminator: Module | None) -> dict[str, Any]:
    """Values of a recipe's section `networks`.

    Args:
        generator: record of the generator.
        discriminator: record of the discriminator; None: the snapshot has none, and its settings are the defaults.

    Raises:
        BadInput: the networks are not StyleGAN3's, or variants of them that are not built here.
    """
    shared = shared_settings(generator, discriminator)
    synthesis = part_of(generator, "synthesis")
    for name, built in FIXED.items():
        if (value := synthesis.settings.get(name, built)) != built:
            raise BadInput(f"{name} of its generator is {shown_value(value)}; expected {built}, as published")
    layers = _layers(synthesis)
    first, last = part_of(synthesis, layers[0]), part_of(synthesis, layers[-1])
    kernel, radial = (
        _shape(first, "weight", 4)[2],
        "down_filter" in first.arrays and first.arrays["down_filter"].ndim == 2,
    )
    if (kernel, radial) not in ((1, True), (3, False)):
        raise BadInput(
            f"its convolutions have {kernel} taps and its filters are {'radial' if radial else 'separable'}; expected "
            "1 and radial (stylegan3-r), or 3 and separable (stylegan3-t)"
        )
    settings = shared | {
        "equivariance": "rotation" if radial else "translation",
        "layers": len(layers) - 1,
        "half_resolutions": _half_resolutions(synthesis),
        "convolution_clamp": clamp_of(last),
        "magnitude_decay": _decay(last),
    }
    settings |= generator_limits(settings, layers)
    if discriminator is not None:
        base, most = channel_limits(discriminator_widths(discriminator, shared["resolution"]))
        settings |= {"channel_base": base, "channel_max": most}
    return settings


def _layers(synthesis: Module) -> list[str]:
    """Names of the layers, in order.

    Raises:
        BadInput: their numbers are not 0, 1, 2 ...
    """
    numbers = {int(match[1]): name for name in synthesis.modules if (match := _LAYER.fullmatch(name))}
    if len(numbers) <= CRITICAL_LAYERS + 1 or sorted(numbers) != list(range(len(numbers))):
        raise BadInput(
            f"its generator has layers {', '.join(map(str, sorted(numbers))) or 'of none of the known names'}"
        )
    return [numbers[i] for i in range(len(numbers))]


def generator_limits(settings: Mapping[str, Any], layers: list[str]) -> dict[str, int]:
    """Find generator_channel_base and generator_channel_max, with which layers have the names that they have.

    Raises:
        BadInput: there are no such numbers.
    """
    widths = [int(name.rpartition("_")[2]) for name in layers[:-1]]
    most = max(widths)
    known = {name: settings[name] for name in ("resolution", "equivariance", "layers", "channels")}
    wide = StyleGAN3Networks.model_validate({**known, "generator_channel_base": 1 << 22, "generator_channel_max": 4096})
    cutoffs = [shape.output.cutoff for shape in wide.layer_shapes[:-1]]
    bounds = [
        (2 * cutoff * (width - 0.5), 2 * cutoff * (width + 0.5)) for cutoff, width in zip(cutoffs, widths, strict=True)
    ]
    least = max(low for (low, _), width in zip(bounds, widths, strict=True))
    largest = min((high for (_, high), width in zip(bounds, widths, strict=True) if width < most), default=least + 1)
    base = _roundest(least, largest)
    limits = {"generator_channel_base": base, "generator_channel_max": most}
    found = StyleGAN3Networks.model_validate({**known, **limits})
    if [shape.name for shape in found.layer_shapes] != layers:
        raise BadInput(f"its layers ({', '.join(layers)}) are not of the sizes and channels of StyleGAN3")
    return limits


def _roundest(least: float, largest: float) -> int:
    """Multiple of the highest power of two from one bound to the other, or above the lower one."""
    for power in range(22, -1, -1):
        multiple = -(-int(least + 0.999999) >> power) << power
        if least <= multiple <= largest:
            return multiple
    return int(least + 0.999999)


def _shape(module: Module, name: str, axes: int) -> tuple[int, ...]:
    array = module.arrays.get(name)
    if array is None or array.ndim != axes:
        raise BadInput(f"its {module.class_name[:50]} has no {name} of {axes} axes: no network of StyleGAN3")
    return array.shape


def _half_resolutions(synthesis: Module) -> int:
    value = synthesis.settings.get("num_fp16_res", StyleGAN3Networks.model_construct().half_resolutions)
    if type(value) is not int or value < 0:
        raise BadInput(f"num_fp16_res {shown_value(value)}: expected a whole number")
    return value


def _decay(layer: Module) -> float:
    value = layer.settings.get("magnitude_ema_beta", StyleGAN3Networks.model_construct().magnitude_decay)
    if type(value) is not float or not 0 <= value <= 1:
        raise BadInput(f"magnitude_ema_beta {shown_value(value)}: expected a number from 0 to 1")
    return value


def _fine_tuning(networks: dict[str, Any], group: int | None) -> dict[str, Any]:
    """Settings that the release's documentation proposes, resumed from a snapshot.

    Source: Karras et al. 2021 (arXiv 2106.12423) and its release.
    """
    group = group or GROUP
    batch = -(-BATCH // group) * group
    proposed = StyleGAN3Family().follow(RULE, networks["resolution"], batch)
    adam = {"beta1": 0.0, "beta2": 0.99, "eps": 1e-8}
    return {
        # without the blur, which is for the first pictures of a training from nothing
        "objective": {"r1_gamma": proposed["objective.r1_gamma"], "augmentation": RESUMED_AUGMENTATION},
        "data": {"flip": True},
        "training": {"batch": batch, "normalisation_batch": group, "duration": "1M images"},
        "optimizers": {
            "D": {"learning_rate": 0.002, "lazy_regularisation": True, **adam},
            "G": {"learning_rate": 0.0025, **adam},
        },
        "ema": {"schedule": "half-life", "half_life_images": proposed["ema.half_life_images"]},
        "saving": RESUMED_SAVING,
        "evaluation": {"every": "200k images", "samples": 50_000},
    }


STYLEGAN3 = Generation(StyleGAN3Family(), network_settings, _fine_tuning)


def signal_arguments(networks: StyleGAN3Networks, group: int | None) -> dict[str, dict[str, Any]]:
    """Arguments to construct the authors' classes with, by network: "G", "D", "G_ema".

    Args:
        networks: settings of the networks.
        group: group of the minibatch standard deviation; None: a whole batch.
    """
    generator = mapping_arguments(networks) | {
        "channel_base": networks.generator_channel_base,
        "channel_max": networks.generator_channel_max,
        "num_layers": networks.layers,
        "num_fp16_res": networks.half_resolutions,
        "conv_clamp": networks.convolution_clamp,
        "conv_kernel": networks.kernel,
        "use_radial_filters": networks.equivariance == "rotation",
        "magnitude_ema_beta": networks.magnitude_decay,
    }
    return {"G": generator, "D": discriminator_arguments(networks, group), "G_ema": generator}


class StyleGANSnapshots(StyleGANPickle):
    """A network snapshot of the StyleGAN2 or the StyleGAN3 program."""

    program = "a snapshot of StyleGAN2 or StyleGAN3"

    def generation(self, generator: Module) -> Generation:
        """Generation of StyleGAN that a generator is of; StyleGAN3's has a first map of waves."""
        synthesis = generator.modules.get("synthesis")
        return STYLEGAN3 if synthesis is not None and "input" in synthesis.modules else STYLEGAN2


class StyleGANStates(StyleGANSafetensors):
    """State dicts of StyleGAN2 or StyleGAN3 under the authors' names."""

    program = "weights under the names of StyleGAN2's and StyleGAN3's authors"
    constructors = MappingProxyType({"stylegan2": constructor_arguments, "stylegan3": signal_arguments})
    formats = MappingProxyType({"stylegan2": "stylegan2-ada-pytorch", "stylegan3": "stylegan3"})
