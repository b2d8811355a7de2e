"""What rounding alone does to the runs of twenty steps: the figures that their limits are made of, and their program.

Both optimizers take steps of nearly one size whatever the gradient is, and a leaky ReLU has a kink: a rounding error of
the first weights grows with every step. Measured on an x86 CPU with one thread, as the largest distance from our
float64 run of 16 fp32 runs (8 of liae's) whose first weights were changed by one rounding error each; the recordings
have no part in it. A limit is four times that: our and the recording's distance from the truth, added, and once more as
much, because kernels of another program round otherwise at every step, and perturbed starts only at the first.

`cd tests && PYTHONPATH=../src:. python -m parity.saehd.rounding` prints the rows again (3 minutes).
"""

import copy
import sys
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import nn

from parity.rounding import rounded_up
from parity.saehd.errors import fingerprint, joint_error, loss_error, weight_error
from parity.saehd.golden import LONG, Recording, recording
from parity.saehd.runs import Run, final_weights, pictures, run, statistics

RUNS, STEPS, RATE = 16, 20, 5e-5

QUANTITIES = ("losses", "first movement", "movement", "weights", "state", "pictures")
"""Relative error of any sample's loss at any step; of the movement of all tensors together after one and after all
steps; what 99 % of each network's weights are within, in rates times steps; relative error of an optimizer's statistics
of all tensors together; largest difference of any pixel that is drawn at the end."""

ROUNDING: dict[str, tuple[float, ...]] = {
    # in the order above
    "df-ud_rmsprop": (4.4e-05, 1.8e-06, 2.0e-04, 1.7e-02, 1.6e-03, 6.1e-04),
    "df-ud_adabelief": (2.3e-05, 1.5e-06, 7.4e-05, 1.7e-02, 4.4e-03, 6.7e-04),
    "liae-ud_rmsprop": (7.6e-04, 4.1e-04, 1.9e-03, 1.4e-01, 6.3e-03, 5.7e-03),
    "liae-ud_adabelief": (1.8e-03, 2.3e-04, 3.2e-03, 1.2e00, 1.9e-02, 4.8e-02),
}


MARGIN = 4


def limits(name: str) -> dict[str, float]:
    """What a run may be off by: quantity -> limit."""
    return {quantity: MARGIN * rounding for quantity, rounding in zip(QUANTITIES, ROUNDING[name], strict=True)}


def distances(case: Recording, ours: Run, exact: Run) -> dict[str, float]:
    """Quantity -> distance of a run from another."""
    moved = {done: {k: fingerprint(v) for k, v in exact.movement[done].items()} for done in exact.movement}
    weights, true_weights = final_weights(ours), final_weights(exact)
    kept, true_kept = statistics(ours), statistics(exact)
    drawn, true_drawn = (pictures(case, in_fp32(each.state.networks)) for each in (ours, exact))
    return {
        "losses": loss_error(replace(case, trace=exact.losses), ours),
        "first movement": joint_error(moved[1], ours.movement[1]),
        "movement": joint_error(moved[STEPS], ours.movement[STEPS]),
        "weights": max(weight_error(true_weights[name], weights[name]) for name in weights) / (STEPS * RATE),
        "state": max(joint_error({k: fingerprint(v) for k, v in true_kept[s].items()}, kept[s]) for s in kept),
        "pictures": max(float((drawn[name] - true_drawn[name]).abs().max()) for name in drawn),
    }


def in_fp32(networks: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Copies of networks in fp32."""
    return {name: copy.deepcopy(network).float() for name, network in networks.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or LONG:
        case = recording(name)
        exact = run(case, float64=True)
        found = [distances(case, run(case, perturbation=seed), exact) for seed in range(1, RUNS + 1)]
        values = ", ".join(f"{rounded_up(max(each[quantity] for each in found)):.1e}" for quantity in QUANTITIES)
        print(f'    "{name}": ({values}),', flush=True)
