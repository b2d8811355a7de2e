"""Faults in StyleGAN3's filters, layers and phases, in how it is scored, and in its export."""

from deliberate.fault import Fault

FOLDER = "families/stylegan3"
FAULTS = (
    Fault(
        "radial filters are made by torch's Bessel function, which is wrong by 2e-7",
        f"{FOLDER}/filters.py",
        "bessel_j1(2 * math.pi * cutoff / rate * radius)",
        "torch.special.bessel_j1(2 * math.pi * cutoff / rate * radius)",
        "parity/stylegan3/test_numbers.py",
    ),
    Fault(
        "maps lie half a sample beside where they belong",
        f"{FOLDER}/config.py",
        "(total + self.up) // 2",
        "total // 2",
        "parity/stylegan3/test_numbers.py",
    ),
    Fault(
        "inputs are divided by their mean square, not by its root",
        f"{FOLDER}/networks.py",
        "(norms * self.magnitude_ema.rsqrt())",
        "(norms / self.magnitude_ema)",
        "parity/stylegan3/test_forward.py",
    ),
    Fault(
        "waves beyond the band do not fade",
        f"{FOLDER}/networks.py",
        "mixing = fading[:, None] * self.weight",
        "mixing = torch.ones_like(fading)[:, None] * self.weight",
        "families/test_stylegan3.py -k fade_out",
    ),
    Fault(
        "the mean style moves in the generator's phase too",
        f"{FOLDER}/phases.py",
        "observed=None if observed else 0",
        "observed=None",
        "families/test_stylegan3.py",
    ),
    Fault(
        "the blur lasts for ever",
        f"{FOLDER}/phases.py",
        "return before + samples",
        "return before",
        "families/test_stylegan3.py",
    ),
    Fault(
        "the blur has no edge",
        f"{FOLDER}/phases.py",
        "reached = away <= (REACH * deviation).floor()",
        "reached = away <= most",
        "families/test_stylegan3.py -k papers",
    ),
    Fault(
        "a layer of another resolution is none of this one's",
        f"{FOLDER}/family.py",
        "ours.layer_shapes[index].name",
        "theirs.layer_shapes[index].name",
        "families/test_stylegan3.py -k another_resolution",
    ),
    Fault(
        "pictures are turned the other way before they are compared",
        "metrics/equivariance.py",
        "(cosine * x - sine * y, sine * x + cosine * y)",
        "(cosine * x + sine * y, cosine * y - sine * x)",
        "metrics/test_equivariance.py -k turns",
    ),
    Fault(
        "pictures are compared at another place than the one they were moved to",
        "evaluation/equivariance.py",
        "translation_error(still, moved, *offset)",
        "translation_error(still, moved, -offset[0], offset[1])",
        "evaluation/test_equivariance.py -k follows",
    ),
    Fault(
        "an exported generator writes to parts of a map",
        "conversion/export/onnx.py",
        "use_ops(generator.network, WholeMaps())",
        "use_ops(generator.network, PLAIN)",
        "conversion/test_onnx_export.py -k recorded",
    ),
)
