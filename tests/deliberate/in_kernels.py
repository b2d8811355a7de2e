"""Faults in kernels of our own, and in who may use them: caught by Triton's interpreter, or without Triton at all."""

from deliberate.fault import Fault

KERNELS = "nn/activation_kernels.py"
PROGRAMS = "nn/fused_activation.py"
HELD = "nn/test_activation_kernels.py"
FUSED = "nn/test_fused_activation.py"
CHOSEN = "api/test_kernels.py"

FAULTS = (
    Fault(
        "a kernel's last pixel is left out",
        KERNELS,
        "(first + p < pixels)[:, None] & (c < channels)[None, :]",
        "(first + p < pixels - 1)[:, None] & (c < channels)[None, :]",
        HELD,
    ),
    Fault(
        "a kernel's last channel is left out",
        KERNELS,
        "(first + p < pixels)[:, None] & (c < channels)[None, :]",
        "(first + p < pixels)[:, None] & (c < channels - 1)[None, :]",
        HELD,
    ),
    Fault(
        "a kernel takes one layout for the other",
        KERNELS,
        "        within = p[:, None] + c[None, :] * pixels\n",
        "        within = p[:, None] * channels + c[None, :]\n",
        HELD,
    ),
    Fault(
        "a tile of channels-last pixels begins as if they lay side by side",
        KERNELS,
        "        begins = first.to(tl.int64) * channels\n",
        "        begins = first.to(tl.int64)\n",
        HELD,
    ),
    Fault(
        "a kernel keeps a sum that torch rounds",
        KERNELS,
        "    given = tl.load(x + picture + begins + within, mask=inside, other=0.0)\n    y = (given",
        "    given = tl.load(x + picture + begins + within, mask=inside, other=0.0).to(tl.float32)\n    y = (given",
        HELD,
    ),
    Fault(
        "a kernel clamps on one side",
        KERNELS,
        "wide < -clamp, -clamp, wide",
        "wide < -clamp, wide, wide",
        HELD,
    ),
    Fault(
        "what lies at the clamp has a gradient",
        KERNELS,
        "(shown >= clamp) | (shown <= -clamp)",
        "(shown > clamp) | (shown < -clamp)",
        HELD,
    ),
    Fault(
        "a zero has the other slope",
        KERNELS,
        "to_x = tl.where(shown > 0, wide, wide * slope)",
        "to_x = tl.where(shown >= 0, wide, wide * slope)",
        HELD,
    ),
    Fault(
        "programs write their sums into one row",
        KERNELS,
        "tl.store(sums + tl.program_id(0).to(tl.int64) * channels + c, tl.sum(total, 0)",
        "tl.store(sums + c, tl.sum(total, 0)",
        HELD,
    ),
    Fault(
        "a program sums its last tile alone",
        KERNELS,
        "        total += passed.to(tl.float32)\n",
        "        total = passed.to(tl.float32)\n",
        HELD,
    ),
    Fault(
        "programs with sums overlap",
        KERNELS,
        "    chunk = (tl.program_id(0) % chunks) * loops\n    c = _channels(channels, BLOCK_C)\n    total",
        "    chunk = (tl.program_id(0) % chunks)\n    c = _channels(channels, BLOCK_C)\n    total",
        HELD,
    ),
    Fault(
        "all pictures have the first one's factors",
        KERNELS,
        "    factor = tl.load(factors + number * channels + c, mask=c < channels, other=0.0).to(tl.float32)\n    added",
        "    factor = tl.load(factors + c, mask=c < channels, other=0.0).to(tl.float32)\n    added",
        HELD,
    ),
    Fault(
        "the bias comes before the factors",
        KERNELS,
        "    y = given.to(tl.float32) * factor[None, :]\n",
        "    y = (given.to(tl.float32) + added[None, :]) * factor[None, :]\n    added = added * 0\n",
        HELD,
    ),
    Fault(
        "noise of all pictures is the first one's",
        PROGRAMS,
        "        stride = 0 if noise is None or len(noise) == 1 else grid.pixels\n",
        "        stride = 0\n",
        HELD,
    ),
    Fault(
        "sums for the noise of several blocks of channels meet in one place",
        KERNELS,
        "    noise_sums += (tl.program_id(1) * pictures + number).to(tl.int64) * pixels\n",
        "    noise_sums += number.to(tl.int64) * pixels\n",
        HELD,
    ),
    Fault(
        "the gradient of the factors is of what was made",
        KERNELS,
        "tl.load(x + place, mask=inside, other=0.0).to(tl.float32)\n        if NOISY",
        "tl.load(made + place, mask=inside, other=0.0).to(tl.float32)\n        if NOISY",
        HELD,
    ),
    Fault(
        "a gradient in another layout is read as it lies",
        PROGRAMS,
        "_operations.leaky_relu_slopes(_laid_out_like(gradient, made), made, clamp, sums)",
        "_operations.leaky_relu_slopes(gradient, made, clamp, sums)",
        HELD,
    ),
    Fault(
        "a bias's part in a gradient of the gradient is left out",
        PROGRAMS,
        "        if of_bias is not None:\n",
        "        if of_bias is None and of_x is None:\n",
        FUSED,
    ),
    Fault(
        "gradients that are to be differentiated are taken in one pass",
        PROGRAMS,
        "        if torch.is_grad_enabled():\n",
        "        if False:\n",
        FUSED,
    ),
    Fault(
        "a clamp is not rounded as results are",
        "nn/elementwise.py",
        "return cast(Tensor, _LeakyReLU.apply(x, bias, limit_of(clamp, x.dtype)))",
        "return cast(Tensor, _LeakyReLU.apply(x, bias, clamp))",
        FUSED,
    ),
    Fault(
        "compiled phases hold operations of our own",
        PROGRAMS,
        'if "leaky_relu" not in kernels or elementwise.is_traced():',
        'if "leaky_relu" not in kernels:',
        FUSED,
    ),
    Fault(
        "a kernel that gives no number is used",
        "api/kernels.py",
        "            if not float((one.float() - other.float()).abs().max()) <= most:",
        "            if float((one.float() - other.float()).abs().max()) > most:",
        CHOSEN,
    ),
    Fault(
        "a kernel is used however slow it is",
        "api/kernels.py",
        "if gain < 1 else None, gain)",
        "if gain < 0 else None, gain)",
        CHOSEN,
    ),
    Fault(
        "a run does not use what was chosen",
        "engine/training.py",
        "            use_kernels(network, self.kernels)\n",
        "",
        CHOSEN,
    ),
)
