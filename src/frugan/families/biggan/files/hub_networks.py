"""Which generator the variables of a TensorFlow Hub module are: read off their shapes."""

import re
from collections.abc import Mapping
from typing import Any

from frugan.errors import BadInput
from frugan.families.biggan.config import BOTTOM, GENERATOR, discriminator_channels_at
from frugan.families.biggan.files.hub_names import LATENT, HubShape

Shapes = Mapping[str, tuple[int, ...]]

ATTENTION: Mapping[int, int] = {128: 64, 256: 128, 512: 64}
"""Side of the pictures -> side at which the published generators have self-attention."""
DISCRIMINATOR_ATTENTION = 64
LEAST_ATTENTION_CHANNELS = 8
NORM_EPS = 1e-4
LAST_NORM_EPS: Mapping[int, float] = {128: 1e-4, 256: 1e-4, 512: 1e-5}
_BLOCK = re.compile(r"Generator/GBlock(?:_(\d+))?/conv0/w")


def hub_networks(shapes: Shapes) -> tuple[dict[str, Any], HubShape]:
    """Values of a recipe's `networks` section, and what the table of names has to know.

    Args:
        shapes: of the variables of one kind (as trained, or averaged), without prefix.

    Raises:
        BadInput: another generator than BigGAN's of 128, 256 or 512 pixels.
    """
    if any(name.startswith("Generator/GenZ/") for name in shapes):
        raise BadInput("its generator is BigGAN-deep's; modules of biggan-128, biggan-256 and biggan-512 are read here")
    blocks = sorted(int(match[1] or 0) for name in shapes if (match := _BLOCK.fullmatch(name)))
    sides = {len(stages): side for side, stages in GENERATOR.items() if side in ATTENTION}
    if blocks != list(range(len(blocks))) or len(blocks) not in sides:
        expected = ", ".join(f"{count} ({side} pixels)" for count, side in sorted(sides.items()))
        raise BadInput(f"its generator has {len(blocks)} blocks; expected {expected}")
    side = sides[len(blocks)]
    stages = GENERATOR[side]
    chunk, features = _matrix(shapes, LATENT)
    classes, embedding = _matrix(shapes, "linear/w")
    channels, odd = divmod(features, BOTTOM**2 * stages[0][0])
    if odd or channels < 1:
        raise BadInput(
            f"{LATENT} [{chunk}, {features}]: the first feature map of {side} pixels has {stages[0][0]} times as many "
            f"channels as the last, at {BOTTOM**2} places: {features} does not divide by it"
        )
    attention = _attention(shapes, side, channels)
    deeper = discriminator_channels_at(side, deep=False, reference_at_32=False)
    fits = deeper[DISCRIMINATOR_ATTENTION] * channels >= LEAST_ATTENTION_CHANNELS
    values = {
        "resolution": side,
        "classes": classes,
        "generator_channels": channels,
        "discriminator_channels": channels,
        "latent_size": chunk * (len(blocks) + 1),
        "shared_embedding": embedding,
        "hierarchical_latent": True,
        "generator_attention": [] if attention is None else [BOTTOM << (attention + 1)],
        "discriminator_attention": [DISCRIMINATOR_ATTENTION] if fits else [],
        "batch_norm_eps": NORM_EPS,
        "output_norm_eps": LAST_NORM_EPS[side],
        "spectral_norm_eps": NORM_EPS,
    }
    return values, HubShape(len(blocks), attention, chunk, stages[0][0] * channels)


def _attention(shapes: Shapes, side: int, channels: int) -> int | None:
    """The block that attention follows: the published one, or else the only one with as many channels.

    Raises:
        BadInput: none has, or several have.
    """
    theta = shapes.get("Generator/attention/theta/w")
    if theta is None:
        return None
    wanted = theta[2] if len(theta) == 4 else 0
    fitting = [i for i, (_, outputs) in enumerate(GENERATOR[side]) if outputs * channels == wanted]
    published = (ATTENTION[side] // BOTTOM).bit_length() - 2
    if published in fitting:
        return published
    if len(fitting) != 1:
        raise BadInput(
            f"its self-attention is of {wanted} channels, which {len(fitting)} of its blocks give; expected exactly one"
        )
    return fitting[0]


def _matrix(shapes: Shapes, name: str) -> tuple[int, int]:
    shape = shapes.get(name)
    if shape is None:
        raise BadInput(f"has no variable {name}: no generator of BigGAN's")
    if len(shape) != 2 or min(shape) < 1:
        raise BadInput(f"its variable {name} is {list(shape)}; expected a matrix")
    return shape[0], shape[1]
