"""Kernels of frugan's own on a card: those that give what torch's operations give, and are faster, are used.

Each is tried once on a card, and what was found is kept for it, for these versions of torch and Triton and for the
kernels as they are written.
"""

import hashlib
import json
import math
import os
import shutil
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib import resources
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from frugan.accelerator.choice import accelerator_of
from frugan.accelerator.device import ran_out_of_memory, release_memory
from frugan.contract.layers import UsesKernels
from frugan.engine.run.training import Training
from frugan.errors import BadInput
from frugan.files import Folders, atomic_file, read_json
from frugan.nn.fir import downsample2d, filtered_leaky_relu, fir_filter, upsample2d
from frugan.nn.fused_activation import biased_leaky_relu
from frugan.nn.fused_modulation import gradients_of_product, styled_leaky_relu
from frugan.nn.fused_norm import by_torch, normalised
from frugan.nn.fused_pooling import means_and, relu_and_itself, relu_and_means, relu_means, usable
from frugan.nn.fused_ssim import mean_dssim
from frugan.nn.fused_styles import modulations
from frugan.nn.linear_maps import mean_pool2d
from frugan.nn.own_operations import NAMES
from frugan.nn.spectral_norm import SpectralScaling
from frugan.progress import Say
from frugan.recipe.recipe import Recipe
from frugan.stepmemory.calibration import choose_card, measure_latency
from frugan.wording import GIB, first_line

FILE = "kernels.json"
"""In the folder of what can be computed again."""
CLAMP, NORM_EPS = 0.7, 1e-4
SMALL = (3, 21, 7, 9)
"""A map that is compared: odd, so that every tile has an edge. Each kind of it is compiled, in a tenth of a second."""
LARGE = (4, 64, 256, 256)
"""A map that is timed, or more samples of it: 32 MiB of halves, a layer of 256 pixels at a micro-batch of 4."""
BYTES_PER_S = 400e9
"""A card this fast needs no larger map: a layer takes it 0.1 to 1 ms, and the host some 0.01 ms to start a kernel."""
ROOM_BYTES = GIB
"""More than it takes to time it, in torch's operations."""
PICTURES = (2, 3, 512, 512)
"""The same of pictures: as many as a face loss takes at once."""
MASTERS = (512, 1024, 3, 3)
"""The same of masters; there are some smaller ones beside it."""
STYLES = (8, 512, 13, 1)
"""The same of styles: samples, numbers of each, layers."""
WINDOWS = (5, 6)
"""Of structural dissimilarity, which one even filter is among."""
SSIM = 0.01**2, 0.03**2
"""Its constants."""
NO_ROOM = "finds no memory to be tried in"
QUEUED = 20
"""Forwards and backwards between two waits."""
MOST_SECONDS = 0.1
"""For the timing of one way of one kernel, after which no further run of so many is begun."""
TOLERANCE = MappingProxyType({torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2})
"""Share of the largest value by which results may differ: a few last bits."""

Activation = Callable[..., Tensor]
"""Takes the names of the kernels that it may use as `kernels`."""


@dataclass(frozen=True)
class Verdict:
    """What became of a kernel on a card."""

    left_out: str | None  # why; None: it is used
    times_as_fast: float | None  # as torch's own operations, forward and backward; None: that was not reached


def kernels_for(recipe: Recipe, training: Training, device: torch.device, say: Say) -> frozenset[str]:
    """Names of the kernels that a training uses on a device.

    Args:
        say: is given a line where there was a choice.

    Raises:
        BadInput: they are asked for, and cannot be had here.
    """
    asked = recipe.training.kernels
    if asked == "torch":
        return frozenset()
    missing = what_is_missing(device)
    if asked == "triton":
        _refuse(missing)
        return frozenset(NAMES)
    if accelerator_of(device).kind != "cuda" or not (wanted := _can_use(training)):
        return frozenset()
    if missing is not None:
        say(f"kernels: torch's own operations in place of {', '.join(wanted)}; {missing}")
        return frozenset()
    found = verdicts(device, wanted)
    used = [name for name in wanted if found[name].left_out is None]
    say(f"kernels: {'; '.join(told(name, found[name]) for name in wanted)}; off with training.kernels=torch")
    return frozenset(used)


