"""Generators as TensorFlow Hub's modules have them, and what they draw, without our networks.

The forward is written on TensorFlow's own layouts (pictures NHWC, kernels [h, w, in, out], z before the class, first
features by row, column, channel) in float64, so that a wrong permutation in the table of names shows in the pictures.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

MULTIPLES = {
    128: ((16, 16), (16, 8), (8, 4), (4, 2), (2, 1)),
    256: ((16, 16), (16, 8), (8, 8), (8, 4), (4, 2), (2, 1)),
    512: ((16, 16), (16, 8), (8, 8), (8, 4), (4, 2), (2, 1), (1, 1)),
}
CLASS_SIZE = 6
EMA = "/ema_b999900"


@dataclass(frozen=True)
class Module:
    """A module's variables."""

    resolution: int  # of its pictures
    chunk: int  # of z for each block
    attention: int  # block after which self-attention stands
    variables: Mapping[str, np.ndarray]  # name -> numbers


def make_module(
    resolution: int = 128,
    *,
    channels: int = 4,
    chunk: int = 3,
    classes: int = 5,
    attention: int = 3,
    counter: float = 4.0,
    prefix: str = "",
    averages: bool = True,
) -> Module:
    """A module of random numbers; `counter` batches were added up in its statistics (0: they are means)."""
    random = np.random.default_rng(resolution)
    arrays: dict[str, np.ndarray] = {}

    def add(name: str, *shape: int, scale: float = 0.5, offset: float = 0.0) -> None:
        for suffix in ("", EMA) if averages else ("",):
            arrays[name + suffix] = np.asarray(random.normal(size=shape) * scale + offset, np.float32)

    def normalised(name: str, *shape: int, bias: bool = True) -> None:
        add(f"{name}/w", *shape, scale=1 / np.sqrt(np.prod(shape[:-1])))
        if bias:
            add(f"{name}/b", shape[-1], scale=0.1)
        arrays[f"{name}/u0"] = random.normal(size=(1, shape[-1])).astype(np.float32)
        arrays[f"{name}/u1"] = random.normal(size=(1, int(np.prod(shape[:-1])))).astype(np.float32)

    def statistics(name: str, size: int) -> None:
        times = counter or 1.0
        arrays[f"{name}/accumulated_mean"] = (random.normal(size=size) * 0.1 * times).astype(np.float32)
        arrays[f"{name}/accumulated_var"] = (random.uniform(0.5, 2, size=size) * times).astype(np.float32)
        arrays[f"{name}/accumulation_counter"] = np.array(counter, np.float32)

    table = MULTIPLES[resolution]
    add("linear/w", classes, CLASS_SIZE)
    normalised("Generator/G_Z/G_linear", chunk, 16 * table[0][0] * channels)
    for i, (a, b) in enumerate(table):
        block = f"Generator/GBlock{f'_{i}' if i else ''}"
        inputs, outputs = a * channels, b * channels
        normalised(f"{block}/conv0", 3, 3, inputs, outputs)
        normalised(f"{block}/conv1", 3, 3, outputs, outputs)
        normalised(f"{block}/conv_sc", 1, 1, inputs, outputs)
        for suffix, size in (("", inputs), ("_1", outputs)):
            for part in ("gamma", "beta"):
                normalised(f"{block}/HyperBN{suffix}/{part}", chunk + CLASS_SIZE, size, bias=False)
            statistics(f"{block}/CrossReplicaBN{suffix}", size)
    at = table[attention][1] * channels
    for name, inputs, outputs in (
        ("theta", at, at // 8),
        ("phi", at, at // 8),
        ("g", at, at // 2),
        ("o_conv", at // 2, at),
    ):
        normalised(f"Generator/attention/{name}", 1, 1, inputs, outputs, bias=False)
    add("Generator/attention/gamma", offset=0.7)
    add("Generator/ScaledCrossReplicaBN/gamma", 1, 1, 1, channels, offset=1.0)
    add("Generator/ScaledCrossReplicaBN/beta", 1, 1, 1, channels)
    statistics("Generator/ScaledCrossReplicaBNbn", channels)
    normalised("Generator/conv_2d", 3, 3, channels, 3)
    return Module(resolution, chunk, attention, {f"{prefix}{name}": array for name, array in arrays.items()})


def draw(module: Module, z: Tensor, classes: Tensor, *, averaged: bool = True, prefix: str = "") -> Tensor:
    """Pictures [N, 3, R, R] of latents [N, Z] and classes [N]; float64."""
    names = {name.removeprefix(prefix): torch.from_numpy(array).double() for name, array in module.variables.items()}

    def of(name: str) -> Tensor:
        return names.get(f"{name}{EMA}" if averaged else name, names.get(name, torch.empty(0)))

    def weight(name: str) -> Tensor:
        """A kernel over its largest singular value, after one more iteration from the stored u."""
        kernel = of(f"{name}/w")
        matrix = kernel.reshape(-1, kernel.shape[-1])  # [in, out]
        v = F.normalize(of(f"{name}/u0") @ matrix.T, eps=1e-4)
        u = F.normalize(v @ matrix, eps=1e-4)
        return kernel / (v @ matrix @ u.T)

    def conv(name: str, x: Tensor, bias: bool = True) -> Tensor:
        kernel = weight(name)
        out = F.conv2d(x.permute(0, 3, 1, 2), kernel.permute(3, 2, 0, 1), padding=kernel.shape[0] // 2)
        out = out.permute(0, 2, 3, 1)
        return out + of(f"{name}/b").reshape(-1) if bias else out

    def moments(name: str) -> tuple[Tensor, Tensor]:
        count = float(of(f"{name}/accumulation_counter")) or 1.0
        return of(f"{name}/accumulated_mean") / count, of(f"{name}/accumulated_var") / count

    def norm(block: str, suffix: str, x: Tensor, condition: Tensor) -> Tensor:
        mean, variance = moments(f"{block}/CrossReplicaBN{suffix}")
        gain = 1 + condition @ weight(f"{block}/HyperBN{suffix}/gamma")
        offset = condition @ weight(f"{block}/HyperBN{suffix}/beta")
        return (x - mean) / (variance + 1e-4).sqrt() * gain[:, None, None] + offset[:, None, None]

    def up(x: Tensor) -> Tensor:
        return x.repeat_interleave(2, 1).repeat_interleave(2, 2)

    def attend(x: Tensor) -> Tensor:
        batch, side = x.shape[0], x.shape[1]

        def pooled(name: str) -> Tensor:
            maps = conv(f"Generator/attention/{name}", x, bias=False).permute(0, 3, 1, 2)
            return F.max_pool2d(maps, 2).permute(0, 2, 3, 1).reshape(batch, side * side // 4, -1)

        theta = conv("Generator/attention/theta", x, bias=False).reshape(batch, side * side, -1)
        shares = torch.softmax(theta @ pooled("phi").mT, -1)
        attended = (shares @ pooled("g")).reshape(batch, side, side, -1)
        return x + of("Generator/attention/gamma") * conv("Generator/attention/o_conv", attended, bias=False)

    embedded = of("linear/w")[classes]
    chunks = z.double().split(module.chunk, 1)
    h = chunks[0] @ weight("Generator/G_Z/G_linear") + of("Generator/G_Z/G_linear/b")
    h = h.reshape(len(z), 4, 4, -1)
    for i, part in enumerate(chunks[1:]):
        block = f"Generator/GBlock{f'_{i}' if i else ''}"
        condition = torch.cat([part, embedded], 1)
        skip = conv(f"{block}/conv_sc", up(h))
        h = conv(f"{block}/conv0", up(F.relu(norm(block, "", h, condition))))
        h = conv(f"{block}/conv1", F.relu(norm(block, "_1", h, condition))) + skip
        if i == module.attention:
            h = attend(h)
    mean, variance = moments("Generator/ScaledCrossReplicaBNbn")
    eps = 1e-5 if module.resolution == 512 else 1e-4
    h = (h - mean) / (variance + eps).sqrt() * of("Generator/ScaledCrossReplicaBN/gamma")
    h = h + of("Generator/ScaledCrossReplicaBN/beta")
    return torch.tanh(conv("Generator/conv_2d", F.relu(h))).permute(0, 3, 1, 2)
