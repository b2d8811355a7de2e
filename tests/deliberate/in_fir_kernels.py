"""Faults in kernels for filters, and in what calls them: caught by Triton's interpreter, or without."""

from deliberate.fault import Fault

KERNELS = "kernels/programs/fir.py"
HELD, FUSED = "simulated_card/test_fir_kernels.py", "kernels/test_fir.py"

FAULTS = (
    Fault(
        "a filter is turned the other way around",
        KERNELS,
        "            if TURNED:\n",
        "            if not TURNED:\n",
        HELD,
    ),
    Fault(
        "the first tap that meets a sample is another one",
        KERNELS,
        "(UP - (row + UP * FAR) % UP) % UP",
        "(row + UP * FAR) % UP",
        HELD,
    ),
    Fault("a filter reads a row too many", KERNELS, "(y < height)", "(y <= height)", HELD),
    Fault("a filter reads to the left of a picture", KERNELS, "(at >= 0)", "(at >= -1)", HELD),
    Fault(
        "a row is as long as those of what is made",
        KERNELS,
        "_samples(y * width + at, c,",
        "_samples(y * made_width + at, c,",
        HELD,
    ),
    Fault(
        "channels lie as far apart as those of what is made",
        KERNELS,
        "_samples(y * width + at, c, height * width,",
        "_samples(y * width + at, c, pixels,",
        HELD,
    ),
    Fault(
        "what is filtered lacks its bias",
        KERNELS,
        "                value = (value.to(tl.float32) + added[None, :]).to(value.dtype)\n",
        "                value = (value.to(tl.float32) + 0).to(value.dtype)\n",
        HELD,
    ),
    Fault("a slope is that of the gradient's sign", KERNELS, "_sloped(value, result,", "_sloped(value, value,", HELD),
    Fault(
        "gradients of all pictures are the first one's",
        KERNELS,
        "            gradient + picture * height * width * channels, x,",
        "            gradient, x,",
        HELD,
    ),
    Fault("a bias is given its last tile alone", KERNELS, "        whole += passed", "        whole = passed", HELD),
    Fault("the last pixel of a tile is not filtered", KERNELS, "(y < height) & (p < pixels)", "(p < pixels - 1)", HELD),
    Fault(
        "a single pixel tells the layout of what it is made of",
        "kernels/fir.py",
        "summed=False)._replace(last=is_channels_last(maps[0]))",
        "summed=False)",
        HELD,
    ),
    Fault(
        "an adjoint is shifted by a pixel",
        "contract/resampling.py",
        "padding += [taps[axis] - before - 1, end]",
        "padding += [taps[axis] - before, end - 1]",
        FUSED,
    ),
    Fault(
        "what a penalty passes on is filtered as a gradient is",
        "kernels/fir.py",
        "return fir_sloped(laid_out_like(gradient, x), x, bias, kernel, padding, clamp)",
        "return fir_sloped(laid_out_like(gradient, x), x, bias, other, padding, clamp)",
        FUSED,
    ),
    Fault(
        "a penalty forgets what flows back through a bias",
        "kernels/fir.py",
        "of_x = spread.expand_as(x) if of_x is None else of_x + spread",
        "of_x = spread.expand_as(x) if of_x is None else of_x",
        FUSED,
    ),
    Fault(
        "a map is activated by its layer and once more by the filter",
        "nn/equalised.py",
        "        x = first._convolve(x.to(first.weight.dtype)).to(self.weight.dtype)\n",
        "        x = first(x).to(self.weight.dtype)\n",
        FUSED,
    ),
)
