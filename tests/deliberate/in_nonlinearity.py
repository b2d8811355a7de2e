"""Faults in StyleGAN3's nonlinearity between two filters: in plain torch, and in its kernel."""

from deliberate.fault import Fault

PLAIN, KERNEL = "contract/filtered_nonlinearity.py", "kernels/programs/filtered_nonlinearity.py"
TORCHS, HELD = "contract/test_filtered_nonlinearity.py", "simulated_card/test_filtered_nonlinearity_kernel.py"

FAULTS = (
    Fault(
        "the map in between begins a pixel too late",
        PLAIN,
        "begin.append(taps - 1 - before)",
        "begin.append(taps - before)",
        TORCHS,
    ),
    Fault("a code is written over another one", PLAIN, "rows, alpha=4**k)", "rows, alpha=2**k)", TORCHS),
    Fault("a pixel that was clamped has a gradient", PLAIN, "(code & 2 * 4**k)", "(code & 4**k)", TORCHS),
    Fault(
        "a result keeps what it is made of",
        PLAIN,
        "up_taps, down_taps, of)\n        ctx.save_for_backward(codes,",
        "up_taps, down_taps, of)\n        ctx.kept = ctx.save_for_backward(x, codes,",
        TORCHS,
    ),
    Fault(
        "the map in between is there as a whole",
        PLAIN,
        "samples = max(1, pixels // (plane * channels)) if together == channels else 1",
        "samples, together = count, channels",
        TORCHS + " -k without_data",
    ),
    Fault(
        "a bias takes sums in half precision",
        PLAIN,
        "to_x.sum((0, 2, 3), dtype=ctx.bias_dtype)",
        "to_x.sum((0, 2, 3))",
        TORCHS,
    ),
    Fault(
        "a gain is applied twice to a separable filter",
        "families/stylegan3/filtered_nonlinearity.py",
        "math.sqrt(gain) if taps.ndim == 1 else gain",
        "gain",
        TORCHS,
    ),
    Fault(
        "zeros beside a picture have a bias",
        KERNEL,
        "tl.where(inside & there, value.to(tl.float32) + added, 0.0)",
        "(value.to(tl.float32) + added)",
        HELD,
    ),
    Fault("a tap is that of the row above", KERNEL, "phase + UP * j", "phase + UP * j + 1", HELD),
    Fault("the last program leaves its codes to others", KERNEL, "| (tile == tiles - 1))", ")", HELD),
    Fault("the last rows' codes are nobody's", KERNEL, "| (group == groups - 1))", ")", HELD),
    Fault("a row takes the codes of the byte's first", KERNEL, ">> (2 * (r & 3))", ">> 0", HELD),
    Fault(
        "rows of the result lie as far apart as those of the map",
        KERNEL,
        "* made_width * apart)[None, :, None]",
        "* width * apart)[None, :, None]",
        HELD,
    ),
    Fault(
        "codes of all pictures are the first one's",
        KERNEL,
        "    codes += picture * bytes_high * between_width\n",
        "",
        HELD,
    ),
    Fault(
        "an adjoint begins where the operation did",
        "kernels/filtered_nonlinearity.py",
        "after = (-sizes.begin[0], -sizes.begin[1])",
        "after = sizes.begin",
        HELD,
    ),
)