def kernels_beside(first: frozenset[str], recipe: Recipe, device: torch.device, say: Say) -> frozenset[str]:
    """Names of those that another rank than the first uses: what the first one has chosen, and what can be had here.

    Ranks that timed kernels each for itself would not round alike.

    Args:
        first: the first rank's.
        say: is given a line where some of them cannot be had.

    Raises:
        BadInput: they are asked for, and cannot be had here.
    """
    if not first:
        return first
    asked, missing = recipe.training.kernels, what_is_missing(device)
    if asked == "triton":
        _refuse(missing)
        return first
    if missing is not None:
        say(f"kernels: torch's own operations in place of the first rank's {', '.join(sorted(first))}; {missing}")
        return frozenset()
    found = verdicts(device, [name for name in NAMES if name in first])
    wrong = {name: verdict for name, verdict in found.items() if verdict.times_as_fast is None}
    if wrong:
        say(f"kernels beside the first rank's: {'; '.join(told(*each) for each in wrong.items())}")
    return first - wrong.keys()


def _refuse(missing: str | None) -> None:
    if missing is not None:
        raise BadInput(f"training.kernels = triton: {missing}; or leave it to training.kernels=auto")


def _can_use(training: Training) -> list[str]:
    """Names of the kernels that its networks have a use for."""
    modules = [module for network in training.build("meta").values() for module in network.modules()]
    names = {name for module in modules if isinstance(module, UsesKernels) for name in module.can_use}
    return [name for name in NAMES if name in names]


def told(name: str, verdict: Verdict) -> str:
    """A verdict in words."""
    if verdict.left_out is not None:
        return f"{name} by torch, as frugan's own {verdict.left_out}"
    return f"{name} by frugan's own, {verdict.times_as_fast:.1f} times as fast as torch's"


def what_is_missing(device: torch.device) -> str | None:
    """Why there are no kernels of frugan's on a device; None: there are."""
    if accelerator_of(device).kind != "cuda":
        return f"frugan's kernels run on CUDA cards, and this device is {device}"
    return missing_triton(device)


def missing_triton(device: torch.device) -> str | None:
    """What Triton would need to make and start kernels on a card, and is not here; None: nothing."""
    from torch.utils._triton import has_triton_package  # noqa: PLC0415

    if not has_triton_package():
        package = "triton-windows" if os.name == "nt" else "'frugan[kernels]'"
        return f"a card's kernels are made with Triton, which is not installed: pip install {package}"
    if torch.version.cuda is not None and (capability := accelerator_of(device).capability or (0, 0)) < (7, 0):
        return "Triton needs a card of compute capability 7.0 or newer, not {}.{}".format(*capability)
    return None if os.name == "nt" else _missing_for_launchers()  # Triton brings a compiler for Windows


def _missing_for_launchers() -> str | None:
    """What Triton would need to build what starts its kernels, at the first of them; None: nothing."""
    asked = os.environ.get("CC")
    if not any(shutil.which(name) for name in ([asked] if asked else ["cc", "gcc", "clang"])):
        return f"Triton starts its kernels by programs in C, and found no compiler ({asked or 'cc, gcc or clang'})"
    if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        return "Triton starts its kernels by programs in C, and Python.h is missing: install this Python's headers"
    return None


