"""Faults in kernels for factors of channels, and in what calls them: caught by Triton's interpreter, or without it."""

from deliberate.fault import Fault

KERNELS, PROGRAMS = "kernels/programs/modulation.py", "kernels/modulation.py"
HELD, FUSED = "simulated_card/test_activation_kernels.py", "kernels/test_activation.py"

FAULTS = (
    Fault(
        "a kernel gives third derivatives of a modulation, of which it knows nothing",
        PROGRAMS,
        "        if torch.is_grad_enabled():\n            return _twice_by_torch(",
        "        if False:\n            return _twice_by_torch(",
        FUSED,
    ),
    Fault(
        "a kernel gives third derivatives of a styled activation, of which it knows nothing",
        PROGRAMS,
        "        if of_strength is None and of_bias is None and not torch.is_grad_enabled():\n",
        "        if of_strength is None and of_bias is None:\n",
        FUSED,
    ),
    Fault(
        "gradients of a bias's gradient are left out",
        PROGRAMS,
        "        if of_strength is None and of_bias is None and not torch.is_grad_enabled():\n",
        "        if of_strength is None and not torch.is_grad_enabled():\n",
        FUSED,
    ),
    Fault(
        "a program sums a gradient of gradients over its last tile alone",
        KERNELS,
        "            total += of_map * passed\n",
        "            total = of_map * passed\n",
        HELD,
    ),
    Fault(
        "a gradient of a gradient lacks the factors",
        KERNELS,
        "            through += of_map * factor[None, :]\n",
        "            through += of_map\n",
        HELD,
    ),
    Fault(
        "a gradient of a gradient takes no slope",
        KERNELS,
        "            back = _sloped(back, shown, slope, clamp, CLAMPED)\n",
        "            back = back\n",
        HELD,
    ),
    Fault(
        "all pictures have the first one's gradient of what goes to the factors",
        KERNELS,
        "tl.load(of_factors + number * channels + c, mask",
        "tl.load(of_factors + c, mask",
        HELD,
    ),
    Fault(
        "a map's gradient of gradients has the factors in place of theirs",
        KERNELS,
        "tl.store(to_x + place, (passed * of_factor[None, :])",
        "tl.store(to_x + place, (passed * factor[None, :])",
        HELD,
    ),
    Fault(
        "programs write sums of gradients of gradients into one row",
        KERNELS,
        "        row = tl.program_id(0).to(tl.int64) * channels\n        tl.store(factor_sums",
        "        row = tl.program_id(0).to(tl.int64) * 0\n        tl.store(factor_sums",
        HELD,
    ),
    Fault(
        "a map is scaled again where its shape alone counts",
        "nn/modulated.py",
        "            x * factors if of_weight else x,",
        "            x * factors,",
        FUSED,
    ),
    Fault(
        "what has no gradient is given one of zeros",
        PROGRAMS,
        "        ctx.set_materialize_grads(False)\n        return result\n",
        "        return result\n",
        FUSED,
    ),
    Fault(
        "a noise's strength has the sum over the last tile alone",
        KERNELS,
        "            to_strength += passed",
        "            to_strength = passed",
        HELD,
    ),
    Fault(
        "noise that is a part of something is read as if it were all",
        PROGRAMS,
        "    return noise, 0 if len(noise) == 1 else noise.stride(0)\n",
        "    return noise, 0 if len(noise) == 1 else noise[0].numel()\n",
        HELD,
    ),
    Fault(
        "scaled noise is not rounded",
        KERNELS,
        " * tl.load(strength)).to(drawn.dtype).to(value.dtype)\n",
        " * tl.load(strength))\n",
        HELD,
    ),
    Fault(
        "of many numbers the first thousand are added up",
        "kernels/programs/activation.py",
        "        for i in range(0, count, BLOCK_R * BLOCK_C):\n",
        "        for i in range(0, 1, BLOCK_R * BLOCK_C):\n",
        HELD,
    ),
    Fault(
        "the gradient of noise lacks its strength",
        PROGRAMS,
        ".sum_to_size(noise.shape) * strength\n",
        ".sum_to_size(noise.shape)\n",
        FUSED,
    ),
    Fault(
        "colours take the slope of activations",
        "kernels/activation.py",
        "    return _with_slope(x, bias, clamp, 1.0)\n",
        "    return _with_slope(x, bias, clamp, SLOPE)\n",
        FUSED,
    ),
    Fault(
        "a kernel takes one slope whatever it is asked for",
        "kernels/activation.py",
        "grid.loops, slope, limit_of",
        "grid.loops, SLOPE, limit_of",
        HELD,
    ),
)
