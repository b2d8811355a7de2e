"""What rounding alone does to the traces: the figures that their limits are made of, and what measured them.

Measured on an x86 CPU with one thread, as the largest distance from our float64 run of 30 fp32 runs (20 at 128 pixels),
whose first weights were changed by one rounding error each. Twice: with kernels for AVX-512, and with those for AVX2
(ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2); the larger figure stands below. The recordings have no part in it:
an error of ours would widen its own limit. A limit is twice that: our distance from the truth and the recording's.

`cd tests && PYTHONPATH=../src:. python -m parity.rounding` prints the rows again (8 to 20 minutes).
"""

import math
import sys

import torch

from parity.golden import CASES, Case
from parity.movement import digests, errors, loss_error, recorded_digests
from parity.traces import ORTHOGONALITY, Trace, run

QUANTITIES = ("G", "D", "u", "sv", "statistics", "G_ema", "losses")

ROUNDING: dict[tuple[str, str, int], tuple[float, ...]] = {
    # case, recording, iterations done: G, D, u, sv, statistics, G_ema, losses
    ("bg32_hier", "train_plain", 1): (1.9e-04, 2.0e-05, 1.4e-07, 1.1e-07, 3.1e-07, 4.6e-03, 4.1e-07),
    ("bg32_hier", "train_plain", 3): (1.1e-03, 6.5e-05, 6.6e-07, 2.2e-07, 1.6e-05, 2.6e-03, 3.0e-06),
    ("bg32_hier", "train_ortho", 1): (1.9e-04, 9.9e-06, 1.4e-07, 1.2e-07, 3.1e-07, 4.6e-03, 4.2e-07),
    ("bg32_hier", "train_ortho", 3): (9.6e-03, 3.9e-03, 1.4e-05, 1.0e-05, 8.1e-06, 5.6e-03, 1.6e-03),
    ("bg64_hier", "train_plain", 1): (1.6e-04, 9.3e-06, 1.6e-07, 9.4e-08, 2.3e-07, 1.6e-04, 6.0e-07),
    ("bg64_hier", "train_plain", 3): (4.4e-04, 3.7e-05, 1.1e-06, 4.1e-07, 2.0e-06, 3.2e-04, 5.3e-06),
    ("bg64_hier", "train_ortho", 1): (1.5e-04, 9.3e-06, 1.6e-07, 9.5e-08, 2.3e-07, 1.5e-04, 6.2e-07),
    ("bg64_hier", "train_ortho", 3): (4.6e-04, 3.7e-04, 1.5e-06, 2.1e-07, 1.7e-06, 3.1e-04, 3.4e-06),
    ("bg128_bs256x8", "train_plain", 1): (8.2e-03, 5.2e-05, 2.6e-07, 2.0e-07, 4.9e-07, 8.2e-03, 1.2e-06),
    ("bg128_bs256x8", "train_plain", 3): (1.7e-02, 6.1e-04, 2.7e-05, 2.2e-05, 1.7e-05, 8.2e-03, 9.2e-05),
    ("bg128_bs256x8", "train_ortho", 1): (8.5e-03, 5.2e-05, 2.6e-07, 2.0e-07, 4.9e-07, 8.5e-03, 1.2e-06),
    ("bg128_bs256x8", "train_ortho", 3): (2.6e-02, 3.9e-03, 7.8e-05, 3.4e-05, 8.0e-05, 8.5e-03, 4.8e-04),
    ("deep128", "train_plain", 1): (3.4e-02, 1.8e-05, 1.6e-07, 7.9e-08, 1.3e-06, 3.4e-02, 1.3e-06),
    ("deep128", "train_plain", 3): (1.3e-01, 2.0e-02, 2.0e-04, 2.2e-04, 2.4e-04, 1.3e-01, 2.3e-03),
    ("deep128", "train_ortho", 1): (3.8e-02, 5.9e-05, 1.9e-07, 1.1e-07, 1.3e-06, 3.8e-02, 1.8e-06),
    ("deep128", "train_ortho", 3): (1.4e-01, 2.5e-02, 2.4e-04, 3.3e-04, 3.7e-04, 1.4e-01, 2.1e-03),
    ("sngan64", "train_plain", 1): (6.6e-03, 2.2e-05, 1.3e-07, 8.3e-08, 1.5e-07, 0.0, 9.8e-07),
    ("sngan64", "train_plain", 3): (1.5e-02, 8.2e-05, 2.7e-05, 5.9e-06, 7.3e-05, 0.0, 9.0e-06),
    ("sngan64", "train_ortho", 1): (6.8e-03, 2.3e-05, 1.3e-07, 1.0e-07, 1.5e-07, 0.0, 1.1e-06),
    ("sngan64", "train_ortho", 3): (8.1e-03, 2.7e-03, 3.2e-05, 1.1e-05, 6.6e-05, 0.0, 6.5e-04),
    ("sagan64", "train_plain", 1): (4.1e-04, 3.4e-05, 1.1e-07, 1.2e-07, 7.3e-08, 4.1e-04, 2.1e-07),
    ("sagan64", "train_plain", 3): (1.8e-03, 2.6e-05, 6.2e-07, 2.1e-07, 8.1e-06, 1.8e-03, 4.5e-07),
    ("sagan64", "train_ortho", 1): (1.6e-04, 1.3e-05, 1.2e-07, 8.7e-08, 7.3e-08, 1.6e-04, 3.5e-07),
    ("sagan64", "train_ortho", 3): (6.9e-04, 5.3e-05, 7.0e-07, 5.0e-07, 1.1e-05, 6.9e-04, 1.2e-06),
    ("cifar32", "train_plain", 1): (1.1e-03, 5.6e-06, 9.2e-08, 1.1e-07, 5.6e-08, 1.1e-03, 4.2e-06),
    ("cifar32", "train_plain", 3): (1.6e-02, 6.1e-03, 4.7e-05, 3.8e-05, 1.1e-04, 1.6e-02, 5.0e-03),
    ("cifar32", "train_ortho", 1): (1.7e-03, 5.6e-06, 9.2e-08, 1.1e-07, 5.6e-08, 1.7e-03, 4.5e-06),
    ("cifar32", "train_ortho", 3): (1.7e-02, 3.4e-03, 1.4e-04, 8.6e-05, 2.1e-04, 1.7e-02, 5.5e-03),
}
"""bg32_hier's G_ema: the original forms 0.9·t + 0.1·s in fp32, whose factors do not add up to 1 exactly; so do the
runs that are measured."""

