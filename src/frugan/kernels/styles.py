"""Styles of all layers at once: affine maps, largest values, demodulation; what layers would do one by one.

A layer's styles are some thousand numbers, and what is made of them is a dozen operations forward and more backward.
Here rows of all layers lie one behind the other in one flat tensor: an operation of torch's does them all, and products
with each layer's matrix are operations whose programs are in `programs.styles`. They give what torch's
products give up to rounding: sums are in fp32 in another order. Each product's gradients are products of the three
kinds, so all may be differentiated as often as one likes.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from frugan.contract.kernel import Call
from frugan.contract.ops import Ops, StyleLayer
from frugan.kernels.kernel import TritonKernel, some_map
from frugan.kernels.maps import table_of
from frugan.kernels.operation import operation
from frugan.torch_internals import foreach_copy_

EPS = 1e-8
"""Least sum of squares, and least largest value."""
CASE_EPS = 1e-4
"""Added under the root in the case that is tried."""
BLOCKS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "multiply": {"BLOCK_R": 4, "BLOCK_O": 16, "BLOCK_I": 64},
        "give_back": {"BLOCK_R": 4, "BLOCK_O": 16, "BLOCK_I": 64},
        "outer": {"BLOCK_O": 32, "BLOCK_I": 64},
    }
)
"""Rows, outputs and inputs that a program of each kernel works on at once."""
WARPS = 4


class Layers(NamedTuple):
    """Where rows lie: those of outputs one layer behind the other, those of inputs as is said here."""

    samples: int  # rows of each layer
    places: tuple[int, ...]  # of each layer's first input; equal ones stand together, and are one and the same
    step: int  # from one row of inputs to the next; 0: a layer's rows lie one behind the other
    size: int  # of all inputs


# What is to be computed, in torch's operations. All is fp32.


def products(
    x: Tensor, matrices: Sequence[Tensor], biases: Sequence[Tensor], count: int, places: Sequence[int], step: int
) -> Tensor:
    """Rows times each turned matrix, plus its bias where there are biases.

    Args:
        x: inputs, flat.
        matrices: [outputs, inputs] each, contiguous.
        biases: [outputs] each, or none at all.
        count, places, step: see `Layers`; samples are its count.

    Returns:
        [rows of all layers, one behind the other].
    """
    rows = [_inputs(x, m.shape[1], count, place, step) for m, place in zip(matrices, places, strict=True)]
    result = [row @ matrix.T for row, matrix in zip(rows, matrices, strict=True)]
    if biases:
        result = [rows + bias for rows, bias in zip(result, biases, strict=True)]
    return torch.cat([rows.flatten() for rows in result])


def given_back(
    y: Tensor, matrices: Sequence[Tensor], count: int, places: Sequence[int], step: int, size: int
) -> Tensor:
    """Rows of outputs times each matrix, added up where layers share their inputs; 0 where no layer has any: [size]."""
    result = y.new_zeros(size)
    for part, matrix, place in zip(_outputs(y, [len(m) for m in matrices], count), matrices, places, strict=True):
        _inputs(result, matrix.shape[1], count, place, step).add_(part @ matrix)
    return result


def outers(
    y: Tensor, x: Tensor, outputs: Sequence[int], inputs: Sequence[int], count: int, places: Sequence[int], step: int,
    biased: bool,
) -> list[Tensor]:  # fmt: skip
    """Sums over rows of outer products [outputs, inputs] each; and then of the rows of outputs alone, if so wanted."""
    parts = _outputs(y, outputs, count)
    rows = [_inputs(x, width, count, place, step) for width, place in zip(inputs, places, strict=True)]
    result = [part.T @ row for part, row in zip(parts, rows, strict=True)]
    return result + [part.sum(0) for part in parts] if biased else result


def over_largest(
    x: Tensor, divisors: Tensor | None, widths: Sequence[int], scaled: Sequence[bool], count: int
) -> tuple[Tensor, Tensor]:
    """Each row over its largest absolute value, or over what is given; rows of layers that are not scaled over 1.

    Returns:
        Rows, flat, and the divisors that were found [layers or none, count].
    """
    rows = _outputs(x, widths, count)
    found = x.new_empty(0, count)
    if divisors is None:
        pairs = zip(rows, scaled, strict=True)
        divisors = found = torch.stack([_largest(row) if of else row.new_ones(count) for row, of in pairs])
    result = [(row / divisor[:, None]).flatten() for row, divisor in zip(rows, divisors, strict=True)]
    return torch.cat(result), found


def _largest(rows: Tensor) -> Tensor:
    """Absolute value of each row [count]."""
    return rows.abs().amax(1).clamp_min(EPS)


def _outputs(flat: Tensor, widths: Sequence[int], count: int) -> list[Tensor]:
    """Rows of each layer [count, width]."""
    return [part.view(count, -1) for part in flat.split([count * width for width in widths])]


def _inputs(flat: Tensor, width: int, count: int, place: int, step: int) -> Tensor:
    """Rows of one layer [count, width]."""
    return flat.as_strided((count, width), (step or width, 1), flat.storage_offset() + place)


def _products_like(x: Tensor, matrices: Sequence[Tensor], biases: Sequence[Tensor], count: int, *_: object) -> Tensor:
    return x.new_empty(count * sum(len(matrix) for matrix in matrices))


def _given_back_like(
    y: Tensor, matrices: Sequence[Tensor], count: int, places: Sequence[int], step: int, size: int
) -> Tensor:
    return y.new_empty(size)


def _outers_like(
    y: Tensor, x: Tensor, outputs: Sequence[int], inputs: Sequence[int], count: int, places: Sequence[int], step: int,
    biased: bool,
) -> list[Tensor]:  # fmt: skip
    matrices = [y.new_empty(*sides) for sides in zip(outputs, inputs, strict=True)]
    return matrices + [y.new_empty(width) for width in outputs] if biased else matrices


def _over_largest_like(
    x: Tensor, divisors: Tensor | None, widths: Sequence[int], scaled: Sequence[bool], count: int
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(len(widths) if divisors is None else 0, count)


# The same by kernels.

_AT = "int count, int[] places, int step"


@operation(
    f"styles_products(Tensor x, Tensor[] matrices, Tensor[] biases, {_AT}) -> Tensor",
    plain=products,
    like=_products_like,
)
def styles_products(
    x: Tensor, matrices: Sequence[Tensor], biases: Sequence[Tensor], count: int, places: Sequence[int], step: int
) -> Tensor:
    from frugan.kernels.programs import styles as programs

    result, blocks = _products_like(x, matrices, biases, count), BLOCKS["multiply"]
    grid = (len(matrices), _most(matrices, 0, blocks["BLOCK_O"]), -(-count // blocks["BLOCK_R"]))
    table = _table(matrices, biases, count, places, step, x.device)
    programs.multiply[grid](table, x, result, count, bool(biases), **blocks, num_warps=WARPS)
    return result


@operation(
    f"styles_given_back(Tensor y, Tensor[] matrices, {_AT}, int size) -> Tensor",
    plain=given_back,
    like=_given_back_like,
)
def styles_given_back(
    y: Tensor, matrices: Sequence[Tensor], count: int, places: Sequence[int], step: int, size: int
) -> Tensor:
    from frugan.kernels.programs import styles as programs

    widths = {place: matrix.shape[1] for place, matrix in zip(places, matrices, strict=True)}
    result = y.new_empty(size) if count * sum(widths.values()) == size else y.new_zeros(size)
    blocks = BLOCKS["give_back"]
    grid = (len(matrices), _most(matrices, 1, blocks["BLOCK_I"]), -(-count // blocks["BLOCK_R"]))
    table = _table(matrices, (), count, places, step, y.device)
    programs.give_back[grid](table, y, result, count, **blocks, num_warps=WARPS)
    return result


@operation(
    f"styles_outers(Tensor y, Tensor x, int[] outputs, int[] inputs, {_AT}, bool biased) -> Tensor[]",
    plain=outers,
    like=_outers_like,
)
def styles_outers(
    y: Tensor, x: Tensor, outputs: Sequence[int], inputs: Sequence[int], count: int, places: Sequence[int], step: int,
    biased: bool,
) -> list[Tensor]:  # fmt: skip
    from frugan.kernels.programs import styles as programs

    result, blocks = _outers_like(y, x, outputs, inputs, count, places, step, biased), BLOCKS["outer"]
    matrices, biases = result[: len(outputs)], result[len(outputs) :]
    grid = (len(matrices), _most(matrices, 0, blocks["BLOCK_O"]), _most(matrices, 1, blocks["BLOCK_I"]))
    table = _table(matrices, biases, count, places, step, y.device)
    programs.outer[grid](table, y, x, count, biased, **blocks, num_warps=WARPS)
    return result


@operation(
    "styles_over_largest(Tensor x, Tensor? divisors, int[] widths, bool[] scaled, int count) -> (Tensor, Tensor)",
    plain=over_largest,
    like=_over_largest_like,
)
def styles_over_largest(
    x: Tensor, divisors: Tensor | None, widths: Sequence[int], scaled: Sequence[bool], count: int
) -> tuple[Tensor, Tensor]:
    from frugan.kernels.programs import styles as programs

    result, found = _over_largest_like(x, divisors, widths, scaled, count)
    entries, at = [], 0
    for width, of in zip(widths, scaled, strict=True):
        entries.append([at, width, int(of)])
        at += count * width
    block = 1 << max(0, max(widths) - 1).bit_length()
    arguments = (table_of(entries, x.device), x, found if divisors is None else divisors, result)
    programs.divide[len(widths), count](*arguments, count, EPS, divisors is not None, block, num_warps=WARPS)
    return result, found


def _most(matrices: Sequence[Tensor], axis: int, block: int) -> int:
    """Programs along the longest one."""
    return -(-max(matrix.shape[axis] for matrix in matrices) // block)


def _table(
    matrices: Sequence[Tensor],
    biases: Sequence[Tensor],
    count: int,
    places: Sequence[int],
    step: int,
    device: torch.device,
) -> Tensor:
    """Rows of the table in which programs look up layers."""
    entries, to = [], 0
    for i, (matrix, place) in enumerate(zip(matrices, places, strict=True)):
        outputs, inputs = matrix.shape
        together = 0 if i and places[i - 1] == place else sum(other == place for other in places)
        bias = biases[i].data_ptr() if biases else 0
        entries.append([matrix.data_ptr(), bias, outputs, inputs, to, place, step or inputs, together])
        to += count * outputs
    return table_of(entries, device)


# What a synthesis network calls, differentiable as often as one asks.


def modulations(
    styles: Tensor,
    affines: Sequence[tuple[Tensor, Tensor, int]],
    squares: Sequence[Tensor],
    dtypes: Sequence[torch.dtype],
    eps: float,
) -> tuple[list[Tensor], list[Tensor]]:
    """Factors of all layers' inputs, and what demodulation multiplies the first ones' outputs by.

    Args:
        styles: [N, styles, style], fp32.
        affines: of each layer its weight [I, style], its bias [I], and the number of the style that it takes.
        squares: of each of the first layers, which are demodulated: sums of its weight's squares [O, I], fp32.
        dtypes: of what each layer computes in. Demodulation takes any scale back: in fp16 the largest factor is 1.
        eps: added to the sums under demodulation's root.

    Returns:
        [N, I] of each layer; [N, O] of each of the first; both in its dtype.
    """
    count, number, width = styles.shape
    widths = [len(weight) for weight, _, _ in affines]
    by_style = Layers(count, tuple(place * width for *_, place in affines), number * width, styles.numel())
    # kernels read numbers of one dtype
    matrices = [weight.to(styles.dtype) for weight, *_ in affines]
    biases = [bias.to(styles.dtype) for _, bias, _ in affines]
    flat = cast(Tensor, _Products.apply(styles.flatten(), by_style, *matrices, *biases))
    scaled = [dtype == torch.float16 and i < len(squares) for i, dtype in enumerate(dtypes)]
    if any(scaled):
        flat, _ = _OverLargest.apply(flat, None, widths, scaled, count)
    factors = list(_Apart.apply(flat, widths, dtypes, count))
    starts = [count * sum(widths[:i]) for i in range(len(squares))]
    of_layers = Layers(count, tuple(starts), 0, flat.numel())
    sums = cast(Tensor, _Products.apply(flat.square(), of_layers, *(square.to(flat.dtype) for square in squares)))
    outputs = [len(square) for square in squares]
    return factors, list(_Apart.apply((sums + eps).rsqrt(), outputs, dtypes[: len(squares)], count))


def one_by_one(
    factors: Sequence[Tensor], squares: Sequence[Tensor], dtypes: Sequence[torch.dtype], eps: float
) -> tuple[list[Tensor], list[Tensor]]:
    """Scale and demodulate affine maps' results [N, I] as `modulations` does, in torch's operations."""
    scaled = list(factors)
    for i in range(len(squares)):
        if dtypes[i] == torch.float16:
            scaled[i] = scaled[i] / _largest(scaled[i].detach())[:, None]
    norms = [(factors.square() @ of.T + eps).rsqrt() for factors, of in zip(scaled, squares, strict=False)]
    cast_factors = [factors.to(dtype) for factors, dtype in zip(scaled, dtypes, strict=True)]
    return cast_factors, [norm.to(dtype) for norm, dtype in zip(norms, dtypes, strict=False)]


def _in_a_row(*tensors: Tensor) -> list[Tensor]:
    """As kernels read them; gradients may come spread out, or turned."""
    return [tensor.contiguous() for tensor in tensors]


class _Products(torch.autograd.Function):
    """Matrices, and biases if there are any, come one after the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layers: Layers, *tensors: Tensor) -> Tensor:
        x, *in_rows = _in_a_row(x, *tensors)
        matrices, biases = in_rows[: len(layers.places)], in_rows[len(layers.places) :]
        ctx.save_for_backward(x, *matrices)
        ctx.layers, ctx.biased = layers, bool(biases)
        return styles_products(x, matrices, biases, *layers[:3])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, *matrices = ctx.saved_tensors
        to_x = _GivenBack.apply(gradients[0], ctx.layers, *matrices) if ctx.needs_input_grad[0] else None
        if not any(ctx.needs_input_grad[2:]):
            return to_x, None, *(None for _ in ctx.needs_input_grad[2:])
        return to_x, None, *_Outers.apply(gradients[0], x, ctx.layers, [m.shape for m in matrices], ctx.biased)


