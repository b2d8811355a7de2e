"""frugan's own kernels for cards that are not here: python benchmarks/own_kernels.py [--steps | --places] [--out FILE]

With `--steps` it counts what a training step moves with them and without, and by `--places` where the bytes and
launches are. Otherwise it makes machine code, which needs Triton (pip install "frugan[kernels]"), no card and no CUDA
build. Kernels for maps are compiled for two of StyleGAN2, in both layouts, in half precision and fp32, those for
pictures in fp32, all for three generations of cards. Beside registers and shared memory stand the widest load and
store: with 16 bytes for each thread a card is fastest.
"""

import importlib
import inspect
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import Tensor

from frugan.accelerator.precision import resolve_precision
from frugan.contract.filtered_nonlinearity import Nonlinearity
from frugan.contract.ops import PLAIN, Ops
from frugan.contract.resampling import Geometry
from frugan.engine.plan import Plan
from frugan.engine.run.training import Stage, Training
from frugan.kernels import filtered_nonlinearity, fir, norm, pooling, scaling, ssim, styles
from frugan.kernels.maps import OF_ROWS as BLOCKS_OF_ROWS
from frugan.kernels.maps import TILE, WARPS, grid_of
from frugan.planning.prediction import predict
from frugan.recipe.loading import load_recipe
from frugan.setup.ops import kernel_names, ops_of
from frugan.setup.recipe_setup import training_of
from frugan.training.kernels import digest
from machine_code import TARGETS, code_of
from places import by_place
from step_counts import MICRO_BATCHES, count_step

