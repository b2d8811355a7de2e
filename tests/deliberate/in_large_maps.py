"""Faults in kernels that show in large maps alone, in parts of them, or where many numbers are added up."""

from deliberate.fault import Fault

KERNELS, MODULATION = "kernels/programs/activation.py", "kernels/programs/modulation.py"
NORM, SSIM, FIR = "kernels/programs/norm.py", "kernels/programs/ssim.py", "kernels/programs/fir.py"
FAR = "simulated_card/test_far_places.py"
PARTS = "simulated_card/test_parts_and_sums.py -k 'parts'"
SUMS = "simulated_card/test_parts_and_sums.py -k 'sums'"

FAULTS = (
    # maps of more numbers than 32 bits count
    Fault(
        "a tile of channels-last pixels begins at a place of 32 bits",
        KERNELS,
        "        begins = first.to(tl.int64) * channels\n",
        "        begins = first * channels\n",
        FAR,
    ),
    Fault(
        "a picture that is activated begins at a place of 32 bits",
        KERNELS,
        "    picture = (tl.program_id(0) // tiles).to(tl.int64) * pixels * channels\n",
        "    picture = (tl.program_id(0) // tiles) * pixels * channels\n",
        FAR,
    ),
    Fault(
        "a picture with a style begins at a place of 32 bits",
        MODULATION,
        "    picture = number.to(tl.int64) * pixels * channels\n    first = ",
        "    picture = number * pixels * channels\n    first = ",
        FAR,
    ),
    Fault(
        "a picture of gradients with a style begins at a place of 32 bits",
        MODULATION,
        "    number = tl.program_id(0) // chunks\n    picture = number.to(tl.int64) * pixels * channels\n"
        "    chunk = (tl.program_id(0) % chunks) * loops\n    c = _channels(channels, BLOCK_C)\n"
        "    factor = tl.load(factors + number * channels + c, mask=c < channels, other=0.0).to(tl.float32)\n"
        "    to_bias",
        "    number = tl.program_id(0) // chunks\n    picture = number * pixels * channels\n"
        "    chunk = (tl.program_id(0) % chunks) * loops\n    c = _channels(channels, BLOCK_C)\n"
        "    factor = tl.load(factors + number * channels + c, mask=c < channels, other=0.0).to(tl.float32)\n"
        "    to_bias",
        FAR,
    ),
    Fault(
        "what is normalised begins at a place of 32 bits",
        NORM,
        "    unit = (tl.program_id(0) // chunks).to(tl.int64) * pixels * channels\n",
        "    unit = (tl.program_id(0) // chunks) * pixels * channels\n",
        FAR,
    ),
    Fault(
        "a picture of a norm's slopes begins at a place of 32 bits",
        NORM,
        "    picture = number.to(tl.int64) * pixels * channels\n",
        "    picture = number * pixels * channels\n",
        FAR,
    ),
    Fault(
        "the second row of four pixels is at a place of 32 bits",
        "kernels/programs/pooling.py",
        "    below = (above + 2 * width).to(tl.int64)[:, None]",
        "    below = (above + 2 * width)[:, None]",
        FAR,
    ),
    Fault(
        "a picture that is filtered begins at a place of 32 bits",
        FIR,
        "    picture = (tl.program_id(0) // tiles).to(tl.int64)\n",
        "    picture = tl.program_id(0) // tiles\n",
        FAR,
    ),
    Fault(
        "a plane that is compared begins at a place of 32 bits",
        SSIM,
        "    plane = tl.program_id(0).to(tl.int64) * pixels\n",
        "    plane = tl.program_id(0) * pixels\n",
        FAR,
    ),
    # parts of larger maps, and sums
    Fault(
        "a part of a channels-last map passes for a whole one",
        "kernels/maps.py",
        "    return x.is_contiguous(memory_format=torch.channels_last) if x.ndim == 4 else",
        "    return x.stride(1) == 1 if x.ndim == 4 else",
        PARTS,
    ),
    Fault(
        "a bias's sum is rounded at each tile",
        KERNELS,
        "        total += passed.to(tl.float32)\n",
        "        total = (total + passed.to(tl.float32)).to(passed.dtype).to(tl.float32)\n",
        SUMS,
    ),
    Fault(
        "sums for a style's bias are rounded at each tile",
        MODULATION,
        "        to_bias += passed\n",
        "        to_bias = (to_bias + passed).to(value.dtype).to(tl.float32)\n",
        SUMS,
    ),
    Fault(
        "a bias's sum beside a filter is rounded at each tile",
        FIR,
        "        whole += passed.to(tl.float32)\n",
        "        whole = (whole + passed.to(tl.float32)).to(passed.dtype).to(tl.float32)\n",
        SUMS,
    ),
)