class _GivenBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, layers: Layers, *tensors: Tensor) -> Tensor:
        y, *matrices = _in_a_row(y, *tensors)
        ctx.save_for_backward(y, *matrices)
        ctx.layers = layers
        return styles_given_back(y, matrices, *layers)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        y, *matrices = ctx.saved_tensors
        to_y = _Products.apply(gradients[0], ctx.layers, *matrices) if ctx.needs_input_grad[0] else None
        if not any(ctx.needs_input_grad[2:]):
            return to_y, None, *(None for _ in matrices)
        return to_y, None, *_Outers.apply(y, gradients[0], ctx.layers, [m.shape for m in matrices], False)


class _Outers(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, y: Tensor, x: Tensor, layers: Layers, shapes: Sequence[tuple[int, int]], biased: bool
    ) -> tuple[Tensor, ...]:
        y, x = _in_a_row(y, x)
        ctx.save_for_backward(y, x)
        ctx.layers = layers
        outputs, inputs = zip(*shapes, strict=True)
        return tuple(styles_outers(y, x, outputs, inputs, *layers[:3], biased))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        y, x = ctx.saved_tensors
        matrices = gradients[: len(ctx.layers.places)]
        to_y = _Products.apply(x, ctx.layers, *gradients) if ctx.needs_input_grad[0] else None
        to_x = _GivenBack.apply(y, ctx.layers, *matrices) if ctx.needs_input_grad[1] else None
        return to_y, to_x, None, None, None