LARGE, SMALL = (4, 128, 256, 256), (4, 512, 4, 4)
"""Maps of a generator."""
LEAST = (1, 1, 1, 1)
"""A map of which all numbers are 1, which Triton makes constants of: kernels must compile then too."""
FACES = ((6, 512 * 512), (6, 469 * 469))
"""Planes and pixels of two pictures, and of what a window leaves of them."""
ORDERS = (torch.channels_last, torch.contiguous_format)
POINTERS = {torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32"}
WIDE = (
    *("sums", "bias_sums", "factor_sums", "noise_sums", "gain_sums", "noise", "strength", "numbers", "to_number"),
    *("means", "squares", "found", "totals", "vectors", "left", "right", "divisors", "whole", "parts"),
)
"""Pointers to fp32, whatever maps are."""
OTHERS = {"table": "*i64", "codes": "*u8"}
FLOATS = ("slope", "clamp", "half_c1", "half_c2", "count", "divisor", "eps", "share", "least")
KERNELS = {
    "activation": ("activate", "slopes", "add_up"),
    "filtered_nonlinearity": ("filtered",),
    "fir": ("filtered", "filtered_slopes"),
    "modulation": ("activate_styled", "slopes_styled", "unscale", "unscale_twice"),
    "norm": ("moments", "statistics", "apply", "slopes", "gather", "unapply"),
    "pooling": ("pool", "unpool", "pass_and_add"),
    "scaling": ("multiply", "divide", "dots", "carry"),
    "ssim": ("moments", "likeness", "gather"),
    "styles": ("multiply", "give_back", "outer", "divide"),
}
"""By what they are for."""
OF_SUMS = ("slopes", "slopes_styled", "unscale", "unscale_twice", "moments", "filtered_slopes")
OF_ROWS = ("statistics", "gather", "add_up")
STEPS, PLACES = "--steps", "--places"
WAYS: Mapping[str, Ops] = {"torch": PLAIN, "own": ops_of(kernel_names())}
"""Plain torch, and all kernels."""
RECIPES = (
    "stylegan2-ffhq-256",
    "stylegan2-ffhq-1024",
    "r3gan-ffhq-256",
    "biggan-imagenet-128",
    "biggan-imagenet-512",
    "biggan-deep-imagenet-512",
    "saehd-df-ud-512",
)


# Machine code.


class Case(NamedTuple):
    """What a kernel is compiled for."""

    label: str
    dtype: torch.dtype  # of maps
    constants: dict[str, Any]
    numbers: dict[str, int]
    warps: int = WARPS


def cases(of: str, name: str, shapes: Sequence[tuple[int, ...]] = (LARGE, SMALL)) -> Iterator[Case]:
    """Of a kernel."""
    if of == "ssim":
        faces = FACES if name == "likeness" else FACES[:1]
        for planes, pixels in ((1, 1),) if LEAST in shapes else faces:
            numbers = {"pixels": pixels, "count": planes * pixels, "loops": 1}
            facts = {"TO_A": False, "TO_B": True, "BLOCK": ssim.TILE}
            yield Case(f"{planes}x{pixels} float32", torch.float32, facts, numbers)
        return
    if of == "styles":
        for width in (64, 512) if name == "divide" else (512,):  # numbers of a row; tiles do not depend on it
            facts = {"BIASED": True, "FOUND": False, "BLOCK": width, **styles.BLOCKS.get(name, {})}
            numbers = {"count": 1 if LEAST in shapes else 8}
            yield Case(f"{width} wide float32", torch.float32, facts, numbers, styles.WARPS)
        return
    if of == "scaling":
        for turned in (False, True) if name == "multiply" else (False,):
            for dtype in POINTERS if name != "multiply" else (torch.float32,):
                label = f"{'turned, ' if turned else ''}{str(dtype).removeprefix('torch.')}"
                yield _scaling_case(turned, dtype)._replace(label=label)
        return
    if of in ("fir", "filtered_nonlinearity"):
        yield from (_fir_cases(name, shapes) if of == "fir" else _nonlinearity_cases(shapes[0]))
        return
    for shape in shapes:
        for order in ORDERS[: 1 if of == "pooling" else None]:
            for dtype in POINTERS:
                x = torch.empty(shape, device="meta").contiguous(memory_format=order)
                layout = "channels last" if order == torch.channels_last else "contiguous"
                case = {"norm": _norm_case, "pooling": _pooling_case}.get(of, _case)(name, x)
                label = f"{'x'.join(map(str, shape))} {layout} {str(dtype).removeprefix('torch.')}"
                yield case._replace(label=label, dtype=dtype)


def _case(name: str, x: Tensor) -> Case:
    grid = grid_of(x, apart=name not in ("activate", "slopes"), summed=name in OF_SUMS)
    facts: dict[str, int] = {"LAST": grid.last, "BLOCK_P": grid.block_p, "BLOCK_C": grid.block_c}
    facts |= {"CLAMPED": True, "SUMS": True, "NOISY": True, "SLOPED": True, "OF_X": True, "OF_FACTORS": True}
    numbers = {word: getattr(grid, word) for word in ("pixels", "channels", "loops", "pictures")}
    numbers |= {"noise_stride": grid.pixels, "rows": grid.rows, "rows_each": grid.rows // len(x)}
    numbers |= {"count": grid.rows * grid.blocks, "behind": len(x) if x.numel() == 1 else len(x) + 1}
    if name in OF_ROWS:
        facts = dict(BLOCKS_OF_ROWS)
    return Case("", torch.float32, facts, numbers, facts.pop("num_warps", WARPS))


def _scaling_case(turned: bool, dtype: torch.dtype) -> Case:
    blocks = {"TURNED": turned, "SPLITS": scaling.SPLITS, "BLOCK": scaling.TILE}
    blocks |= dict(zip(("BLOCK_O", "BLOCK_K"), scaling.BLOCKS[turned], strict=True))
    element = scaling.element_of([torch.empty(0, dtype=dtype)])
    return Case("", dtype, {**blocks, "DTYPE": element}, {"whole": 13824})


def _norm_case(name: str, x: Tensor) -> Case:
    rows = norm.Rows.of(x, 1)
    grid = rows.grid if name == "moments" else grid_of(x, apart=True, summed=name in OF_SUMS)
    facts: dict[str, int] = {"LAST": grid.last, "RELU": True, "SHARED": False}
    facts |= BLOCKS_OF_ROWS if name in OF_ROWS else {"BLOCK_P": grid.block_p, "BLOCK_C": grid.block_c}
    numbers = {"pixels": grid.pixels, "channels": grid.channels, "loops": grid.loops, "group": len(x), "groups": 1}
    numbers |= {"rows": rows.grid.rows, "chunk": rows.chunk, "gain_step": grid.channels, "bias_step": grid.channels}
    return Case("", torch.float32, facts, numbers, facts.pop("num_warps", WARPS))


def _fir_cases(name: str, shapes: Sequence[tuple[int, ...]]) -> Iterator[Case]:
    """Of a filter beside an activation, and of those that double and halve a side."""
    ways = ((1, 1, "activation"), (1, 1, "slope"), (2, 1, "nothing"), (1, 2, "nothing"))
    for shape, order, dtype, way in product(shapes, ORDERS, POINTERS, ways if name == "filtered" else ways[:1]):
        up, down, before = way
        x = torch.empty(shape, device="meta").contiguous(memory_format=order)
        of, taps = Geometry(up, down, (2, 2, 2, 2)), torch.empty(4, 4, device="meta")
        grid = grid_of(x, apart=True, summed=name in OF_SUMS)
        facts = {"UP": up, "DOWN": down, "BEFORE": before, "SUMS": True, **fir.constants(taps, grid, of, 0.7)}
        numbers = {"height": shape[2], "width": shape[3], "made_width": shape[3], "loops": grid.loops}
        numbers |= {"pixels": grid.pixels, "channels": grid.channels, "left": 2, "top": 2}
        layout = "channels last" if order == torch.channels_last else "contiguous"
        label = f"{'x'.join(map(str, shape))} {layout} {str(dtype).removeprefix('torch.')} {up}/{down} {before}"
        yield Case(label, dtype, facts, numbers, facts.pop("num_warps"))


def _nonlinearity_cases(shape: tuple[int, ...]) -> Iterator[Case]:
    """Forward and backward of StyleGAN3's layers: rates, taps, and whether a filter is square, as with rotations."""
    ways = {
        "made": (2, 2, 12, 12, False, False),
        "by codes": (2, 2, 12, 12, False, False),
        "made, rates 4 and 2": (4, 2, 24, 12, False, False),
        "by codes, rates 2 and 4": (2, 4, 12, 24, False, False),
        "made, square": (2, 2, 12, 12, False, True),
        "by codes, square": (2, 2, 12, 12, True, False),
    }
    for way, order, dtype in product(ways, ORDERS, POINTERS):
        if "," in way and (order, dtype) != (ORDERS[0], torch.float16):
            continue  # one layout and one dtype will do: these take seconds to compile
        up, down, *taps, first_square, second_square = ways[way]
        first, second = (
            torch.empty((count,) * (2 if square else 1), device="meta")
            for count, square in zip(taps, (first_square, second_square), strict=True)
        )
        of = Nonlinearity(up, down, (9, 8, 9, 8), 0.2, 256.0)
        last = order == torch.channels_last
        facts = filtered_nonlinearity.constants(first, second, of, makes=way.startswith("made"), last=last)
        numbers = {"height": shape[2], "width": shape[3], "channels": shape[1], "between_height": 2 * shape[2]}
        numbers |= {"between_width": 2 * shape[3], "made_height": shape[2], "made_width": shape[3]}
        numbers |= {"begin_y": 2, "begin_x": 2, "after_y": 2, "after_x": 2}
        layout = "channels last" if last else "contiguous"
        label = f"{'x'.join(map(str, shape))} {layout} {str(dtype).removeprefix('torch.')} {way}"
        yield Case(label, dtype, facts, numbers, facts.pop("num_warps"))


def _pooling_case(name: str, x: Tensor) -> Case:
    channels, width = x.shape[1], max(1, x.shape[3] // 2)
    numbers = {"pixels": max(1, len(x) * x.shape[2:].numel() // 4), "width": width, "channels": channels}
    facts: dict[str, int] = dict(zip(("BLOCK_P", "BLOCK_C"), pooling.tile(channels), strict=True))
    facts |= {"RELU": True, "KEEPS": True, "ADDS": True, "BOTH": True, "BLOCK": TILE}
    return Case("", torch.float32, facts, numbers | {"count": x.numel()})


def compiled(of: str, name: str, case: Case, target: str) -> dict[str, Any]:
    """One kernel for one card."""
    import triton  # noqa: PLC0415  (an extra)
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415

    kernel = getattr(importlib.import_module(f"frugan.kernels.programs.{of}"), name)
    constants = case.constants | {word: 1 for word, value in case.numbers.items() if value == 1}  # as Triton has it
    signature: dict[str, str] = {}
    attributes: dict[tuple[int], list[list[object]]] = {}
    for at, word in enumerate(inspect.signature(kernel.fn).parameters):
        if word in constants:
            signature[word] = "constexpr"
        elif word in case.numbers:
            signature[word] = "i32"
            if case.numbers[word] % 16 == 0:
                attributes[(at,)] = [["tt.divisibility", 16]]
        elif word in FLOATS:
            signature[word] = "fp32"
        else:
            signature[word] = OTHERS.get(word) or ("*fp32" if word in WIDE else POINTERS[case.dtype])
            attributes[(at,)] = [["tt.divisibility", 16]]
    known = {word: value for word, value in constants.items() if word in signature}
    source = triton.compiler.ASTSource(fn=kernel, signature=signature, constexprs=known, attrs=attributes)
    begun = time.perf_counter()
    card = GPUTarget("cuda", int(target.removeprefix("sm_")), 32)
    made = triton.compile(source, target=card, options={"num_warps": case.warps})
    code = code_of(made, target)
    return {
        "registers": code.registers,
        "shared_bytes": code.shared_bytes,
        "spilt_bytes": code.spilt_bytes,
        "widest_load_bytes": widest("ld", made.asm["ptx"]),
        "widest_store_bytes": widest("st", made.asm["ptx"]),
        "seconds": round(time.perf_counter() - begun, 2),
        **({"error": code.error} if code.error else {}),
    }


def widest(way: str, ptx: str) -> int:
    """Most that a thread loads or stores at once."""
    accesses = re.findall(rf"{way}\.global(?:\.\w+)*?(?:\.v(\d))?\.b(\d+)", ptx)
    return max(int(times or 1) * int(bits) // 8 for times, bits in accesses)


# What a step moves with them and without.


def setting(recipe: str) -> tuple[Training, Plan, Stage]:
    """An average step of two micro-batches in fp16, counted as by `counts.py`."""
    training = training_of(load_recipe(recipe, []))
    plan = Plan(training.micro_batch, resolve_precision("fp16", torch.device("cpu")))
    return training.with_batch(MICRO_BATCHES * training.micro_batch), plan, training.stages[0]


def steps(recipe: str) -> dict[str, Any]:
    """Such a step by torch's operations and by ours."""
    training, plan, stage = setting(recipe)
    every = {phase.name: phase.every for phase in stage.phases}
    found: dict[str, Any] = {"micro_batch": plan.micro_batch}
    for way, ops in WAYS.items():
        by = replace(training, ops=ops)
        phases = count_step(by, plan, stage).by(0)  # of a step in which all are due
        found[way] = {
            "launches": round(sum(each.launches / every.get(name, 1) for name, each in phases.items())),
            "bytes_moved": round(sum(each.bytes_moved / every.get(name, 1) for name, each in phases.items())),
            "peak_bytes": predict(by, plan, "card", stage).live_bytes,
        }
    return found


def places(recipe: str) -> dict[str, Any]:
    """Where a step moves and starts what, by torch's operations and by ours, and what further kernels would leave."""
    training, plan, stage = setting(recipe)
    every = {phase.name: phase.every for phase in stage.phases}
    found = {}
    for way, ops in WAYS.items():
        counts = count_step(replace(training, ops=ops), plan, stage, by_function=True)
        found[way] = by_place(counts.by_operation, every)
    return found


def machine_code() -> dict[str, Any]:
    """Of every kernel for every card."""
    import triton  # noqa: PLC0415

    made: dict[str, Any] = {"torch": str(torch.__version__), "triton": triton.__version__, "written": digest()}
    for target in TARGETS:
        for of, names in KERNELS.items():
            for name in names:
                for case in cases(of, name, (LEAST,)):
                    compiled(of, name, case, target)
                found = {
                    case.label: compiled(of, name, case, target)
                    for case in cases(of, name)
                    if (target, case.dtype) != ("sm_75", torch.bfloat16)  # where nothing trains in it
                }
                made.setdefault(target, {})[f"{of} {name}"] = found
    seconds = [each.pop("seconds") for target in TARGETS for name in made[target].values() for each in name.values()]
    made["mean_seconds_to_compile"] = round(sum(seconds) / len(seconds), 2)
    return made


def main() -> None:
    """Count or compile, and print JSON."""
    words = sys.argv[1:]
    out = Path(words[words.index("--out") + 1]) if "--out" in words else None
    result: dict[str, Any] = json.loads(out.read_text("utf-8")) if out is not None and out.exists() else {}
    if STEPS in words:
        result["steps"] = {recipe: steps(recipe) for recipe in RECIPES}
    elif PLACES in words:
        result["places"] = {recipe: places(recipe) for recipe in RECIPES}
    else:
        with TemporaryDirectory() as cache:  # of kernels that are compiled already, whose seconds would not count
            os.environ["TRITON_CACHE_DIR"] = cache
            result["machine_code"] = machine_code()
    text = written(result)
    if out is not None:
        out.write_text(text, "utf-8")
    print(text)


def written(result: Mapping[str, Any]) -> str:
    """As JSON with a line for each of its innermost mappings."""
    whole = json.dumps(result, indent=1)
    return re.sub(r"\{\s+([^{}]*?)\s+\}", lambda found: "{" + re.sub(r"\s+", " ", found[1]) + "}", whole) + "\n"


if __name__ == "__main__":
    main()