def verdicts(device: torch.device, names: Sequence[str] = NAMES, *, tries: bool = True) -> Mapping[str, Verdict]:
    """Of kernels on a card: found before, or now.

    Args:
        tries: False: only what was found before.
    """
    file, key = Folders.from_environment().cache / FILE, _key(device)
    kept, known = read_json(file), dict[str, Verdict]()
    if isinstance(kept.get(key), dict):
        with suppress(TypeError):  # damaged: tried again
            known = {name: Verdict(**each) for name, each in kept[key].items() if name in NAMES}
    found = {name: known.get(name) or judged(name, device) for name in names if tries or name in known}
    if found.keys() <= known.keys():
        return found
    release_memory(device)
    known |= {
        name: verdict for name, verdict in found.items() if verdict.left_out != NO_ROOM
    }  # there may be another time
    _keep(file, kept | {key: {name: asdict(verdict) for name, verdict in known.items()}})
    return found


def _keep(file: Path, values: Mapping[str, Any]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(file) as place:
            place.write_text(json.dumps(values, indent=1) + "\n", "utf-8")
    except OSError:  # a folder that is not ours to write: they are tried again the next time
        return


def _key(device: torch.device) -> str:
    """What a verdict holds for."""
    try:
        triton = version("triton")
    except PackageNotFoundError:  # by another name, on Windows
        triton = "of another package"
    return f"{accelerator_of(device).name}, torch {torch.__version__}, Triton {triton}, kernels {digest()}"


def digest() -> str:
    """Of the kernels as they are written, and of how maps are divided between their programs."""
    folder = resources.files("frugan.nn")
    subjects = ("activation", "fir", "modulation", "norm", "pooling", "scaling", "ssim", "styles")
    names = (f"{name}.py" for of in subjects for name in (f"{of}_kernels", f"fused_{of}"))
    written = b"".join((folder / name).read_bytes() for name in names)
    return hashlib.sha256(written.replace(b"\r", b"")).hexdigest()[:12]


def judged(name: str, device: torch.device) -> Verdict:
    """Try one kernel on a card."""
    case, large = CASES[name]
    try:
        half = torch.bfloat16 if accelerator_of(device).has_bf16_units else torch.float16
        orders = (torch.channels_last, torch.contiguous_format)
        for dtype, order in ((half, orders[0]), (half, orders[1]), (torch.float32, orders[1])):
            if (where := difference(*case(SMALL, dtype, order, device))) is not None:
                return Verdict(f"differs in its {where} ({dtype}, {order})".replace("torch.", ""), None)
        call, given = case(_timed(large, device), half, orders[0], device)
        seconds = [_seconds(call, given, names, device) for names in (frozenset(), frozenset(NAMES))]
    except Exception as error:  # noqa: BLE001  (a compiler and a driver fail in many ways; torch's operations are there)
        if ran_out_of_memory(error):
            return Verdict(NO_ROOM, None)
        return Verdict(f"fails: {type(error).__name__}: {first_line(error)}"[:200], None)
    gain = seconds[0] / seconds[1]
    return Verdict(f"takes {1 / gain:.1f} times as long" if gain < 1 else None, gain)


def difference(call: Activation, given: list[Tensor]) -> str | None:
    """Where a kernel gives something else than torch's operations: result, gradients or theirs; None: nowhere."""
    ways = [_derivatives(call, given, names) for names in (frozenset(), frozenset(NAMES))]
    limit = TOLERANCE[given[0].dtype]
    for name, expected, found in zip(_PARTS, ways[0], ways[1], strict=True):
        for one, other in zip(expected, found, strict=True):
            most = limit * float(one.float().nan_to_num(0, 0, 0).abs().max().clamp_min(1e-3))
            alike = (one == other) | (one.isnan() & other.isnan())  # where halves overflow in both ways too
            apart = (one.float() - other.float()).abs().masked_fill(alike, 0)
            if not float(apart.max()) <= most:  # NaN is no less
                return name
    return None


_PARTS: tuple[str, ...] = ("result", "gradients", "gradients' gradients")


def _derivatives(call: Activation, given: list[Tensor], kernels: frozenset[str]) -> tuple[list[Tensor], ...]:
    leaves = [each.detach().requires_grad_() for each in given]
    made = call(*leaves, kernels=kernels)
    weights = torch.linspace(-1, 1, made.numel(), device=made.device, dtype=made.dtype).view_as(made).requires_grad_()
    alone = torch.autograd.grad(made, leaves, weights.detach(), retain_graph=True)
    first = torch.autograd.grad(made, leaves, weights, create_graph=True)
    # path lengths differentiate what goes to a map and to its factors
    given = [each.detach() for each in first[:2]]
    inputs = [weights, *leaves]
    found = torch.autograd.grad(first[:2], inputs, given, allow_unused=True)
    there = [torch.zeros_like(of) if each is None else each for of, each in zip(inputs, found, strict=True)]
    return [made.detach()], [*alone, *(each.detach() for each in first)], there


def _timed(shape: tuple[int, ...], device: torch.device) -> tuple[int, ...]:
    """A shape of more samples where a card moves bytes faster, for else the host alone would be timed; if it has room.

    Faster cards have larger caches as well, which a map must not fit into: several passes over it would cost no more
    than one.
    """
    own = accelerator_of(device)
    if not own.is_card:  # a processor stands in for one, where what is started is counted
        return shape
    times = math.ceil(choose_card(None, device).bytes_per_s / BYTES_PER_S)
    return (shape[0] * max(1, min(times, own.free_bytes // ROOM_BYTES)), *shape[1:])


def _seconds(call: Activation, given: list[Tensor], kernels: frozenset[str], device: torch.device) -> float:
    """Of a forward and a backward."""
    leaves = [each.detach().requires_grad_() for each in given]
    gradient = torch.ones_like(call(*given, kernels=kernels))

    def both() -> None:
        torch.autograd.grad(call(*leaves, kernels=kernels), leaves, gradient)

    return measure_latency(both, device, budget_seconds=MOST_SECONDS, queued=QUEUED)


def _biased(
    shape: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format, device: torch.device
) -> tuple[Activation, list[Tensor]]:
    """A map and a bias, the same numbers every time."""
    count = torch.Size(shape).numel()
    x = torch.linspace(-3, 3, count, device=device)[torch.arange(count, device=device) * 7919 % count].view(shape)
    bias = torch.linspace(-1, 1, shape[1], device=device, dtype=dtype)
    return partial(biased_leaky_relu, clamp=CLAMP), [x.to(dtype).contiguous(memory_format=layout), bias]


def _styled(
    shape: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format, device: torch.device
) -> tuple[Activation, list[Tensor]]:
    """The same with factors, noise and its strength."""
    _, (x, bias) = _biased(shape, dtype, layout, device)
    factors = torch.linspace(0.5, 2, shape[0] * shape[1], device=device, dtype=dtype).view(shape[:2])
    noise = torch.linspace(-1, 1, shape[0] * shape[2] * shape[3], device=device).view(shape[0], 1, *shape[2:])
    strength = torch.tensor(0.75, device=device)
    return partial(styled_leaky_relu, clamp=CLAMP), [x, factors, noise, strength, bias]


def _modulated(
    shape: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format, device: torch.device
) -> tuple[Activation, list[Tensor]]:
    """A map and factors."""
    return _Product.called, _styled(shape, dtype, layout, device)[1][:2]


class _Product(torch.autograd.Function):
    """x·factors, by whose gradients the kernel is tried."""

    @staticmethod
    def called(x: Tensor, factors: Tensor, *, kernels: frozenset[str]) -> Tensor:
        """[N, C, H, W], [N, C] -> [N, C, H, W]."""
        return cast(Tensor, _Product.apply(x, factors[:, :, None, None], kernels))

    @staticmethod
    def forward(ctx: Any, x: Tensor, factors: Tensor, kernels: frozenset[str]) -> Tensor:
        ctx.save_for_backward(x, factors)
        ctx.kernels = kernels
        return x * factors

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        x, factors = ctx.saved_tensors
        return *gradients_of_product(gradients[0], x, factors, ctx.kernels), None


def _filtered(
    shape: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format, device: torch.device
) -> tuple[Activation, list[Tensor]]:
    """A map that is activated and filtered, made smaller and as large as before."""
    return _filters, _biased(shape, dtype, layout, device)[1]


def _filters(x: Tensor, bias: Tensor, *, kernels: frozenset[str]) -> Tensor:
    fir = fir_filter().to(x.device)
    made = filtered_leaky_relu(x, bias, fir, padding=(2, 2, 2, 2), clamp=CLAMP, kernels=kernels)
    return upsample2d(downsample2d(made, fir, kernels=kernels), fir, kernels=kernels)


def _of_all_layers(
    shape: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format, device: torch.device
) -> tuple[Activation, list[Tensor]]:
    """Styles, weights and biases, and sums of squares: of layers every other one of which is narrower; in fp32."""
    samples, width, layers, _ = shape
    sides = [(width - width // 3 * (i % 2), width) for i in range(layers)]
    shapes = [(samples, layers, width, 1), *((*side, 1, 1) for side in sides * 2)]
    styles, *others = (_biased(each, torch.float32, torch.contiguous_format, device)[1][0] for each in shapes)
    weights, squares = others[:layers], [(each.flatten(1).T.square() + 1) / width for each in others[layers:]]
    biases = [weight[:, 0].flatten() for weight in weights]
    given = [styles.flatten(2).to(dtype), *(each.flatten(1) / width for each in weights), *biases]
    return partial(_modulations_of, layers), [*given, *(each.contiguous() for each in squares)]


def _modulations_of(layers: int, styles: Tensor, *others: Tensor, kernels: frozenset[str]) -> Tensor:
    """Flat, in the styles' dtype; the last layer is not demodulated, and two take one style."""
    places = [max(0, i - 1) for i in range(layers)]
    affines = list(zip(others[:layers], others[layers : 2 * layers], places, strict=True))
    dtypes = [torch.float32, *(styles.dtype for _ in places[1:])]
    made = modulations(styles.float(), affines, others[2 * layers : -1], dtypes, NORM_EPS, kernels=kernels)
    return torch.cat([each.flatten().to(styles.dtype) for part in made for each in part]) + 0 * others[-1].sum()


def _compared(
    shape: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format, device: torch.device
) -> tuple[Activation, list[Tensor]]:
    """Two pictures in [0, 1], one a little unlike the other."""
    _, (x, _) = _biased(shape, dtype, layout, device)
    blurs = [(_averages(shape[2], size, device), _averages(shape[3], size, device)) for size in WINDOWS]
    return partial(mean_dssim, blurs=blurs, constants=SSIM), [x.sigmoid(), (x + x.flip(1) / 8).sigmoid()]


def _averages(side: int, size: int, device: torch.device) -> Tensor:
    """Matrix that averages `size` neighbours of each row. [side, side - size + 1]."""
    at = torch.arange(side, device=device)
    after = at[:, None] - at[: side - size + 1]
    return ((after >= 0) & (after < size)).float() / size


def _normalised(
    shape: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format, device: torch.device
) -> tuple[Activation, list[Tensor]]:
    """A map, and a gain and a bias for each picture; nothing comes near 0, where rounding decides what ReLU passes."""
    _, (x, factors, *_) = _styled(shape, dtype, layout, device)
    apart = torch.where(x < 0, x / 8 - 1, x / 8 + 1)
    return _norm_of_groups, [apart, factors, (factors.flip(0) - 1) / 16]


def _norm_of_groups(x: Tensor, gains: Tensor, biases: Tensor, *, kernels: frozenset[str]) -> Tensor:
    """Of one group."""
    if "batch_norm" not in kernels:
        return by_torch(x, gains, biases, 1, NORM_EPS, relu=True)
    return normalised(x, gains, biases, groups=1, eps=NORM_EPS, biased=False, relu=True)[0]


def _pooled(
    shape: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format, device: torch.device
) -> tuple[Activation, list[Tensor]]:
    """A map of even sides."""
    _, (x, _) = _biased((*shape[:2], *(side + side % 2 for side in shape[2:])), dtype, layout, device)
    return _residual, [x]


def _residual(x: Tensor, *, kernels: frozenset[str]) -> Tensor:
    """All that blocks of discriminators make of their input, without convolutions."""
    if not usable(x, kernels):
        both = F.relu(x) - x / 2
        return torch.add(mean_pool2d(F.relu(both)), mean_pool2d(both)) - mean_pool2d(F.relu(x)) / 2
    made, same = relu_and_itself(x)
    made, means = relu_and_means(made - same / 2)
    return means_and(made, means, made) - relu_means(same) / 2


def _scaled(
    shape: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format, device: torch.device
) -> tuple[Activation, list[Tensor]]:
    """Weights of several shapes, always in fp32; their gradients come in another dtype, and in channels-last."""
    shapes = [shape, shape[:2], (*shape[:2], 1, 1), (1, *shape[1:]), (shape[1], shape[0], *shape[2:])]
    weights = [_biased(each, torch.float32, torch.contiguous_format, device)[1][0] for each in map(_whole, shapes)]
    return _Scaled.called, [weight.view(each) for weight, each in zip(weights, shapes, strict=True)]


def _whole(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of four axes."""
    return (*shape, 1, 1)[:4]


class _Scaled(torch.autograd.Function):
    """Weights over their largest singular values, one after the other, by whose gradients the kernels are tried."""

    @staticmethod
    def called(*weights: Tensor, kernels: frozenset[str]) -> Tensor:
        """[O, I, ..] each -> [numbers of all]."""
        return cast(Tensor, _Scaled.apply(kernels, *weights))

    @staticmethod
    def forward(ctx: Any, kernels: frozenset[str], *weights: Tensor) -> Tensor:
        left = [torch.linspace(1, 2, len(weight), device=weight.device)[None] for weight in weights]
        ctx.scaling = scaling = SpectralScaling.of(weights, left, 1e-12, kernels)
        ctx.save_for_backward(*weights)
        made = scaling.divided(weights, [torch.float32] * len(weights), last=True)  # halves would round either way
        each = (made.get(i, w / sigma) for i, (w, sigma) in enumerate(zip(weights, scaling.divisors, strict=True)))
        return torch.cat([weight.flatten() for weight in each])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        weights = ctx.saved_tensors
        parts = [
            part.view_as(weight)
            for part, weight in zip(gradients[0].split([w.numel() for w in weights]), weights, strict=True)
        ]
        if torch.is_grad_enabled():  # which training never asks for
            return None, *(part / sigma for part, sigma in zip(parts, ctx.scaling.divisors, strict=True))
        given = [p.half().contiguous(memory_format=torch.channels_last) if p.ndim == 4 else p for p in parts]
        return None, *ctx.scaling.carry(weights, given)


Case = Callable[..., tuple[Activation, list[Tensor]]]
CASES: Mapping[str, tuple[Case, tuple[int, ...]]] = MappingProxyType(
    {
        "leaky_relu": (_biased, LARGE),
        "styled_leaky_relu": (_styled, LARGE),
        "modulation": (_modulated, LARGE),
        "styles": (_of_all_layers, STYLES),
        "fir": (_filtered, LARGE),
        "dssim": (_compared, PICTURES),
        "batch_norm": (_normalised, LARGE),
        "spectral_norm": (_scaled, MASTERS),
        "pooling": (_pooled, LARGE),
    }
)
"""Name -> what it is tried with, and the shape that is timed."""