class _OverLargest(torch.autograd.Function):
    """Rows over their largest values, which are held constant."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, divisors: Tensor | None, *of: Any) -> tuple[Tensor, Tensor]:
        (x,) = _in_a_row(x)
        result, found = styles_over_largest(x, divisors, *of)
        divisors = found if divisors is None else divisors
        ctx.save_for_backward(divisors)
        ctx.mark_non_differentiable(found)
        ctx.set_materialize_grads(False)
        ctx.of = of
        return result, found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        (divisors,) = ctx.saved_tensors
        to_x = None if gradients[0] is None else _OverLargest.apply(gradients[0], divisors, *ctx.of)[0]
        return to_x, None, None, None, None


class _Apart(torch.autograd.Function):
    """Rows of each layer [count, width], in a dtype of its own; the flat tensor is cast as a whole."""

    @staticmethod
    def forward(
        ctx: Any, flat: Tensor, widths: Sequence[int], dtypes: Sequence[torch.dtype], count: int
    ) -> tuple[Tensor, ...]:
        ctx.of, ctx.dtype = (widths, dtypes, count), flat.dtype
        ctx.set_materialize_grads(False)
        parts = {dtype: _outputs(flat.to(dtype), widths, count) for dtype in dict.fromkeys(dtypes)}
        return tuple(parts[dtype][i] for i, dtype in enumerate(dtypes))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        if all(gradient is None for gradient in gradients):
            return None, None, None, None
        return _Together.apply(ctx.dtype, ctx.of, *gradients), None, None, None


class _Together(torch.autograd.Function):
    """Rows of layers as one flat tensor; 0 where a layer has none."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, of: Any, *parts: Tensor | None) -> Tensor:
        ctx.of = widths, dtypes, count = of
        there = next(part for part in parts if part is not None)
        room = there.new_zeros if any(part is None for part in parts) else there.new_empty
        result = room(count * sum(widths), dtype=dtype)
        places = _outputs(result, widths, count)
        for part_dtype in dict.fromkeys(dtypes):
            alike = [i for i, part in enumerate(parts) if part is not None and part.dtype == part_dtype]
            if alike:
                foreach_copy_([places[i] for i in alike], [cast(Tensor, parts[i]) for i in alike])
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *_Apart.apply(gradients[0], *ctx.of)


