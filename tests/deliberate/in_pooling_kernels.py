"""Faults in kernels for ReLU and means, and in blocks that use them: caught by Triton's interpreter, or without."""

from deliberate.fault import Fault

KERNELS, PROGRAMS = "nn/pooling_kernels.py", "nn/fused_pooling.py"
HELD, FUSED = "simulated_card/test_pooling_kernels.py", "nn/test_fused_pooling.py"

FAULTS = (
    Fault(
        "pixels of the row below are those of the one after next",
        KERNELS,
        "(above + 2 * width).to",
        "(above + 4 * width).to",
        HELD,
    ),
    Fault(
        "rows of a small map lie as close as those of the large one",
        KERNELS,
        "p // width * (2 * width)",
        "p // width * width",
        HELD,
    ),
    Fault(
        "the last mean is left out",
        KERNELS,
        "(p < pixels)[:, None]",
        "(p < pixels - 1)[:, None]",
        HELD,
    ),
    Fault(
        "programs of other channels have the first ones",
        KERNELS,
        "tl.program_id(1) * BLOCK_C +",
        "tl.program_id(1) * 0 +",
        HELD,
    ),
    Fault(
        "a mean is rounded once where torch rounds it twice",
        KERNELS,
        "(total * 0.25).to(means.dtype.element_ty)",
        "total * 0.25",
        HELD,
    ),
    Fault(
        "a ReLU beside means swallows what is not a number",
        KERNELS,
        "tl.where(x < 0, 0.0, x.to(tl.float32))",
        "tl.where(x > 0, x.to(tl.float32), 0.0)",
        HELD,
    ),
    Fault(
        "means of a ReLU are of what it was given",
        KERNELS,
        "        given = _relu(given)\n",
        "        given = given\n",
        HELD,
    ),
    Fault(
        "a ReLU beside means passes a gradient where it gave 0",
        KERNELS,
        "held = tl.load(shown + place, mask=inside, other=0.0) <= 0",
        "held = tl.load(shown + place, mask=inside, other=0.0) < 0",
        HELD,
    ),
    Fault(
        "a ReLU beside its map passes a gradient where it gave 0",
        KERNELS,
        "held = tl.load(shown + at, mask=inside, other=0.0) <= 0",
        "held = tl.load(shown + at, mask=inside, other=0.0) < 0",
        HELD,
    ),
    Fault(
        "of two gradients of a map the one of its means is lost",
        KERNELS,
        ".to(tl.float32)) + spread\n",
        ".to(tl.float32))\n",
        HELD,
    ),
    Fault(
        "what flows back to a ReLU's means passes everywhere",
        KERNELS,
        "        passed = tl.where(held, 0.0, spread)\n",
        "        passed = spread\n",
        HELD,
    ),
    Fault(
        "the last number of two gradients is left out",
        KERNELS,
        "    inside = at < count\n",
        "    inside = at < count - 1\n",
        HELD,
    ),
    Fault(
        "programs of means count as many columns as the map has",
        PROGRAMS,
        "pixels, width // 2, channels",
        "pixels, width, channels",
        HELD,
    ),
    Fault(
        "means are taken by kernels in a layout that they do not know",
        PROGRAMS,
        " and x.is_contiguous(memory_format=torch.channels_last)\n",
        "\n",
        FUSED,
    ),
    Fault(
        "a gradient of a gradient of a ReLU beside means is lost",
        PROGRAMS,
        "        if torch.is_grad_enabled() or gradient is None or of_means is None:\n",
        "        if gradient is None or of_means is None:\n",
        FUSED,
    ),
    Fault(
        "a ReLU beside its map loses the gradient of either alone",
        PROGRAMS,
        "        return other if one is None else one\n",
        "        return None\n",
        FUSED,
    ),
    Fault(
        "a deep block by kernels takes means of what no ReLU has passed",
        "families/biggan/networks.py",
        "h = relu_means(h) if",
        "h = mean_pool2d(h) if",
        FUSED,
    ),
    Fault(
        "a skip is halved once by kernels and once again",
        "families/biggan/networks.py",
        "means_and(h, self.conv_sc(x), made)",
        "means_and(h, self.conv_sc(mean_pool2d(x)), made)",
        FUSED,
    ),
    Fault(
        "a block is made again beside a gradient as large as its largest map",
        PROGRAMS,
        "        _ = ctx.saved_tensors\n",
        "",
        FUSED,
    ),
    Fault(
        "a gradient is spread as if there were no mean",
        PROGRAMS,
        "(last * 0.25).view(",
        "(last * 1.0).view(",
        FUSED,
    ),
)