FLOOR: dict[int, tuple[float, ...]] = {
    1: (5e-4, 5e-5, 1e-6, 1e-6, 2e-6, 5e-4, 5e-6),
    3: (3e-3, 3e-3, 3e-5, 3e-5, 5e-5, 3e-3, 1e-3),
}
"""No limit is narrower. Now and then an input of a ReLU lies within rounding of 0: a unit switches, and Adam, to which
signs matter more than sizes, makes 1e-3 to 1e-2 of it. With other kernels than those of the measurement it may be
another unit's turn."""

WHOLE: dict[str, dict[tuple[str, int], float]] = {
    "bg32_hier": {("G", 1): 5e-4, ("D", 1): 1e-4, ("G", 3): 4e-3, ("D", 3): 3e-3, ("G_ema", 3): 4e-3},
    "cifar32": {("G", 1): 1.5e-2, ("D", 1): 5e-5, ("G", 3): 0.12, ("D", 3): 2e-2, ("G_ema", 3): 0.12},
}
"""Limits of the movement where whole states were recorded: (network, iterations done) -> limit, made the same way from
8.7e-5, 4.2e-5, 1.9e-3, 7.5e-5, 1.2e-3 and 7.2e-3, 4.7e-6, 5.8e-2, 8.6e-3, 5.8e-2."""

MOMENTS = 0.06
"""Limit of Adam's moments. Rounding makes at most 2.6e-2 (deep128; others 6e-3), beta2 off by 10 % at least 0.39."""


ORDER_OF_SUMS = 1e-6
"""Statistics are sums over a batch and its pixels: another order of adding changes them by up to so much (relative),
which runs of ours, perturbed or not, do not show."""


def limits(name: str, which: str, done: int) -> dict[str, float]:
    """What a trace may be off by: quantity -> limit."""
    pairs = zip(ROUNDING[name, which, done], FLOOR[done], strict=True)
    return dict(zip(QUANTITIES, (max(2 * rounding, floor) for rounding, floor in pairs), strict=True))


def limits_in_float64(name: str, which: str, done: int) -> dict[str, float]:
    """What a recording may be off by from our float64 run: what one run in fp32 is. Quantity -> limit."""
    limits = dict(zip(QUANTITIES, ROUNDING[name, which, done], strict=True))
    return limits | {"statistics": max(limits["statistics"], ORDER_OF_SUMS)}


def distances(case: Case, which: str, runs: int) -> dict[int, dict[str, float]]:
    """Iterations done -> quantity -> the largest distance from the float64 run, as described above."""
    exact = run(case, which, float64=True)
    averaged = bool(recorded_digests(case, which, 3).keys() & {f"G_ema.{key[2:]}" for key in case.states})
    distance_of: dict[int, dict[str, float]] = {}

    def note(done: int, off: dict[str, float]) -> None:
        for quantity, value in off.items():
            distance_of.setdefault(done, {})[quantity] = max(value, distance_of.get(done, {}).get(quantity, 0.0))

    for seed in range(1, runs + 1):
        trace = run(case, which, perturbation=seed)
        for done in (1, 3):
            reference = digests(exact.states[done])
            if not averaged:
                reference = {key: value for key, value in reference.items() if not key.startswith("G_ema.")}
            for average in ({}, trace.originals_average[done]):
                note(done, errors(case, digests(trace.states[done] | average), reference))
            note(done, {"losses": _losses(done, trace, exact.losses)})
    return distance_of


def _losses(done: int, trace: Trace, reference: list[dict[str, float]]) -> float:
    return max(loss_error(trace.losses[i], reference[i]) for i in ((0,) if done == 1 else (1, 2)))


def rounded_up(value: float) -> float:
    """A figure for the table: two digits."""
    if value == 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value / unit) * unit


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or CASES:
        for which in ORTHOGONALITY:
            rows = distances(Case.load(name), which, runs=20 if "128" in name else 30)
            for done, row in rows.items():
                values = ", ".join(f"{rounded_up(row.get(quantity, 0.0)):.1e}" for quantity in QUANTITIES)
                print(f'    ("{name}", "{which}", {done}): ({values}),', flush=True)