class Styles(TritonKernel):
    """Styles of all layers, where they agree in what is added under demodulation's root."""

    timed = (8, 512, 13, 1)  # samples, numbers of each, layers

    def styles(self, ws: Tensor, layers: Sequence[StyleLayer], eps: float | None) -> tuple[list[Tensor], list[Tensor]]:
        if eps is None:
            return super().styles(ws, layers, eps)
        order = sorted(range(len(layers)), key=lambda i: layers[i].squares is None)
        factors, norms = modulations(
            ws,
            [(layers[i].weight, layers[i].bias, layers[i].place) for i in order],
            [layer.squares() for layer in layers if layer.squares is not None],
            [layers[i].dtype for i in order],
            eps,
        )
        found = dict(zip(order, factors, strict=True))
        return [found[i] for i in range(len(layers))], norms

    @staticmethod
    def case(
        shape: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format, device: torch.device
    ) -> tuple[Call, list[Tensor]]:
        """Styles, weights and biases, and sums of squares: of layers every other one of which is narrower; in fp32."""
        samples, width, layers, _ = shape
        sides = [(width - width // 3 * (i % 2), width) for i in range(layers)]
        shapes = [(samples, layers, width, 1), *((*side, 1, 1) for side in sides * 2)]
        styles, *others = (some_map(sizes, torch.float32, torch.contiguous_format, device) for sizes in shapes)
        weights, squares = others[:layers], [(other.flatten(1).T.square() + 1) / width for other in others[layers:]]
        biases = [weight[:, 0].flatten() for weight in weights]
        tensors = [styles.flatten(2).to(dtype), *(weight.flatten(1) / width for weight in weights), *biases]
        return partial(_modulate, layers), [*tensors, *(square.contiguous() for square in squares)]


def _modulate(layers: int, styles: Tensor, *others: Tensor, ops: Ops) -> Tensor:
    """Flat, in the styles' dtype; the last layer is not demodulated, and two take one style."""
    weights, biases, squares = (others[i * layers : (i + 1) * layers] for i in range(3))
    dtypes = [torch.float32, *(styles.dtype for _ in range(layers - 1))]
    style_layers = [
        StyleLayer(weight, bias, max(0, i - 1), dtype, None if i == layers - 1 else partial(squares.__getitem__, i))
        for i, (weight, bias, dtype) in enumerate(zip(weights, biases, dtypes, strict=True))
    ]
    factors, norms = ops.styles(styles.float(), style_layers, CASE_EPS)
    if not norms:  # each layer finds its own
        factors, norms = one_by_one(factors, squares[:-1], dtypes, CASE_EPS)
    return torch.cat([tensor.flatten().to(styles.dtype) for tensor in (*factors, *norms)]) + 0 * squares[-1].sum()
